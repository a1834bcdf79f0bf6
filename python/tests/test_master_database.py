"""The master while its database is full, or gone: trials wait, nothing that was acknowledged is lost, and they end where they should."""

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import time

from master_process import EXAMPLES, Refused, directory_for_others, postgresql, running_master

import cairn

WHOLE = [(step, step) for step in range(10, 101, 10)]
GONE_SECONDS = 30


def create(master, seconds, *more):
    settings = ("--config", f"entrypoint=python3 2_checkpoints.py {seconds}", *more)
    return master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, *settings)["id"]


def ended_as_if_nothing_had_been(master, experiment):
    done = master.wait_state(experiment, "COMPLETED", "ERROR", "CANCELED")
    trial = master.trial_of(experiment)["id"]
    assert done["state"] == "COMPLETED", master.get(f"/api/v1/trials/{trial}")
    assert master.reports(trial) == WHOLE
    page = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=100")
    assert sorted(c["steps_completed"] for c in page["checkpoints"]) == [step for step, _ in WHOLE]
    # What was printed is there once, also what was printed while nothing could be written.
    path = f"/api/v1/trials/{trial}/logs?limit=10000"
    master.wait(path, lambda page: [line["text"] for line in page["lines"]].count("100 steps, x = 100") == 1)


def refusal(master, path):
    try:
        return master.get(path)
    except Refused as refused:
        return refused.status, refused.body["code"]


