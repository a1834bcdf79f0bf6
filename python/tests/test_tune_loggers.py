"""What is written beside the trials, and shown of them."""

import contextlib
import copy
import csv
import io
import json
import math
import pickle
import resource

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import cairn
from cairn import tune
from cairn.tune import _trial_files, progress
from cairn.tune.logger import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LogBook,
    PolicyLog,
    TBXLoggerCallback,
)
from cairn.tune.progress import CLIReporter, JupyterNotebookReporter
from cairn.tune.result_keys import fill_result, made_here
from cairn.tune.trial import Trial


def trial_in(tmp_path, name="trial_0", **config):
    return Trial(name, config, str(tmp_path / name))


def report(iteration, **metrics):
    return {"training_iteration": iteration, "timestamp": 1000 + iteration, **metrics}


def tell(book, trial, *results):
    for result in results:
        book.on_trial_result(1, [trial], trial, result)
    book.on_step_end(1, [trial])


def iterations(trial):
    path = f"{trial.local_path}/result.json"
    with open(path) as file:
        return [json.loads(line)["training_iteration"] for line in file]


def rows(trial):
    with open(f"{trial.local_path}/progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def events(trial):
    found = []
    for event in EventFileLoader(f"{trial.local_path}/events.out.tfevents.cairn").Load():
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.append((event.step, value.tag, number, event.wall_time))
    return found


def test_all_files_of_a_trial(tmp_path):
    trial = trial_in(tmp_path, lr=0.5, opt={"m": 1})
    book = LogBook(str(tmp_path))
    book.on_trial_start(1, [trial], trial)
    tell(
        book,
        trial,
        report(1, loss=2.0, val={"acc": 0.5}, note="x"),
        report(2, loss=math.nan, val={"acc": 0.75}, note="y"),
    )
    trial.status = Trial.TERMINATED
    book.on_trial_complete(1, [trial], trial)
    book.on_experiment_end([trial])
    with open(f"{trial.local_path}/params.json") as file:
        assert json.load(file) == {"lr": 0.5, "opt": {"m": 1}}
    assert iterations(trial) == [1, 2]
    assert [(row["loss"], row["val/acc"], row["note"]) for row in rows(trial)] == [
        ("2.0", "0.5", "x"),
        ("nan", "0.75", "y"),
    ]
    found = events(trial)
    assert (1, "loss", 2.0, 1001.0) in found and (2, "val/acc", 0.75, 1002.0) in found
    assert math.isnan(next(value for step, tag, value, _ in found if (step, tag) == (2, "loss")))
    assert {tag for _, tag, _, _ in found} == {"loss", "val/acc"}


def test_a_late_column_is_added(tmp_path):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    tell(book, trial, report(1, a=1), report(2, a=2))
    tell(book, trial, report(3, a=3, b="late, with a comma"), report(4, b="x"))
    got = rows(trial)
    assert [(row["a"], row["b"]) for row in got] == [
        ("1", ""),
        ("2", ""),
        ("3", "late, with a comma"),
        ("", "x"),
    ]
    assert list(got[0])[-1] == "b"


def test_no_iteration_is_there_twice_when_a_trial_goes_back(tmp_path):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    tell(book, trial, *(report(i, loss=float(i)) for i in range(1, 6)))
    book.on_trial_rewind(trial, 3)
    tell(book, trial, report(4, loss=40.0), report(5, loss=50.0))
    assert iterations(trial) == [1, 2, 3, 4, 5]
    assert [row["loss"] for row in rows(trial)] == ["1.0", "2.0", "3.0", "40.0", "50.0"]
    assert [(step, value) for step, tag, value, _ in events(trial)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 40),
        (5, 50),
    ]
    # The same iteration once more, without being told before.
    tell(book, trial, report(5, loss=51.0))
    assert iterations(trial) == [1, 2, 3, 4, 5]
    book.on_trial_rewind(trial, 0)
    assert iterations(trial) == []
    tell(book, trial, report(1, other=1))
    assert [row["other"] for row in rows(trial)] == ["1"]


