"""Which hyperparameters are tried.

Example:
    >>> search = BasicVariantGenerator(random_state=1)
    >>> search.set_search_properties(None, None, {"x": {"grid_search": [1, 2]}}, num_samples=1)
    True
    >>> [search.suggest(trial) for trial in "abc"]
    [{'x': 1}, {'x': 2}, 'FINISHED']
"""

from __future__ import annotations

import copy
import json
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from cairn import _native

from .. import search_space

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "OptunaSearch", "Searcher"]


class Searcher:
    """Subclass it to search in a way of your own: ``suggest`` returns a config, None (ask again when a
    trial has reported or ended) or ``Searcher.FINISHED``.

    After a restart of the tuner the same methods are called again with what is on record, in the same
    order. A searcher that answers the same then (by a seed) needs no state on disk; ``on_trial_replayed``
    tells one that does not what was tried.

    >>> from cairn import tune
    >>> class Halves(tune.search.Searcher):
    ...     def __init__(self):
    ...         super().__init__(metric="loss", mode="min")
    ...         self.x, self.told = 8.0, {}
    ...     def set_search_properties(self, metric, mode, config, **spec):
    ...         return True
    ...     def suggest(self, trial_id):
    ...         self.x /= 2
    ...         return {"x": self.x} if self.x >= 1 else self.FINISHED
    ...     def on_trial_result(self, trial_id, result):
    ...         self.told[trial_id] = result[self.metric]
    ...     def on_trial_complete(self, trial_id, result=None, error=False):
    ...         print(trial_id, self.mode, self.told[trial_id])
    >>> def train(config):
    ...     tune.report({"loss": config["x"] ** 2})
    >>> results = tune.Tuner(
    ...     train,
    ...     tune_config=tune.TuneConfig(search_alg=Halves(), num_samples=9, max_concurrent_trials=1),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0),
    ... ).fit()
    train_00000 min 16.0
    train_00001 min 4.0
    train_00002 min 1.0
    """

    FINISHED = "FINISHED"
    _seeded = True  # whether the seed was given, and not made up

    def __init__(self, metric: Optional[str] = None, mode: Optional[str] = None) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> Optional[str]:
        """What it searches by; None until TuneConfig's is known."""
        return self._metric

    @property
    def mode(self) -> Optional[str]:
        """"min" or "max"; None until TuneConfig's is known."""
        return self._mode

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes metric and mode of TuneConfig and the space; False when it has a space already."""
        return False

    def suggest(self, trial_id: str) -> Any:
        """The config of a new trial; None: none for now; ``Searcher.FINISHED``: there will be no more."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A report of a trial that was suggested."""

    def on_trial_complete(
        self, trial_id: str, result: Optional[dict[str, Any]] = None, error: bool = False
    ) -> None:
        """It will not run again."""

    def on_trial_replayed(self, trial_id: str, config: dict[str, Any]) -> None:
        """After a restart: what was suggested for a trial then, which counts whatever is said now.

        >>> class Remembers(Searcher):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.tried = []
        ...     def on_trial_replayed(self, trial_id, config):
        ...         self.tried.append(config)
        >>> searcher = Remembers()
        >>> searcher.on_trial_replayed("a", {"x": 1})                        # as the tuner does
        >>> searcher.tried
        [{'x': 1}]
        """
        self.suggest(trial_id)

    def describe(self) -> Optional[dict[str, Any]]:
        """What it is, as the record of an experiment has it; None: it has to be given again.

        >>> BasicVariantGenerator(random_state=7).describe()["random_state"]
        7
        """
        return None


