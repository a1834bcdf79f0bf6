"""Parameter servers: tables and dense variables in server processes, trained by several trainers.

A trainer that `cairn ps run` started finds its servers by itself::

    client = cairn.ps.Client()
    users = client.table("users", 16, optimizer=cairn.optimizers.Adagrad(0.1))
    bias = client.dense("bias", np.zeros(1), optimizer=cairn.optimizers.SGD(0.1))
    while client.step < steps:
        try:
            train(client.step, users, bias)         # lookup, apply_gradients, pull, push
            client.end_step({"position": ...})      # sync: waits for the other trainers
        except cairn.ps.RolledBack:
            load(client.state)                      # a process was lost: go on from client.step
    client.close()
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _location
from ._arguments import positive, seconds, text_argument, whole
from ._wording import a_type
from .errors import Error, Invalid, Unavailable
from .initializers import Initializer
from .optimizers import Optimizer
from .table import (
    _DTYPES,
    CounterFilter,
    Evicted,
    RowsById,
    _admission,
    _array_of,
    _Eviction,
    _eviction,
    _learning_rate,
)

try:
    from . import _ps
except ImportError as _error:
    raise Unavailable(
        f"parameter servers are not in this installation ({_error}). They need gRPC (Debian: "
        "libgrpc++1.51; to build: libgrpc++-dev)"
    ) from None

__all__ = ["Client", "DenseVariable", "RolledBack", "Server", "Table"]


class RolledBack(Error):
    """A process of the job was lost, and all went back to the last checkpoint.

    Tables and variables stay usable. ``client.step`` and ``client.state`` say where to go on.

    Attributes:
        step: steps that are done; the next one has this number.

    >>> import cairn.ps
    >>> try:
    ...     raise cairn.ps.RolledBack(40)            # as any call of a client does
    ... except cairn.ps.RolledBack as error:
    ...     print("go on with step", error.step)
    go on with step 40
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"the job went back to step {step}")
        self.step = step


