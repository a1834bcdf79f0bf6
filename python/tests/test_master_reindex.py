"""A master whose database is lost: the checkpoints are the truth."""

from master_process import EXAMPLES, running_master


def test_a_lost_database_is_made_anew_from_the_checkpoints(tmp_path):
    with running_master(tmp_path) as master:
        script = "entrypoint=python3 2_checkpoints.py 0.001"
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", script]
        experiment = str(master.cli_json(*create)["id"])
        assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
        data = tmp_path / "data"
        before = {c["id"] for c in master.cli_json("e", "checkpoints", experiment)["checkpoints"]}
        assert before
        refused = master.cli("master", "reindex", "--data-dir", data, check=False)
        assert refused.returncode == 1 and "another master" in refused.stderr
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        found = master.cli_json("master", "reindex", "--data-dir", data)
        assert found["trials_added"] == 1 and found["checkpoints_added"] == len(before)
        again = master.cli_json("master", "reindex", "--data-dir", data)
        assert again["trials_added"] == again["checkpoints_added"] == 0, "twice changes nothing"
        master.start()
        after = master.cli_json("e", "checkpoints", experiment)["checkpoints"]
        assert {c["id"] for c in after} == before
