"""What hyperparameters may be: domains, grids and functions.

Example:
    >>> from cairn.tune import search_space as tune
    >>> space = {"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.choice([1, 2, 3])}
    >>> sorted(draw(space, seed=1))
    ['layers', 'lr']
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from cairn import _native

__all__ = [
    "Domain",
    "choice",
    "draw",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]

_DOMAIN = "__domain__"


class Domain:
    """A set that a hyperparameter is drawn from. Made by uniform(), choice() and so on.

    >>> from cairn import tune
    >>> domain = tune.quniform(0, 1, 0.25)
    >>> domain, domain.name
    (quniform(lower=0, upper=1, q=0.25), 'quniform')
    >>> domain.sample(seed=1) == domain.sample(seed=1), domain.sample() in (0, 0.25, 0.5, 0.75, 1)
    (True, True)
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._description = {_DOMAIN: name, **options}
        _native.TuneSpace({"domain": describe(self)[0]})  # says what is wrong, here and now

    @property
    def name(self) -> str:
        """Of the function that made it."""
        return self._description[_DOMAIN]

    def sample(self, seed: Optional[int] = None) -> Any:
        """One value; the same one for the same seed."""
        return draw({"domain": self}, seed=seed)["domain"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self._description == other._description

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self._description.items() if k != _DOMAIN)
        return f"{self.name}({options})"


class Function(Domain):
    """sample_from: what a function of the user says, given the rest of the config."""

    def __init__(self, func: Callable[..., Any]) -> None:
        if not callable(func):
            raise ValueError(f"sample_from takes a function, not {func!r}")
        super().__init__("sample_from", func=func)

    @property
    def func(self) -> Callable[..., Any]:
        return self._description["func"]


