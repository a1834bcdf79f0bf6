"""For your own tests: does your training really resume exactly, wherever it is killed?"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import _native, _tree, oneshot
from .errors import Error, Invalid
from .row_tracked import RowTracked
from .trainer import EndStepEvent, Trainer

__all__ = ["KillPoint", "ResumeReport", "check_resume", "kill_points"]

# Makes a trainer on a directory: (trainer, num_epochs, reader).
MakeTrainer = Callable[[str], Tuple[Trainer, int, Any]]

# How a child process says that torch's autograd refuses to work in it.
_AUTOGRAD_BEFORE = 3


@dataclasses.dataclass(frozen=True)
class KillPoint:
    """The moment when a protocol step (such as "save: manifest") begins for the n-th time.

    >>> import numpy as np, cairn, cairn.testing
    >>> def make_trainer(directory):
    ...     config = cairn.CheckpointConfig(directory, step_interval=1)
    ...     def step(model, batch):
    ...         model["w"] += batch
    ...     return cairn.Trainer({"w": np.zeros(3)}, step, checkpoint_config=config), 1, [1.0, 2.0]
    >>> second = cairn.testing.KillPoint("save: manifest", 2)
    >>> cairn.testing.check_resume(make_trainer, points=[second]).steps_hit
    {'save: manifest': 1}
    """

    step: str
    count: int


@dataclasses.dataclass(frozen=True)
class ResumeReport:
    """What check_resume saw.

    Attributes:
        kills: how many times the training was killed.
        steps_hit: protocol step → how many kills hit it.
        steps: of the undisturbed run.
        repeated: steps that were trained again after a kill; all gave the same metrics.

    >>> import numpy as np, cairn, cairn.testing
    >>> def make_trainer(directory):
    ...     config = cairn.CheckpointConfig(directory, step_interval=1)
    ...     def step(model, batch):
    ...         model["w"] += batch
    ...     return cairn.Trainer({"w": np.zeros(3)}, step, checkpoint_config=config), 1, [1.0, 2.0]
    >>> report = cairn.testing.check_resume(make_trainer, kills=2)
    >>> report.kills, report.steps, sum(report.steps_hit.values())
    (2, 2, 2)
    """

    kills: int
    steps_hit: Dict[str, int]
    steps: int
    repeated: int


def kill_points(make_trainer: MakeTrainer) -> List[KillPoint]:
    """Every moment of a training at which check_resume can kill it: trains once, undisturbed.

    Args:
        make_trainer: called with an empty directory, in a child process; returns
            (trainer, num_epochs, reader).

    >>> import numpy as np, cairn, cairn.testing
    >>> def make_trainer(directory):
    ...     config = cairn.CheckpointConfig(directory, step_interval=1)
    ...     def step(model, batch):
    ...         model["w"] += batch
    ...     return cairn.Trainer({"w": np.zeros(3)}, step, checkpoint_config=config), 1, [1.0, 2.0]
    >>> points = cairn.testing.kill_points(make_trainer)
    >>> [p.count for p in points if p.step == "save: manifest"]  # two steps, and the epoch's end
    [1, 2, 3]
    """
    with tempfile.TemporaryDirectory(prefix="cairn-resume-") as scratch:
        seen = _undisturbed(make_trainer, Path(scratch)).seen
    return _all_points(seen)


def check_resume(
    make_trainer: MakeTrainer,
    kills: int = 10,
    seed: int = 0,
    points: Optional[Sequence[KillPoint]] = None,
) -> ResumeReport:
    """Kills a training again and again, lets it resume, and compares it with an undisturbed one.

    Losses of every step (also of repeated ones) and the final state, with the rows of tables, must be
    equal bit for bit; otherwise AssertionError says which are not. The training runs in forked processes, which are
    killed with SIGKILL at the beginning of protocol steps. Torch lets nothing train in them when
    its autograd has started threads in this process before: Invalid.

    Args:
        make_trainer: called with a directory, in a child process; returns
            (trainer, num_epochs, reader). It must do the same each time: seed what is random.
        kills: how many; each resumed run is killed again until they are used up.
        seed: of the choice of moments.
        points: kill exactly there, each in a training of its own, instead of at random.

    >>> import numpy as np, cairn, cairn.testing
    >>> def make_trainer(directory):
    ...     model = {"w": np.zeros(3)}
    ...     def step(model, batch):
    ...         model["w"] += np.random.rand(3) * batch
    ...         return float(model["w"].sum())
    ...     np.random.seed(1)
    ...     config = cairn.CheckpointConfig(directory, step_interval=2)
    ...     return cairn.Trainer(model, step, checkpoint_config=config), 2, [1.0, 2.0, 3.0]
    >>> cairn.testing.check_resume(make_trainer, kills=3).steps
    6
    """
    with tempfile.TemporaryDirectory(prefix="cairn-resume-") as scratch:
        root = Path(scratch)
        reference = _undisturbed(make_trainer, root)
        hit: Counter[str] = Counter()
        repeated = 0
        choose = random.Random(seed)
        candidates = _all_points(reference.seen)
        plan = list(points) if points is not None else None
        number = 0
        while sum(hit.values()) < (kills if plan is None else len(plan)):
            directory = root / f"run-{number}"
            losses = root / f"run-{number}.losses"
            number += 1
            single = plan[number - 1] if plan is not None else None
            killed = 0
            while True:
                left = kills - sum(hit.values())
                point = (
                    single if plan is not None else (choose.choice(candidates) if left else None)
                )
                if plan is not None and killed:
                    point = None
                ended = _train(make_trainer, directory, losses, root / "result", point)
                if ended is not None or point is None:
                    break
                hit[point.step] += 1
                killed += 1
            if plan is not None and not killed:
                raise Invalid(f"the training never reached {single}")
            repeated += _compare_losses(reference.losses, losses)
            _compare_models(reference.model, root / "result" / "model")
            shutil.rmtree(directory, ignore_errors=True)
        return ResumeReport(sum(hit.values()), dict(hit), len(reference.losses), repeated)


@dataclasses.dataclass(frozen=True)
class _Reference:
    losses: Dict[str, str]
    seen: Dict[str, int]
    model: Path


def _undisturbed(make_trainer: MakeTrainer, root: Path) -> _Reference:
    losses = root / "reference.losses"
    seen = _train(make_trainer, root / "reference", losses, root / "reference-result", None)
    if seen is None:
        raise Error("the undisturbed training was killed; nothing can be compared")
    if not seen:
        raise Invalid(
            "the training saves nothing, and there is no moment to kill it at: give the Trainer a "
            "checkpoint_config with the directory that make_trainer is called with"
        )
    return _Reference(_read_losses(losses)[0], seen, root / "reference-result" / "model")


def _all_points(seen: Dict[str, int]) -> List[KillPoint]:
    return [KillPoint(step, n) for step, count in sorted(seen.items()) for n in range(1, count + 1)]


def _train(
    make_trainer: MakeTrainer,
    directory: Path,
    losses: Path,
    result: Path,
    point: Optional[KillPoint],
) -> Optional[Dict[str, int]]:
    """Trains in a child process; None when it was killed, else how often each step was seen."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _train_here(make_trainer, directory, losses, result, point)
            code = 0
        except BaseException as error:
            if "autograd" in str(error) and "fork" in str(error):
                code = _AUTOGRAD_BEFORE
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _AUTOGRAD_BEFORE:
        raise Invalid(
            "torch's autograd has started threads in this process, and works in no process that is forked "
            "from it: call check_resume or kill_points before anything else trains here, or in a Python "
            "process of its own"
        )
    if status != 0:
        raise Error("the training failed; its error is above")
    return {str(k): int(v) for k, v in json.loads((result / "seen.json").read_text()).items()}


