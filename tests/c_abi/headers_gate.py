"""Each public header compiles alone, as C99, C11 and C++17, without a warning. Usage: headers_gate.py CC CXX"""
import subprocess
import sys

from headers import INCLUDE

cc, cxx = sys.argv[1:3]
warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wshadow", "-Wconversion"]
c_only = ["-Wstrict-prototypes", "-Wmissing-prototypes", "-Wold-style-definition"]
failed = 0
for header in sorted(INCLUDE.rglob("*.h")):
    name = header.relative_to(INCLUDE)
    for compiler, language, standard in [(cc, "c", "c99"), (cc, "c", "c11"), (cxx, "c++", "c++17")]:
        command = [compiler, f"-std={standard}", "-x", language, "-fsyntax-only", f"-I{INCLUDE}", *warnings]
        command += c_only if language == "c" else []
        # Included twice: the guard must work.
        code = f'#include "{name}"\n#include "{name}"\n'
        run = subprocess.run([*command, "-"], input=code, text=True, capture_output=True)
        if run.returncode:
            failed += 1
            print(f"{name} as {standard}:\n{run.stderr}")
print("headers: all compile alone" if not failed else f"headers: {failed} failures")
sys.exit(failed > 0)