class BasicVariantGenerator(Searcher):
    """Grids and random samples.

    Args:
        points_to_evaluate: configs, or parts of them, that come first, each in the place of a sample.
        max_concurrent: trials at a time; 0: as many as there are places.
        constant_grid_search: draw once per sample instead of for each combination.
        random_state: the seed; None: another one for each experiment, the same ones in a program that seeds
            numpy's global generator (or, without numpy, Python's).

    >>> from cairn import tune
    >>> search = BasicVariantGenerator(points_to_evaluate=[{"x": 9}], random_state=1)
    >>> space = {"x": tune.randint(0, 10), "y": tune.grid_search([1, 2])}
    >>> search.set_search_properties(None, None, space, num_samples=2), search.total
    (True, 4)
    >>> [search.suggest(trial) for trial in "ab"]
    [{'x': 9, 'y': 1}, {'x': 9, 'y': 2}]
    >>> search.extend(1)
    >>> search.total
    6
    """

    def __init__(
        self,
        points_to_evaluate: Optional[Sequence[dict[str, Any]]] = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Optional[int] = None,
    ) -> None:
        super().__init__()
        if max_concurrent < 0:
            raise ValueError(f"max_concurrent must not be negative, not {max_concurrent}")
        if random_state is not None and (
            isinstance(random_state, bool) or not isinstance(random_state, int)
        ):
            raise ValueError(f"random_state must be an int, not {random_state!r}")
        self.points_to_evaluate = list(points_to_evaluate or [])
        self.max_concurrent = max_concurrent
        self._seeded = random_state is not None
        self.seed = _seed_of_program() if random_state is None else random_state % 2**64
        self.constant_grid_search = constant_grid_search
        self._live: set[str] = set()
        self._made = 0
        self._variants: Any = None
        self._space: Any = {}
        self._functions: list[Any] = []

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], config: dict[str, Any], **spec: Any
    ) -> bool:
        self._space, self._functions = search_space.describe(config)
        points, functions = search_space.describe(self.points_to_evaluate)
        if functions:
            raise ValueError("points_to_evaluate are values, not functions")
        self._variants = _native.TuneVariants(
            _native.TuneSpace(self._space),
            spec.get("num_samples", 1),
            self.seed,
            points,
            self.constant_grid_search,
        )
        return True

    @property
    def total(self) -> Optional[int]:
        """How many trials there will be; None: without end."""
        return self._variants.total

    def extend(self, num_samples: int) -> None:
        """So many samples more."""
        self._variants.extend(num_samples)

    def suggest(self, trial_id: str) -> Any:
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return None
        config = self._variants.suggest(trial_id)
        if config is None:
            return Searcher.FINISHED
        number, self._made = self._made, self._made + 1
        self._live.add(trial_id)
        return search_space.resolve(config, self._functions, self.seed, number)

    def on_trial_complete(
        self, trial_id: str, result: Optional[dict[str, Any]] = None, error: bool = False
    ) -> None:
        self._live.discard(trial_id)

    def on_trial_replayed(self, trial_id: str, config: dict[str, Any]) -> None:
        # What the functions said then is on record; they are not called again.
        self._variants.suggest(trial_id)
        self._made += 1
        self._live.add(trial_id)

    def describe(self) -> dict[str, Any]:
        return {
            "name": "variants",
            "points_to_evaluate": search_space.describe(self.points_to_evaluate)[0],
            "max_concurrent": self.max_concurrent,
            "random_state": self.seed,
            "constant_grid_search": self.constant_grid_search,
        }