class Table(RowsById):
    """A table on the servers; used like :class:`cairn.EmbeddingTable`. Made by Client.table.

    >>> import cairn, cairn.ps
    >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
    ...     users = client.table("users", 2, optimizer=cairn.optimizers.SGD(0.5),
    ...                          initializer=cairn.initializers.Constant(1.0))
    ...     users.apply_gradients([7], [[1.0, 2.0]])
    ...     client.end_step()
    ...     print(users.lookup([7]).tolist(), sorted(users.rows()))
    [[0.5, 0.0]] [7]
    """

    _client: "Client"
    _set_rate: Optional[Tuple[Tuple[int, int], float]] = None  # in the step under way: when, what

    def rows(self) -> Dict[int, Tuple[bytes, bytes, int, int]]:
        """Every row as (weights, slots, frequency, version), for comparisons: small tables."""
        keys, frequency, version, weights, slots = self._native.export()
        ids = np.frombuffer(keys, dtype=np.int64)
        count = len(ids)
        width = len(slots) // count if count else 0
        counts = np.frombuffer(frequency, dtype=np.int64)
        versions = np.frombuffer(version, dtype=np.int64)
        row = 4 * self.dim
        return {
            int(key): (
                weights[i * row : (i + 1) * row],
                slots[i * width : (i + 1) * width],
                int(counts[i]),
                int(versions[i]),
            )
            for i, key in enumerate(ids)
        }

    def evict(self, step: int) -> Optional[Evicted]:
        """Removes what the eviction rules say, at `step`, on all servers.

        In async mode at once. In sync mode when the step ends, after the gradients of all
        trainers: one trainer asks for it, or all do; a table is swept once, at the greatest step
        that any of them named, so that it makes no difference who came first.

        Returns:
            What was removed; None in sync mode, where that is not known yet. Of an answer that
            was lost on its way and asked for again the rows are not counted.

        >>> import cairn, cairn.ps
        >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
        ...     users = client.table("users", 2, optimizer=cairn.optimizers.SGD(0.5),
        ...                          eviction=cairn.GlobalStepEvict(steps_to_live=1))
        ...     for step in range(3):
        ...         users.apply_gradients([step], [[1.0, 1.0]])
        ...         users.evict(step)
        ...         client.end_step()
        ...     print(sorted(users.rows()))
        [1, 2]
        """
        number = whole(step, f"table {self.name!r}: step")
        if number < 0:
            raise Invalid(f"table {self.name!r}: step must not be negative: {number}")
        evicted = self._native.evict(number)
        return None if evicted is None else Evicted(*evicted)

    @property
    def learning_rate(self) -> float:
        """Of updates from now on, on all servers: the optimizer's, until another is set. What was
        set is part of checkpoints, and comes back with them.

        In sync mode it counts for the step under way and all later ones: one trainer sets it, or
        all do; of several rates for one step the last trainer's counts. In async mode it counts at
        once: let one trainer set it, since of several at once each server may take another one
        last. With recovery="partial" a server that was lost comes back with the rate of its
        checkpoint, for its keys alone: set it again when client.status()[0]["generation"] has
        changed. What is read is the first server's.

        >>> import cairn, cairn.ps
        >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
        ...     users = client.table("users", 1, optimizer=cairn.optimizers.SGD(0.5),
        ...                          initializer=cairn.initializers.Constant(0.0))
        ...     for step in range(3):
        ...         users.apply_gradients([7], [[1.0]])
        ...         if step == 1:
        ...             users.learning_rate /= 2
        ...         client.end_step()
        ...     print(users.learning_rate, users.lookup([7]).tolist())
        0.25 [[-1.0]]
        """
        if self._set_rate is not None and self._set_rate[0] == self._moment():
            return self._set_rate[1]
        return float(self._native.learning_rate())

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate = _learning_rate(self.name, rate)
        if rate > float(np.finfo(np.float32).max):
            raise Invalid(f"table {self.name!r}: learning_rate is too large: {rate}")
        rate = float(np.float32(rate))  # as the servers have it
        moment = self._moment()
        self._native.set_learning_rate(rate)
        self._set_rate = (moment, rate) if self._client.mode == "sync" else None

    def _moment(self) -> Tuple[int, int]:
        """Changes when a step ends, and when the job goes back: what was set before that counts
        now, or is forgotten."""
        return self._client.step, self._client.rollbacks

    def __repr__(self) -> str:
        return f"ps.Table({self.name!r}, dim={self.dim})"


