"""The searcher adaptive_asha in a real master: which trials are stopped is what the rule says of the validations, also when the master
is killed in the middle."""

import math

import pytest
from master_process import EXAMPLES, running_master

DIVISOR, LENGTH, RUNGS = 2, 100, 4


def stopped_by_rule(validations):
    """Trials that asynchronous successive halving stops, given (steps, trial, x) in the order in which they came."""
    milestones = [LENGTH / DIVISOR**k for k in range(RUNGS)]
    rungs = {milestone: {} for milestone in milestones}
    stopped = set()
    for steps, trial, x in validations:
        rung = next((rungs[m] for m in milestones if steps >= m), None)
        if rung is None or trial in rung:
            continue
        before = sorted(rung.values())
        rung[trial] = x
        if before:
            place = (len(before) - 1) * (1 - 1 / DIVISOR)
            low, high = before[math.floor(place)], before[math.ceil(place)]
            if x < low + (high - low) * (place - math.floor(place)):
                stopped.add(trial)
    return stopped


@pytest.mark.parametrize("strikes", [0, 3])
def test_asha_stops_what_its_rule_says(tmp_path, strikes):
    with running_master(tmp_path, slots=4) as master:
        settings = ("--config", "entrypoint=python3 3_hpsearch.py 0.01", "--config", "searcher.max_trials=10")
        experiment = master.cli_json("e", "create", EXAMPLES / "3_hpsearch_adaptive.yaml", EXAMPLES, *settings)["id"]
        for strike in range(strikes):
            page = f"/api/v1/experiments/{experiment}/trials?limit=100"
            master.wait(page, lambda p, n=strike: sum(t["state"] in ("COMPLETED", "CANCELED") for t in p["trials"]) > 2 * n)
            master.kill()
            master.start()
        done = master.wait_state(experiment, "COMPLETED", "ERROR", "CANCELED")
        assert done["state"] == "COMPLETED", done["message"]
        trials = master.get(f"/api/v1/experiments/{experiment}/trials?limit=100")["trials"]
        assert len(trials) == 10
        validations = []
        for trial in trials:
            path = f"/api/v1/trials/{trial['id']}/metrics?group=validation&archived=true"
            rows = master.get(path)["metrics"]
            validations += [(row["time"], row["steps_completed"], trial["id"], row["values"]["x"]) for row in rows]
        expected = stopped_by_rule([one[1:] for one in sorted(validations)])
        canceled = {trial["id"] for trial in trials if trial["state"] == "CANCELED"}
        # One that was told to stop may have ended by itself before it looked.
        late = {trial["id"] for trial in trials if trial["state"] == "COMPLETED"} & expected
        assert canceled == expected - late
        assert all(master.reports(trial)[-1][0] == 100 for trial in late)
        assert expected, "some fall behind"
        best = max(trials, key=lambda trial: trial["hparams"]["increment_by"])
        assert best["state"] == "COMPLETED" or best["id"] in expected


SEARCH = """
entrypoint: [sh, -c, 'while [ ! -e "$GO" ]; do sleep 0.05; done']
hyperparameters: {{a: {{type: int, minval: 1, maxval: 40}}}}
searcher: {{name: random, max_trials: 3, max_concurrent_trials: 1}}
environment: {{variables: {{GO: {go}}}}}
preemption_timeout: 0
kill_grace: 1
"""


def begin_search(master, tmp_path):
    """The path of a search whose first trial waits for a file, and that trial's."""
    experiment = master.post("/api/v1/experiments", {"config": SEARCH.format(go=tmp_path / "go")})["id"]
    master.wait_state(experiment, "STARTING")
    return f"/api/v1/experiments/{experiment}", f"/api/v1/trials/{master.trial_of(experiment)['id']}"


def test_a_trial_of_a_canceled_search_that_goes_on_goes_on_alone(tmp_path):
    with running_master(tmp_path) as master:
        search, trial = begin_search(master, tmp_path)
        master.post(f"{search}/cancel")
        master.wait(search, lambda e: e["state"] == "CANCELED")
        master.post(f"{trial}/continue")
        assert master.get(search)["state"] not in ("CANCELED", "COMPLETED")
        master.kill()
        (tmp_path / "go").touch()
        master.start()
        master.wait(trial, lambda t: t["state"] == "COMPLETED")
        ended = master.wait(search, lambda e: e["state"] in ("CANCELED", "COMPLETED"))
        assert (ended["state"], ended["trials"]) == ("CANCELED", 1)


def test_a_trial_of_a_paused_search_that_is_activated_runs_alone(tmp_path):
    with running_master(tmp_path) as master:
        search, trial = begin_search(master, tmp_path)
        master.post(f"{search}/pause")
        master.wait(search, lambda e: e["state"] == "PAUSED")
        master.post(f"{trial}/activate")
        assert master.get(search)["state"] != "PAUSED"
        (tmp_path / "go").touch()
        master.wait(trial, lambda t: t["state"] == "COMPLETED")
        rests = master.wait(search, lambda e: e["state"] in ("PAUSED", "COMPLETED"))
        assert (rests["state"], rests["trials"]) == ("PAUSED", 1)
        master.post(f"{search}/activate")
        assert master.wait(search, lambda e: e["state"] == "COMPLETED")["trials"] == 3