def _seed_of_program() -> int:
    """Programs for Ray Tune seed its search by np.random.seed."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getrandbits(62)
    return int(numpy.random.randint(2**62, dtype=numpy.int64))


class ConcurrencyLimiter(Searcher):
    """Holds another searcher back while max_concurrent of its trials live. With batch=True new ones come
    when all of the last batch have ended, and those ends are told together.

    >>> from cairn import tune
    >>> search = ConcurrencyLimiter(BasicVariantGenerator(random_state=1), max_concurrent=1)
    >>> _ = search.set_search_properties(None, None, {"x": tune.grid_search([1, 2])}, num_samples=1)
    >>> search.suggest("a"), search.suggest("b")
    ({'x': 1}, None)
    >>> search.on_trial_complete("a", {"loss": 0.5})
    >>> search.suggest("b")
    {'x': 2}
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        if not isinstance(searcher, Searcher):
            raise ValueError(f"not a Searcher: {searcher!r}")
        if (
            isinstance(max_concurrent, bool)
            or not isinstance(max_concurrent, int)
            or max_concurrent < 1
        ):
            raise ValueError(f"max_concurrent must be at least 1, not {max_concurrent!r}")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._seeded = searcher._seeded
        self._native = _native.TuneLimiter(searcher, max_concurrent, batch)

    @property
    def metric(self) -> Optional[str]:
        return self.searcher.metric

    @property
    def mode(self) -> Optional[str]:
        return self.searcher.mode

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], config: dict[str, Any], **spec: Any
    ) -> bool:
        return self.searcher.set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> Any:
        return self._native.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._native.on_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Optional[dict[str, Any]] = None, error: bool = False
    ) -> None:
        self._native.on_complete(trial_id, result, error)

    def on_trial_replayed(self, trial_id: str, config: dict[str, Any]) -> None:
        self._native.on_replayed(trial_id, config)

    def describe(self) -> Optional[dict[str, Any]]:
        inner = self.searcher.describe()
        if inner is None:
            return None
        return {
            "name": "limiter",
            "searcher": inner,
            "max_concurrent": self.max_concurrent,
            "batch": self.batch,
        }


