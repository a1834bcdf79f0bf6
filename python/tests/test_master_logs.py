"""Logs of trials by REST and by the command line: filters and searches see every line, page by page in both directions."""

import pytest
from master_process import running_master

SCRIPT = """
import sys
for number in range(1500):
    print("line", number)
sys.stdout.flush()
print("a complaint", file=sys.stderr, flush=True)
for number in range(1500, 1600):
    print("line", number)
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """(master, trial) whose log is complete."""
    directory = tmp_path_factory.mktemp("master")
    (directory / "code").mkdir()
    (directory / "code" / "talk.py").write_text(SCRIPT)
    (directory / "config.yaml").write_text("name: talk\nentrypoint: python3 talk.py\nsearcher: {name: single, metric: x}\n")
    with running_master(directory) as master:
        experiment = master.cli_json("e", "create", directory / "config.yaml", directory / "code")["id"]
        master.wait_state(experiment, "COMPLETED")
        trial = master.trial_of(experiment)["id"]
        master.wait(f"/api/v1/trials/{trial}/logs?tail=1&search=line 1599".replace(" ", "%20"), lambda page: page["lines"])
        yield master, trial


def pages(master, trial, query, cursor, following):
    """All lines of a query, by the cursor that each page gives for the one that follows."""
    found, asked = [], 0
    page = master.get(f"/api/v1/trials/{trial}/logs?{query}")
    while True:
        asked += 1
        found.append(page["lines"])
        if not page["more"]:
            return found, asked
        page = master.get(f"/api/v1/trials/{trial}/logs?{query.split('&tail')[0]}&{cursor}={page[following]}")


def test_a_stream_is_chosen_before_lines_are_counted(log):
    master, trial = log
    answer = master.get(f"/api/v1/trials/{trial}/logs?stream=stderr")
    assert [line["text"] for line in answer["lines"]] == ["a complaint"] and not answer["more"]
    (last,) = master.get(f"/api/v1/trials/{trial}/logs?stream=stderr&tail=1")["lines"]
    assert last["text"] == "a complaint"
    (last,) = master.get(f"/api/v1/trials/{trial}/logs?stream=stdout&tail=1")["lines"]
    assert last["text"] == "line 1599"


def test_pages_lead_through_all_of_it_in_both_directions(log):
    master, trial = log
    expected = [f"line {number}" for number in range(1600)]
    forwards, asked = pages(master, trial, "stream=stdout&limit=100", "after", "next")
    assert [line["text"] for page in forwards for line in page] == expected and asked > 10
    backwards, asked = pages(master, trial, "stream=stdout&limit=100&tail=100", "before", "previous")
    assert [line["text"] for page in backwards[::-1] for line in page] == expected and asked > 10
    # A page that was read one way is gone on from the other way.
    middle = master.get(f"/api/v1/trials/{trial}/logs?before=800&limit=10")
    after = master.get(f"/api/v1/trials/{trial}/logs?after={middle['next']}&limit=1")["lines"]
    assert after[0]["id"] == middle["lines"][-1]["id"] + 1 == 800


def test_the_command_line_finds_what_is_far_away(log):
    master, trial = log
    assert master.cli("t", "logs", trial, "--search", "LINE 7").stdout.splitlines()[:2] == ["line 7", "line 70"]
    tail = master.cli("t", "logs", trial, "--search", "line 7", "--tail", "2").stdout.splitlines()
    assert tail == ["line 798", "line 799"]
    assert master.cli("t", "logs", trial, "--level", "ERROR").stdout == ""
