"""Functions declared in the headers = symbols in the version script = symbols that the library exports. Usage:
symbols_gate.py LIBDGPU_SO"""
import re
import subprocess
import sys

from headers import ROOT, functions

declared = functions()
script = (ROOT / "src/api/libdgpu.map").read_text()
nodes = re.findall(r"^(DGPU_\d+\.\d+)\s*\{(.*?)\}", script, re.M | re.S)
mapped = [name for _, body in nodes for name in re.findall(r"^\s*(dgpu\w+);", body, re.M)]
listing = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True).stdout
exported = [line.split()[-1] for line in listing.splitlines() if line.split()[1] != "A"]
problems = []
for names, what in [(declared, "declared"), (mapped, "in the map")]:
    problems += [f"{n} is {what} twice" for n in sorted(set(names)) if names.count(n) > 1]
problems += [f"{n} is declared but not in src/api/libdgpu.map" for n in declared if n not in mapped]
problems += [f"{n} is in src/api/libdgpu.map but not declared" for n in mapped if n not in declared]
bare = [re.sub(r"@.*", "", symbol) for symbol in exported]
problems += [f"{n} is declared but not exported" for n in declared if n not in bare]
problems += [f"{s} is exported but not declared" for s, n in zip(exported, bare) if n not in declared]
problems += [f"{s} carries no version" for s, n in zip(exported, bare) if n in declared and "@@DGPU_" not in s]
if "*" in "".join(body.split("local:")[0] for _, body in nodes):
    problems.append("the map names symbols by a pattern; name each one")
print("\n".join(problems) or f"symbols: {len(declared)} declared, mapped and exported")
sys.exit(bool(problems))
