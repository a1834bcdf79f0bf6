"""What a script that nobody launched writes, as the log of its run."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Any, Iterator, List, Tuple


class _Copy:
    """In place of sys.stdout or sys.stderr: the stream itself gets everything first, and all else is asked of it."""

    def __init__(self, stream: Any, from_stderr: bool, client: Any) -> None:
        self._stream = stream
        self._from_stderr = from_stderr
        self._client = client
        self._pid = os.getpid()

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        # A fork (a worker of a data loader) has the streams, and nobody who would send its lines.
        if os.getpid() == self._pid:
            try:
                self._client.log(self._from_stderr, text)
            except UnicodeEncodeError:
                self._client.log(self._from_stderr, text.encode(errors="replace").decode())
        return int(written)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


def _stream_handlers() -> List[logging.StreamHandler]:
    loggers = [logging.getLogger()]
    loggers += [known for known in logging.root.manager.loggerDict.values() if isinstance(known, logging.Logger)]
    handlers = {id(h): h for logger in loggers for h in logger.handlers if isinstance(h, logging.StreamHandler)}
    return list(handlers.values())


class Output:
    """Copies sys.stdout, sys.stderr and what loggers write to them until it is closed."""

    def __init__(self, client: Any, rank: int) -> None:
        client.start_log(rank)
        self._client = client
        self._copies: List[Tuple[str, Any, _Copy]] = []
        for name, from_stderr in (("stdout", False), ("stderr", True)):
            stream = getattr(sys, name)
            if stream is None:  # as in a program without a console
                continue
            copy = _Copy(stream, from_stderr, client)
            setattr(sys, name, copy)
            self._copies.append((name, stream, copy))
            self._redirect(stream, copy)

    @staticmethod
    def _redirect(old: Any, new: Any) -> None:
        """Handlers keep the stream that they were made with."""
        for handler in _stream_handlers():
            if handler.stream is old:
                handler.setStream(new)

    def add_error(self, error: BaseException) -> None:
        """What Python is going to write of an error that ends the script, after everything was closed."""
        if not isinstance(error, (SystemExit, KeyboardInterrupt)):
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._client.log(True, text.encode(errors="replace").decode())

    def close(self) -> None:
        for name, stream, copy in self._copies:
            if getattr(sys, name) is copy:
                setattr(sys, name, stream)
            self._redirect(copy, stream)
        self._copies = []
        self._client.end_log()