class DenseVariable:
    """A dense variable on the servers, float32. Made by Client.dense.

    >>> import numpy as np, cairn, cairn.ps
    >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
    ...     bias = client.dense("bias", np.zeros(2), optimizer=cairn.optimizers.SGD(0.5))
    ...     bias.push([1.0, 2.0])
    ...     client.end_step()
    ...     print(bias.pull().tolist())
    [-0.5, -1.0]
    """

    def __init__(self, native: "_ps.Dense", name: str, shape: Tuple[int, ...]) -> None:
        self._native = native
        self.name = name
        self.shape = shape

    def pull(self, out: Optional[np.ndarray] = None) -> np.ndarray:
        """Its values; into `out` where given (float32, contiguous)."""
        if out is None:
            out = np.empty(self.shape, dtype=np.float32)
        elif (
            not isinstance(out, np.ndarray)
            or out.dtype != np.float32
            or out.shape != self.shape
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            raise Invalid(
                f"dense variable {self.name!r}: out must be a NumPy array of float32 and shape "
                f"{list(self.shape)}, contiguous and not read-only"
            )
        self._native.pull(out)
        return out

    def push(self, gradient: Any) -> None:
        """Sync: it counts when the step ends, with those of the other trainers."""
        array = _float32(gradient, f"dense variable {self.name!r}: a gradient")
        if array.shape != self.shape:
            raise Invalid(
                f"dense variable {self.name!r}: a gradient of shape {list(array.shape)}, not "
                f"{list(self.shape)}"
            )
        self._native.push(array)

    def __repr__(self) -> str:
        return f"ps.DenseVariable({self.name!r}, {list(self.shape)})"


class Client:
    """A trainer's connection to all servers of its job.

    Lost connections are made again, and what was not answered is sent again; the servers apply it
    once. When a process of the job was lost, the next call raises :class:`RolledBack`.

    Calls of several threads take turns. RolledBack comes to the one whose call finds out: a thread
    that looks rows up ahead of time has to tell the one that trains.

    Requests travel over plain TCP connections, with TLS over gRPC; CAIRN_PS_TRANSPORT=grpc in the
    environment lets gRPC carry them without TLS too, where only HTTP/2 passes.

    Args:
        servers: "host:port" of each server, in their order: a list, or one text with commas
            between. Without it the environment of `cairn ps run` (CAIRN_PS_SERVERS) or, with
            `directory`, the repository tells.
        directory: the job's repository, where servers register: a server that moved is found.
        num_servers: how many there are, with `directory` alone.
        trainer_id: of `num_trainers`; -1 only looks.
        token: that the servers ask for.
        ca: PEM file of who signed the servers' certificates: then with TLS.
        request_timeout: seconds for an answer.
        reconnect_timeout: seconds for lost servers to come back.

    >>> import numpy as np, cairn, cairn.ps
    >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
    ...     users = client.table("users", 2, optimizer=cairn.optimizers.SGD(1.0),
    ...                          initializer=cairn.initializers.Constant(0.0))
    ...     bias = client.dense("bias", np.zeros(1), optimizer=cairn.optimizers.SGD(1.0))
    ...     print(client.names(), client.mode, client.step, client.state)
    ...     while client.step < 3:
    ...         if client.step == 1:
    ...             client.save(full=True)            # when this step has ended
    ...         users.apply_gradients([client.step], [[1.0, 1.0]])
    ...         bias.push([1.0])
    ...         client.end_step({"position": 10 * client.step})
    ...     client.barrier()
    ...     print(client.step, client.state, users.size(), bias.pull().tolist())
    ...     print(client.status()[0]["step"], client.rollbacks, client.increments)
    ...     path = client.save_persistables("result")
    ...     "cairn_" in client.metrics()
    ['bias', 'users'] sync 0 None
    3 {'position': 20} 3 [-3.0]
    3 0 False
    True
    """

    def __init__(
        self,
        servers: Union[None, str, Sequence[str]] = None,
        *,
        directory: Optional[Union[str, "os.PathLike[str]"]] = None,
        num_servers: Optional[int] = None,
        trainer_id: Optional[int] = None,
        num_trainers: Optional[int] = None,
        token: Optional[str] = None,
        ca: Optional[Union[str, "os.PathLike[str]"]] = None,
        server_name: str = "",
        request_timeout: float = 60.0,
        reconnect_timeout: float = 600.0,
    ) -> None:
        environ = os.environ
        addresses: List[str] = []
        if servers is not None:
            addresses = addresses_of(servers, "servers")
        elif num_servers is None:
            addresses = addresses_of(environ.get("CAIRN_PS_SERVERS", ""), "CAIRN_PS_SERVERS")
        if not addresses and num_servers is None:
            raise Invalid(
                "no servers: start the trainer with `cairn ps run`, give their addresses, or "
                "the job's directory and num_servers"
            )
        if directory is None:
            directory = environ.get("CAIRN_CHECKPOINT_DIR", "")
        self.trainer_id = _small(trainer_id, "trainer_id", "CAIRN_TRAINER_ID", 0)
        self.num_trainers = _small(num_trainers, "num_trainers", "CAIRN_NUM_TRAINERS", 1)
        self._names: List[str] = []
        self._native = _ps.Client(
            {
                "servers": addresses,
                "directory": _location.text_of(directory),
                "num_servers": _small(num_servers, "num_servers", "", 0),
                "trainer": self.trainer_id,
                "trainers": self.num_trainers,
                "token": _text(token, "token", "CAIRN_PS_TOKEN"),
                "ca": _text(ca, "ca", "CAIRN_PS_CA"),
                "server_name": text_argument(server_name, "server_name"),
                "transport": environ.get("CAIRN_PS_TRANSPORT", "socket"),
                "request_timeout": seconds(request_timeout, "request_timeout"),
                "reconnect_timeout": seconds(reconnect_timeout, "reconnect_timeout"),
            }
        )

    def table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer,
        initializer: Optional[Initializer] = None,
        dtype: str = "float32",
        admission: Union[None, int, CounterFilter] = None,
        eviction: Union[None, _Eviction, Sequence[_Eviction]] = None,
        seed: int = 0,
    ) -> Table:
        """A table of the job: made by whoever comes first, the same for all trainers."""
        table = Table(name, dim, optimizer, initializer, dtype)
        steps, norm = _eviction(name, eviction)
        table._native = self._native.table(
            {
                "name": name,
                "dim": dim,
                "dtype": _DTYPES[table.dtype],
                "optimizer": _described(optimizer),
                "initializer": table.initializer._described(),
                "seed": whole(seed, f"table {name!r}: seed") % (1 << 64),
                "admission": _admission(name, admission),
                "steps_to_live": steps,
                "min_l2_norm": norm,
            }
        )
        self._names.append(name)
        table._client = self
        return table

    def dense(self, name: str, array: Any, *, optimizer: Optimizer) -> DenseVariable:
        """A dense variable of the job. `array` gives its shape and, when it is new, its values."""
        if not isinstance(optimizer, Optimizer):
            raise Invalid(f"dense variable {name!r}: optimizer: use one of cairn.optimizers")
        if not text_argument(name, "a dense variable's name"):
            raise Invalid("a dense variable needs a name")
        values = _float32(array, f"dense variable {name!r}")
        native = self._native.dense(name, list(values.shape), _described(optimizer), values)
        self._names.append(name)
        return DenseVariable(native, name, values.shape)

    def names(self) -> List[str]:
        """Of the tables and dense variables that this client declared, sorted."""
        return sorted(set(self._names))

    def end_step(self, state: Any = None) -> None:
        """Ends this trainer's step; in sync mode, returns when all trainers ended theirs.

        Args:
            state: what this trainer needs to go on exactly (position in the data, generators):
                anything that JSON holds. It is part of the checkpoints.
        """
        self._native.end_step(json.dumps(_json_state(state, "state")))

    def set_state(self, state: Any) -> None:
        """Replaces what was given with the last completed step: for what is known only afterwards.

        >>> import cairn.ps
        >>> with cairn.ps.Server("runs/a") as server, cairn.ps.Client(f"127.0.0.1:{server.port}") as client:
        ...     client.end_step({"position": 10})
        ...     client.set_state({"position": 10, "done": True})
        ...     print(client.step, client.state)
        1 {'position': 10, 'done': True}
        """
        self._native.set_state(json.dumps(_json_state(state, "state")))

    def barrier(self) -> None:
        """Waits for all trainers."""
        self._native.barrier()

    def save(self, full: bool = False) -> None:
        """Asks for a checkpoint at the end of the next step."""
        if not isinstance(full, (bool, np.bool_)):
            raise Invalid(f"save: full must be True or False, not {full!r}")
        self._native.request_save(bool(full))

    def save_persistables(self, dirname: Union[str, "os.PathLike[str]"]) -> str:
        """Pulls the tables and dense variables of this client, with their slots, and saves them in
        a directory of their own, which a later job begins with (`--load`, Server(load=…)), whatever
        its number of servers. For one trainer, between steps, while no other pushes.

        Returns:
            The path of the checkpoint.
        """
        return self._native.save_persistables(_location.text_of(dirname))

    def close(self) -> None:
        """This trainer is done: the others go on without it.

        Afterwards the client, its tables and variables raise an error; closing again does nothing.

        >>> import cairn.ps
        >>> with cairn.ps.Server("runs/a") as server:
        ...     client = cairn.ps.Client([f"127.0.0.1:{server.port}"])
        ...     client.end_step()
        ...     client.close()
        """
        self._native.close()

    @property
    def step(self) -> int:
        """Steps that this trainer completed: the next one has this number."""
        return self._native.step

    @property
    def state(self) -> Any:
        """What was given with the last completed step, also by an earlier process; or None."""
        text = self._native.state
        return None if text is None else json.loads(text)

    @property
    def mode(self) -> str:
        """ "sync" or "async"."""
        return "sync" if self._native.sync else "async"

    @property
    def rollbacks(self) -> int:
        """How often the job went back while this client was connected."""
        return self._native.rollbacks

    def status(self) -> List[Dict[str, Any]]:
        """What each server says about itself."""
        return [json.loads(self._native.status(i)) for i in range(self._native.servers)]

    @property
    def increments(self) -> bool:
        """Whether the servers save increments."""
        return bool(json.loads(self._native.status(0)).get("increments"))

    @property
    def quantizes(self) -> bool:
        """Whether the servers store increments with 8 bits a number (`--quantize`).

        >>> import cairn, cairn.ps
        >>> with cairn.ps.Server("runs/a", incremental_steps=5, quantize=True) as server:
        ...     with cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
        ...         client.quantizes
        True
        """
        return bool(json.loads(self._native.status(0)).get("quantize"))

    def quantization_error(self) -> Tuple[float, float]:
        """Of the last increment that is over, where the servers quantize: the greatest error of a
        number on any of them, and the greatest in parts of its row's largest.

        >>> import cairn, cairn.ps
        >>> with cairn.ps.Server("runs/a", incremental_steps=5, quantize=True) as server:
        ...     with cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
        ...         client.quantization_error()                    # no increment yet
        (0.0, 0.0)
        """
        errors = [one["quantization_error"] for one in self.status() if "quantization_error" in one]
        return (
            max((float(one["max_abs"]) for one in errors), default=0.0),
            max((float(one["max_relative"]) for one in errors), default=0.0),
        )

    def metrics(self, server: int = 0) -> str:
        """A server's metrics in Prometheus's text format."""
        return self._native.metrics(server)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()


