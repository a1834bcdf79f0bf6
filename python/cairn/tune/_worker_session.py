"""A run of a trial, seen from its worker: what it begins with, its reports, the checkpoints that it keeps."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .. import _location
from ..core._files import Content, fetch, files_in, remove_tree
from ..errors import Corruption, Error, Invalid, Mismatch, NotFound
from ..manager import CheckpointInfo, CheckpointManager
from .checkpoint import KEY, Checkpoint
from .result_keys import (
    DONE,
    FILLED_LATER,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    TIMESTAMP,
    TRAINING_ITERATION,
    made_here,
    plain_result,
)
from .trial import Trial, name_trial

__all__ = ["Session", "TrialStopped"]

_STAGING = ".cairn-staging"


class TrialStopped(BaseException):
    """Ends a function from within a report: no `except Exception` of the user's holds it up."""


def check_scores(result: Mapping[str, Any], attribute: Optional[str]) -> None:
    """Refuses a score that cannot be compared."""
    if attribute is None:
        return
    found, value = find_metric(result, attribute)
    if found and not isinstance(value, (bool, int, float)):
        raise ValueError(
            f"checkpoint_score_attribute {attribute!r} is {value!r}: a score must be a number"
        )


def find_metric(result: Mapping[str, Any], key: str) -> Tuple[bool, Any]:
    """(whether it is there, the value); "a/b" reaches into nested ones.

    >>> find_metric({"a": {"b": 3}}, "a/b")
    (True, 3)
    """
    if key in result:
        return True, result[key]
    value: Any = result
    for part in key.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


class Repository:
    """The trial's checkpoints, written by this process alone."""

    def __init__(self, directory: str, run: int) -> None:
        self.directory = directory
        self._run = run
        self._manager: Optional[CheckpointManager] = None
        if not _location.is_remote(directory):
            os.makedirs(directory, exist_ok=True)
            remove_tree(os.path.join(directory, _STAGING))  # of runs that were killed

    def manager(self) -> CheckpointManager:
        if self._manager is None:
            self._manager = CheckpointManager(
                self.directory, keep_last=None, run=self._run, takeover=True, progress=False
            )
        return self._manager

    def staging(self) -> str:
        if _location.is_remote(self.directory):
            return tempfile.mkdtemp(prefix="cairn-staging-")
        path = os.path.join(self.directory, _STAGING, uuid.uuid4().hex)
        os.makedirs(path)
        return path

    def end_staging(self, path: str) -> None:
        remove_tree(path)
        if os.path.basename(os.path.dirname(path)) == _STAGING:
            try:
                os.rmdir(os.path.dirname(path))
            except OSError:
                pass

    def close(self) -> None:
        if self._manager is not None:
            last, self._manager = self._manager, None
            last.close()


def candidates(directory: str, id: str) -> List[CheckpointInfo]:
    """The checkpoint and those that are older, newest first."""
    try:
        with CheckpointManager(directory, read_only=True) as reader:
            infos = [info for info in reader.list() if not info.foreign]
    except NotFound:
        return []
    ids = [info.id for info in infos]
    if id in ids:
        infos = infos[: ids.index(id) + 1]
    return infos[::-1]