def test_after_a_restart_the_files_are_what_the_record_says(tmp_path):
    trial, ended = trial_in(tmp_path, "a"), trial_in(tmp_path, "b")
    book = LogBook(str(tmp_path))
    tell(book, trial, *(report(i, loss=float(i)) for i in range(1, 4)))
    tell(book, ended, report(1, loss=1.0))
    ended.status = Trial.TERMINATED
    book.on_trial_complete(1, [], ended)
    # Killed: one line is half there, one report is on record and in no file, one is in a file only.
    with open(f"{trial.local_path}/result.json", "a") as file:
        file.write('{"training_it')
    untouched = (tmp_path / "b" / "result.json").stat().st_mtime_ns
    reports = [
        report(1, loss=1.0),
        report(2, loss=2.0),
        report(3, loss=3.0),
        report(4, loss=4.0, late=1),
    ]
    again = LogBook(str(tmp_path))
    again.on_restore([(trial, reports), (ended, [report(1, loss=1.0)])])
    assert iterations(trial) == [1, 2, 3, 4]
    assert [row["late"] for row in rows(trial)] == ["", "", "", "1"]
    assert [step for step, tag, _, _ in events(trial) if tag == "loss"] == [1, 2, 3, 4]
    assert (tmp_path / "b" / "result.json").stat().st_mtime_ns == untouched
    # One that had ended goes on, and its files are looked at again next time.
    ended.status = Trial.RUNNING
    again.on_trial_start(1, [], ended)
    tell(again, ended, report(2, loss=2.0))
    assert iterations(ended) == [1, 2]
    third = LogBook(str(tmp_path))
    third.on_restore([(ended, [report(1, loss=1.0)])])
    assert iterations(ended) == [1]


def test_errors_are_written_and_taken_back(tmp_path):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    tell(book, trial, report(1))
    trial.status, trial.error = Trial.ERROR, "Traceback …\nValueError: no"
    book.on_trial_error(1, [trial], trial)
    assert (tmp_path / "trial_0" / "error.txt").read_text().endswith("ValueError: no\n")
    trial.status = Trial.TERMINATED
    book.on_trial_complete(1, [trial], trial)
    assert not (tmp_path / "trial_0" / "error.txt").exists()


def test_more_trials_than_files_can_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(_trial_files, "_OPEN_FILES", 3)
    trials = [trial_in(tmp_path, f"t{i}") for i in range(10)]
    loggers = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
    book = LogBook(str(tmp_path), loggers)
    for i in range(1, 4):
        for trial in trials:
            book.on_trial_result(1, trials, trial, report(i, loss=1.0))
    assert all(len(one._file._open) <= 3 for one in loggers)
    book.on_experiment_end(trials)
    assert all(
        iterations(trial) == [1, 2, 3] and len(rows(trial)) == 3 and len(events(trial)) == 3
        for trial in trials
    )


