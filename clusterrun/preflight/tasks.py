"""Tasks that the coordinator sends to the examiner of a node, their answers, and their encoding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.frozen import Any, frozen
from clusterrun.model.preflight_report import Finding
from clusterrun.model.world import ring_share

# Readings of a probe, by node name.
Readings = Mapping[str, Any]
# (place, finding). The place is the name of a node, '' for all nodes together, or (name, name) for the way
# from one node to another.
Findings = Iterator[tuple[Any, Finding]]


class Task:
    """A task for an examiner. ``TITLE`` names it in messages."""

    TITLE = ""


class Answer:
    """The answer to a task."""


@frozen
class Target:
    node: int
    name: str
    address: str
    ports: tuple[int, ...]
    udp_port: int


@frozen
class RunNeeds:
    """The resources that the run requires on every node, and the places of its files."""

    run_dir: str
    home: str
    cwd: str
    gpus: int  # per node
    ranks: int  # per node
    limits: tuple[tuple[str, float], ...] = ()  # the user's limits by name, see ``limits.py``
    check_commands: tuple[str, ...] = ()  # the user's shell commands that check a node
    # For probes of checks between nodes: this node first, then the others to test; '' is an unknown address.
    # For judges: all nodes that opened ports.
    peers: tuple[Target, ...] = ()
    overloaded: tuple[str, ...] = ()  # for judges: nodes on which measured times prove nothing


@frozen
class LocalTask(Task):
    """Make checks at the same time, each within its own limit."""

    TITLE = "local checks"
    needs: RunNeeds
    checks: tuple[str, ...]  # names
    limit: float = 0.0  # seconds; shortens the limits of checks that are already running


@frozen
class PeerTask(Task):
    """Make checks between nodes. Their probes read ``needs.peers``."""

    TITLE = "checks between nodes"
    needs: RunNeeds
    checks: tuple[str, ...]  # names


@frozen
class ProbeReading:
    """The reading of one probe."""

    check: str  # name
    value: str  # JSON; '' if the probe failed
    why: str = ""  # the reason of a failure
    late: bool = False  # the probe was killed at its limit


@frozen
class LocalAnswer(Answer):
    readings: tuple[ProbeReading, ...]


@frozen
class StartTorch(Task):
    """Start the torch worker with the ranks' interpreter, and replace a running one."""

    TITLE = "the import of torch"
    python: str
    cwd: str  # the ranks' working directory
    gpus: bool = True  # the worker may look for GPUs; else tests use gloo
    contained: bool = False  # start it in a container of its own


@frozen
class ListenTask(Task):
    """Open the ports that other nodes dial."""

    TITLE = "the opening of ports"
    nonce: str  # hex; a connecting node must present it
    port: int = 0  # torchrun's, on which the node listens too until messages are exchanged; 0: none


@frozen
class Interface:
    """An active network interface with one of its addresses."""

    name: str
    address: str
    mtu: int
    megabits: int = 0
    kind: str = ""


@frozen
class ListenAnswer(Answer):
    """The addresses and ports of this node."""

    interfaces: tuple[Interface, ...]
    ports: tuple[int, ...]
    udp_port: int
    wall: float  # this node's clock
    topology: str = ""  # Slurm's address of the node among the switches, or ''
    holds_port: bool = False  # whether it listens on ``ListenTask.port``, which no program of the node has


@frozen
class DialTask(Task):
    """Dial targets, and report whose datagrams arrived."""

    TITLE = "dialling"
    nonce: str
    node: int
    targets: tuple[Target, ...]
    limit: float  # seconds
    closed: bool = False  # the ports have no listener; a refusal counts as an answer
    hold: bool = False  # keep all connections open until the last one is; a port may be dialled several times
    # The UDP ports have no listener. Large packets get lost if only small datagrams are refused.
    sizes: bool = False
    interface: str = ""  # the addresses are those of this interface; '' if it is the one in use


@frozen
class Dialled:
    """The outcome for one target."""

    node: int
    refused: tuple[int, ...]  # ports that refused the connection
    silent: tuple[int, ...]  # ports that did not answer
    large: bool  # large packets came back
    why: str = ""  # the reason of the first port that failed
    dropped: bool = False  # the dialling machine dropped what it sent to the silent ports
    slowest: float = 0.0  # seconds that the slowest port took that answered
    unsent: tuple[int, ...] = ()  # ports that were not dialled: the dialling machine had no resources


@frozen
class DialAnswer(Answer):
    dialled: tuple[Dialled, ...]
    heard: tuple[int, ...]  # nodes whose datagrams arrived
    wall: float = 0.0  # this node's clock at the time of the answer


@frozen
class ExchangeTask(Task):
    """Exchange messages with the targets, and answer ``seconds`` later."""

    TITLE = "an exchange of messages"
    nonce: str
    node: int
    targets: tuple[Target, ...]  # empty: the targets of an earlier task
    seconds: float


@frozen
class LinkTraffic:
    """The traffic with one node so far."""

    node: int
    sent: int  # data segments sent to it
    resent: int  # segments that had to be sent again
    longest: float = 0.0  # longest time of a message and its answer, in seconds
    stalls: int = 0  # messages that took long while the kernel retransmitted


@frozen
class ExchangeAnswer(Answer):
    """One entry for each connection, in both directions."""

    exchanged: tuple[LinkTraffic, ...]


@frozen
class ThroughTask(Task):
    """Have an examiner on a node that no agent reached do a task."""

    TITLE = "a look through it at another node"
    name: str  # the node
    argv: tuple[str, ...]  # starts the examiner if none runs there
    body: str  # text of the task; '' ends the examiner
    limit: float  # seconds to wait for the answer


