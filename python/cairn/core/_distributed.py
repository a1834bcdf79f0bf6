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


def _place_from(env: Mapping[str, str]) -> _Place:
    """Our launcher's variables, torchrun's, or those of MPI, in that order; alone without any."""
    token = (
        env.get("CAIRN_CHIEF_TOKEN") or env.get("CAIRN_LAUNCH_KEY") or env.get("CAIRN_RUN_TOKEN")
    )
    for rank, size, local_rank, local_size, job in (
        ("CAIRN_RANK", "CAIRN_WORLD_SIZE", "CAIRN_LOCAL_RANK", "CAIRN_LOCAL_SIZE", ""),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "PMIX_NAMESPACE",
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    ):
        if rank not in env or size not in env:
            continue
        count = _number(env, size)
        mine = _number(env, local_rank) if local_rank in env else _number(env, rank)
        near = _number(env, local_size) if local_size in env else count
        chief = env.get("CAIRN_CHIEF", "")
        if not chief and count > 1:
            chief = _default_chief(env, near == count, env.get(job, ""))
        return _Place(_number(env, rank), count, mine, near, chief, token or "")
    return _Place(0, 1, 0, 1, "", "")


def _default_chief(env: Mapping[str, str], one_machine: bool, job: str) -> str:
    port = env.get("MASTER_PORT", "")
    if one_machine:
        # The port tells jobs on one machine apart; a file of an older one is noticed and read again.
        name = hashlib.sha256(f"{job} {port} {env.get('TORCHELASTIC_RESTART_COUNT', '')}".encode())
        folder = os.path.join(tempfile.gettempdir(), f"cairn-chief-{os.getuid()}")
        return f"file:{os.path.join(folder, name.hexdigest()[:16])}"
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

    >>> alone = DistributedContext()
    >>> alone.rank, alone.size, alone.allgather("x"), alone.broadcast(7)
    (0, 1, ['x'], 7)
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
        """From the variables of Cairn's launcher, of torchrun or of MPI."""
        place = _place_from(os.environ if env is None else env)
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
        """From torchrun's variables."""
        if "RANK" not in os.environ:
            raise Invalid("RANK is not set: start the script with torchrun")
        keep = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_RANK")}
        return cls.from_env(keep, timeout)

    @property
    def is_chief(self) -> bool:
        """True for rank 0."""
        return self.rank == 0

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return self.size

    def get_local_rank(self) -> int:
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
