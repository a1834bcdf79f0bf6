"""Services that report to a master when told: parameter servers and serving processes on the page Cluster."""

import os
import signal

from master_process import running_master
from test_ps_run import Job as PsJob
from test_serve_command import Server
from test_serving import Job as ServedJob


def served_job(folder):
    job = ServedJob(folder / "run")
    with job.session:
        job.export(folder / "export")
        job.run(3)


def test_servers_of_a_job_and_a_serving_process_are_shown(tmp_path):
    (tmp_path / "served").mkdir()
    with running_master(tmp_path / "master") as master:
        url = f"http://127.0.0.1:{master.port}"
        job = PsJob(tmp_path, 4000, "--full-steps", "20", "--incremental-steps", "5", "--master", url, CAIRN_MASTER_TOKEN=master.token())
        try:
            found = master.wait(
                "/api/v1/cluster",
                lambda answer: len([s for s in answer["services"] if s["kind"] == "paramserver"]) == 2
                and all(s["facts"].get("state") == "serving" for s in answer["services"])
                and all(s["facts"]["increments"] > 0 for s in answer["services"]),
            )
            names = [service["name"] for service in found["services"]]
            assert [name.split("-")[0] for name in names] == ["ps_0", "ps_1"]
            for service in found["services"]:
                facts = service["facts"]
                assert facts["rows"] >= 0 and facts["step"] > 0
                assert type(facts["increments"]) is int, "how many, not whether"
                assert facts["cuts"] >= facts["checkpoints"] >= facts["increments"]
                assert facts["cuts"] < 10_000, "how many, not the number of the last one"
        finally:
            job.process.send_signal(signal.SIGINT)
            job.process.communicate(timeout=60)  # reads what it prints, so that nobody waits for room

        os.environ["CAIRN_MASTER_TOKEN"] = master.token()
        served_job(tmp_path / "served")
        served = Server(tmp_path / "served", "--master", url)
        try:
            found = master.wait(
                "/api/v1/cluster",
                lambda answer: any("version" in s["facts"] for s in answer["services"]),
            )
            one = next(service for service in found["services"] if service["kind"] == "serving")
            assert one["facts"]["model"] == "m" and one["repository"].endswith("run")
            assert one["facts"]["lag_seconds"] >= 0
        finally:
            del os.environ["CAIRN_MASTER_TOKEN"]
            served.process.send_signal(signal.SIGINT)
            served.process.wait(60)


def test_a_master_that_refuses_changes_nothing(tmp_path):
    with running_master(tmp_path / "master") as master:
        (tmp_path / "served").mkdir()
        served_job(tmp_path / "served")
        os.environ["CAIRN_MASTER_TOKEN"] = "nonsense"
        try:
            served = Server(tmp_path / "served", "--master", f"http://127.0.0.1:{master.port}")
            served.wait(lambda: served.ask("/ready")[0] == 200)
            served.wait(lambda: "was not told" in served.log())
            served.process.send_signal(signal.SIGINT)
            assert served.process.wait(60) == 0
        finally:
            del os.environ["CAIRN_MASTER_TOKEN"]
        assert master.get("/api/v1/cluster")["services"] == []
