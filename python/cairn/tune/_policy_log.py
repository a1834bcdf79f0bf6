"""What a scheduler decided, in files for people."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from ._trial_files import TROUBLE, StoredFiles, is_remote, write_whole


class PolicyLog:
    """What a scheduler decided, for people: pbt_global.txt and pbt_policy_<trial>.txt, a line of JSON for
    each copy (trial, donor, their times, old and new config). It is made anew from the record at each
    start, when `replayed` are the lines of what was before. In a store it is written by start and finish.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._stored = StoredFiles(directory) if is_remote(directory) else None
        self._entries: list[dict[str, Any]] = []  # all, in a store

    def start(self, replayed: list[dict[str, Any]]) -> None:
        if self._stored is not None:
            self._entries = list(replayed)
            self.finish()
        if self._stored is not None or not replayed:
            return
        with contextlib.suppress(OSError):  # of a full disk; the next start makes it anew
            for name, lines in self._files(replayed):
                write_whole(os.path.join(self._directory, name), "".join(lines))

    def finish(self) -> None:
        """Nothing more will be decided."""
        if self._stored is None:
            return
        with contextlib.suppress(*TROUBLE):
            for name, lines in self._files(self._entries):
                self._stored.put(name, "".join(lines).encode())

    def append(self, entries: list[dict[str, Any]]) -> None:
        if self._stored is not None:
            self._entries += entries
            return
        if not entries:
            return
        with contextlib.suppress(OSError):
            for name, lines in self._files(entries):
                with open(os.path.join(self._directory, name), "a", encoding="utf-8") as file:
                    file.write("".join(lines))

    @staticmethod
    def _files(entries: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
        files: dict[str, list[str]] = {}
        for entry in entries:
            line = json.dumps(entry) + "\n"
            files.setdefault("pbt_global.txt", []).append(line)
            files.setdefault(f"pbt_policy_{entry['trial']}.txt", []).append(line)
        yield from files.items()
