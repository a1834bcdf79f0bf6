"""Where things are: paths, and URLs that no function for paths may touch."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Dict, Optional, Union
from urllib.parse import unquote

from . import _native
from ._arguments import text_argument
from ._user_files import place, shown_name
from ._wording import a_type
from .errors import Invalid, NotFound

PathLike = Union[str, "os.PathLike[str]"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TO_A_PARENT = re.compile(r"((?:.*/)?\.\.)((?:/.*)?)", re.DOTALL)  # up to the last "..", and the rest
_MANGLED = re.compile(r"(?:s3|hdfs|file):/[^/]")


def text_of(where: PathLike) -> str:
    """The path or URL as text, as it stands.

    >>> text_of("s3://bucket/runs/a")
    's3://bucket/runs/a'
    """
    if not isinstance(where, (str, os.PathLike)) or isinstance(os.fspath(where), bytes):
        raise Invalid(f"a path or a URL must be a str or a path object, not {a_type(where)}")
    text = text_argument(os.fspath(where), "a path")
    if _MANGLED.match(text):
        if not isinstance(where, str):
            raise Invalid(f"{text!r} was a URL before pathlib made a path of it; give URLs as str")
        scheme = text.split(":")[0]
        raise Invalid(
            f"{text!r} is a URL with one slash too few: write {scheme}://… (a directory of this "
            f"name is ./{scheme}:)"
        )
    return text


def is_remote(where: PathLike) -> bool:
    """On a bucket or a cluster: nothing there can be opened as a file.

    >>> is_remote("s3://bucket/a"), is_remote("runs/a"), is_remote("file:///runs/a")
    (True, False, False)
    """
    text = text_of(where)
    return bool(_URL.match(text)) and not text.lower().startswith("file://")


def local_path(where: PathLike) -> str:
    """The path of a place on this machine; of a file URL the one that it names.

    >>> local_path("file:///runs/a%20b"), local_path("runs/a")
    ('/runs/a b', 'runs/a')
    """
    text = text_of(where)
    if not text:
        raise Invalid("the path is empty")
    if not text.lower().startswith("file://"):
        return text
    path = text[len("file://") :]
    if not path.startswith("/"):
        raise Invalid(f"{text!r}: a file URL is file:///path, with three slashes")
    return unquote(path, errors="strict")


def absolute(where: PathLike) -> str:
    """An absolute path; the URL of a bucket or a cluster as it stands.

    >>> absolute("s3://bucket/runs"), absolute("file:///runs/a")
    ('s3://bucket/runs', '/runs/a')
    """
    if is_remote(where):
        return text_of(where)
    path = local_path(where)
    up = _TO_A_PARENT.fullmatch(path)
    try:
        # Behind a symbolic link ".." is where the link leads, as for every other program.
        return os.path.abspath(os.path.realpath(up[1]) + up[2] if up else path)
    except FileNotFoundError:
        raise NotFound(
            f"{text_of(where)!r} is in the working directory, and that is gone; give an absolute path"
        ) from None


def of_place(where: PathLike) -> str:
    """The same for all ways to write it, so that two can be compared.

    >>> of_place("s3://bucket/runs/"), of_place("/runs//a/")
    ('s3://bucket/runs', '/runs/a')
    """
    return absolute(where).rstrip("/") or "/"


def of_user(where: PathLike) -> str:
    """The same of what a user typed: ~ is the home directory; without a slash at the end.

    >>> of_user("s3://bucket/runs/")
    's3://bucket/runs'
    """
    text = text_of(where)
    found = absolute(text if _URL.match(text) else os.path.expanduser(text))
    return found.rstrip("/") or "/"


def of_this_machine(where: PathLike, name: str) -> str:
    """The path of a directory for plain files; a place elsewhere is refused.

    >>> of_this_machine("file:///runs/a", "into")
    '/runs/a'
    """
    if is_remote(where):
        raise Invalid(f"{name}: {text_of(where)!r} is not on this machine; give a local directory")
    return local_path(where)


class RemoteFiles(Mapping[str, str]):
    """The user's own files of a checkpoint on a bucket: names → local paths. Their names are looked
    up when they are first asked for: by the end of a restore the checkpoint may be gone, and what
    was restored is whole all the same. A file is fetched, and compared with its checksum, when its
    path is first asked for; it is gone with this object."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._fetched: Dict[str, str] = {}
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None

    @functools.cached_property
    def _names(self) -> Dict[str, str]:
        return {shown_name(name): name for name in _native.user_files(self._checkpoint)}

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._fetched:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="cairn-files-")
            path, is_file = place(self._folder.name, self._names[name])
            if is_file:
                _native.fetch_user_file(self._checkpoint, name, path)
            self._fetched[name] = path
        return self._fetched[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"RemoteFiles({self._checkpoint!r})"
