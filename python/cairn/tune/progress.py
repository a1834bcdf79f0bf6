"""The table of trials: live in a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import html
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, TextIO, Union

from ._flat import flatten
from .callback import Callback
from .result_keys import AUTO_RESULT_KEYS
from .search import _MISSING, _find
from .trial import Trial

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]

_ORDER = {Trial.RUNNING: 0, Trial.PAUSED: 1, Trial.PENDING: 2, Trial.ERROR: 3, Trial.TERMINATED: 4}
_PLAIN_SECONDS = 30.0


def _add_column(
    name: str,
    title: Optional[str],
    named: Optional[list[str]],
    more: list[str],
    titles: dict[str, str],
) -> None:
    if name in (named or ()) or name in more:
        raise ValueError(f"{name!r} is a column already")
    (more if named is None else named).append(name)
    if title is not None:
        titles[name] = title


class ProgressReporter(Callback):
    """Shows how an experiment gets on.

    Args:
        metric_columns: metrics that are shown, or {metric: title}; None: the one that is optimized and the
            first few.
        parameter_columns: hyperparameters, or {hyperparameter: title}; None: the first few.
        max_progress_rows: of the table.
        max_report_frequency: seconds between two tables.
        metric, mode: what is optimized; None: TuneConfig's.
        infer_limit: how many columns "the first few" are.
        max_column_length: characters of a cell.
        sort_by_metric: the best trials first, instead of those that run.
        total_samples, max_error_rows, print_intermediate_tables: taken and not needed.

    >>> from cairn import tune
    >>> class Loss(tune.ProgressReporter):
    ...     def show(self, trials, done):
    ...         if done:
    ...             print(self.text(trials).splitlines()[1], self.best(trials), sep="; ")
    >>> a, b = tune.Trial("a", {"lr": 0.1}), tune.Trial("b", {"lr": 0.2})
    >>> a.last_result, b.last_result = {"loss": 0.5}, {"loss": 0.25}
    >>> reporter = Loss(metric_columns=["loss"])           # give it to RunConfig(progress_reporter=…)
    >>> reporter.set_search_properties("loss", "min")      # as the tuner does
    >>> reporter.show([a, b], done=True)
    trial  status   lr   iter  time (s)  loss; b
    >>> reporter.add_parameter_column("width")
    >>> reporter.add_metric_column("acc", representation="accuracy")
    >>> reporter.summary([a, b])
    '2 trials: 2 PENDING; 0:00:00; best loss=0.25 (b)'
    >>> reporter.table([a, b])[1][1]
    ['b', 'PENDING', '0.2', '', '', '', '0.25', '']
    """

    def __init__(
        self,
        metric_columns: Union[None, Sequence[str], Mapping[str, str]] = None,
        parameter_columns: Union[None, Sequence[str], Mapping[str, str]] = None,
        max_progress_rows: int = 20,
        max_report_frequency: float = 0.5,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        *,
        infer_limit: int = 4,
        max_column_length: int = 24,
        sort_by_metric: bool = False,
        total_samples: Optional[int] = None,
        max_error_rows: int = 20,
        print_intermediate_tables: Optional[bool] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_progress_rows < 1:
            raise ValueError(f"max_progress_rows must be at least 1, not {max_progress_rows}")
        if mode is not None and mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")
        self._metrics = None if metric_columns is None else list(metric_columns)
        self._parameters = None if parameter_columns is None else list(parameter_columns)
        self._metric_titles = dict(metric_columns) if isinstance(metric_columns, Mapping) else {}
        self._parameter_titles = (
            dict(parameter_columns) if isinstance(parameter_columns, Mapping) else {}
        )
        self._more_metrics: list[str] = []  # besides the first few
        self._more_parameters: list[str] = []
        self._few = infer_limit
        self._longest = max_column_length
        self._best_first = sort_by_metric
        self._rows = max_progress_rows
        self._seconds = max_report_frequency
        self._metric = metric
        self._mode = mode
        self._clock = clock
        self._began = clock()
        self._shown = -math.inf

    def set_search_properties(self, metric: Optional[str], mode: Optional[str]) -> None:
        """Takes what TuneConfig names, where the reporter was given nothing."""
        self._metric = self._metric or metric
        self._mode = self._mode or mode

    def add_metric_column(self, metric: str, representation: Optional[str] = None) -> None:
        """Shows one more metric, under its name or that of `representation`."""
        _add_column(metric, representation, self._metrics, self._more_metrics, self._metric_titles)

    def add_parameter_column(self, parameter: str, representation: Optional[str] = None) -> None:
        """Shows one more hyperparameter."""
        _add_column(
            parameter, representation,
            self._parameters, self._more_parameters, self._parameter_titles,
        )  # fmt: skip

    # What is shown.

    def best(self, trials: Sequence[Trial]) -> Optional[Trial]:
        """By the last report."""
        numbered = self._numbered(trials)
        if not numbered:
            return None
        return (max if self._mode == "max" else min)(numbered, key=lambda pair: pair[1])[0]

    def _numbered(self, trials: Sequence[Trial]) -> list[tuple[Trial, Any]]:
        """Those with a number to compare, and that."""
        if not self._metric or not self._mode:
            return []
        values = [(trial, _find(trial.last_result, self._metric)) for trial in trials]
        return [(t, v) for t, v in values if isinstance(v, (int, float)) and v == v]

    def summary(self, trials: Sequence[Trial]) -> str:
        """One line: how many trials there are, in which states, for how long, and the best."""
        counts = Counter(trial.status for trial in trials)
        parts = [f"{counts[status]} {status}" for status in _ORDER if counts[status]]
        seconds = self._clock() - self._began
        text = f"{len(trials)} trials: {', '.join(parts) or 'none yet'}; {_duration(seconds)}"
        best = self.best(trials)
        if best is not None:
            text += f"; best {self._metric}={_cell(_find(best.last_result, self._metric or ''))} ({best})"
        return text

    def table(self, trials: Sequence[Trial]) -> tuple[list[str], list[list[str]], int]:
        """Header, rows, and how many trials have no row."""
        ordered = sorted(trials, key=lambda trial: _ORDER.get(trial.status, 9))
        if self._best_first:
            ranked = self._numbered(ordered)
            ranked.sort(key=lambda pair: pair[1], reverse=self._mode == "max")
            known = {id(trial) for trial, _ in ranked}
            ordered = [t for t, _ in ranked] + [t for t in ordered if id(t) not in known]
        best = self.best(trials)
        if best is not None and best in ordered[self._rows :]:
            ordered.remove(best)
            ordered.insert(self._rows - 1, best)
        shown = ordered[: self._rows]
        parameters = (
            self._parameters
            if self._parameters is not None
            else _some([flatten(trial.config) for trial in shown], self._few)
        )
        metrics = self._metrics
        if metrics is None:
            first = _some([_plotted(trial.last_result) for trial in shown], self._few)
            metrics = first
            if self._metric:
                metrics = [self._metric, *(name for name in first if name != self._metric)]
                metrics = metrics[: self._few]
        parameters = [*parameters, *(n for n in self._more_parameters if n not in parameters)]
        metrics = [*metrics, *(n for n in self._more_metrics if n not in metrics)]

        def cell(value: Any) -> str:
            return _cell(value, self._longest)

        header = [
            "trial", "status", *(self._parameter_titles.get(name, name) for name in parameters),
            "iter", "time (s)", *(self._metric_titles.get(name, name) for name in metrics),
        ]  # fmt: skip
        rows = [
            [
                str(trial),
                trial.status,
                *(cell(_find(trial.config, name)) for name in parameters),
                cell(trial.last_result.get("training_iteration", _MISSING)),
                cell(trial.last_result.get("time_total_s", _MISSING)),
                *(cell(_find(trial.last_result, name)) for name in metrics),
            ]
            for trial in shown
        ]
        return header, rows, len(trials) - len(shown)

    def text(self, trials: Sequence[Trial], width: int = 200) -> str:
        """The summary and the table, as lines of at most `width` characters."""
        header, rows, more = self.table(trials)
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines = [self.summary(trials)]
        for row in [header, *rows]:
            lines.append("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip())
        if more:
            lines.append(f"… and {more} more")
        return "\n".join(line[:width] for line in lines)

    # When.

    def show(self, trials: Sequence[Trial], done: bool) -> None:
        """Shows it; `done` the last time. For subclasses."""
        raise NotImplementedError

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if self._clock() - self._shown >= self._seconds:
            self._shown = self._clock()
            self.show(trials, False)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self.show(trials, True)


class CLIReporter(ProgressReporter):
    """A table that stays in its place in a terminal; a line for each trial that ends, and a summary now
    and then, where output goes to a file.

    >>> import io
    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"loss": 0.5})
    >>> out = io.StringIO()
    >>> reporter = tune.CLIReporter(metric_columns=["loss"], file=out)
    >>> run = tune.RunConfig(storage_path="runs", progress_reporter=reporter)
    >>> results = tune.Tuner(train, run_config=run).fit()
    >>> print(out.getvalue())
    train_00000 TERMINATED after 1 iterations
    1 trials: 1 TERMINATED; 0:00:...
    """

    def __init__(self, *args: Any, file: Optional[TextIO] = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file = file
        self._lines = 0
        self._summary_at = self._clock()

    @property
    def _out(self) -> TextIO:
        return sys.stderr if self._file is None else self._file

    def show(self, trials: Sequence[Trial], done: bool) -> None:
        out = self._out
        if not out.isatty():
            if done or self._clock() - self._summary_at >= _PLAIN_SECONDS:
                self._summary_at = self._clock()
                print(self.summary(trials), file=out, flush=True)
            return
        size = shutil.get_terminal_size()
        lines = self.text(trials, size.columns - 1).split("\n")[: max(2, size.lines - 1)]
        # Up to where the last table began, and away with what is below.
        up = f"\x1b[{self._lines}A" if self._lines else ""
        out.write(up + "\x1b[J" + "\n".join(lines) + "\n")
        out.flush()
        self._lines = 0 if done else len(lines)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._line(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._line(trial)

    def _line(self, trial: Trial) -> None:
        if self._out.isatty():
            return
        iteration = trial.last_result.get("training_iteration", 0)
        value = _find(trial.last_result, self._metric) if self._metric else _MISSING
        metric = "" if value is _MISSING else f" {self._metric}={_cell(value)}"
        error = (
            f": {trial.error.strip().splitlines()[-1]}"
            if trial.status == Trial.ERROR and trial.error
            else ""
        )
        print(
            f"{trial} {trial.status} after {iteration} iterations{metric}{error}",
            file=self._out,
            flush=True,
        )


class JupyterNotebookReporter(ProgressReporter):
    """A table that is updated in place in a notebook.

    >>> from cairn import tune
    >>> trial = tune.Trial("a", {"lr": 0.1})
    >>> trial.last_result = {"loss": 0.5}
    >>> "<td>0.5</td>" in tune.JupyterNotebookReporter(metric_columns=["loss"]).html([trial])
    True
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"max_report_frequency": 1.0, **options})
        self._handle: Any = None

    def html(self, trials: Sequence[Trial]) -> str:
        """The summary and the table."""
        header, rows, more = self.table(trials)
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        rest = f"<p>… and {more} more</p>" if more else ""
        return (
            f"<p>{html.escape(self.summary(trials))}</p><table><tr>{cells}</tr>{body}</table>{rest}"
        )

    def show(self, trials: Sequence[Trial], done: bool) -> None:
        from IPython.display import HTML, display

        shown = HTML(self.html(trials))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def default_reporter() -> ProgressReporter:
    """The one for where this process writes."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return JupyterNotebookReporter()
    return CLIReporter()


def _plotted(result: dict[str, Any]) -> dict[str, Any]:
    return flatten({key: value for key, value in result.items() if key not in AUTO_RESULT_KEYS})


def _some(dicts: Sequence[dict[str, Any]], count: int) -> list[str]:
    names = dict.fromkeys(name for one in dicts for name in one)
    return list(names)[:count]


def _cell(value: Any, longest: int = 24) -> str:
    if value is _MISSING:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
