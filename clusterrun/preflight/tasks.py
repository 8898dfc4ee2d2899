"""What the coordinator asks of a node's examiner and what it answers: values, and the text that travels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.frozen import Any, frozen
from clusterrun.model.preflight_report import Finding

Readings = Mapping[str, Any]
"""What a probe read, by the node's name."""
Findings = Iterator[tuple[str, Finding]]
"""Each with its node's name; '' stands for all together."""


class Task:
    """What an examiner is asked to do."""


class Answer:
    """What it answers to a task."""


@frozen
class RunNeeds:
    """What the run was promised on every node, and where its files are; what checks judge against.

    ``gpus`` and ``ranks`` are per node. ``python`` is the ranks' interpreter, empty where the ranks
    are no Python program. ``limits`` are the user's numbers by name (see ``limits.py``). ``check_commands``
    are shell commands of the user that check a node.
    """

    run_id: str
    run_dir: str
    home: str
    cwd: str
    python: str
    gpus: int
    ranks: int
    cpus_per_rank: int
    limits: tuple[tuple[str, float], ...] = ()
    check_commands: tuple[str, ...] = ()


@frozen
class LocalTask(Task):
    """Make these checks (by name), all at once, each within its own limit; asked again: within ``limit``."""

    asked: RunNeeds
    checks: tuple[str, ...]
    limit: float = 0.0


@frozen
class ProbeReading:
    """What one probe read, as JSON; empty if it failed: ``why`` says how, ``late`` that it was killed."""

    check: str
    value: str
    seconds: float
    why: str = ""
    late: bool = False


@frozen
class LocalAnswer(Answer):
    readings: tuple[ProbeReading, ...]


@frozen
class StartTorch(Task):
    """Start the torch worker with the ranks' interpreter (anew where one runs); ``cwd`` is the ranks'.

    ``gpus``: it may look for GPUs; else tests use gloo, whatever torch could see. ``contained``: it runs in a
    container, which is started for it.
    """

    python: str
    cwd: str
    gpus: bool = True
    contained: bool = False


@frozen
class ListenTask(Task):
    """Open the ports that others will dial; ``nonce`` (hex) is what a connecting node must present."""

    nonce: str


@frozen
class Interface:
    """A network interface that is up, with one of its addresses."""

    name: str
    address: str
    mtu: int
    megabits: int = 0
    kind: str = ""


@frozen
class ListenAnswer(Answer):
    """Where this node can be dialled; ``topology``: Slurm's address of it among the switches, or empty."""

    interfaces: tuple[Interface, ...]
    ports: tuple[int, ...]
    udp_port: int
    wall: float
    topology: str = ""


@frozen
class Target:
    node: int
    name: str
    address: str
    ports: tuple[int, ...]
    udp_port: int


@frozen
class DialTask(Task):
    """Resolve ``names`` (all nodes), dial ``targets``, and say what came in from whom.

    ``closed``: nothing listens on these ports, and to be refused is an answer. ``sizes``: nothing listens on
    the UDP ports; where small datagrams are refused and large ones never, large packets get lost.
    """

    nonce: str
    node: int
    targets: tuple[Target, ...]
    names: tuple[str, ...]
    limit: float
    closed: bool = False
    sizes: bool = False


@frozen
class Dialled:
    """One target that was dialled."""

    node: int
    refused: tuple[int, ...]  # ports that refused the connection
    silent: tuple[int, ...]  # ports that did not answer
    large: bool  # large packets came back
    seconds: float  # the fastest port took this long to answer
    why: str = ""  # the reason of the first port that failed
    dropped: bool = False  # the dialling machine dropped what it sent to the silent ports
    slowest: float = 0.0  # seconds that the slowest port took that answered


@frozen
class DialAnswer(Answer):
    """``resolved``: (name, its addresses separated by a space, or empty). ``heard``: whose datagrams came.

    ``wall`` is this node's clock at the time of the answer. ``resolve_seconds``: mean
    seconds to resolve a name, with one that was not resolved at the limit.
    """

    resolved: tuple[tuple[str, str], ...]
    dialled: tuple[Dialled, ...]
    heard: tuple[int, ...]
    wall: float = 0.0
    resolve_seconds: float = 0.0


@frozen
class ExchangeTask(Task):
    """Exchange messages with ``targets`` (none: those of an earlier task), and answer ``seconds`` later."""

    nonce: str
    node: int
    targets: tuple[Target, ...]
    seconds: float


@frozen
class LinkTraffic:
    """With one node so far: data segments that were sent to it, and how many had to be sent again.

    ``longest`` is how long one message and its answer took at most, in seconds; ``stalls`` are those
    that took long while the kernel sent again.
    """

    node: int
    sent: int
    resent: int
    longest: float = 0.0
    stalls: int = 0