class Server:
    """One server of a job, in this process. It serves in the background until stopped.

    Args:
        directory: the job's repository, shared by all servers.
        listen: "host:port"; port 0: any free one.
        index: which of `num_servers` it is.
        mode: "sync" (bit-reproducible) or "async".
        full_secs: seconds between full checkpoints; None: not by time.
        incremental_secs: seconds between increments.
        full_steps: steps between full checkpoints.
        incremental_steps: steps between increments.
        quantize: rows of increments with 8 bits a number; how far they are off is told by
            :meth:`Client.quantization_error`. A job that goes back to such an increment is no longer
            bit-equal; full ones are always exact.
        max_to_keep: full checkpoints that stay; None: all.
        load: an earlier job's checkpoint that a job without any begins with.
        certificate, key: PEM files: then with TLS.
        ca, server_name: of the other servers' certificates, as for Client.
        recovery: when a process is lost, "exact" (all go back to the last checkpoint), "partial"
            (only a lost server does, and what it had taken since is lost) or "log" (nobody does).
        log_dir: recovery "log": where the update log is; None: in the repository.
        log_level: an acknowledged change survives the server ("written") or its machine ("synced").

    >>> import cairn, cairn.ps
    >>> server = cairn.ps.Server("runs/a", full_secs=None, incremental_steps=10)
    >>> with cairn.ps.Client([f"127.0.0.1:{server.port}"]) as client:
    ...     users = client.table("users", 2, optimizer=cairn.optimizers.SGD())
    ...     rows = users.lookup([7])
    ...     server.status()["state"], "cairn_" in server.metrics()
    ('serving', True)
    >>> server.stop()
    >>> server.wait()                                # until it is stopped, by this process or another
    """

    def __init__(
        self,
        directory: Union[str, "os.PathLike[str]"],
        *,
        listen: str = "127.0.0.1:0",
        address: str = "",
        index: int = 0,
        num_servers: int = 1,
        num_trainers: int = 1,
        mode: str = "sync",
        full_secs: Optional[float] = 600.0,
        incremental_secs: Optional[float] = None,
        full_steps: Optional[int] = None,
        incremental_steps: Optional[int] = None,
        quantize: bool = False,
        max_to_keep: Optional[int] = 3,
        load: Optional[Union[str, "os.PathLike[str]"]] = None,
        token: str = "",
        certificate: str = "",
        key: str = "",
        ca: str = "",
        server_name: str = "",
        recovery: str = "exact",
        log_dir: Optional[Union[str, "os.PathLike[str]"]] = None,
        log_level: str = "written",
    ) -> None:
        if mode not in ("sync", "async"):
            raise Invalid(f'mode is "sync" or "async", not {mode!r}')
        if recovery not in ("exact", "partial", "log"):
            raise Invalid(f'recovery is "exact", "partial" or "log", not {recovery!r}')
        if log_level not in ("written", "synced"):
            raise Invalid(f'log_level is "written" or "synced", not {log_level!r}')
        self._native = _ps.Server.start(
            {
                "listen": text_argument(listen, "listen"),
                "address": text_argument(address, "address"),
                "directory": _location.text_of(directory),
                "index": whole(index, "index"),
                "servers": whole(num_servers, "num_servers"),
                "trainers": whole(num_trainers, "num_trainers"),
                "mode": mode,
                "full_secs": _every(full_secs, "full_secs"),
                "incremental_secs": _every(incremental_secs, "incremental_secs"),
                "full_steps": positive(full_steps, "full_steps"),
                "incremental_steps": positive(incremental_steps, "incremental_steps"),
                "quantize": bool(quantize),
                "max_to_keep": positive(max_to_keep, "max_to_keep"),
                "load": "" if load is None else _location.text_of(load),
                "token": text_argument(token, "token"),
                "certificate": os.fspath(certificate),
                "key": os.fspath(key),
                "ca": os.fspath(ca),
                "server_name": text_argument(server_name, "server_name"),
                "recovery": recovery,
                "log_dir": "" if log_dir is None else _location.text_of(log_dir),
                "log_level": log_level,
            }
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._native.port

    def status(self) -> Dict[str, Any]:
        """state, generation, step, tables, saves, …"""
        return json.loads(self._native.status())

    def metrics(self) -> str:
        """In Prometheus's text format."""
        return self._native.metrics()

    def wait(self) -> None:
        """Returns when it was stopped; raises what ended it."""
        self._native.wait()

    def stop(self) -> None:
        """What was not saved is lost."""
        self._native.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def addresses_of(given: Any, what: str) -> List[str]:
    """A list of "host:port", or one text of them."""
    if isinstance(given, str):
        return [address for address in (part.strip() for part in given.split(",")) if address]
    if not isinstance(given, Iterable):
        raise Invalid(f'{what}: a list of "host:port", not {a_type(given)}')
    addresses = list(given)
    for address in addresses:
        if not isinstance(address, str) or ":" not in address:
            raise Invalid(f'{what}: {address!r} is no "host:port"')
    return addresses


def _small(given: Any, what: str, variable: str, otherwise: int) -> int:
    """A number that counts processes; where None is given, the variable's of the environment."""
    if given is None:
        text = os.environ.get(variable, "") if variable else ""
        if not text:
            return otherwise
        try:
            given, what = int(text), variable
        except ValueError:
            raise Invalid(f"{variable} must be a number, not {text!r}") from None
    number = whole(given, what)
    if not -1 <= number < 1 << 31:
        raise Invalid(f"{what}: {number} is no number of processes")
    return number


def _text(given: Any, what: str, variable: str) -> str:
    if given is None:
        return os.environ.get(variable, "")
    return text_argument(os.fspath(given) if isinstance(given, os.PathLike) else given, what)


def _every(period: Any, what: str) -> Optional[float]:
    return None if period is None else seconds(period, what)


def _float32(values: Any, what: str) -> np.ndarray:
    """Contiguous; a copy where it was something else."""
    given = _array_of(values, what)
    if given.dtype.kind not in "biuf" and given.dtype.name != "bfloat16":
        raise Invalid(f"{what}: numbers are wanted, not {given.dtype}")
    return np.asarray(given, dtype=np.float32, order="C")


def _json_state(state: Any, where: str) -> Any:
    """As JSON holds it; what it would change on the way, or does not hold, is refused by its place."""
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str):
                raise Invalid(f"{where}: the key {key!r} is no text, and would come back as one")
        return {key: _json_state(value, f"{where}/{key}") for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_json_state(value, f"{where}/{i}") for i, value in enumerate(state)]
    if isinstance(state, np.generic):
        state = state.item()
    if state is not None and not isinstance(state, (bool, int, float, str)):
        raise Invalid(
            f"{where}: {a_type(state)} cannot be stored; JSON holds numbers, texts, lists and dicts"
        )
    return state


def _described(optimizer: Optimizer) -> Tuple[str, Dict[str, float]]:
    kind, settings = optimizer._described()
    return kind, {name: float(value) for name, value in settings.items()}
