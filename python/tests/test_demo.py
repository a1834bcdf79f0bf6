"""`make demo`, with the programs of this build: what a newcomer sees, with and without a terminal."""

import os
import pty
import re
import subprocess
import sys
import threading
import urllib.request

from children import command_line
from master_process import ROOT

BIN = os.path.dirname(command_line())
PAGE = ROOT / "web" / "dist" / "index.html"
PATIENCE_SECONDS = 300


def test_the_training_ends_as_if_nobody_had_killed_it():
    command = ["scripts/demo", os.path.join(BIN, "quickstart")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 of 60" in done.stdout and "(identical)" in done.stdout


def on_a_terminal(command, when, then):
    """Runs it to its end on a terminal of its own and gives what it wrote; calls `then` with that, once, when it has
    written `when`, and presses Enter."""
    ours, its = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    said, pressed = b"", False
    try:
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # it has closed the terminal
                break
            if when.encode() in said and not pressed:
                pressed = True
                then(said.decode())
                os.write(ours, b"\n")
        assert process.wait(PATIENCE_SECONDS) == 0, said.decode()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        os.close(ours)
    return said.decode()


def test_the_master_can_be_looked_at_until_enter_is_pressed():
    """The link leads to the page; where none was built, the demo says how to have one."""

    def look(said):
        links = re.findall(r"http://127\.0\.0\.1:\d+/#code=\S+", said)
        assert len(links) == 2, said
        with urllib.request.urlopen(links[-1], timeout=60) as answer:
            assert answer.read() == PAGE.read_bytes()

    said = on_a_terminal([sys.executable, "scripts/demo_master", BIN], "Press Enter", look)
    assert "No step was lost and none was done twice." in said
    assert ("Press Enter" in said) == PAGE.exists()
    assert ("cairn master --data-dir ~/cairn" if PAGE.exists() else "scripts/web builds it") in said


def test_without_a_terminal_nobody_is_waited_for():
    command = [sys.executable, "scripts/demo_master", BIN]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Press Enter" not in done.stdout and "No step was lost" in done.stdout
    assert ("its page, as long as this demo runs" in done.stdout) == PAGE.exists()
