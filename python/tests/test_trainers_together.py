"""Several trainers: they end together, and resume as many as they were."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from children import command_line

import cairn
from cairn._tables_within import refuse_lost_tables_of_one

# trainer, trainers, directory, epochs, steps, signal at (0: never), further options
SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import cairn

    trainer, trainers, directory, epochs, steps, at, options = sys.argv[1:]
    model = {"w": np.zeros(1)}

    def step(model, batch):
        model["w"] += batch
        # As an exchange of gradients: no step ends before all are in it.
        with open(f"{directory}.{trainer}", "ab") as made:
            made.write(b".")
        time.sleep(0.05)  # it computes
        until = time.monotonic() + 120
        while min(size(n) for n in range(int(trainers))) < size(trainer):
            assert time.monotonic() < until, "another trainer is gone"
            time.sleep(0.001)

    def size(number):
        path = f"{directory}.{number}"
        return os.path.getsize(path) if os.path.exists(path) else 0

    def handler(event):
        if isinstance(event, cairn.BeginStepEvent) and event.step == int(at) > 0:
            os.kill(os.getpid(), signal.SIGTERM)

    config = cairn.CheckpointConfig(directory, step_interval=1000, max_num_checkpoints=None)
    training = cairn.Trainer(model, step, checkpoint_config=config, trainer_id=int(trainer),
                             num_trainers=int(trainers), **eval(options))
    summary = training.train(int(epochs), [1.0] * int(steps), handler)
    print(summary.steps, summary.global_step, model["w"][0])
"""


def start(trainer, trainers, directory, epochs, steps, at=0, **options):
    arguments = [trainer, trainers, directory, epochs, steps, at, options]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip


def ends(children):
    """(exit code, what it printed, what it complained of) of each."""
    found = []
    for child in children:
        out, errors = child.communicate(timeout=300)
        found.append((child.returncode, out.split(), errors))
    return found


def trained(trainers, directory, epochs, steps=3, **options):
    return ends([start(n, trainers, directory, epochs, steps, **options) for n in range(trainers)])


@pytest.mark.parametrize("signals", [(15, 16), (16, 15)])
def test_a_signal_ends_all_after_the_same_step_which_is_saved(tmp_path, signals):
    directory = tmp_path / "shared"
    children = [
        start(n, 2, directory, 1, 100_000, at, deadline=120) for n, at in enumerate(signals)
    ]
    for code, _, errors in ends(children):
        assert code == -signal.SIGTERM, errors
    with cairn.CheckpointManager(directory, read_only=True) as m:
        saved = [c.step for c in m.list()]
    made = {os.path.getsize(f"{directory}.{n}") for n in range(2)}
    assert made == {saved[-1]} and saved[-1] > 15


def test_a_signal_that_trainer_0_did_not_get_is_named(tmp_path):
    with cairn.CheckpointManager(tmp_path / "shared") as m:
        where = {"directory": m.directory, "generation": m.generation}
        follower = cairn._native.StopAgreement(**where, chooses=False, patience=0)
        with pytest.raises(cairn.Timeout, match="trainer_0 did not say after which step to end"):
            follower.last_step(global_step=7, seconds_per_step=60)
        chooser = cairn._native.StopAgreement(**where, chooses=True, patience=0)
        assert not chooser.last_step(global_step=7, seconds_per_step=60)
        assert follower.last_step(global_step=8, seconds_per_step=60)
        assert chooser.last_step(global_step=8, seconds_per_step=60)