def _train_here(
    make_trainer: MakeTrainer,
    directory: Path,
    losses: Path,
    result: Path,
    point: Optional[KillPoint],
) -> None:
    _native.watch_steps()
    if point is not None:
        _native.kill_at(point.step, point.count)
    trainer, num_epochs, reader = make_trainer(str(directory))
    with open(losses, "a") as record:

        def handler(event: Any) -> None:
            if isinstance(event, EndStepEvent):
                record.write(f"{event.epoch}/{event.step}\t{_exact(event.metrics)}\n")
                record.flush()

        trainer.train(num_epochs, reader, handler)
    seen = _native.steps_seen()
    _native.kill_at("", 0)
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    oneshot.save(result / "model", {**trainer._common, "rows": _rows_of(trainer._tables)})
    (result / "seen.json").write_text(json.dumps(seen))


def _rows_of(tables: Sequence[Any]) -> Dict[str, Any]:
    """All that tables and tracked arrays hold, in an order that is not that of their making."""
    found: Dict[str, Any] = {}
    for number, table in enumerate(tables):
        name = table.name if table.name not in found else f"{table.name}~{number}"
        if isinstance(table, RowTracked):
            found[name] = dict(table.arrays)
            continue
        keys, frequency, version, weights, slots = table._native.export()
        order = np.argsort(np.frombuffer(keys, dtype=np.int64), kind="stable")
        columns = {"keys": keys, "frequency": frequency, "version": version}
        rows = {key: np.frombuffer(data, np.int64)[order] for key, data in columns.items()}
        for key, data in (("weights", weights), ("slots", slots)):
            flat = np.frombuffer(data, np.float32)
            rows[key] = flat.reshape(len(order), -1 if len(order) else 0)[order]
        found[name] = {**rows, "pending": table._native.pending_size()}
    return found


def _exact(metrics: Any) -> str:
    """All bits of what a step returned, as text."""
    return _tree.encode({"m": _as_values(metrics)}, _tree.Layout()).json


def _as_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _as_values(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _read_losses(path: Path) -> Tuple[Dict[str, str], int]:
    """Step → metrics, and how many steps came more than once. Differing ones are an error."""
    found: Dict[str, str] = {}
    repeated = 0
    for line in path.read_text().splitlines():
        step, _, metrics = line.partition("\t")
        if step in found:
            repeated += 1
            assert found[step] == metrics, f"step {step} gave {found[step]}, then {metrics}"
        found[step] = metrics
    return found, repeated


def _compare_losses(reference: Dict[str, str], path: Path) -> int:
    found, repeated = _read_losses(path)
    for step, metrics in reference.items():
        assert step in found, f"step {step} was never trained"
        assert found[step] == metrics, (
            f"step {step}: undisturbed {metrics}, after kills {found[step]}"
        )
    extra = [step for step in found if step not in reference]
    assert not extra, f"steps that the undisturbed run did not make: {', '.join(extra[:10])}"
    return repeated


def _compare_models(reference: Path, found: Path) -> None:
    difference = oneshot.diff(reference, found)
    assert difference.same, f"the final models differ: {difference}"
    # The values beside the tensors (learning rates, counters) are in state.json.
    texts = [
        next(path.glob("checkpoint_*/rank_0/state.json")).read_text() for path in (reference, found)
    ]
    assert texts[0] == texts[1], "the values beside the tensors differ"