@contextlib.contextmanager
def files_of_at_most(size):
    """As on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("in_between", [0, 1, 50])
def test_a_full_disk_holds_up_nobody_and_the_files_are_made_anew(tmp_path, capsys, monkeypatch, in_between):
    monkeypatch.setattr(_trial_files, "_OPEN_FILES", 1)  # some are closed in between
    trials = [trial_in(tmp_path, "t_00000", lr=1), trial_in(tmp_path, "t_00001", lr=2)]
    book = LogBook(str(tmp_path))
    reports = [report(i, text="x" * 50) for i in range(1, 101)]
    book.reports = lambda id: reports
    for trial in trials:
        book.on_trial_start(1, trials, trial)
    with files_of_at_most(3000):
        for i, one in enumerate(reports, 1):
            for trial in trials:
                book.on_trial_result(1, trials, trial, one)
            if in_between and i % in_between == 0:
                book.on_step_end(1, trials)
        trials[0].status, trials[1].status, trials[1].error = Trial.TERMINATED, Trial.ERROR, "long " * 1000
        book.on_trial_complete(1, trials, trials[0])
        book.on_trial_error(1, trials, trials[1])
        book.mend()
    said = capsys.readouterr().err
    assert said.count("cannot be written") == 1 and "t_00000, t_00001 are not complete" in said
    book.mend()  # there is room now
    book.on_experiment_end(trials)
    assert capsys.readouterr().err == ""
    for trial in trials:
        assert iterations(trial) == list(range(1, 101))
        assert [int(row["training_iteration"]) for row in rows(trial)] == list(range(1, 101))
        assert {step for step, *_ in events(trial)} <= set(range(1, 101))
    assert (tmp_path / "t_00001" / "error.txt").read_text().startswith("long long")
    # Whoever comes next looks at them again.
    assert not (tmp_path / LogBook.COMPLETE).exists()


class Bucket:
    """As the store of an experiment, in memory; away when told so."""

    def __init__(self):
        self.files = {}
        self.away = False
        self.puts = 0

    def put(self, name, data):
        if self.away:
            raise cairn.errors.Unavailable("the bucket is away")
        self.puts += 1
        self.files[name] = data

    def get(self, name):
        return self.files.get(name)

    def delete(self, name):
        self.files.pop(name, None)

    def iterations(self, trial):
        lines = self.files[f"{trial}/result.json"].decode().splitlines()
        rows = csv.DictReader(io.StringIO(self.files[f"{trial}/progress.csv"].decode()))
        found = [json.loads(line)["training_iteration"] for line in lines]
        assert [int(row["training_iteration"]) for row in rows] == found
        return found


def in_a_bucket(bucket, records):
    book = LogBook("s3://bucket/experiment")
    book._stored = bucket
    book.reports = lambda id: records[id]
    return book


def remote_trial(name, status=Trial.RUNNING):
    trial = Trial(name, {"lr": 0.5}, f"s3://bucket/experiment/{name}")
    trial.status = status
    return trial


def test_files_of_trials_in_a_bucket_are_stored_whole_when_these_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bucket, records = Bucket(), {"t": []}
    book = in_a_bucket(bucket, records)
    trial = remote_trial("t")
    book.on_restore([])
    book.on_trial_start(1, [trial], trial)
    assert json.loads(bucket.files["t/params.json"]) == {"lr": 0.5}
    records["t"] = [report(1), report(2, late=7)]
    tell(book, trial, report(1), report(2), report(2, late=7))
    assert set(bucket.files) == {"t/params.json"}
    trial.status, trial.error = Trial.ERROR, "Traceback …"
    book.on_trial_error(1, [trial], trial)
    assert bucket.iterations("t") == [1, 2]
    assert bucket.files["t/error.txt"].decode() == "Traceback …\n"
    assert "t/events.out.tfevents.cairn" in bucket.files
    book.mend()
    book.on_experiment_end([trial])
    assert bucket.files[LogBook.COMPLETE] == b"t\n"
    assert list(tmp_path.iterdir()) == [], "nothing is kept beside"


def test_after_a_kill_a_bucket_gets_what_it_lacks_from_the_record():
    bucket, records = Bucket(), {"a": [report(1)], "b": [report(1), report(2)], "c": [report(1)], "d": []}
    bucket.files[LogBook.COMPLETE] = b"a\nc\n"
    bucket.files["c/error.txt"] = b"of before"
    a, b = remote_trial("a", Trial.TERMINATED), remote_trial("b", Trial.TERMINATED)
    c, d = remote_trial("c", Trial.ERROR), remote_trial("d", Trial.PENDING)
    book = in_a_bucket(bucket, records)
    book.on_restore([(one, records[one.trial_id]) for one in (a, b, c, d)])
    assert bucket.iterations("b") == [1, 2]
    assert "a/result.json" not in bucket.files, "it is complete already"
    # c is resumed: until it ends, nobody may take what lies there for all.
    book.on_trial_rewind(c, 1)
    c.status = Trial.RUNNING
    book.on_trial_start(1, [a, b, c, d], c)
    assert bucket.files[LogBook.COMPLETE] == b"a\nb\n"
    records["c"] = [report(1), report(2)]
    tell(book, c, report(2))
    c.status = Trial.TERMINATED
    book.on_trial_complete(1, [a, b, c, d], c)
    assert bucket.iterations("c") == [1, 2] and "c/error.txt" not in bucket.files
    book.mend()
    assert bucket.files[LogBook.COMPLETE] == b"a\nb\nc\n"
    assert not [name for name in bucket.files if name.startswith("d/")], "it never ran"


def test_trials_that_pause_have_files_in_a_bucket_too():
    bucket, records = Bucket(), {"t": [report(1), report(2), report(3)]}
    book = in_a_bucket(bucket, records)
    trial = remote_trial("t")
    book.on_trial_start(1, [trial], trial)
    tell(book, trial, *records["t"])
    trial.status = Trial.PAUSED
    book.mend()
    assert bucket.iterations("t") == [1, 2, 3] and LogBook.COMPLETE not in bucket.files


def test_a_bucket_that_is_away_gets_the_files_at_the_end_or_is_told_of(capsys):
    bucket, records = Bucket(), {"t": [report(1)]}
    book = in_a_bucket(bucket, records)
    trial = remote_trial("t")
    bucket.away = True
    book.on_trial_start(1, [trial], trial)
    tell(book, trial, report(1))
    trial.status = Trial.TERMINATED
    book.on_trial_complete(1, [trial], trial)
    book.mend()
    said = capsys.readouterr().err
    assert said.count("cannot be written (the bucket is away)") == 1 and "files of t are not complete" in said
    bucket.away = False
    book.mend()
    assert bucket.iterations("t") == [1] and bucket.files[LogBook.COMPLETE] == b"t\n"


def test_the_list_of_complete_files_is_not_stored_for_every_trial():
    bucket, records = Bucket(), {f"t{i}": [] for i in range(100)}
    book = in_a_bucket(bucket, records)
    for name in records:
        trial = remote_trial(name, Trial.TERMINATED)
        book.on_trial_start(1, [trial], trial)
        book.on_trial_complete(1, [trial], trial)
    assert len(bucket.files[LogBook.COMPLETE].split()) == 64
    book.mend()
    assert len(bucket.files[LogBook.COMPLETE].split()) == 100


def test_the_log_of_copies(tmp_path):
    entries = [{"trial": "a", "donor": "b", "new_config": {"lr": 1}}, {"trial": "c", "donor": "b"}]
    log = PolicyLog(str(tmp_path))
    log.append(entries[:1])
    log.start(entries)  # a restart: what is on record, once
    log.append([{"trial": "a", "donor": "c"}])
    lines = (tmp_path / "pbt_global.txt").read_text().splitlines()
    assert [json.loads(line)["trial"] for line in lines] == ["a", "c", "a"]
    assert len((tmp_path / "pbt_policy_a.txt").read_text().splitlines()) == 2


# --- the table --------------------------------------------------------------------------------------


def population(count):
    trials = []
    for i in range(count):
        trial = Trial(f"t{i:03}", {"lr": 0.1 * i, "o": {"m": i}})
        trial.status = [Trial.TERMINATED, Trial.RUNNING, Trial.PENDING][i % 3]
        if i % 3 < 2:
            trial.last_result = {
                "loss": float(100 - i),
                "training_iteration": i,
                "time_total_s": 1.5,
                "config": {},
            }
        trials.append(trial)
    return trials


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_table_of_at_most_twenty_rows_that_stays_in_its_place(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    now = [0.0]
    out = Terminal()
    reporter = CLIReporter(metric="loss", mode="min", file=out, clock=lambda: now[0])
    trials = population(60)
    reporter.on_step_end(1, trials)
    first = out.getvalue()
    lines = first.removeprefix("\x1b[J").splitlines()
    assert len(lines) == 1 + 1 + 20 + 1
    assert (
        lines[0] == "60 trials: 20 RUNNING, 20 PENDING, 20 TERMINATED; 0:00:00; best loss=42 (t058)"
    )
    assert lines[1].split() == ["trial", "status", "lr", "o/m", "iter", "time", "(s)", "loss"]
    assert lines[2].split() == ["t001", "RUNNING", "0.1", "1", "1", "1.5", "99"]
    assert lines[-1] == "… and 40 more"
    assert any(line.startswith("t058") for line in lines)  # the best has a row
    assert all(len(line) < 100 for line in lines)
    reporter.on_step_end(2, trials)
    assert out.getvalue() == first  # not more often than asked for
    now[0] = 1.0
    reporter.on_step_end(3, trials)
    assert out.getvalue()[len(first) :].startswith("\x1b[23A\x1b[J")


def test_the_table_has_the_metrics_of_the_user_alone(tmp_path):
    trial = trial_in(tmp_path, lr=0.1)
    every = {"time_total_s": 1.5, "time_this_iter_s": 1.5, "time_since_restore": 1.5}
    result = {**report(1, loss=2.0), **every, "iterations_since_restore": 1, **made_here()}
    trial.last_result = fill_result(result, trial.trial_id, trial.config)
    assert CLIReporter().table([trial])[0] == ["trial", "status", "lr", "iter", "time (s)", "loss"]


def test_columns_have_titles_and_the_best_come_first_if_that_is_asked_for(tmp_path):
    trials = population(4)
    trials[3].last_result = {}
    reporter = CLIReporter(
        metric_columns={"loss": "how bad"}, parameter_columns={"o/m": "inner"}, metric="loss", mode="min",
        sort_by_metric=True, max_column_length=3, max_error_rows=5, infer_limit=2, print_intermediate_tables=True,
    )  # fmt: skip
    trials[0].config["o"]["m"] = "long text"
    header, rows, _ = reporter.table(trials)
    assert header == ["trial", "status", "inner", "iter", "time (s)", "how bad"]
    assert [(row[0], row[-1]) for row in rows] == [("t001", "99"), ("t000", "100"), ("t002", ""), ("t003", "")]
    assert rows[1][2] == "lo…"


def test_files_get_plain_lines():
    now = [0.0]
    out = io.StringIO()
    reporter = CLIReporter(metric="loss", mode="min", file=out, clock=lambda: now[0])
    trials = population(3)
    reporter.on_step_end(1, trials)
    assert out.getvalue() == ""
    reporter.on_trial_complete(1, trials, trials[0])
    trials[1].status, trials[1].error = Trial.ERROR, "Traceback\nValueError: bad\n"
    reporter.on_trial_error(1, trials, trials[1])
    now[0] = 31.0
    reporter.on_step_end(1, trials)
    reporter.on_experiment_end(trials)
    assert out.getvalue().splitlines() == [
        "t000 TERMINATED after 0 iterations loss=100",
        "t001 ERROR after 1 iterations loss=99: ValueError: bad",
        "3 trials: 1 PENDING, 1 ERROR, 1 TERMINATED; 0:00:31; best loss=99 (t001)",
        "3 trials: 1 PENDING, 1 ERROR, 1 TERMINATED; 0:00:31; best loss=99 (t001)",
    ]


def test_notebooks_get_html():
    reporter = JupyterNotebookReporter(
        metric_columns=["loss"], parameter_columns=["lr"], max_progress_rows=2
    )
    trials = population(3)
    trials[1].config["lr"] = "<b>"
    text = reporter.html(trials)
    assert (
        "<th>loss</th>" in text
        and "&lt;b&gt;" in text
        and "<b>" not in text
        and "… and 1 more" in text
    )
    assert isinstance(progress.default_reporter(), CLIReporter)
    with pytest.raises(ValueError, match="max_progress_rows"):
        CLIReporter(max_progress_rows=0)


def test_a_metric_that_comes_late_after_a_long_text(tmp_path):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    book.on_trial_start(1, [trial], trial)
    text = "x" * 300_000  # csv itself reads fields of 128 KiB at most
    tell(book, trial, report(1, note=text), report(2, note="y", late=3))
    limit = csv.field_size_limit(1 << 30)
    try:
        assert [(row["note"], row["late"]) for row in rows(trial)] == [(text, ""), ("y", "3")]
    finally:
        csv.field_size_limit(limit)
    book.on_experiment_end([trial])


@pytest.mark.parametrize("to", [0, 1])
def test_a_trial_that_goes_back_has_its_columns_again(tmp_path, to):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    late = [report(i, a=i, late=i) for i in (2, 3)]
    tell(book, trial, report(1, a=1), late[0])
    book.on_trial_rewind(trial, to)
    if to == 0:
        tell(book, trial, report(1, a=1, late=1))
    tell(book, trial, *late)
    book.on_trial_complete(1, [trial], trial)
    want = [("1", "1" if to == 0 else ""), ("2", "2"), ("3", "3")]
    assert [(row["a"], row["late"]) for row in rows(trial)] == want


def test_a_return_to_the_beginning_of_a_line_is_within_quotes(tmp_path):
    trial = trial_in(tmp_path, kind="a\rb")
    book = LogBook(str(tmp_path))
    results = [report(1, note="50 %\r60 %"), report(2, note="\r"), report(3, note="\n", **{"late\r": 4})]
    tell(book, trial, *(fill_result(one, trial.trial_id, trial.config) for one in results))
    got = [(row["training_iteration"], row["note"], row["late\r"], row["config/kind"]) for row in rows(trial)]
    assert got == [("1", "50 %\r60 %", "", "a\rb"), ("2", "\r", "", "a\rb"), ("3", "\n", "4", "a\rb")]
    book.on_experiment_end([trial])


# Lines that are made without a dict for each report.

PLAIN = [
    {"loss": 0.1 * i, "n": i, "flag": i % 2 == 0, "name": "a b.c-d/e", "nothing": None, "deep": {"x": {"y": -i / 3}}}
    for i in range(8)
]
NUMBERS = [
    {"loss": loss, "n": n}
    for loss in (0.0, -0.0, 1.0, 1e15, 1e16, 123456789012345680.0, 0.0001, 0.00001, -2.5e-7, 5e-324, 1.7976931348623157e308,
                 0.1 + 0.2, 100.0, 1e22, math.inf, -math.inf, math.nan)
    for n in (0, -1, 2**53 + 1, -(2**63))
]  # fmt: skip
STRANGE = [
    {"loss": 1.0, "what": "as it is"},
    {"loss": 2.0, "what": "a,b"},
    {"loss": 3.0, "what": 'say "x"'},
    {"loss": 4.0, "what": "two\nlines"},
    {"loss": 5.0, "what": "größer"},
    {"loss": 6.0, "what": [1, 2]},
    {"loss": 7.0, "what": {}},
    {"loss": 8.0, "what": 2**63},
    {"loss": 9.0, "what": 9.0},
    {"loss": 9.5},
    {"loss": 10.0, "what": "as it is", "late": 1},
    {"loss": 11.0, "what": "as it is", "late": 2},
    {"loss": 12.0, "what": {"late": 3}},
    {"loss": 13.0, "what": "as it is", "date": "mine", "late": 4},
    {"loss": 14.0, "what": "as it is", "a/b": 1, "a": {"b": 2}},
]


def result_of(iteration, metrics):
    result = {"training_iteration": iteration, "timestamp": 1_700_000_000 + iteration // 3, "done": False, **metrics}
    return dict(sorted(result.items()))  # as the tuner has them


def written(directory, config, metrics, told):
    trial = trial_in(directory, **config)
    book = LogBook(str(directory))
    book.on_trial_start(1, [trial], trial)
    for iteration, one in enumerate(metrics, 1):
        result = result_of(iteration, one)
        trial.last_result = fill_result(result, trial.trial_id, trial.config)
        told(book, trial, result)
        if iteration % 5 == 0:
            book.on_step_end(iteration, [trial])
    book.on_trial_complete(1, [trial], trial)
    head = len(cairn._native.tensorboard_header(0.0))  # with the time at which the file was begun
    read = {name: (directory / "trial_0" / name).read_bytes() for name in ("result.json", "progress.csv")}
    return {**read, "events": (directory / "trial_0" / "events.out.tfevents.cairn").read_bytes()[head:]}


@pytest.mark.parametrize("metrics", [PLAIN, NUMBERS, STRANGE], ids=["plain", "numbers", "strange"])
@pytest.mark.parametrize("config", [{}, {"lr": 0.1, "net": {"kind": "ä, b", "layers": [1, 2]}}])
def test_lines_of_reports_that_look_alike_are_those_of_the_loggers(tmp_path, config, metrics):
    by_loggers = written(
        tmp_path / "loggers", config, metrics,
        lambda book, trial, _: book.on_trial_result(1, [trial], trial, trial.last_result),
    )  # fmt: skip
    by_reports = written(
        tmp_path / "reports", config, metrics,
        lambda book, trial, result: book.on_report(1, trial, cairn._native.TuneReport(result)),
    )  # fmt: skip
    assert by_reports == by_loggers


def test_reports_that_look_alike_are_not_made_dicts(tmp_path):
    trial = trial_in(tmp_path, lr=0.1)
    book = LogBook(str(tmp_path))
    made = []
    for iteration in range(1, 6):
        result = result_of(iteration, {"loss": 1 / iteration})
        trial._make_result = lambda r=result: made.append(1) or fill_result(r, trial.trial_id, trial.config)
        book.on_report(iteration, trial, cairn._native.TuneReport(result))
    assert made == [1]  # the first, which says what they look like
    book.on_step_end(5, [trial])
    assert iterations(trial) == [1, 2, 3, 4, 5]


def test_lines_are_in_the_files_when_nothing_happens_any_more(tmp_path):
    trial = trial_in(tmp_path)
    book = LogBook(str(tmp_path))
    for iteration in (1, 2, 3):
        result = result_of(iteration, {})
        trial.last_result = fill_result(result, trial.trial_id, trial.config)
        book.on_report(iteration, trial, cairn._native.TuneReport(result))
        book.on_step_end(iteration, [trial])
    book.on_step_end(3, [trial])
    assert iterations(trial) == [1, 2, 3]
    book.on_experiment_end([trial])


def test_a_full_disk_takes_no_lines_from_others(tmp_path, capsys):
    trials = [trial_in(tmp_path, "t_00000"), trial_in(tmp_path, "t_00001")]
    book = LogBook(str(tmp_path))
    reports = {t.trial_id: [] for t in trials}
    book.reports = lambda id: reports[id]

    def tell_of(trial, iteration, **metrics):
        result = result_of(iteration, metrics)
        reports[trial.trial_id].append(result)
        trial.last_result = fill_result(result, trial.trial_id, trial.config)
        book.on_report(iteration, trial, cairn._native.TuneReport(result))

    for trial in trials:
        tell_of(trial, 1, text="x" * 20)
        tell_of(trial, 2, text="x" * 20)
    with files_of_at_most(3000):
        for iteration in range(3, 60):
            tell_of(trials[0], iteration, text="x" * 20)
        book.on_step_end(60, trials)
    tell_of(trials[1], 3, text="x" * 20)
    book.on_step_end(60, trials)
    assert iterations(trials[1]) == [1, 2, 3]
    assert capsys.readouterr().err.count("cannot be written") == 1
    book.mend()
    assert iterations(trials[0]) == list(range(1, 60))
    book.on_experiment_end(trials)


def test_a_trial_is_copied_with_its_report(tmp_path):
    trial = trial_in(tmp_path, lr=0.1)
    trial._make_result = lambda: {"loss": 1.0}
    for copied in (copy.deepcopy(trial), pickle.loads(pickle.dumps(trial))):
        assert copied.last_result == {"loss": 1.0} and copied.config == {"lr": 0.1}
    trial.last_result = {"loss": 2.0}
    assert trial.last_result == {"loss": 2.0} == copy.copy(trial).last_result


def test_an_error_that_ends_an_experiment_leaves_no_report_out_of_the_files(tmp_path):
    class Fails(tune.Callback):
        def on_trial_result(self, result, **info):
            if result["i"] == 4:
                raise RuntimeError("enough")

    def train(config):
        for i in range(5):
            tune.report({"i": i})

    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="enough"):
        tune.Tuner(train, run_config=run).fit()
    lines = (tmp_path / "e" / "train_00000" / "result.json").read_text().splitlines()
    assert [json.loads(line)["i"] for line in lines] == [0, 1, 2, 3, 4]