@frozen
class ThroughAnswer(Answer):
    body: str  # text of the examiner's answer; '' if there is none
    why: str = ""  # the reason of a missing answer


# Kinds of group tests. Between nodes: two; the whole set; a part of it; collectives by size.
PAIR, SET, HALF, TABLE = "pair", "set", "half", "table"
# On one node: a matrix product; products for ``seconds``; the bandwidth of each GPU; of pairs of GPUs.
PRODUCT, BURN, DEVICE, PEERS = "product", "burn", "device", "peers"
# Stages of a group test in their order; `PRODUCT` is the stage of a test on one node.
STORE, GROUP, EXACT, SEND, RECEIVE = "store", "group", "exact", "send", "receive"
TIMED, DONE = "timed", "done"
STAGES = ("", STORE, GROUP, EXACT, SEND, RECEIVE, TIMED, PRODUCT, DONE)
# The stage of a test that found no torch worker; another ``StartTorch`` is required.
NO_WORKER = "warm"


@frozen
class GroupMember:
    node: int
    name: str
    address: str


@frozen
class GroupTask(Task):
    """Test a group of nodes with collectives. All members get the same task except for ``place``."""

    TITLE = "a collective test"
    test: int  # unique within a check; names the store's keys
    kind: str
    members: tuple[GroupMember, ...]
    place: int  # index of this node among the members
    ranks: int  # per node
    port: int  # one of the ports in ``TorchStarted.ports`` of member 0; used once
    interface: str  # for gloo and NCCL; '' leaves the choice to them
    limit: float  # seconds from receipt of the task to the answer
    megabytes: float = 4.0
    seconds: float = 0.0  # of load; for `BURN`
    backend: str = ""  # equal for all members; '' selects the one of this node's ``TorchStarted``


# The rates of a ``table``: operations with the factor from algorithm to bus bandwidth (nccl-tests,
# PERFORMANCE.md), and sizes in bytes.
BUS_SHARES: Mapping[str, Callable[[int], float]] = {
    "all_reduce": ring_share,
    "all_gather": lambda world: (world - 1) / world,
    "reduce_scatter": lambda world: (world - 1) / world,
    "broadcast": lambda world: 1.0,
    "all_to_all": lambda world: (world - 1) / world,
}
TIME = "us "  # begins the name of a time in microseconds: ``us all_reduce 1024``
TABLE_SIZES = tuple(1 << power for power in range(10, 31, 2))

# Name of a rate: the part of a message's time during which its ranks waited for a processor.
CPU_WAIT = "cpu_wait"


@frozen
class GroupResult(Answer):
    """The result of a group test on this node."""

    test: int
    passed: bool
    stage: str  # the last one, or `NO_WORKER`
    seconds: float
    # Rates by name: ``send``, ``receive`` and ``all_reduce`` (bus bandwidth) in GB/s, ``product`` in
    # TFLOP/s, and ``CPU_WAIT``.
    rates: tuple[tuple[str, float], ...] = ()
    wrong: str = ""  # the difference that an exact comparison detected
    why: str = ""
    fingerprint: str = ""  # of a product
    late: bool = False
    ports: tuple[int, ...] = ()  # fresh ports, as in ``TorchStarted``
    transport: str = ""  # NCCL's network: ``NET/IB mlx5_0 GDRDMA``, ``NET/Socket eth0``; '' with gloo
    loading: bool = False  # killed before NCCL began to connect
    starved: bool = False  # failed, and waited for processors for so long that the failure proves nothing


@frozen
class TorchStarted(Answer):
    """The state of the torch worker after its start."""

    up: bool
    seconds: float
    why: str = ""
    backend: str = ""  # the backend of tests
    devices: int = 0  # GPUs that torch sees
    versions: tuple[tuple[str, str], ...] = ()  # (subject, version): torch, cuda, nccl, python
    ports: tuple[int, ...] = ()  # ports on which it listens
    uuids: tuple[str, ...] = ()  # of the GPUs that torch sees, in CUDA's order; empty if torch is too old


ANSWER_OF: dict[type[Task], type[Answer]] = {
    LocalTask: LocalAnswer,
    PeerTask: LocalAnswer,
    ListenTask: ListenAnswer,
    DialTask: DialAnswer,
    StartTorch: TorchStarted,
    GroupTask: GroupResult,
    ThroughTask: ThroughAnswer,
    ExchangeTask: ExchangeAnswer,
}


def message_text(value: Task | Answer) -> str:
    """Return the text that carries a task or an answer."""
    return json.dumps([type(value).__name__, encode(value)], separators=(",", ":"))


def member_texts(task: GroupTask, interfaces: Sequence[str]) -> list[str]:
    """Return the text of a group task for each member, by the interfaces. The task is encoded once."""
    data = encode(task)
    texts = []
    for index, interface in enumerate(interfaces):
        member = {**data, "place": index, "interface": interface}
        texts.append(json.dumps([type(task).__name__, member], separators=(",", ":")))
    return texts


def task(text: str) -> Task:
    """Return the task in ``text``. Raise ``BadDocument`` if there is none."""
    decoded: Task = _read(tuple(ANSWER_OF), text)
    return decoded


def answer(task: Task, text: str) -> Answer:
    """Return the answer in ``text``. Raise ``BadDocument`` if it is no answer to ``task``."""
    decoded: Answer = _read((ANSWER_OF[type(task)],), text)
    return decoded


def _read(kinds: tuple[type, ...], text: str) -> Any:
    try:
        name, data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadDocument(f"not a pair of kind and value: {error}") from error
    for kind in kinds:
        if kind.__name__ == name:
            return decode(kind, data)
    raise BadDocument(f"unexpected kind: {name!r:.40}")
