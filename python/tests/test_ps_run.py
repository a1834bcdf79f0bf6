"""`cairn ps run`: whole jobs as processes, supervised."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request

import pytest

import cairn
import cairn.ps

ROOT = pathlib.Path(__file__).parents[2]
CAIRN = os.path.join(os.environ.get("CAIRN_BIN_DIR", "build/dev/bin"), "cairn")

TRAIN = """
import json, os, sys, time
import numpy as np
import cairn, cairn.ps

steps, output = int(sys.argv[1]), sys.argv[2]
client = cairn.ps.Client()
if client.trainer_id == 1:
    steps -= int(os.environ.get("EARLIER", "0"))
table = client.table("t", 4, optimizer=cairn.optimizers.Adagrad(0.1))
print("begin", client.step, flush=True)
while client.step < steps:
    step = client.step
    # What is done to the job at this step is done before it goes on.
    while step == int(os.environ.get("WAITS_AT", "-1")) and not os.path.exists(output + ".go"):
        time.sleep(0.01)
    try:
        assert client.state == (None if step == 0 else {"next": step})
        ids = np.random.default_rng([step, client.trainer_id]).integers(0, 100, 32)
        table.apply_gradients(ids, np.sin(table.lookup(ids) + ids[:, None]))
        client.end_step({"next": step + 1})
        print("step", step, flush=True)
    except cairn.ps.RolledBack as back:
        print("back", back.step, flush=True)
rows = {str(k): [w.hex(), s.hex(), f, v] for k, (w, s, f, v) in sorted(table.rows().items())}
if "EARLIER" not in os.environ:
    client.barrier()
if client.trainer_id == 0:
    json.dump(rows, open(output, "w"))
if "SILENT" in os.environ:
    os._exit(0)
client.close()
"""


class Job:
    def __init__(self, tmp_path, steps, *flags, **variables):
        self.output = tmp_path / "rows.json"
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        command = [CAIRN, "ps", "run", "--servers", "2", "--trainers", "2"]
        command += ["--dir", str(tmp_path / "repository"), "--full-secs", "0"]
        command += [*(flags or ("--full-steps", "20", "--incremental-steps", "5")), "--"]
        command += [sys.executable, str(script), str(steps), str(self.output)]
        environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
        environment.update(variables)
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = []

    def until(self, word, number):
        """Reads on until trainer 0 says so."""
        for line in self.process.stdout:
            self.lines.append(line)
            words = line.split()
            if words[:2] == ["[trainer_0]", word] and int(words[2]) >= number:
                return
        raise AssertionError("".join(self.lines) + self.process.stderr.read())

    def until_said(self, text):
        """Reads on until the supervisor itself says so."""
        said = []
        for line in self.process.stderr:
            said.append(line)
            if text in line:
                return
        raise AssertionError("".join(said))

    def go_on(self):
        """After WAITS_AT."""
        pathlib.Path(f"{self.output}.go").touch()

    def children(self):
        """All servers and trainers, each kept by a shim."""
        return descendants(self.process.pid)

    def server(self, index):
        for child in self.children():
            words = []
            with contextlib.suppress(OSError):  # it has ended
                words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"pserver" in words and words[words.index(b"--index") + 1] == str(index).encode():
                return child
        raise AssertionError("no such server")

    def end(self):
        out, err = self.process.communicate(timeout=60)
        self.lines += out.splitlines(keepends=True)
        return self.process.returncode, "".join(self.lines), err

    def rows(self):
        return json.loads(self.output.read_text())


def undisturbed(tmp_path, steps):
    job = Job(tmp_path, steps)
    code, out, err = job.end()
    assert code == 0, out + err
    return job.rows()


def descendants(pid):
    """The processes below one; those that end meanwhile, as trainers and threads do, are left out."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    found += [int(child), *descendants(child)]
    return found


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_job_ends_with_a_checkpoint_of_its_last_step(tmp_path):
    job = Job(tmp_path, 12)
    code, out, err = job.end()
    assert code == 0, out + err
    assert "[trainer_0] begin 0" in out and "[trainer_1] begin 0" in out
    assert "done; the last checkpoint is of step 12" in out
    with cairn.CheckpointManager(str(tmp_path / "repository"), read_only=True) as m:
        latest = m.latest()
    assert latest.step == 12
    tree = {p.relative_to(latest.path).as_posix() for p in pathlib.Path(latest.path).rglob("*")}
    assert {
        "__lookup_table__/ps_0.safetensors",
        "__lookup_table__/ps_1.safetensors",
        "trainer_0/state.json",
        "trainer_1/state.json",
        "trainer_1/step_id",
        "ps_1/job.json",
    } <= tree
    # The same command again has nothing left to do.
    code, out, err = Job(tmp_path, 12).end()
    assert code == 0 and "[trainer_0] begin 12" in out, out + err


