"""Several processes of one trial: who is who, and gathers and broadcasts between them."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import hmac
import os
import secrets
import socket
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..errors import Error, Invalid, Timeout, Unavailable
from . import _wire

_HELLO_LIMIT = 4096
_RETRY_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a process stands, as some launcher's variables say."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    chief: str  # "", "host:port" or "file:PATH"
    token: str


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise Invalid(f"{name} must be an integer, not {env[name]!r}") from None


@dataclasses.dataclass(frozen=True)
class _Names:
    """The variables of a launcher: local ones may be missing."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    job: Tuple[str, ...] = ()  # tell jobs on one machine apart


_OURS = _Names("CAIRN_RANK", "CAIRN_WORLD_SIZE", "CAIRN_LOCAL_RANK", "CAIRN_LOCAL_SIZE")
_TORCHRUN = _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",))
# The number of tasks is that of a step: a batch script has the job's too, and is one process.
_SRUN = _Names(
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
_OTHERS = (
    _TORCHRUN,
    _Names(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID",)),
    _SRUN,
)


def _names_from(env: Mapping[str, str], of_torch: bool = False) -> Optional[_Names]:
    """Whose variables say where this process stands; None: it is alone.

    Those of our launcher. But where that started one process, and the process is a launcher with
    ranks of its own, the ranks are those: all of them have the one's variables.
    """
    others = [_TORCHRUN] if of_torch else [n for n in _OTHERS if n.rank in env and n.size in env]
    if of_torch or _OURS.rank not in env or _OURS.size not in env:
        return others[0] if others else None
    if _number(env, _OURS.size) == 1:
        for names in others:
            if _number(env, names.size) > 1:
                return names
    return _OURS


def rank_and_size(env: Mapping[str, str]) -> Tuple[int, int]:
    """Of this process among those of its trial."""
    names = _names_from(env)
    return (0, 1) if names is None else (_number(env, names.rank), _number(env, names.size))


def _local_size(env: Mapping[str, str], names: _Names, count: int) -> int:
    if names.local_size not in env:
        return count
    if names is not _SRUN:
        return _number(env, names.local_size)
    # Of each node, as in "2(x3),1": three nodes with two tasks each, then one with one.
    node = _number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    for part in env[names.local_size].split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        if not tasks.isdigit() or (times and not times.isdigit()):
            break
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    raise Invalid(f"{names.local_size} does not say how many tasks are here: {env[names.local_size]!r}")


def _place_from(env: Mapping[str, str], of_torch: bool = False) -> _Place:
    """Where this process stands, by the variables of our launcher, torchrun's, MPI's or srun's."""
    names = _names_from(env, of_torch)
    if names is None:
        return _Place(0, 1, 0, 1, "", "")
    token = (
        env.get("CAIRN_CHIEF_TOKEN") or env.get("CAIRN_LAUNCH_KEY") or env.get("CAIRN_RUN_TOKEN")
    )
    rank, count = _number(env, names.rank), _number(env, names.size)
    mine = _number(env, names.local_rank) if names.local_rank in env else rank
    near = _local_size(env, names, count)
    chief = env.get("CAIRN_CHIEF", "")
    if names is not _OURS and _OURS.rank in env and chief.startswith("file:"):
        # Our launcher's, of the one process that these ranks are below: it tells runs apart.
        chief = f"{chief}-{_job_hash(env, names)}" if near == count else ""
    if not chief and count > 1:
        chief = _default_chief(env, near == count, _job_hash(env, names))
    return _Place(rank, count, mine, near, chief, token or "")


def _job_hash(env: Mapping[str, str], names: _Names) -> str:
    """The port tells jobs on one machine apart; a file of an older one is noticed and read again."""
    job = ".".join(env.get(name, "") for name in names.job)
    whole = f"{job} {env.get('MASTER_PORT', '')} {env.get('TORCHELASTIC_RESTART_COUNT', '')}"
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _default_chief(env: Mapping[str, str], one_machine: bool, job: str) -> str:
    port = env.get("MASTER_PORT", "")
    if one_machine:
        folder = os.path.join(tempfile.gettempdir(), f"cairn-chief-{os.getuid()}")
        return f"file:{os.path.join(folder, job)}"
    if "MASTER_ADDR" in env and port:
        return f"{env['MASTER_ADDR']}:{int(port) + 1}"
    raise Invalid(
        "the ranks are on several machines and nothing says how they find rank 0: set CAIRN_CHIEF to "
        "its host:port and CAIRN_CHIEF_TOKEN to a secret that they share"
    )


def _answer(token: str, nonce: bytes, who: str) -> bytes:
    """Proof of knowing the token without sending it."""
    return hmac.new(token.encode(), nonce + who.encode(), hashlib.sha256).digest()


class DistributedContext:
    """The ranks of a trial. Rank 0 is the chief.

    All of gather, allgather, broadcast and barrier are called by every rank, in the same order; a
    rank that calls another one, or is gone, is an error that names it. Values are numbers, text,
    bytes, NumPy arrays, and lists, tuples, sets and dicts of them; nothing is pickled.

    Ranks meet at a socket of the chief, on this machine's loopback unless they are on several
    machines, and prove to each other that they know the trial's token.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of those on this machine.
        cross_rank, cross_size: of the machines.

    >>> import cairn
    >>> def average(ctx, loss):                       # of all ranks, on all of them
    ...     return sum(ctx.allgather(loss)) / ctx.get_size()
    >>> ctx = cairn.core.DistributedContext.from_env()    # torchrun's, MPI's or Cairn's variables
    >>> average(ctx, 0.5), ctx.is_chief, ctx.get_rank(), ctx.get_local_rank(), ctx.get_num_agents()
    (0.5, True, 0, 0, 1)
    >>> ctx.broadcast({"seed": 7} if ctx.is_chief else None)
    {'seed': 7}
    >>> ctx.gather("x"), ctx.gather_local("x"), ctx.allgather_local("x"), ctx.broadcast_local(7)
    (['x'], ['x'], ['x'], 7)
    >>> ctx.barrier()
    >>> ctx.close()
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        size: int = 1,
        local_rank: Optional[int] = None,
        local_size: Optional[int] = None,
        chief: str = "",
        token: str = "",
        timeout: float = 600.0,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = rank if local_rank is None else local_rank
        self.local_size = size if local_size is None else local_size
        if size < 1 or not 0 <= rank < size:
            raise Invalid(f"rank {rank} of {size}: ranks count from 0")
        if not 0 <= self.local_rank < self.local_size <= size:
            raise Invalid(f"local rank {self.local_rank} of {self.local_size} among {size} ranks")
        self.cross_rank = rank // self.local_size
        self.cross_size = -(-size // self.local_size)
        self._timeout = timeout
        self._calls = 0
        self._workers: Dict[int, socket.socket] = {}
        self._chief: Optional[socket.socket] = None
        if size == 1:
            return
        if not chief:
            raise Invalid("several ranks need to know how they find rank 0: chief")
        if not token and not chief.startswith("file:") and not _is_ours(_host_port(chief)[0]):
            raise Invalid(
                f"rank 0 is at {chief}, which other machines reach, and no secret keeps strangers "
                "out: set CAIRN_CHIEF_TOKEN to the same random text for all ranks"
            )
        if rank == 0:
            self._listen(chief, token)
        else:
            self._connect(chief, token)

    @classmethod
    def from_env(
        cls, env: Optional[Mapping[str, str]] = None, timeout: float = 600.0
    ) -> "DistributedContext":
        """From the variables of Cairn's launcher, of torchrun, of MPI or of srun."""
        return cls._at(_place_from(os.environ if env is None else env), timeout)

    @classmethod
    def _at(cls, place: _Place, timeout: float) -> "DistributedContext":
        return cls(
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            chief=place.chief,
            token=place.token,
            timeout=timeout,
        )

    @classmethod
    def from_torch_distributed(cls, timeout: float = 600.0) -> "DistributedContext":
        """From torchrun's variables.

        >>> import os, cairn
        >>> if "RANK" in os.environ:                      # torchrun started this process
        ...     ctx = cairn.core.DistributedContext.from_torch_distributed()
        ... else:
        ...     ctx = cairn.core.DistributedContext()
        >>> ctx.size
        1
        """
        for name in (_TORCHRUN.rank, _TORCHRUN.size):
            if name not in os.environ:
                raise Invalid(f"{name} is not set: start the script with torchrun")
        return cls._at(_place_from(os.environ, of_torch=True), timeout)

    @property
    def is_chief(self) -> bool:
        """True for rank 0."""
        return self.rank == 0

    def get_rank(self) -> int:
        """The number of this process among all, from 0."""
        return self.rank

    def get_size(self) -> int:
        """How many processes there are."""
        return self.size

    def get_local_rank(self) -> int:
        """The number of this process among those on its machine, from 0."""
        return self.local_rank

    def get_num_agents(self) -> int:
        """How many machines there are."""
        return self.cross_size

    # How the ranks meet.

    def _listen(self, chief: str, token: str) -> None:
        path = chief[5:] if chief.startswith("file:") else ""
        spread = self.local_size < self.size  # over several machines
        near = socket.gethostname() if spread else "127.0.0.1"
        host, port = (near, 0) if path else _host_port(chief)
        deadline = time.monotonic() + self._timeout
        written = ""
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            everywhere = spread if path else not _is_ours(host)
            try:
                server.bind(("" if everywhere else host, port))
                server.listen(self.size)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise Unavailable(
                    f"rank 0 cannot listen at {chief}: another living process does. Is it a second "
                    "rank 0? Give each process a rank of its own, or, when it is another job's, "
                    "choose another MASTER_PORT or CAIRN_CHIEF"
                ) from None
            if path:
                token = token or secrets.token_hex(16)
                written = f"{host}:{server.getsockname()[1]} {token}"
                _write_address(path, written)
            while len(self._workers) < self.size - 1:
                missing = sorted(set(range(1, self.size)) - set(self._workers))
                server.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    connection, _ = server.accept()
                except socket.timeout:
                    late = f"ranks {missing} did not come within {self._timeout:g} s"
                    if path and _read_text(path) != written:
                        raise Unavailable(
                            f"{late}; another living process took rank 0's place at {path}: give "
                            "each process a rank of its own"
                        ) from None
                    raise Timeout(late) from None
                self._admit(connection, token)
        finally:
            server.close()
            if path and written:
                _remove(path, written)

    def _admit(self, connection: socket.socket, token: str) -> None:
        """Takes a rank in. Whoever does not know the token is sent away and changes nothing."""
        nonce = secrets.token_bytes(32)
        try:
            connection.settimeout(10)
            _wire.send(connection, nonce)
            hello = _wire.loads(_wire.receive(connection, _HELLO_LIMIT))
            rank, size = int(hello["rank"]), int(hello["size"])
            proof = _answer(token, nonce, f"rank {rank} of {size}")
            if not hmac.compare_digest(proof, hello["proof"]):
                raise Error("wrong token")
            _wire.send(connection, _answer(token, bytes(hello["nonce"]), "chief"))
        except Exception:  # whatever a stranger sends, and whatever that makes of the decoder
            connection.close()
            return
        if size == self.size and rank in self._workers:
            connection.close()
            raise Error(
                f"two living processes came as rank {rank} of {size}: give each process a rank of "
                "its own (RANK or CAIRN_RANK), and end the one that is too many"
            )
        if size != self.size or not 0 < rank < size:
            connection.close()
            raise Error(
                f"a process came as rank {rank} of {size}, and rank 0 waits for the ranks 1 to "
                f"{self.size - 1}: give all of them the same number"
            )
        connection.settimeout(self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._workers[rank] = connection

    def _connect(self, chief: str, token: str) -> None:
        deadline = time.monotonic() + self._timeout
        why = "no address"
        while time.monotonic() < deadline:
            try:
                address, known = _read_address(chief, token)
                self._chief = self._introduce(address, known)
                return
            except (OSError, EOFError, Error, ValueError) as error:
                why = str(error) or type(error).__name__
            time.sleep(_RETRY_SECONDS)  # nothing tells when the chief begins to listen
        raise Timeout(
            f"rank {self.rank}: rank 0 was not found at {chief}: {why}. Is it running? If it is, "
            f"another living process may have come as rank {self.rank} before: give each a rank of "
            "its own"
        )

    def _introduce(self, address: Tuple[str, int], token: str) -> socket.socket:
        connection = socket.create_connection(address, timeout=10)
        try:
            challenge = _wire.receive(connection, _HELLO_LIMIT)
            nonce = secrets.token_bytes(32)
            who = f"rank {self.rank} of {self.size}"
            hello = {"rank": self.rank, "size": self.size, "nonce": nonce}
            _wire.send(connection, _wire.dumps({**hello, "proof": _answer(token, challenge, who)}))
            if not hmac.compare_digest(
                _wire.receive(connection, _HELLO_LIMIT), _answer(token, nonce, "chief")
            ):
                raise Error("the process there is not rank 0 of this trial")
        except BaseException:
            connection.close()
            raise
        connection.settimeout(self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    # What they say.

    def gather(self, value: Any) -> Optional[List[Any]]:
        """The values of all ranks, in their order, at the chief; None elsewhere."""
        if self.size == 1:
            return [value]
        self._calls += 1
        if self._chief is not None:
            self._tell(self._chief, 0, "gather", value)
            return None
        return [value] + [self._hear(self._workers[r], r, "gather") for r in range(1, self.size)]

    def broadcast(self, value: Any = None) -> Any:
        """The chief's value, at all ranks; what others give is not used."""
        if self.size == 1:
            return value
        self._calls += 1
        if self._chief is not None:
            return self._hear(self._chief, 0, "broadcast")
        for rank in range(1, self.size):
            self._tell(self._workers[rank], rank, "broadcast", value)
        return value

    def allgather(self, value: Any) -> List[Any]:
        """The values of all ranks, in their order, at every rank."""
        return list(self.broadcast(self.gather(value)))

    def gather_local(self, value: Any) -> Optional[List[Any]]:
        """As gather, of the ranks of each machine, at its first one. All ranks call it."""
        everyone = self.allgather(value)
        return self._near(everyone) if self.local_rank == 0 else None

    def allgather_local(self, value: Any) -> List[Any]:
        """As allgather, of the ranks of each machine. All ranks call it."""
        return self._near(self.allgather(value))

    def broadcast_local(self, value: Any = None) -> Any:
        """The value of the first rank of each machine. All ranks call it."""
        return self._near(self.allgather(value if self.local_rank == 0 else None))[0]

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.allgather(None)

    def _near(self, everyone: List[Any]) -> List[Any]:
        first = self.rank - self.local_rank
        return everyone[first : first + self.local_size]

    def _tell(self, to: socket.socket, rank: int, what: str, value: Any) -> None:
        message = _wire.dumps([self._calls, what, value])
        try:
            _wire.send(to, message)
        except OSError as error:
            raise Unavailable(f"{what}: rank {rank} is gone ({error})") from None

    def _hear(self, source: socket.socket, rank: int, what: str) -> Any:
        try:
            call, said, value = _wire.loads(_wire.receive(source))
        except EOFError:
            raise Unavailable(f"{what}: rank {rank} is gone") from None
        except socket.timeout:
            raise Timeout(
                f"{what}: nothing came from rank {rank} within {self._timeout:g} s"
            ) from None
        except OSError as error:
            raise Unavailable(f"{what}: rank {rank} is gone ({error})") from None
        if (call, said) != (self._calls, what):
            raise Error(
                f"rank {self.rank} is at its call {self._calls}, {what}, and rank {rank} at its call "
                f"{call}, {said}: all ranks must make the same calls in the same order"
            )
        return value

    def close(self) -> None:
        """Hangs up; others that wait for this rank are told that it is gone."""
        for connection in self._workers.values():
            connection.close()
        self._workers.clear()
        if self._chief is not None:
            self._chief.close()
            self._chief = None

    def __enter__(self) -> "DistributedContext":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DistributedContext(rank {self.rank} of {self.size})"


def _host_port(chief: str) -> Tuple[str, int]:
    host, _, port = chief.rpartition(":")
    if not host or not port.isdigit():
        raise Invalid(f"CAIRN_CHIEF must be host:port or file:PATH, not {chief!r}")
    return host, int(port)


def _is_ours(host: str) -> bool:
    return host in ("127.0.0.1", "localhost")


def _write_address(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)


def _read_address(chief: str, token: str) -> Tuple[Tuple[str, int], str]:
    if not chief.startswith("file:"):
        return _host_port(chief), token
    with open(chief[5:]) as file:
        address, _, written = file.read().partition(" ")
    return _host_port(address), token or written


def _read_text(path: str) -> str:
    """Empty when there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _remove(path: str, written: str) -> None:
    if _read_text(path) != written:
        return  # another chief's by now
    try:
        os.unlink(path)
    except OSError:
        pass  # gone
