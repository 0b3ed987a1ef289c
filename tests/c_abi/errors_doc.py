"""docs/errors.md from the X-macro in dgpu/status.h. Usage: errors_doc.py (checks) | errors_doc.py --write"""
import sys

from headers import ROOT, statuses

CLASSES = [
    ("OUTCOME", "Outcomes", "Not errors. The message record is not touched."),
    ("CALLER", "Caller", "The call is wrong; nothing has changed. Correct it."),
    ("RESOURCE", "Resource", "Something is used up, missing or busy. Free something, or try again later."),
    ("STREAM", "Stream", "One stream has failed; its later commands do not run. `dgpuStreamReset` makes it usable again."),
    ("DEVICE", "Device", "One device is gone. Other devices go on."),
    ("PROCESS", "Process", "The library in this process."),
]
rows = statuses()
lines = [
    "# Status codes",
    "",
    "Generated from `include/dgpu/status.h` by `tests/c_abi/errors_doc.py --write`; a test fails when the two differ.",
    "",
    "Every function returns a `dgpuStatus_t`: 0 is success, positive values are normal outcomes, negative values are errors.",
    "`dgpuGetLastError` gives the record of the thread's last failure: what is wrong, the argument or field at fault, the",
    "function, and for failed commands the operator, the backend and its own code. Codes are never renumbered or reused; a",
    "program handles a code that it does not know by `dgpuStatusClass`.",
]
for cls, title, meaning in CLASSES:
    lines += ["", f"## {title}", "", meaning, "", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {value} | `DGPU_STATUS_{name}` | {text} |" for name, value, c, text in rows if c == cls]
document = "\n".join(lines) + "\n"
path = ROOT / "docs/errors.md"
if "--write" in sys.argv:
    path.write_text(document)
elif not path.exists() or path.read_text() != document:
    print("docs/errors.md differs from include/dgpu/status.h; run tests/c_abi/errors_doc.py --write")
    sys.exit(1)
assert len(rows) == sum(1 for r in rows if any(r[2] == c[0] for c in CLASSES)), "a status has an unknown class"
print(f"errors: {len(rows)} status codes documented")