def test_another_number_of_trainers_is_refused_unless_asked_for(tmp_path):
    directory = tmp_path / "shared"
    for code, out, errors in trained(2, directory, 1):
        assert (code, out) == (0, ["3", "3", "3.0"]), errors
    config = cairn.CheckpointConfig(directory)

    def resume(**options):
        model = {"w": np.zeros(1)}

        def step(model, batch):
            model["w"] += batch

        trainer = cairn.Trainer(model, step, checkpoint_config=config, **options)
        try:
            return trainer.train(2, [1.0] * 3).global_step, model["w"].tolist()
        finally:
            if trainer.restored is None:
                assert model["w"].tolist() == [0.0]

    with pytest.raises(cairn.Mismatch, match="saved by 2 trainers, and there are 1 now.*strict=False"):
        resume()
    assert resume(strict=False) == (6, [6.0])
    for code, _, errors in trained(2, directory, 3):
        assert code == 1 and "it was saved by 1 trainers, and there are 2 now" in errors


class Code(str):
    """Among the options of a trainer: computed there."""

    __repr__ = str.__str__


def test_one_of_several_trainers_may_have_all_tables(tmp_path):
    tables = Code('[cairn.EmbeddingTable("rows", 1, optimizer=cairn.optimizers.SGD())]')
    for epochs in (1, 2):
        where = (2, tmp_path / "shared", epochs, 3)
        for code, out, errors in ends([start(0, *where, tables=tables), start(1, *where)]):
            assert code == 0 and out[1] == str(3 * epochs), errors


def test_one_of_several_trainers_that_forgets_its_tables_is_refused(tmp_path):
    directory = tmp_path / "shared"
    tables = Code('[cairn.EmbeddingTable("rows", 1, optimizer=cairn.optimizers.SGD())]')

    def trained(epochs, **options):
        return ends([start(0, 2, directory, epochs, 3, **options), start(1, 2, directory, epochs, 3, join_deadline=2)])  # fmt: skip

    for code, _, errors in trained(1, tables=tables):
        assert code == 0, errors
    first, second = (start(n, 2, directory, 2, 3) for n in range(2))
    ((code, _, errors),) = ends([first])
    second.kill()  # its step waits for the first
    ends([second])
    assert code == 1 and "the rows of 'rows', and no tables are given" in errors
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert all([table["name"] for table in c.tables] == ["rows"] for c in m.list())


def test_tables_of_several_trainers_that_are_not_on_record_are_warned_of(tmp_path, caplog):
    table = cairn.EmbeddingTable("rows", 1, optimizer=cairn.optimizers.SGD())
    with cairn.CheckpointManager(tmp_path / "shared") as m:
        m.save(1, {"x": 1}, tables=[table], blocking=True)
        restored = m.restore()
    refuse_lost_tables_of_one(restored, [table], None)
    assert not caplog.records
    refuse_lost_tables_of_one(restored, [], None)
    assert "the rows of 'rows', and this trainer is given no tables" in caplog.text


def test_private_parts_are_resumed_only_when_merged(tmp_path):
    def parts(prefix, epochs):
        found = []
        for n in range(2):
            model = {"w": np.zeros(1)}
            np.random.seed(n)

            def step(model, batch):
                model["w"] += np.random.rand()

            trainer = cairn.Trainer(
                model, step, trainer_id=n, num_trainers=2, private=True,
                checkpoint_config=cairn.CheckpointConfig(tmp_path / f"{prefix}_{n}", step_interval=2),
            )  # fmt: skip
            try:
                trainer.train(epochs, [1.0] * 4)
                found.append((trainer.global_step, np.random.rand()))
            except cairn.Error as error:
                assert model["w"].tolist() == [0.0]
                found.append(str(error))
        return found

    assert [step for step, _ in parts("part", 1)] == [4, 4]
    for refused in parts("part", 2):
        assert "cairn checkpoint merge" in refused and "parts only" in refused
    merged = str(tmp_path / "merged")
    places = [str(tmp_path / f"part_{n}") for n in range(2)]
    subprocess.run([command_line(), "checkpoint", "merge", merged, *places], check=True, timeout=60)
    for n in range(2):
        subprocess.run(["cp", "-r", merged, str(tmp_path / f"copy_{n}")], check=True)
    assert parts("copy", 2) == parts("undisturbed", 2)
