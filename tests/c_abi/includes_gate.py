"""One way down: a room includes only itself and the rooms below. Backends and tools see less. See docs/architecture.md."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORDER = ["base", "backend", "runtime", "memory", "ops", "graph", "model", "api"]
# What a folder may include, besides system and third-party headers and the public ones.
ALLOWED = {room: set(ORDER[: i + 1]) for i, room in enumerate(ORDER)}
FOLDERS = {ROOT / "src" / room: allowed for room, allowed in ALLOWED.items()}
ROOMS = set(ORDER) | {"backends"}


def quoted(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if found:
            yield number, found.group(1) or found.group(2)


def check(folder, rule):
    problems = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix in {".h", ".hpp", ".inl", ".c", ".cpp"}):
        for number, name in quoted(path):
            reason = rule(path, name)
            if reason:
                problems.append(f"{path.relative_to(ROOT)}:{number}: includes {name}: {reason}")
    return problems


def room_rule(room, allowed):
    def rule(path, name):
        if name.startswith(("/", "../")) and ".." in name:
            return "paths start at src/"
        first = name.split("/")[0]
        if first in ROOMS and "/" in name and first not in allowed:
            return f"{room} is below {first}"
        return None

    return rule


def backend_rule(own):
    def rule(path, name):
        first = name.split("/")[0]
        if ".." in name:
            return "paths start at src/"
        if first == "backends" and not name.startswith(("backends/kit/", f"backends/{own}/")):
            return "a backend sees the installed headers, backends/kit and itself"
        if first in ORDER and "/" in name and not (path.parent / name).exists():
            return "a backend sees the installed headers, backends/kit and itself"
        return None

    return rule


def public_rule(path, name):
    first = name.split("/")[0]
    if ".." in name or (first in ROOMS and "/" in name):
        return "only the public header is visible here"
    return None


def header_rule(path, name):
    if name in {"stddef.h", "stdint.h", "string.h"} or name.startswith("dgpu/"):
        return None
    return "a public header includes stddef.h, stdint.h, string.h and dgpu/ only"


problems = []
for room in ORDER:
    problems += check(ROOT / "src" / room, room_rule(room, ALLOWED[room]))
for folder in sorted((ROOT / "src/backends").iterdir()):
    if folder.is_dir():
        problems += check(folder, backend_rule(folder.name))
problems += check(ROOT / "tools", public_rule)
problems += check(ROOT / "include", header_rule)
print("\n".join(problems) or "includes: one way down")
sys.exit(bool(problems))