def test_prometheus_scrapes_the_servers_of_a_job(tmp_path):
    job = Job(tmp_path, 6, "--full-steps", "5", "--metrics", "0", WAITS_AT="4")
    ports = {}
    for line in job.process.stderr:
        if found := re.match(r"\[(ps_\d)\] metrics are at port (\d+)", line):
            ports[found[1]] = found[2]
        if len(ports) == 2:
            break
    assert sorted(ports) == ["ps_0", "ps_1"]
    job.until("step", 3)
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert "\ncairn_ps_up 1\n" in page and "\ncairn_ps_step 4\n" in page
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert json.load(answer) == {"serving": True}
    job.go_on()
    code, out, err = job.end()
    assert code == 0, out + err


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = undisturbed(tmp_path / "a", 60)
    job = Job(tmp_path / "b", 60, WAITS_AT="18")
    job.until("step", 17)
    job.process.send_signal(signal.SIGINT)
    job.until_said("interrupted: a last checkpoint is made")
    job.go_on()
    code, out, err = job.end()
    assert code != 0 and "interrupted; the last checkpoint is of step" in out, out + err
    job = Job(tmp_path / "b", 60)
    code, out, err = job.end()
    assert code == 0, out + err
    begun = int(out.split("[trainer_0] begin ")[1].split()[0])
    assert begun > 17
    assert job.rows() == expected


