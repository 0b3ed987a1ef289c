"""Struct layouts are pinned in layout.c, which fails to compile when one moves. This script checks that layout.c covers
every struct and field of the headers, and with --write appends what is missing (as the compiler lays it out now).
Never change a number that is there: a published field does not move. Usage: layout_gate.py CC [--write]"""
import pathlib
import re
import subprocess
import sys
import tempfile

from headers import CHAPTERS, INCLUDE, structs

LAYOUT = pathlib.Path(__file__).with_name("layout.c")


def measure(cc, wanted):
    lines = ['#include <stdio.h>', '#include "dgpu.h"', '#include "dgpu/backend.h"', "int main(void) {"]
    for name, fields in wanted:
        for field in fields:
            lines.append(f'printf("FIELD({name}, {field}, %zu, %zu)\\n", offsetof({name}, {field}), '
                         f"sizeof((({name} *)0)->{field}));")
        lines.append(f'printf("END({name}, {fields[-1]}, %zu)\\n\\n", sizeof({name}));')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "measure.c"
        source.write_text("\n".join(lines))
        subprocess.run([cc, "-w", f"-I{INCLUDE}", str(source), "-o", f"{folder}/measure"], check=True)
        return subprocess.run([f"{folder}/measure"], check=True, capture_output=True, text=True).stdout


def padding(source):
    """Fields follow each other without a gap: a field added later in padding would read old garbage."""
    wrong, end, last = [], 0, None
    for name, field, offset, size in re.findall(r"^FIELD\((\w+), (\w+), (\d+), (\d+)\)", source, re.M):
        if name != last:
            end, last = 0, name
        if int(offset) != end:
            wrong.append(f"{name} has padding before {field}")
        end = int(offset) + int(size)
    return wrong


def main():
    cc = sys.argv[1]
    pinned = set(re.findall(r"^FIELD\((\w+), (\w+),", LAYOUT.read_text(), re.M))
    ended = dict(re.findall(r"^END\((\w+), (\w+),", LAYOUT.read_text(), re.M))
    declared = [s for chapter in CHAPTERS for s in structs(chapter)]
    missing = [(n, f) for n, f in declared if n not in ended]
    if "--write" in sys.argv:
        LAYOUT.write_text(LAYOUT.read_text() + measure(cc, missing) if missing else LAYOUT.read_text())
        return 0
    wrong = [f"{n} is not pinned" for n, _ in missing]
    wrong += [f"{n}.{f} is not pinned" for n, fields in declared for f in fields if n in ended and (n, f) not in pinned]
    wrong += [f"END of {n} names {ended[n]}, its last field is {f[-1]}" for n, f in declared
              if n in ended and ended[n] != f[-1]]
    wrong += padding(LAYOUT.read_text())
    names = {n for n, _ in declared}
    wrong += [f"{n} is pinned but not declared any more" for n in ended if n not in names]
    print("\n".join(wrong) or f"layout: {len(declared)} structs, {len(pinned)} fields pinned")
    return 1 if wrong else 0


sys.exit(main())
