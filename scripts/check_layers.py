#!/usr/bin/python3
"""Fails when an include goes against the order of the layers.

The order is src/LAYERS, base first. The rules:

* a file in src/<folder>/ includes its own folder and the folders above it in the list, written "folder/file.h";
* public headers are written <cairn/file.h>, everywhere;
* include/cairn/ includes <cairn/...> and the C++ standard library, nothing else;
* examples/ uses the public headers, nothing from src/;
* every folder of src/ that holds code is in the list.

Usage: check_layers.py [ROOT]. Prints file:line: reason for each breach. Exit code 0: none; 1: some; 2: no usable src/LAYERS.
"""

import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = (".h", ".cc", ".inc")


def read_layers(root):
    with open(os.path.join(root, "src", "LAYERS"), encoding="utf-8") as lines:
        names = [line.strip() for line in lines]
    layers = [name for name in names if name and not name.startswith("#")]
    if not layers:
        raise ValueError("src/LAYERS names no folder")
    if len(set(layers)) != len(layers):
        raise ValueError("src/LAYERS names a folder twice")
    return {name: rank for rank, name in enumerate(layers)}


def sources(root, top):
    for directory, subdirectories, files in os.walk(os.path.join(root, top)):
        subdirectories.sort()
        for name in sorted(files):
            if name.endswith(SUFFIXES):
                yield os.path.relpath(os.path.join(directory, name), root)


def includes(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            found = INCLUDE.match(line)
            if found:
                yield number, found.group(1) == '"', found.group(2)


def names_our_source(root, quoted, target):
    # <net/if.h> is the system's although src/net exists; an angle include is ours only when the file is there.
    return quoted or os.path.exists(os.path.join(root, "src", target))


def breach_in_src(root, layers, folder, quoted, target):
    """The reason why a file of src/<folder> may not include target, or None."""
    if target.startswith("cairn/"):
        return f'write <{target}>: public headers are included in angle brackets' if quoted else None
    if not names_our_source(root, quoted, target):
        return None
    if not quoted:
        return f'write "{target}": headers of src/ are included in quotes'
    parts = target.split("/")
    if len(parts) < 2 or ".." in parts:
        return f'"{target}" is not written from src/: use "folder/file.h"'
    other = parts[0]
    if other not in layers:
        return f'"{target}": unknown folder {other} (not in src/LAYERS)'
    if layers[other] > layers[folder]:
        return f"{folder} may not include {other}, which stands below it in src/LAYERS"
    return None


def breach_in_public_header(quoted, target):
    if quoted:
        return f'a public header includes only <cairn/...> and the standard library, not "{target}"'
    if target.startswith("cairn/") or re.fullmatch(r"[a-z0-9_]+", target):
        return None
    return f"a public header includes only <cairn/...> and the standard library, not <{target}>"


def breach_in_example(root, layers, quoted, target):
    if target.split("/")[0] in layers and names_our_source(root, quoted, target):
        return f'an example uses the public headers <cairn/...>, not "{target}"'
    return None


def check(root):
    """All breaches of the tree, as 'file:line: reason'."""
    layers = read_layers(root)
    breaches = []
    for path in sources(root, "src"):
        parts = path.split(os.sep)
        if len(parts) < 3:
            breaches.append(f"{path}:1: code stands in a folder of src/, not in src/ itself")
            continue
        if parts[1] not in layers:
            breaches.append(f"{path}:1: unknown folder {parts[1]} (not in src/LAYERS)")
            continue
        for line, quoted, target in includes(root, path):
            reason = breach_in_src(root, layers, parts[1], quoted, target)
            if reason:
                breaches.append(f"{path}:{line}: {reason}")
    for path in sources(root, "include"):
        for line, quoted, target in includes(root, path):
            reason = breach_in_public_header(quoted, target)
            if reason:
                breaches.append(f"{path}:{line}: {reason}")
    for path in sources(root, "examples"):
        for line, quoted, target in includes(root, path):
            reason = breach_in_example(root, layers, quoted, target)
            if reason:
                breaches.append(f"{path}:{line}: {reason}")
    return breaches


def main(arguments):
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        breaches = check(root)
    except (OSError, ValueError) as error:
        print(f"check_layers: {error}", file=sys.stderr)
        return 2
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
