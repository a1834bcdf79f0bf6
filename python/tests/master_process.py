"""A real master for tests: a process with a data directory, asked over REST and by the command line."""

import contextlib
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "core_api"
HELD = ROOT / "python" / "tests" / "held_run.py"
PROGRAM = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "dev" / "bin")) / "cairn"
PATIENCE_SECONDS = 120
ENDED = ("COMPLETED", "CANCELED", "ERROR")


def held(script, after, until, seconds="0.001"):
    """An entrypoint that waits after so many steps, for a file or for its end (held_run.py)."""
    return f"env HOLD_AFTER={after} HOLD_UNTIL={until} python3 {HELD} {script}.py {seconds}"


def wait_until_held(until):
    """Until such a run waits: whatever it is told now, it sees in the middle of its steps."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(f"{until}.held"):
        assert time.monotonic() < deadline, f"no run waits for {until}"
        time.sleep(0.02)


class Refused(Exception):
    """An answer that is an error, with its status and body."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Master:
    """One data directory, and the process that serves it (or none)."""

    def __init__(self, directory, database=None, slots=2, certificates=None):
        self.directory = pathlib.Path(directory)
        self.database = database
        self.slots = slots
        self.certificates = certificates  # a directory with ca.crt, server.crt, server.key: then TLS
        self.port = 0
        self.process = None
        self.said = []
        self._reader = None

    @property
    def url(self):
        return f"http{'s' if self.certificates else ''}://127.0.0.1:{self.port}"

    def environment(self, **more):
        environment = dict(os.environ)
        environment.update(
            HOME=str(self.directory / "home"),
            XDG_RUNTIME_DIR=str(self.directory / "home" / "run"),
            XDG_CONFIG_HOME=str(self.directory / "home" / "config"),
            PYTHONPATH=str(ROOT / "python"),
            PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            CAIRN_MASTER=self.url,
            **({"CAIRN_MASTER_CA": str(self.certificates / "ca.crt")} if self.certificates else {}),
        )
        environment.update(more)
        environment.pop("CAIRN_TOKEN", None)
        return environment

    def start(self, *flags, patient=True, **variables):
        """Returns when it answers. The same port each time, so that living runs find it again.

        Args:
            patient: False for one that may end before it answers.
            variables: of its environment.
        """
        (self.directory / "home" / "run").mkdir(parents=True, exist_ok=True)
        command = [PROGRAM, "master", "--data-dir", self.directory / "data", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--slots", str(self.slots), *(["--db", self.database] if self.database else []), *flags]
        if self.certificates:
            for flag, name in (("cert", "server.crt"), ("key", "server.key"), ("ca", "ca.crt")):
                command += [f"--tls-{flag}", self.certificates / name]
        environment = self.environment()
        environment.pop("CAIRN_MASTER_CA", None)  # its runs hear of the authority from it alone
        environment.update(variables)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        ready = threading.Event()

        def read(process):
            for line in process.stdout:
                self.said.append(line.rstrip("\n"))
                found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
                if found and not ready.is_set():
                    self.port = int(found.group(1))
                    ready.set()
            ready.set()

        self._reader = threading.Thread(target=read, args=(self.process,), daemon=True)
        self._reader.start()
        assert ready.wait(PATIENCE_SECONDS), "the master said nothing"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            if not patient and self.process.poll() is not None:
                return self
            assert self.process.poll() is None, "the master ended:\n" + "\n".join(self.said[-20:])
            with contextlib.suppress(OSError, Refused):
                self.get("/healthz")
                return self
            assert time.monotonic() < deadline, "the master does not answer:\n" + "\n".join(self.said[-20:])
            time.sleep(0.02)

    def line(self, words):
        """The first line with the words; it may come after the first answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := [line for line in self.said if words in line]):
            assert time.monotonic() < deadline, f"no line with {words!r}:\n" + "\n".join(self.said[-20:])
            time.sleep(0.02)
        return found[0]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def stop(self):
        """In good order; its runs go on."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join()

    def token(self):
        return (self.directory / "data" / "token").read_text().strip()

    def ask(self, method, path, body=None, *, token=None, headers=None, raw=False):
        """The answer's JSON (or bytes); raises Refused."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        trust = ssl.create_default_context(cafile=str(self.certificates / "ca.crt")) if self.certificates else None
        request.add_header("Authorization", f"Bearer {self.token() if token is None else token}")
        if data is not None and not isinstance(body, bytes):
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                refusal = json.loads(text)
            except ValueError:
                refusal = text
            raise Refused(error.code, refusal) from None
        return text if raw else json.loads(text)

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.ask("POST", path, {} if body is None else body, **more)

    def cli(self, *words, check=True, **more):
        """Runs the command line."""
        finished = subprocess.run(
            [str(PROGRAM), *map(str, words)],
            capture_output=True,
            text=True,
            env=self.environment(**more),
            timeout=PATIENCE_SECONDS,
        )
        assert not check or finished.returncode == 0, f"{words}: {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
        return finished

    def cli_json(self, *words, **more):
        return json.loads(self.cli(*words, "--json", **more).stdout)

    def wait(self, path, predicate, patience=PATIENCE_SECONDS):
        """Looks until the predicate holds of what is at the path; a master that is away is waited for."""
        deadline = time.monotonic() + patience
        last = None
        while time.monotonic() < deadline:
            try:
                last = self.get(path)
                if predicate(last):
                    return last
            except (OSError, Refused) as error:
                if isinstance(error, Refused) and error.status not in (429, 503):
                    raise
            time.sleep(0.02)
        raise AssertionError(f"{path} stayed {last}\n" + "\n".join(self.said[-20:]))

    def wait_state(self, experiment, *states):
        return self.wait(f"/api/v1/experiments/{experiment}", lambda e: e["state"] in states)

    def trial_of(self, experiment):
        return self.get(f"/api/v1/experiments/{experiment}/trials")["trials"][0]

    def reports(self, trial, group="training"):
        """(steps, x) of the reports that count."""
        answer = self.get(f"/api/v1/trials/{trial}/metrics?group={group}")
        return [(r["steps_completed"], r["values"]["x"]) for r in answer["metrics"]]

    def processes(self, trial):
        """Ids of the living processes of the trial's runs, from the environment that each was given."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            url = next((entry for entry in environment if entry.startswith(b"CAIRN_TRIAL_URL=")), b"")
            places = (f":{self.port}", f"{self.directory}/data/trial.sock", f"{self.directory}/data/tunnel")
            mine = url.endswith(tuple(place.encode() for place in places))
            if mine and f"CAIRN_TRIAL_ID={trial}".encode() in environment and b"shim" not in command.split(b"\0")[0]:
                found.append(int(entry.name))
        return sorted(found)

    def end_runs(self):
        """Kills what experiments still run, so that no test leaves a process."""
        for experiment in self.get("/api/v1/experiments?limit=1000")["experiments"]:
            if experiment["state"] not in (*ENDED, "PAUSED"):
                with contextlib.suppress(Refused):
                    self.post(f"/api/v1/experiments/{experiment['id']}/kill")
                    self.wait_state(experiment["id"], *ENDED)


@contextlib.contextmanager
def running_master(directory, **options):
    master = Master(directory, **options)
    master.start()
    try:
        yield master
    finally:
        try:
            if master.process.poll() is None:
                master.end_runs()
        finally:
            master.stop()


@contextlib.contextmanager
def directory_for_others():
    """One that PostgreSQL's user may use. It is not among pytest's: each session that starts closes those to others again."""
    with tempfile.TemporaryDirectory(prefix="cairn-") as directory:
        directory = pathlib.Path(directory)
        directory.chmod(0o777)
        yield directory


@contextlib.contextmanager
def postgresql():
    """A PostgreSQL 15 of our own: gives its URL and functions to stop and start it."""
    with directory_for_others() as directory, _postgresql_in(directory) as server:
        yield server


@contextlib.contextmanager
def _postgresql_in(directory):
    programs = pathlib.Path("/usr/lib/postgresql/15/bin")
    assert programs.exists(), "PostgreSQL 15 is not installed: scripts/setup test"
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def run(*words):
        subprocess.run([*as_user, *map(str, words)], check=True, stdout=subprocess.DEVNULL, cwd="/")

    data = directory / "data"
    run(programs / "initdb", "-D", data, "-A", "trust", "-N", "--no-instructions")
    options = f"-k {directory} -c listen_addresses= -c shared_buffers=32MB"

    class Server:
        url = f"postgresql:///postgres?host={directory}&user=postgres"

        def start(self):
            run(programs / "pg_ctl", "-D", data, "-w", "-s", "-l", directory / "log", "-o", options, "start")

        def stop(self):
            run(programs / "pg_ctl", "-D", data, "-w", "-s", "-m", "immediate", "stop")

    server = Server()
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            server.stop()