def test_the_supervisor_may_be_killed_too(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = undisturbed(tmp_path / "a", 60)
    job = Job(tmp_path / "b", 60, WAITS_AT="31")
    job.until("step", 30)
    children = job.children()
    assert len(children) == 8, "four, each with its shim"
    job.process.kill()
    job.process.communicate()
    while any(alive(child) for child in children):
        pass
    job = Job(tmp_path / "b", 60)
    code, out, err = job.end()
    assert code == 0, out + err
    assert job.rows() == expected


def test_with_a_log_nothing_is_repeated(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = undisturbed(tmp_path / "a", 40)
    flags = ["--recovery", "log", "--log-dir", str(tmp_path / "logs"), "--log-level", "synced"]
    flags += ["--full-steps", "20", "--incremental-steps", "5"]
    job = Job(tmp_path / "b", 40, *flags, WAITS_AT="18")
    job.until("step", 17)
    os.kill(job.server(0), signal.SIGKILL)
    job.go_on()
    job.until("step", 25)
    # Then all of it at once: what was acknowledged is in the logs.
    children = job.children()
    job.process.kill()
    job.process.communicate()
    while any(alive(child) for child in children):
        pass
    again = Job(tmp_path / "b", 40, *flags)
    code, out, err = again.end()
    assert code == 0, out + err
    assert "back" not in "".join(job.lines) + out
    assert int(out.split("[trainer_0] begin ")[1].split()[0]) >= 26
    assert again.rows() == expected
    assert (tmp_path / "logs" / "ps_1").is_dir()


def test_a_trainer_that_had_ended_is_wanted_again_when_the_job_goes_back(tmp_path):
    # Trainer 1 ends 20 steps before trainer 0, and nothing is saved: all of its steps are repeated.
    never = ["--full-steps", "0", "--incremental-steps", "0"]
    results = []
    for name in "ab":
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, 40, *never, EARLIER="20", WAITS_AT="31")
        if name == "b":
            job.until("step", 30)
            os.kill(job.server(1), signal.SIGKILL)
        job.go_on()
        code, out, err = job.end()
        assert code == 0, out + err
        results.append(job.rows())
        assert ("[trainer_1] the job went back: started again" in err) == (name == "b")
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("recovery", ["exact", "partial", "log"])
def test_who_had_ended_is_not_missed_when_a_server_is_lost(tmp_path, recovery, mode):
    # Trainer 1 ends 20 steps before trainer 0; the checkpoints since then know that it has.
    flags = ["--incremental-steps", "5", "--recovery", recovery, "--mode", mode]
    job = Job(tmp_path, 40, *flags, EARLIER="20", WAITS_AT="33")
    job.until("step", 32)
    os.kill(job.server(1), signal.SIGKILL)
    job.go_on()
    code, out, err = job.end()
    assert code == 0, out + err
    assert f"the last checkpoint is of step {40 if mode == 'sync' else 60}" in out
    # And when everything is, the same command again comes to the same.
    code, out, err = Job(tmp_path, 40, *flags, EARLIER="20").end()
    assert code == 0, out + err


# What is done beside steps: by asynchronous pushes, and to rows directly.
BESIDE = """
import sys
import numpy as np
import cairn, cairn.ps

client = cairn.ps.Client()
table = client.table("t", 2, optimizer=cairn.optimizers.SGD(1.0),
                     initializer=cairn.initializers.Constant(0))
print("begin", table.size(), table.lookup([1], create=False).tolist(), flush=True)
while client.step < 4:
    table.apply_gradients([1, 100 + client.step], np.ones((2, 2), np.float32))
    client.end_step()
if sys.argv[1] == "push":
    for i in range(5):
        table.apply_gradients([1, 200 + i], np.ones((2, 2), np.float32))
elif sys.argv[1] == "assign":
    table.assign([1], [[7.0, 7.0]])
else:
    table.erase([100, 101])
client.close()
"""


@pytest.mark.parametrize(
    "what, mode, size, weight",
    [("push", "async", 10, -9.0), ("assign", "sync", 5, 7.0), ("erase", "sync", 3, -4.0)],
)
def test_what_is_done_beside_steps_is_saved_when_the_job_ends(tmp_path, what, mode, size, weight):
    script = tmp_path / "beside.py"
    script.write_text(BESIDE)
    command = [CAIRN, "ps", "run", "--servers", "2", "--dir", str(tmp_path / "r"), "--mode", mode]
    # A checkpoint of the last step, before what comes after it.
    command += ["--full-secs", "0", "--full-steps", "4", "--", sys.executable, str(script), what]
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
    for begin in ("begin 0 [[0.0, 0.0]]", f"begin {size} [[{weight}, {weight}]]"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert begin in done.stdout, done.stdout


def test_a_job_quantizes_its_increments_when_told_to(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import cairn.ps\n"
        "client = cairn.ps.Client()\n"
        "print('quantize', [server['quantize'] for server in client.status()])\n"
        "client.close()\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
    for flags, told in (([], "[False, False]"), (["--quantize"], "[True, True]")):
        command = [CAIRN, "ps", "run", "--servers", "2", "--dir", str(tmp_path / f"r{len(flags)}")]
        command += [*flags, "--", sys.executable, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"quantize {told}" in done.stdout, done.stdout


def test_a_trainer_that_ends_without_a_word_has_left(tmp_path):
    # Trainer 1 ends three steps earlier: trainer 0 must not wait for it.
    job = Job(tmp_path, 12, SILENT="1", EARLIER="3")
    code, out, err = job.end()
    assert code == 0, out + err
    assert "done; the last checkpoint is of step 12" in out
    with cairn.CheckpointManager(str(tmp_path / "repository"), read_only=True) as m:
        assert m.latest().step == 12


def test_a_command_that_never_joins_ends_the_job(tmp_path):
    command = [CAIRN, "ps", "run", "--dir", str(tmp_path / "r"), "--max-restarts", "2", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "trainer_0 ended 3 times without having joined the job" in done.stderr


def test_a_command_that_is_misspelt_ends_the_job_at_once(tmp_path):
    command = [CAIRN, "ps", "run", "--dir", str(tmp_path / "r"), "--", "/nonexistent/python"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "cairn: trainer_0 cannot be started: cannot run '/nonexistent/python': No such file or directory"
    )
    assert done.stderr.count("started again") == 2, done.stderr  # of the 20 that a loss may have


def test_a_command_that_always_fails_ends_the_job(tmp_path):
    command = [CAIRN, "ps", "run", "--dir", str(tmp_path / "r"), "--max-restarts", "2", "--"]
    command += [sys.executable, "-c", textwrap.dedent("raise SystemExit('no data')")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "[trainer_0] no data" in done.stderr
    assert "trainer_0 was lost 3 times in a row (exit code 1)" in done.stderr


def test_a_job_that_cannot_begin_with_what_it_was_told_to_ends(tmp_path):
    command = [CAIRN, "ps", "run", "--dir", str(tmp_path / "r"), "--load", str(tmp_path / "none")]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cairn: ps_0 cannot serve, however often it is started: "), done.stderr
    assert f'the job cannot begin with "{tmp_path / "none"}": ' in last
    # Once for each of its three starts, not once for each look.
    assert done.stderr.count("[ps_0] cairn: the job cannot begin") == 3


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--dir", "s3://"], '"s3://" names no host'),
        (["--dir", "r", "--notify", "nowhere"], '--notify: "nowhere" is no http:// or https:// URL'),
    ],
    ids=["dir", "notify"],
)
def test_a_job_whose_servers_cannot_begin_ends_soon(tmp_path, flags, said):
    command = [CAIRN, "ps", "run", *flags, "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cairn: ps_0 cannot serve, however often it is started: "), done.stderr
    assert said in last
    assert done.stderr.count("[ps_0] lost: exit code 3") == 2  # and not ten times


def test_a_level_of_logs_is_refused_where_there_is_no_log(tmp_path):
    command = [CAIRN, "ps", "run", "--dir", tmp_path / "r", "--log-level", "synced", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "log level synced is for recovery log" in done.stderr
    with pytest.raises(cairn.Invalid, match="log level synced is for recovery log"):
        cairn.ps.Server(tmp_path / "r", log_level="synced")


def test_a_job_without_a_whole_checkpoint_ends_and_lists_them(tmp_path):
    job = Job(tmp_path, 5)
    code, out, err = job.end()
    assert code == 0, out + err
    for file in (tmp_path / "repository").glob("*/__lookup_table__/ps_1.safetensors"):
        whole = file.read_bytes()
        file.unlink()  # its bytes may be shared with another checkpoint
        file.write_bytes(whole[:-1])
    code, out, err = Job(tmp_path, 10).end()
    assert code == 1
    said = err[err.rindex("\ncairn: ") :]  # over several lines
    assert "cannot serve, however often it is started: " in said, err
    assert "\n  checkpoint_000005 (step 5): " in said, err


@pytest.mark.parametrize("variant", ["train.py", "ctr_servers"])
@pytest.mark.parametrize("recovery", ["exact", "log"])
def test_the_example_comes_to_the_same_with_two_losses(recovery, variant):
    command = [sys.executable, "examples/ctr/run.py", "--steps", "60", "--incremental-steps", "10"]
    command += ["--recovery", recovery]
    if variant == "ctr_servers":
        # So fast that without pauses it is over before anybody could kill something.
        command += ["--trainer", os.path.join(os.path.dirname(CAIRN), variant), "--pause", "0.02"]
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "what was learned is the same to the bit" in done.stdout
    assert "with 2 losses" in done.stdout
    assert ("nobody went back" in done.stdout) == (recovery == "log")


@pytest.mark.parametrize("variant", ["train.py", "ctr_servers"])
def test_the_example_run_again_says_that_its_steps_are_done(tmp_path, variant):
    directory = tmp_path / "ctr"
    command = [sys.executable, "examples/ctr/run.py", "--incremental-steps", "10", "--pause", "0.02"]
    command += ["--directory", str(directory)]
    if variant == "ctr_servers":
        command += ["--trainer", os.path.join(os.path.dirname(CAIRN), variant)]
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
    for again in (False, True):
        done = subprocess.run(
            [*command, "--steps", "30"],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "what was learned is the same to the bit" in done.stdout
        assert ("with 0 losses" in done.stdout) == again
        assert ("had steps behind it: remove it" in done.stdout) == again


@pytest.mark.parametrize("flag", ["--mode", "--recovery", "--log-level", "--launcher", "--servers"])
def test_a_wrong_word_is_wrong_usage(tmp_path, flag):
    command = [CAIRN, "ps", "run", "--dir", tmp_path / "r", flag, "nonsense", "--", "true"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert flag in refused.stderr and "nonsense" in refused.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("value", ["nan", "-1", "1e300"])
@pytest.mark.parametrize("flag", ["--full-secs", "--incremental-secs", "--full-steps"])
def test_an_interval_that_is_none_is_wrong_usage(tmp_path, flag, value):
    command = [CAIRN, "ps", "run", "--dir", tmp_path / "r", f"{flag}={value}", "--", "true"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"{flag}: must be a number from 0 to 1,000,000,000, not {value}" in refused.stderr
    assert not (tmp_path / "r").exists()


def test_help_tells_the_defaults():
    shown = subprocess.run([CAIRN, "ps", "run", "--help"], capture_output=True, text=True).stdout
    assert "=sync" in shown and "=exact" in shown and "=600" in shown


@pytest.mark.parametrize("answer", [202, 401])
def test_who_serves_is_told_of_commits_and_need_not_care(tmp_path, answer):
    told = []

    class Served(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            there = {path.parent.name for path in (tmp_path / "repository").glob("*/manifest.json")}
            told.append((self.path, self.headers["Authorization"], there))
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Served) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{served.server_port}/v2/models/m/notify"
        flags = ("--full-steps", "20", "--incremental-steps", "5", "--notify", url)
        code, out, err = Job(tmp_path, 30, *flags, CAIRN_TOKEN="secret").end()
        served.shutdown()
    assert code == 0, out + err
    assert {request[:2] for request in told} == {("/v2/models/m/notify", "Bearer secret")}
    latest = cairn.CheckpointManager(tmp_path / "repository", read_only=True).latest()
    assert pathlib.Path(latest.path).name in told[-1][2], "also the last one was told of"
    assert (out + err).count("was not told of a checkpoint") == (answer != 202)