class Session:
    """A run of a trial, seen from its worker."""

    def __init__(
        self, begun: Mapping[str, Any], settings: Mapping[str, Any], client: Any, run: int
    ) -> None:
        self.trial_id = str(begun["trial_id"])
        self.number = int(begun["number"])
        self.config: Dict[str, Any] = dict(begun["config"])
        self.settings = settings
        self.directory = f"{settings['directory']}/{self.trial_id}"
        self.repository = Repository(self.directory, run)
        self.client = client
        self.run = run
        self.iteration = 0
        self.time_total = 0.0
        self._time_before = 0.0  # of earlier runs
        self.since_restore = 0
        self.reported = int(begun["reported"])
        self.start: Optional[Checkpoint] = None
        self.start_info: Optional[CheckpointInfo] = None
        self.stop = bool(begun.get("stop"))
        self.pause = bool(begun.get("pause"))
        self.saved_at: Optional[int] = None
        self._sequence = 0
        self._removed: List[str] = []
        self._removing: Optional[threading.Thread] = None
        self._last = time.time()
        self._staged: List[str] = []
        self.wanted = False  # the scheduler asks for a checkpoint
        self._over = ""  # "stop" or "pause" once a report was answered so
        self._in_user_code = False
        self._hurried = False
        self._reporting = threading.RLock()  # threads of the user's report one after the other

    @functools.cached_property
    def trial_name(self) -> str:
        """For people: as TuneConfig(trial_name_creator=…) has it, or its id."""
        trial = Trial(self.trial_id, self.config, self.directory)
        pickled = self.settings.get("name_creator")
        name_trial(trial, None if pickled is None else pickle.loads(pickled))
        return str(trial)

    # Beginning.

    def restore(self, wanted: Mapping[str, Any], load: Callable[[Checkpoint], None]) -> None:
        """Begins with a checkpoint, or with the next older one that can be read."""
        directory = f"{self.settings['directory']}/{wanted['trial']}"
        problems: List[str] = []
        own = wanted["trial"] == self.trial_id
        infos = candidates(directory, str(wanted["id"]))
        if not infos:
            raise Corruption(f"{directory} has no checkpoint any more, and {wanted['id']} is to be restored")
        for info in infos:
            try:
                checkpoint = self._materialize(info, link=not own)
            except (Corruption, Mismatch, NotFound) as error:
                problems.append(f"{info.path}: {error}")
                print(f"cairn.tune: passed over, because it cannot be read: {problems[-1]}", flush=True)
                continue
            self._begin_with(info, own)
            load(checkpoint)
            return
        raise Corruption("no checkpoint can be read: " + "; ".join(problems))

    def _materialize(self, info: CheckpointInfo, link: bool) -> Checkpoint:
        """Reads all of it, so that damage shows here and not in the user's code.

        Args:
            link: for a clone of another trial: its files are links, for reading. One's own are copies.
        """
        checkpoint = Checkpoint._of(info)
        if checkpoint._kind == "dict":
            checkpoint.to_dict()
        if checkpoint._kind != "dict" or (info.metadata.get(KEY) or {}).get("files"):
            path = self.repository.staging()
            self._staged.append(path)
            fetch(info.path, path, link=link)
            checkpoint._directory = path
        return checkpoint

    def _begin_with(self, info: CheckpointInfo, own: bool) -> None:
        about = info.metadata.get(KEY) or {}
        self.iteration = int(info.step)
        self.time_total = self._time_before = float(about.get("time_total_s") or 0.0)
        self.since_restore = 0
        self.start_info = info if own else None
        if own:
            self.saved_at = self.iteration

    def catch_up(self) -> str:
        """The result of a checkpoint that was kept, while its report was not: it is made up for, and
        answered as it would have been then: "continue", "stop" or "pause"."""
        info = self.start_info
        if info is None or self.iteration <= self.reported:
            return "continue"
        result = (info.metadata.get(KEY) or {}).get("result")
        if not isinstance(result, dict):
            return "continue"
        decision = str(self._send(dict(result), self._describe(info))["decision"])
        if decision == "pause":
            self.pause = True
        return "stop" if decision == "continue" and result.get(DONE) else decision

    # Reporting.

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Optional[Checkpoint] = None,
        save: Optional[Callable[[], Checkpoint]] = None,
        save_at_end: Optional[Callable[[], Checkpoint]] = None,
    ) -> str:
        """Sends a result; returns "continue", "stop" or "pause".

        Args:
            checkpoint: kept with it. Or
            save: makes it.
            save_at_end: makes one when the trial stops or pauses here and none was made.
        """
        with self._reporting:
            if self._over:  # somebody's `except:` held up the end: it is said again
                raise TrialStopped(self._over)
            called_by_user = self._in_user_code
            self.leave()
            decision = "continue"
            try:
                decision = self._report(metrics, checkpoint, save, save_at_end)
            finally:
                if called_by_user and decision == "continue":
                    self.enter()
            return decision

    # Being hurried: the tuner wants the trial to end and does not wait for its next report.

    def enter(self) -> None:
        """Code of the user's begins."""
        self._in_user_code = True
        if self._hurried:
            self.hurry()

    def leave(self) -> None:
        """It has ended, or called us."""
        self._in_user_code = False

    def hurry(self) -> None:
        """A signal came. Code of the user's is left where it is. One that saves when it is asked to is
        not: it comes to that at the end of its step."""
        self._hurried = True
        if not self._in_user_code:
            return  # what we do is brief, and not to be done by half
        self.leave()
        self._hurried = False
        answer = self.client.call("/tune/asked", {})
        saves = self.settings["saves"]
        if answer.get("pause") and not saves:
            self.pause = True
            raise TrialStopped("pause")
        if answer.get("stop") and not (saves and self.settings["checkpoint_at_end"]):
            raise TrialStopped("stop")
        self.enter()

    def _report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Optional[Checkpoint],
        save: Optional[Callable[[], Checkpoint]],
        save_at_end: Optional[Callable[[], Checkpoint]],
    ) -> str:
        values = plain_result(metrics)
        check_scores(values, self.settings["score_attribute"])
        before = (self.iteration, self.since_restore, self.time_total, self._last, self.saved_at)
        now = time.time()
        self.iteration += 1
        self.since_restore += 1
        elapsed = now - self._last
        self._last = now
        self.time_total += elapsed
        done = bool(values.pop(DONE, False))
        values.pop(SHOULD_CHECKPOINT, None)
        for key in FILLED_LATER:
            values.pop(key, None)
        result = {
            **values,
            TRAINING_ITERATION: self.iteration,
            TIME_THIS_ITER_S: values.get(TIME_THIS_ITER_S, elapsed),
            TIME_TOTAL_S: self.time_total,
            TIMESTAMP: int(now),
            "iterations_since_restore": self.since_restore,
            "time_since_restore": self.time_total - self._time_before,
            DONE: done,  # always: trials may be stopped by it
            **made_here(),
        }
        kept = None
        sent = False
        try:
            if save is not None:
                checkpoint = save()
            if checkpoint is not None:
                kept = self._describe(self._keep(checkpoint, result))
            sent = True
            answer = self._send(result, kept)
        except BaseException as error:
            if not sent or isinstance(error, Invalid):  # nobody knows of it: it was never made
                self.iteration, self.since_restore, self.time_total, self._last, self.saved_at = before
                self._take_back(kept)
            raise
        decision = str(answer["decision"])
        self.wanted = bool(answer.get("checkpoint")) and checkpoint is None
        if done and decision == "continue":
            decision = "stop"
        wanted = decision == "pause" or bool(answer.get("checkpoint"))
        if decision == "stop" and self.settings["checkpoint_at_end"]:
            wanted = True
        if wanted and save_at_end is not None and self.saved_at != self.iteration:
            info = self._keep(save_at_end(), result)
            self._removals(
                self.client.call(
                    "/tune/saved", {"checkpoint": self._describe(info), "removed": self._take()}
                )
            )
        if decision == "pause":
            self.pause = True
        if decision != "continue":
            self._over = decision
        self._last = time.time()
        return decision

    def _take_back(self, kept: Optional[Mapping[str, Any]]) -> None:
        """A checkpoint whose report was refused."""
        if kept is None:
            return
        self._settle()
        try:
            self.repository.manager().delete(str(kept["id"]))
        except Error as error:
            print(f"cairn.tune: checkpoint {kept['id']} was not removed: {error}", flush=True)

    def _take(self) -> List[str]:
        if self._removing is not None and self._removing.is_alive():
            return []  # the next request tells
        removed, self._removed = self._removed, []
        return removed

    def _send(self, result: Dict[str, Any], kept: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        self._sequence += 1
        body: Dict[str, Any] = {"sequence": self._sequence, "result": result}
        if kept is not None:
            body["checkpoint"] = kept
        removed = self._take()
        if removed:
            body["removed"] = removed
        try:
            answer = self.client.call("/tune/result", body)
        except Invalid:  # the next one has this number
            self._sequence -= 1
            self._removed = removed + self._removed
            raise
        self._removals(answer)
        return dict(answer)

    def _removals(self, answer: Mapping[str, Any]) -> None:
        """Takes out what the rules let go, while the trainable goes on: it waits for a disk."""
        ids = [str(id) for id in answer.get("remove") or ()]
        if not ids:
            return
        self._settle()
        self._removing = threading.Thread(target=self._remove, args=(ids,), daemon=True)
        self._removing.start()

    def _remove(self, ids: List[str]) -> None:
        for id in ids:
            try:
                self.repository.manager().delete(id)
            except NotFound:
                pass
            except Error as error:  # the engine removes it after the run
                print(f"cairn.tune: checkpoint {id} was not removed: {error}", flush=True)
                continue
            self._removed.append(id)

    def _settle(self) -> None:
        """Until nothing is being removed: one thread at a time uses the repository."""
        if self._removing is not None:
            self._removing.join()
            self._removing = None

    def _keep(self, checkpoint: Checkpoint, result: Dict[str, Any]) -> CheckpointInfo:
        """Commits it; durable when this returns."""
        kind = checkpoint._kind
        about = {
            "kind": kind,
            "config": self.config,
            "result": result,
            "time_total_s": self.time_total,
            "metadata": checkpoint.get_metadata(),
            **checkpoint.__dict__.get("_about", {}),
        }
        state: Dict[str, Any] = {}
        files: Dict[str, Content] = {}
        if kind == "dict":
            state = {"data": checkpoint.to_dict()}
            if checkpoint._directory is not None:
                files = files_in(checkpoint._directory)
                about["files"] = bool(files)
        elif checkpoint._info is not None:  # of another trial, or reported once more
            with checkpoint.as_directory() as path:
                return self._commit(state, files_in(path), about, result)
        else:
            assert checkpoint._directory is not None
            files = files_in(checkpoint._directory)
        return self._commit(state, files, about, result)

    def _commit(
        self, state: Dict[str, Any], files: Dict[str, Content], about: Dict[str, Any], result: Dict[str, Any]
    ) -> CheckpointInfo:
        self._settle()
        info = self.repository.manager().save(
            self.iteration,
            state,
            metrics=result,
            metadata={"steps_completed": self.iteration, KEY: about},
            files=files,
            blocking=True,
        ).wait()
        self.saved_at = self.iteration
        return info

    def _describe(self, info: CheckpointInfo) -> Dict[str, Any]:
        return {
            "id": info.id,
            "steps_completed": info.step,
            "metrics": info.metrics,
            "bytes": info.bytes,
            "generation": info.generation,
            "sequence": info.sequence,
            "path": info.path.rstrip("/").rsplit("/", 1)[-1],
        }

    def close(self) -> None:
        self._settle()
        for path in self._staged:
            self.repository.end_staging(path)
        self._staged = []
        self.repository.close()