class OptunaSearch(Searcher):
    """Asks Optuna. Nothing of it is stored: after a restart its study is filled from the record of the
    experiment, in the order in which things happened.

    Args:
        space: Optuna distributions by name; or a function of an Optuna trial, which asks that for its
            parameters (suggest_float, …) and may return a dict of constants; None: the domains of
            param_space.
        metric, mode: None: TuneConfig's.
        points_to_evaluate: parameters by name that are tried first.
        sampler: Optuna's; None: TPE with `seed`.
        seed: None: another one for each experiment.
        evaluated_rewards: results of points_to_evaluate that are known; these are not tried.

    >>> search = OptunaSearch(metric="loss", mode="min", seed=1)
    >>> _ = search.set_search_properties(None, None, {"x": search_space.uniform(0, 1), "n": 3})
    >>> config = search.suggest("first")
    >>> search.on_trial_complete("first", {"loss": 0.5})
    >>> 0 <= config["x"] < 1, config["n"]
    (True, 3)
    """

    def __init__(
        self,
        space: Union[None, Mapping[str, Any], Callable[[Any], Optional[dict[str, Any]]]] = None,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        points_to_evaluate: Optional[Sequence[dict[str, Any]]] = None,
        sampler: Any = None,
        seed: Optional[int] = None,
        evaluated_rewards: Optional[Sequence[float]] = None,
    ) -> None:
        if metric is not None and not isinstance(metric, str):
            raise ValueError(
                f"metric must be one name, not {metric!r}: OptunaSearch optimizes one objective"
            )
        super().__init__(metric, mode)
        try:
            import optuna
        except ImportError:
            raise ImportError("OptunaSearch wants Optuna: pip install optuna") from None
        if sampler is not None and seed is not None:
            raise ValueError("seed is of the default sampler: give it to your own sampler instead")
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise ValueError(f"sampler must be one of Optuna's, not {sampler!r}")
        if evaluated_rewards is not None and len(evaluated_rewards) != len(
            points_to_evaluate or []
        ):
            raise ValueError(
                "evaluated_rewards must have one number for each of points_to_evaluate"
            )
        self._optuna = optuna
        self.points_to_evaluate = [dict(point) for point in points_to_evaluate or []]
        self.evaluated_rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        self._own_sampler = sampler
        self._seeded = seed is not None
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._given_space = space
        self._distributions: dict[str, Any] = {}
        self._categories: dict[str, dict[str, Any]] = {}
        self._base: Any = {}
        self._study: Any = None
        self._asked: dict[str, Any] = {}
        self._define: Any = None
        if callable(space):
            if evaluated_rewards is not None:
                raise ValueError("evaluated_rewards want distributions by name, not a function")
            self._define = space
        elif space is not None:
            if not isinstance(space, Mapping) or any(
                not isinstance(d, optuna.distributions.BaseDistribution) for d in space.values()
            ):
                raise ValueError(
                    "space must be Optuna distributions by name, or a function; domains of tune go into "
                    "param_space"
                )
            self._distributions = dict(space)

    @property
    def study(self) -> Any:
        """Optuna's study.

        >>> search = OptunaSearch(metric="loss", mode="min", seed=1)
        >>> _ = search.set_search_properties(None, None, {"x": search_space.uniform(0, 1)})
        >>> config = search.suggest("first")
        >>> search.on_trial_complete("first", {"loss": 0.5})
        >>> search.study.best_value
        0.5
        """
        if self._study is None:
            self._start()
        return self._study

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], config: dict[str, Any], **spec: Any
    ) -> bool:
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        description, functions = search_space.describe(config)
        native = _native.TuneSpace(description)
        if native.grid_size > 1 or native.grids():
            raise ValueError("OptunaSearch cannot enumerate a grid_search: use tune.choice instead")
        if functions:
            raise ValueError(
                "OptunaSearch cannot optimize a sample_from: compute it in the trainable"
            )
        if self._given_space is None:
            # Asked for in this order, so that draws are those of a program that asks Optuna itself.
            order = {path: i for i, path in enumerate(search_space.domain_paths(config))}
            for path, domain in sorted(native.domains(), key=lambda one: order.get(one[0], 0)):
                self._distributions[path] = self._distribution(path, domain)
        elif native.domains():
            raise ValueError(
                "param_space has domains, and OptunaSearch has a space of its own: give one of them"
            )
        self._base = description
        return True

    def _distribution(self, path: str, domain: Mapping[str, Any]) -> Any:
        distributions = self._optuna.distributions
        name = domain["__domain__"]
        if name == "choice":
            categories = domain["categories"]
            if all(c is None or isinstance(c, (bool, int, float, str)) for c in categories):
                return distributions.CategoricalDistribution(categories)
            # Optuna wants scalars: others are told as text and put back.
            self._categories[path] = {json.dumps(c): c for c in categories}
            if any("__domain__" in text for text in self._categories[path]):
                raise ValueError(f"{path!r}: OptunaSearch cannot draw domains inside of a choice")
            return distributions.CategoricalDistribution(list(self._categories[path]))
        if name in ("randn", "qrandn"):
            raise ValueError(f"{path!r}: OptunaSearch has no {name}: use tune.uniform")
        lower, upper, q = domain["lower"], domain["upper"], domain.get("q")
        log = "log" in name
        if log and q is not None:
            warnings.warn(
                f"{path!r}: Optuna does not round on a logarithmic scale; q={q} is left out",
                stacklevel=4,
            )
            q = None
        if name.endswith("int"):
            last = upper if "q" in name[:1] else upper - 1
            if q is not None:  # Optuna counts from the lower end
                lower, last = -(-lower // q) * q, last // q * q
            return distributions.IntDistribution(lower, last, log=log, step=1 if q is None else q)
        return distributions.FloatDistribution(lower, upper, log=log, step=q)

    def _start(self) -> None:
        if not self._metric or not self._mode:
            raise ValueError(
                "OptunaSearch optimizes a metric: name metric and mode, here or in TuneConfig"
            )
        optuna = self._optuna
        sampler = self._own_sampler or optuna.samplers.TPESampler(seed=self.seed)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(
                sampler=sampler, direction="minimize" if self._mode == "min" else "maximize"
            )
        finally:
            optuna.logging.set_verbosity(verbosity)
        for i, point in enumerate(self.points_to_evaluate):
            params = dict(point) if self._define is not None else self._told(point)
            if self.evaluated_rewards is None:
                self._study.enqueue_trial(params)
            else:
                self._study.add_trial(
                    optuna.trial.create_trial(
                        params=params,
                        distributions={k: self._distributions[k] for k in params},
                        value=self.evaluated_rewards[i],
                    )
                )

    def _told(
        self, config: Mapping[str, Any], names: Optional[Iterable[str]] = None
    ) -> dict[str, Any]:
        """The parameters of a config as Optuna has them."""
        params = {}
        for path in self._distributions if names is None else names:
            value = config.get(path, _find(config, path))
            if value is not _MISSING:
                params[path] = json.dumps(value) if path in self._categories else value
        return params

    def _config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        config = copy.deepcopy(self._base)
        for path, value in params.items():
            value = self._categories[path][value] if path in self._categories else value
            _put(config, path, value)
        return config

    def _ask(self, trial_id: str) -> dict[str, Any]:
        if self._define is None:
            trial = self._asked[trial_id] = self.study.ask(self._distributions)
            return self._config(trial.params)
        trial = self._asked[trial_id] = self.study.ask()
        constants = self._define(trial)
        if constants is not None and not isinstance(constants, Mapping):
            raise ValueError(
                f"the function that defines the space must return a dict or None, not {constants!r}"
            )
        return {**self._config(trial.params), **(constants or {})}

    def suggest(self, trial_id: str) -> Any:
        return self._ask(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        trial = self._asked.get(trial_id)
        value = _find(result, self._metric or "")
        step = result.get("training_iteration")
        if trial is None or not isinstance(value, (int, float)) or not isinstance(step, int):
            return
        if step not in self.study._storage.get_trial(trial._trial_id).intermediate_values:
            trial.report(float(value), step)

    def on_trial_complete(
        self, trial_id: str, result: Optional[dict[str, Any]] = None, error: bool = False
    ) -> None:
        trial = self._asked.pop(trial_id, None)
        if trial is None:
            return
        value = _find(result or {}, self._metric or "")
        if error or not isinstance(value, (int, float)) or math.isnan(value):
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    def on_trial_replayed(self, trial_id: str, config: dict[str, Any]) -> None:
        self.suggest(trial_id)
        names = None if self._define is None else list(self._asked[trial_id].params)
        recorded = self._told(config, names)
        if self._asked[trial_id].params == recorded:
            return
        # A sampler without a seed says something else now: what was tried is put in its place.
        self.study.tell(self._asked[trial_id], state=self._optuna.trial.TrialState.FAIL)
        self.study.enqueue_trial(recorded)
        self._ask(trial_id)

    def describe(self) -> Optional[dict[str, Any]]:
        if self._own_sampler is not None or self._given_space is not None:
            return None
        return {
            "name": "optuna",
            "metric": self._metric,
            "mode": self._mode,
            "seed": self.seed,
            "points_to_evaluate": search_space.describe(self.points_to_evaluate)[0],
            "evaluated_rewards": self.evaluated_rewards,
        }


class _Missing:
    pass


_MISSING = _Missing()


def _find(values: Mapping[str, Any], path: str) -> Any:
    """The value at a path such as "a/b", or _MISSING."""
    if path in values:
        return values[path]
    head, slash, rest = path.partition("/")
    while slash:
        if isinstance(values.get(head), Mapping):
            found = _find(values[head], rest)
            if found is not _MISSING:
                return found
        more, slash, rest = rest.partition("/")
        head = f"{head}/{more}"
    return _MISSING


def _put(config: Any, path: str, value: Any) -> None:
    if isinstance(config, list):
        head, slash, rest = path.partition("/")
        if slash:
            _put(config[int(head)], rest, value)
        else:
            config[int(head)] = value
        return
    head, slash, rest = path.partition("/")
    while slash and head not in config:
        more, slash, rest = rest.partition("/")
        head = f"{head}/{more}"
    inner = config.get(head)
    if slash and isinstance(inner, (dict, list)) and "__domain__" not in inner:
        _put(inner, rest, value)
    else:
        config[path] = value


def from_description(description: Mapping[str, Any]) -> Searcher:
    """The searcher that describe() told of."""
    options = dict(description)
    name = options.pop("name")
    if "points_to_evaluate" in options:
        options["points_to_evaluate"] = search_space.recorded_space(
            options["points_to_evaluate"], "points_to_evaluate"
        )
    if name == "variants":
        return BasicVariantGenerator(**options)
    if name == "optuna":
        return OptunaSearch(**options)
    return ConcurrencyLimiter(from_description(options.pop("searcher")), **options)