def grid_search(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Each of the values in turn; with several grids, all combinations.

    Example:
        >>> grid_search([1, 2])
        {'grid_search': [1, 2]}
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(f"grid_search takes a list of values, not {values!r}")
    return {"grid_search": list(values)}


def choice(categories: Sequence[Any]) -> Domain:
    """One of the categories, all alike; domains among them are drawn.

    >>> choice(["adam", "sgd"]).sample() in ("adam", "sgd")
    True
    >>> 0.1 <= choice([uniform(0.1, 0.2), uniform(0.8, 0.9)]).sample() < 0.9
    True
    """
    if isinstance(categories, (str, bytes)) or not hasattr(categories, "__iter__"):
        raise ValueError(f"choice takes a list of values, not {categories!r}")
    return Domain("choice", categories=list(categories))


def uniform(lower: float, upper: float) -> Domain:
    """A float in [lower, upper).

    >>> 0.5 <= uniform(0.5, 0.9).sample() < 0.9
    True
    """
    return Domain("uniform", lower=lower, upper=upper)


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A float in [lower, upper], rounded to a multiple of q.

    >>> quniform(0, 1, 0.5).sample() in (0.0, 0.5, 1.0)
    True
    """
    return Domain("quniform", lower=lower, upper=upper, q=q)


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A float in [lower, upper) whose logarithm (to any base) is uniform.

    >>> samples = [loguniform(1e-4, 1e-2).sample(seed) for seed in range(1000)]
    >>> 400 < sum(lr < 1e-3 for lr in samples) < 600          # as many below 1e-3 as above
    True
    """
    _check_base(base)
    return Domain("loguniform", lower=lower, upper=upper)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    """The same, rounded to a multiple of q.

    >>> qloguniform(5, 10, 5).sample() in (5.0, 10.0)
    True
    """
    _check_base(base)
    return Domain("qloguniform", lower=lower, upper=upper, q=q)


def randint(lower: int, upper: int) -> Domain:
    """An integer from lower to upper - 1.

    >>> sorted({randint(2, 5).sample(seed) for seed in range(100)})
    [2, 3, 4]
    """
    return Domain("randint", lower=lower, upper=upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """A multiple of q from lower to upper, both included.

    >>> sorted({qrandint(16, 64, 16).sample(seed) for seed in range(100)})
    [16, 32, 48, 64]
    """
    return Domain("qrandint", lower=lower, upper=upper, q=q)


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """An integer from lower to upper - 1 whose logarithm is uniform.

    >>> samples = [lograndint(1, 100).sample(seed) for seed in range(1000)]
    >>> 400 < sum(n < 10 for n in samples) < 600              # as many below 10 as above
    True
    """
    _check_base(base)
    return Domain("lograndint", lower=lower, upper=upper)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    """A multiple of q from lower to upper, both included, whose logarithm is uniform.

    >>> sorted({qlograndint(8, 32, 8).sample(seed) for seed in range(100)})
    [8, 16, 24, 32]
    """
    _check_base(base)
    return Domain("qlograndint", lower=lower, upper=upper, q=q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """A float of a normal distribution.

    >>> samples = [randn(mean=3.0, sd=0.1).sample(seed) for seed in range(1000)]
    >>> round(sum(samples) / len(samples), 1)
    3.0
    """
    return Domain("randn", mean=mean, sd=sd)


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """The same, rounded to a multiple of q.

    >>> qrandn(mean=3.0, sd=1.0, q=0.5).sample() % 0.5
    0.0
    """
    return Domain("qrandn", mean=mean, sd=sd, q=q)


def sample_from(func: Callable[..., Any]) -> Function:
    """What the function returns. It is given the other hyperparameters, as ``spec.config.lr`` or
    ``spec["lr"]``, when it takes an argument; functions that use each other's values are called in
    the right order.

    Example:
        >>> draw({"lr": 0.5, "decay": sample_from(lambda spec: spec.config.lr / 10)})["decay"]
        0.05
    """
    return Function(func)


def draw(space: Mapping[str, Any], seed: Optional[int] = None, sample: int = 0) -> dict[str, Any]:
    """One config of a space (the first combination of its grids).

    >>> draw({"lr": 0.1, "layers": grid_search([2, 4])})
    {'layers': 2, 'lr': 0.1}
    >>> draw({"x": uniform(0, 1)}, seed=7) == draw({"x": uniform(0, 1)}, seed=7)
    True
    """
    description, functions = describe(space)
    seed = random.SystemRandom().getrandbits(63) if seed is None else seed
    return resolve(_native.TuneSpace(description).draw(seed, sample), functions, seed, sample)


def _check_base(base: float) -> None:
    if not base > 0 or base == 1:
        raise ValueError(f"base must be positive and not 1, not {base!r}")


# --- between Python and the native side -------------------------------------------------------------


def describe(space: Any) -> tuple[Any, list[Callable[..., Any]]]:
    """The space in values that are recorded as JSON, and the functions of its sample_from in the
    order of their numbers there."""
    functions: list[Callable[..., Any]] = []

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, Function):
            functions.append(value.func)
            return {_DOMAIN: "sample_from", "id": len(functions) - 1}
        if isinstance(value, Domain):
            return {k: visit(v, f"{path}/{k}") for k, v in value._description.items()}
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(
                        f"hyperparameters have text as keys, not {key!r} (in {path or 'the space'!r})"
                    )
                if key == _DOMAIN:
                    raise ValueError(f"{_DOMAIN} cannot be the name of a hyperparameter")
            return {
                key: visit(item, f"{path}/{key}" if path else key) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [visit(item, f"{path}/{i}") for i, item in enumerate(value)]
        return plain(value, path)

    return visit(space, ""), functions


def domain_paths(space: Any, path: str = "") -> list[str]:
    """Where its domains are, in the order in which they were written.

    >>> domain_paths({"b": uniform(0, 1), "a": {"c": randint(0, 3), "n": 5}})
    ['b', 'a/c']
    """
    if isinstance(space, Domain):
        return [path]
    inner: Any = ()
    if isinstance(space, Mapping):
        inner = space.items()
    elif isinstance(space, (list, tuple)):
        inner = enumerate(space)
    return [
        found
        for key, value in inner
        for found in domain_paths(value, f"{path}/{key}" if path else str(key))
    ]


def in_order(space: Any, order: Optional[Sequence[str]]) -> Any:
    """The same space, written in the order that domain_paths told of; None: by name. Searchers may ask for
    values in this order. One with functions is left alone: they are known by their numbers.

    >>> list(in_order({"a": uniform(0, 1), "b": uniform(0, 1)}, ["b", "a"]))
    ['b', 'a']
    """
    if describe(space)[1]:
        return space
    places = {path: i for i, path in enumerate(order or ())}

    def first(path: str, value: Any) -> int:
        return min((places.get(one, 0) for one in domain_paths(value, path)), default=0)

    def visit(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        inside = {key: f"{path}/{key}" if path else key for key in sorted(value)}
        return {
            key: visit(value[key], inside[key])
            for key in sorted(inside, key=lambda key: first(inside[key], value[key]))
        }

    return visit(space, "")


# What JSON has no numbers for is on record as these texts.
NUMBERS_AS_TEXT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any, path: str) -> Any:
    """A value as JSON has it."""
    if isinstance(value, str) and value in NUMBERS_AS_TEXT:
        raise ValueError(
            f"hyperparameter {path!r}: the text {value!r} stands for a number on record, and trials would be "
            f"given that: write {value.lower()!r}, or float({value.lower()!r}) for the number"
        )
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)  # numbers of numpy and torch
    if item is not None and getattr(value, "ndim", None) == 0:
        return item()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise ValueError(
        f"hyperparameter {path!r}: {type(value).__name__} objects cannot be recorded; give it a name or a number "
        "and look the object up in the trainable, or bind it with tune.with_parameters"
    )


def recorded_space(value: Any, where: str) -> Any:
    """The search space that describe told of, as it was given."""
    if isinstance(value, Mapping):
        if _DOMAIN in value:
            options = {k: recorded_space(v, where) for k, v in value.items() if k != _DOMAIN}
            if value[_DOMAIN] == "sample_from":
                raise ValueError(
                    f"{where} is a sample_from function of yours, which is not on record: give "
                    "param_space again"
                )
            return Domain(value[_DOMAIN], **options)
        return {k: recorded_space(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list):
        return [recorded_space(v, where) for v in value]
    return NUMBERS_AS_TEXT.get(value, value) if isinstance(value, str) else value


class _Unresolved(Exception):
    """A function asked for a value that another function has yet to give."""


class _View:
    """A config as a sample_from sees it: attributes or items, unresolved places refuse."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.__dict__["_config"] = config

    def __getitem__(self, key: str) -> Any:
        value = self._config[key]
        if isinstance(value, Mapping):
            if value.get(_DOMAIN) == "sample_from":
                raise _Unresolved(key)
            return _View(value)
        return value

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"the config has no {key!r}") from None

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._config else default

    def __contains__(self, key: str) -> bool:
        return key in self._config

    def __iter__(self) -> Any:
        return iter(self._config)

    def keys(self) -> Any:
        return self._config.keys()


class _Spec(_View):
    @property
    def config(self) -> _View:
        return _View(self._config)

    def __getitem__(self, key: str) -> Any:
        if key == "config" and key not in self._config:
            return self.config
        return super().__getitem__(key)


class _Seeded:
    """The global generators of random and numpy, seeded for a while."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._random = random.getstate()
        random.seed(self._seed)
        self._numpy = sys.modules.get("numpy")
        if self._numpy is not None:
            self._state = self._numpy.random.get_state()
            self._numpy.random.seed(self._seed % 2**32)

    def __exit__(self, *exc: object) -> None:
        random.setstate(self._random)
        if self._numpy is not None:
            self._numpy.random.set_state(self._state)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], int]]:
    if isinstance(value, dict):
        if value.get(_DOMAIN) == "sample_from":
            return [(path, value["id"])]
        return [found for key, item in value.items() for found in _places(item, (*path, key))]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in _places(item, (*path, i))]
    return []


