"""Real child processes that run a piece of Python with the package."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap

# Started in the background by a shell, a process inherits that Ctrl-C is ignored.
PREAMBLE = """import gc, os, random, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import cairn
"""
TIMEOUT = 60


def command_line():
    """The cairn command: of CAIRN_BIN_DIR, of the build tree, or on PATH."""
    root = pathlib.Path(__file__).parents[2]
    places = [os.environ.get("CAIRN_BIN_DIR"), root / "build/dev/bin", root / "build/release/bin"]
    for place in filter(None, places):
        if (pathlib.Path(place) / "cairn").is_file():
            return str(pathlib.Path(place) / "cairn")
    found = shutil.which("cairn")
    assert found, "there is no cairn command: build it, or set CAIRN_BIN_DIR to its directory"
    return found


class Child:
    """A process that runs `code`; it says things by print, and is told things by lines."""

    def __init__(self, code, *args):
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", PREAMBLE + textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def line(self):
        """The next line that it prints."""
        return self._process.stdout.readline().rstrip("\n")

    def expect(self, text):
        line = self.line()
        if line != text:
            self._process.kill()
            raise AssertionError(f"expected {text!r}, got {line!r}: {self._process.stderr.read()}")

    def tell(self, text=""):
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def interrupt(self):
        os.kill(self.pid, signal.SIGINT)

    def wait(self):
        """Until it has ended, though others may still hold its pipes."""
        self._process.wait(TIMEOUT)

    def kill(self):
        """SIGKILL; gives what it printed before."""
        self._process.kill()
        return self._process.communicate(timeout=TIMEOUT)[0]

    def end(self):
        """(exit status, all further output, all of stderr)."""
        try:
            out, err = self._process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            raise AssertionError(f"it did not end; it said {out!r} {err!r}") from None
        return self._process.returncode, out, err


def run(code, *args):
    """Runs `code` to its good end; gives what it printed."""
    status, out, err = Child(code, *args).end()
    assert status == 0, err
    return out