@contextlib.contextmanager
def small_disk(directory, megabytes):
    """A file system of its own with a file that fills it, which only root may make; yields (path, fill, free)."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", directory], check=True)
    filler = directory / "filler"

    def fill(leave):
        file = os.open(filler, os.O_CREAT | os.O_WRONLY)
        try:
            # The database takes of the same space meanwhile.
            while (space := shutil.disk_usage(directory).free) > leave:
                os.write(file, b"\0" * min(space - leave, 1 << 20))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
        finally:
            os.close(file)

    try:
        yield directory, fill, filler.unlink
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def waits_for_room(master, fill, free):
    """Trials of a master whose database gets full go on when there is room."""
    experiments = [create(master, "0.03") for _ in range(2)]
    for experiment in experiments:
        master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)
    fill(0)
    deadline = time.monotonic() + 60
    while not any("cannot be written" in line for line in master.said):
        assert time.monotonic() < deadline, "the database never got full"
        assert master.process.poll() is None, master.said[-20:]
        time.sleep(0.05)
    # It still answers what can be read, and says of the rest what is wrong.
    assert master.get("/api/v1/experiments")["total"] == 2
    said = len(master.said)
    time.sleep(2)
    assert len(master.said) - said <= 6, master.said[said:]
    free()
    for experiment in experiments:
        ended_as_if_nothing_had_been(master, experiment)


def test_a_full_disk_under_sqlite_is_waited_for(tmp_path):
    with small_disk(tmp_path / "disk", 16) as (disk, fill, free):
        with running_master(tmp_path, database=f"sqlite:{disk}/cairn.db") as master:
            waits_for_room(master, fill, free)


def test_a_full_tablespace_under_postgresql_is_waited_for(tmp_path):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(directory_for_others())
        disk, fill, free = stack.enter_context(small_disk(folder / "disk", 64))
        server = stack.enter_context(postgresql())
        space = disk / "space"
        space.mkdir()
        if os.geteuid() == 0:
            shutil.chown(space, "postgres")
        for statement in (f"CREATE TABLESPACE small LOCATION '{space}'", "CREATE DATABASE tight TABLESPACE small"):
            subprocess.run(["psql", "-q", server.url, "-c", statement], check=True)
        url = server.url.replace("/postgres?", "/tight?")
        with running_master(tmp_path, database=url) as master:
            waits_for_room(master, fill, free)


def test_a_database_that_is_gone_for_30_seconds_is_waited_for(tmp_path):
    with postgresql() as server, running_master(tmp_path, database=server.url) as master:
        experiments = [create(master, "0.05"), create(master, "0.1")]
        trials = [
            master.wait(f"/api/v1/experiments/{e}/trials", lambda page: page["total"] == 1)["trials"][0]["id"] for e in experiments
        ]
        master.wait(f"/api/v1/trials/{trials[0]}/metrics", lambda answer: answer["metrics"])
        seen = master.reports(trials[0])
        said = len(master.said)
        server.stop()
        gone = time.monotonic()
        answers = [refusal(master, path) for path in ("/api/v1/experiments", "/healthz")]
        time.sleep(max(0, GONE_SECONDS - (time.monotonic() - gone)))
        warnings = [line for line in master.said[said:] if "warning" in line]
        server.start()
        assert answers == [(503, "unavailable")] * 2
        assert 0 < len(warnings) <= 10, "it is said, but not all the time:\n" + "\n".join(warnings)
        for experiment in experiments:
            ended_as_if_nothing_had_been(master, experiment)
        assert master.reports(trials[0])[: len(seen)] == seen


def test_1000_trials_in_the_queue(tmp_path):
    with running_master(tmp_path, slots=2) as master:
        config = tmp_path / "many.yaml"
        config.write_text(
            "name: many\nentrypoint: sleep 0.01\nhyperparameters: {a: {type: int, minval: 1, maxval: 1000000}}\n"
            "searcher: {name: random, metric: x, max_trials: 1000, max_concurrent_trials: 1000}\n"
        )
        code = tmp_path / "code"
        code.mkdir()
        experiment = master.cli_json("e", "create", config, code)["id"]
        page = f"/api/v1/experiments/{experiment}/trials?limit=1"
        master.wait(page, lambda answer: answer["total"] == 1000)
        cluster = master.get("/api/v1/cluster")
        assert cluster["slots"] == 2 and len(cluster["running"]) <= 2
        assert len(cluster["queue"]) > 500
        master.kill()
        master.start()
        master.wait(page + "&state=COMPLETED", lambda answer: answer["total"] >= 5)
        master.post(f"/api/v1/experiments/{experiment}/cancel")
        assert master.wait_state(experiment, "CANCELED")
        total = sum(master.get(f"{page}&state={state}")["total"] for state in ("COMPLETED", "CANCELED"))
        assert total == 1000
        assert master.get("/api/v1/cluster")["queue"] == []


def test_logs_are_kept_as_long_as_asked(tmp_path):
    with running_master(tmp_path) as master:
        old = create(master, "0.001")
        master.wait_state(old, "COMPLETED")
        trial = master.trial_of(old)["id"]
        assert master.wait(f"/api/v1/trials/{trial}/logs", lambda page: page["lines"])
        master.stop()
        time.sleep(1.1)
        master.start("--log-days", str(1 / 86400))
        master.wait(f"/api/v1/trials/{trial}/logs", lambda page: not page["lines"])
        assert master.get(f"/api/v1/experiments/{old}")["state"] == "COMPLETED", "only the log went"
        assert master.reports(trial) == WHOLE
        master.stop()
        master.start()
        new = create(master, "0.001")
        master.wait_state(new, "COMPLETED")
        assert master.wait(f"/api/v1/trials/{master.trial_of(new)['id']}/logs", lambda page: page["lines"])
        master.stop()
        master.start("--log-bytes", "1")
        master.wait(f"/api/v1/trials/{master.trial_of(new)['id']}/logs", lambda page: not page["lines"])


def test_checkpoints_on_s3_are_deleted_with_their_bytes(tmp_path, monkeypatch):
    import s3_server

    server = s3_server.Server(tmp_path / "s3")
    try:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        bucket = server.folder / "bucket"
        bucket.mkdir()
        with running_master(tmp_path) as master:
            experiment = create(master, "0.001", "--config", "checkpoint_storage=s3://bucket/runs")
            assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
            trial = master.trial_of(experiment)["id"]
            kept = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=100")["checkpoints"]
            assert len(kept) == 10
            manifests = lambda: sorted(bucket.glob(f"runs/{experiment}/{trial}/*/manifest.json"))  # noqa: E731
            assert len(manifests()) == 10
            first = min(kept, key=lambda one: one["steps_completed"])
            master.ask("DELETE", f"/api/v1/checkpoints/{first['id']}")
            assert len(manifests()) == 9
            answer = master.get(f"/api/v1/checkpoints/{first['id']}")
            assert answer["state"] == "DELETED"
            master.cli("e", "set-policy", experiment, "--keep-last", "2")
            master.wait(f"/api/v1/trials/{trial}/checkpoints?state=COMPLETED", lambda page: page["total"] == 2)
            assert len(manifests()) == 2
            # Deletion of the experiment goes on after a kill.
            master.cli("e", "delete", experiment, "--yes")
            master.kill()
            master.start()
            deadline = time.monotonic() + 60
            # os.walk, unlike rglob, lets directories go while it walks.
            while any(files for _, _, files in os.walk(bucket / "runs")):
                assert time.monotonic() < deadline, "the bytes are still there"
                time.sleep(0.05)
    finally:
        server.stop()


def test_checkpoints_on_hdfs_are_continued_from_and_deleted(tmp_path):
    import hdfs_server

    directory = tmp_path / "hdfs"
    directory.mkdir()
    server = hdfs_server.Server(directory)
    try:
        with running_master(tmp_path) as master:
            storage = server.url("runs")
            experiment = create(master, "0.001", "--config", f"checkpoint_storage={storage}")
            assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
            trial = master.trial_of(experiment)["id"]
            repository = f"{storage}/{experiment}/{trial}"
            with cairn.CheckpointManager(repository, read_only=True) as manager:
                assert len(manager.list()) == 10
            more = master.cli_json("e", "continue", experiment, "--new")["id"]
            assert master.wait_state(more, "COMPLETED", "ERROR")["state"] == "COMPLETED"
            assert master.reports(master.trial_of(more)["id"])[0] == (10, 110)
            master.cli("e", "set-policy", experiment, "--keep-last", "2")
            master.wait(f"/api/v1/trials/{trial}/checkpoints?state=COMPLETED", lambda page: page["total"] == 2)
            with cairn.CheckpointManager(repository, read_only=True) as manager:
                assert len(manager.list()) == 2
    finally:
        server.stop()