def resolve(config: Any, functions: Sequence[Callable[..., Any]], seed: int, number: int) -> Any:
    """Puts what the functions say into a config that was drawn. A function that draws random numbers
    from the global generators gets the same ones for the same seed and number."""
    open_places = _places(config)
    while open_places:
        later = []
        for path, function in open_places:
            name = "/".join(map(str, path))
            with _Seeded(hash((seed, number, function)) & (2**63 - 1)):
                try:
                    value = _call(functions[function], _Spec(config))
                except _Unresolved:
                    later.append((path, function))
                    continue
            place = config
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = describe_result(value, name)
        if len(later) == len(open_places):
            names = ", ".join("/".join(map(str, path)) for path, _ in later)
            raise ValueError(f"sample_from: these hyperparameters wait for each other: {names}")
        open_places = later
    return config


def describe_result(value: Any, name: str) -> Any:
    """What a function returned, drawn when it is a domain."""
    if isinstance(value, Domain):
        return describe_result(value.sample(random.getrandbits(63)), name)
    described, functions = describe({name: value})
    if functions:
        raise ValueError(f"sample_from: {name!r} cannot be another sample_from")
    return described[name]


def _call(function: Callable[..., Any], spec: _Spec) -> Any:
    try:
        takes = any(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
            for p in inspect.signature(function).parameters.values()
        )
    except (TypeError, ValueError):
        takes = True
    return function(spec) if takes else function()
