"""What the public headers declare: functions, structs with their fields, status rows. Shared by the gates here."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
CHAPTERS = ["status", "types", "base", "device", "stream", "memory", "kernel", "op", "model", "day0", "backend"]


def text(chapter):
    source = (INCLUDE / "dgpu" / f"{chapter}.h").read_text()
    return re.sub(r"/\*.*?\*/", " ", source, flags=re.S)


def functions():
    """Name of every exported function, in header order. backend.h declares none."""
    names = []
    for chapter in CHAPTERS:
        names += re.findall(r"^DGPU_API\s[^;(]*?\b(dgpu\w+)\s*\(", text(chapter), re.M)
    return names


def structs(chapter):
    """(struct, [fields]) of a chapter, in order."""
    found = []
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\}\s*(\w+);", text(chapter), re.S):
        fields = []
        for declaration in body.split(";"):
            declaration = " ".join(declaration.split())
            if not declaration:
                continue
            pointer = re.search(r"\(\*(\w+)\)\s*\(", declaration)
            field = pointer or re.search(r"(\w+)\s*(?:\[[^\]]*\])*$", declaration)
            fields.append(field.group(1))
        found.append((name, fields))
    return found


def statuses():
    """(name, value, class, text) of the X-macro."""
    source = (INCLUDE / "dgpu" / "status.h").read_text()
    return re.findall(r'^\s*X\((\w+), (-?\d+), (\w+), "([^"]*)"\)', source, re.M)
