"""The service file of a master: its command starts one, and what ends it leaves the trainings alone."""

import configparser
import pathlib
import shlex
import shutil
import subprocess

from master_process import PROGRAM, ROOT, Master

UNIT = ROOT / "packaging" / "cairn-master.service"


def service():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    return unit["Service"]


def test_its_command_is_one_of_this_program(tmp_path):
    words = shlex.split(service()["ExecStart"])
    assert words[:2] == ["/usr/local/bin/cairn", "master"] and words[-1] == "$CAIRN_MASTER_FLAGS"
    flags = [str(tmp_path / "data") if word.startswith("/") else word for word in words[2:-1]]
    # As somebody would write them into /etc/cairn/master.env.
    flags += ["--listen", "127.0.0.1:0", "--log-days", "90", "--storage", str(tmp_path / "checkpoints")]
    master = Master(tmp_path)
    process = subprocess.Popen(
        [str(PROGRAM), "master", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=master.environment(),
    )
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "http://127.0.0.1:" in line:
                break
        assert "http://127.0.0.1:" in said[-1], said
        assert (tmp_path / "data" / "token").exists()
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_trainings_outlive_it():
    assert service()["KillMode"] == "process"
    assert service()["Restart"] == "always"


def test_systemd_takes_it(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:  # a machine without systemd has no use for the file
        return
    text = UNIT.read_text().replace("/usr/local/bin/cairn", str(PROGRAM)).replace("User=cairn\n", "")
    copy = pathlib.Path(tmp_path / UNIT.name)
    copy.write_text(text)
    done = subprocess.run([program, "verify", copy], capture_output=True, text=True)
    assert done.returncode == 0 and UNIT.name not in done.stderr, done.stderr