@frozen
class ExchangeAnswer(Answer):
    """One entry for each connection: those that this node made and those that others made to it."""

    exchanged: tuple[LinkTraffic, ...]


@frozen
class ThroughTask(Task):
    """Have an examiner on node ``name``, which no agent reached, do the task that ``body`` says.

    ``argv`` starts it there, where none was started before; an empty ``body`` ends it. Its answer is
    waited for ``limit`` seconds.
    """

    name: str
    argv: tuple[str, ...]
    body: str
    limit: float


@frozen
class ThroughAnswer(Answer):
    """``body`` is the text of its answer; empty if there is none, and ``why``."""

    body: str
    why: str = ""


@frozen
class GroupMember:
    node: int
    name: str
    address: str


@frozen
class GroupTask(Task):
    """Test a group of nodes with one collective after the other; every member gets the same but ``place``.

    ``test`` is unique within an examination and names the store's keys. ``kind`` is ``pair``,
    ``set`` or ``product`` (one node alone: a matrix product, its fingerprint and its time).
    ``port`` is one of the lead's (member 0) ``TorchStarted.ports``, used once. ``interface`` is what gloo
    and NCCL are told, empty: nothing. ``limit`` is in seconds, from here to the answer. ``backend``
    is the same for all members; empty: what this node's ``TorchStarted`` said.
    """

    test: int
    kind: str
    members: tuple[GroupMember, ...]
    place: int
    ranks: int
    port: int
    interface: str
    limit: float
    megabytes: float = 4.0
    backend: str = ""


CPU_WAIT = "cpu_wait"
"""Among rates: for which part of a message's time its ranks waited for a processor."""


@frozen
class GroupResult(Answer):
    """How a group test went for this node.

    ``stage`` is how far it came: ``warm`` (the torch worker was not there, or had to be killed: it
    needs another ``StartTorch``), ``store``, ``group``, ``exact``, ``send``, ``receive``, ``timed``,
    ``done``. ``rates`` are gigabytes per second by name (``send``, ``receive``, ``all_reduce``: bus
    bandwidth; ``product``: teraflops), and ``CPU_WAIT``. ``wrong`` says what differed in an exact comparison.
    ``fingerprint`` is that of a product. ``ports``: fresh ports, as in ``TorchStarted``. ``transport`` is the
    network that NCCL chose (``NET/IB mlx5_0 GDRDMA``, ``NET/Socket eth0``), empty with gloo. ``loading``:
    it was killed before NCCL had begun to connect.
    """

    test: int
    passed: bool
    stage: str
    seconds: float
    rates: tuple[tuple[str, float], ...] = ()
    wrong: str = ""
    why: str = ""
    fingerprint: str = ""
    late: bool = False
    ports: tuple[int, ...] = ()
    transport: str = ""
    loading: bool = False


@frozen
class TorchStarted(Answer):
    """The torch worker is up (or not, and ``why``): what the ranks' Python holds, and ports it listens on.

    ``versions`` are (what, version) pairs: torch, cuda, nccl, python; ``devices`` the GPUs that
    torch sees; ``backend`` what tests will use.
    """

    up: bool
    seconds: float
    why: str = ""
    backend: str = ""
    devices: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    ports: tuple[int, ...] = ()


ANSWER_OF: dict[type[Task], type[Answer]] = {
    LocalTask: LocalAnswer,
    ListenTask: ListenAnswer,
    DialTask: DialAnswer,
    StartTorch: TorchStarted,
    GroupTask: GroupResult,
    ThroughTask: ThroughAnswer,
    ExchangeTask: ExchangeAnswer,
}


def said(value: Task | Answer) -> str:
    return json.dumps([type(value).__name__, encode(value)], separators=(",", ":"))


class TaskTemplate:
    """A large task that many nodes get with small changes: encoded once."""

    def __init__(self, value: Task) -> None:
        self._kind, self._data = type(value).__name__, encode(value)

    def said(self, **changes: str | int) -> str:
        return json.dumps([self._kind, {**self._data, **changes}], separators=(",", ":"))


def task(text: str) -> Task:
    """The task that ``text`` says. Raises ``BadDocument``."""
    found: Task = _read(tuple(ANSWER_OF), text)
    return found


def answer(asked: Task, text: str) -> Answer:
    """The answer to ``asked`` that ``text`` says, and to nothing else. Raises ``BadDocument``."""
    found: Answer = _read((ANSWER_OF[type(asked)],), text)
    return found


def _read(kinds: tuple[type, ...], text: str) -> Any:
    try:
        name, data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadDocument(f"no pair of kind and value: {error}") from error
    for kind in kinds:
        if kind.__name__ == name:
            return decode(kind, data)
    raise BadDocument(f"of an unexpected kind: {name!r:.40}")
