"""The user's own files of a checkpoint: which are in a directory, and directories without files."""

from __future__ import annotations

import os
from typing import Callable, Dict, Optional, Tuple, Union

from .errors import Invalid

Selector = Callable[[str], bool]
Content = Union[str, bytes]  # a path, or the bytes themselves

# A directory without files is stored as this empty file in it (src/trial/core_files.h).
EMPTY_DIRECTORY = ".cairn-empty-directory"


def files_in(directory: str, selector: Optional[Selector] = None) -> Dict[str, Content]:
    """Names (relative, with "/") → paths of the files below a directory; an empty directory has one
    file without bytes. Links to files count as files; a link to a directory is refused.

    >>> import tempfile
    >>> root = tempfile.mkdtemp()
    >>> os.makedirs(os.path.join(root, "logs/old"))
    >>> files_in(root)
    {'logs/old/.cairn-empty-directory': b''}
    """
    found: Dict[str, Content] = {}

    def walk(folder: str, prefix: str) -> None:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda e: e.name)
        if not inside and prefix and (selector is None or selector(prefix)):
            found[prefix + EMPTY_DIRECTORY] = b""
        for entry in inside:
            name = prefix + entry.name
            if entry.is_dir():
                if entry.is_symlink():
                    raise Invalid(f"{entry.path!r} is a link to a directory")
                walk(entry.path, name + "/")
            elif not entry.is_file():
                raise Invalid(f"{entry.path!r} is neither a file nor a directory")
            elif selector is None or selector(name):
                found[name] = entry.path

    walk(directory, "")
    return dict(sorted(found.items()))


def shown_name(name: str) -> str:
    """What a stored file is called for people: an empty directory by its own name.

    >>> shown_name("a/b.txt"), shown_name("logs/.cairn-empty-directory")
    ('a/b.txt', 'logs/')
    """
    folder, _, base = name.rpartition("/")
    return folder + "/" if base == EMPTY_DIRECTORY and folder else name


def place(root: str, name: str) -> Tuple[str, bool]:
    """The path of a stored file below a directory, and whether it is there to be written: of an empty
    directory the directory is, which is made. Directories above a file are made as well."""
    shown = shown_name(name)
    path = os.path.join(root, *shown.rstrip("/").split("/"))
    if shown.endswith("/"):
        os.makedirs(path, exist_ok=True)
        return path, False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path, True
