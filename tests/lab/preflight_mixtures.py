"""Several faults at once, drawn by chance: which they are, how each is made, and what must be named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.lab import Lab
from tests.lab.preflight_cases import PAIRS, Blame, Case, Link, both, fault, no_python, node, nothing
from tests.lab.test_preflight_local_faults import OTHER_TORCH
from tests.lab.test_slurm_runs import Site

GPUS = 1
FEWEST, MOST = 8, 12
COORDINATOR = 1
"""The first node runs the batch script. Slurm itself starts the job again elsewhere if that node is lost."""
CORRUPT = "CLUSTERRUN_TEST_CORRUPT_NODE"

Strike = Callable[[Lab, Site], None]


@dataclass(frozen=True)
class Ill:
    """One fault: of a node, or of the link between two neighbours of the ring (``other``, else 0).

    ``way`` is the direction of a link's; ``warned`` where the node is to be warned of, not unfit.
    """

    kind: str
    number: int
    strike: Strike = nothing
    other: int = 0
    way: str = "--"
    after: str = ""
    corrupts: bool = False
    warned: bool = False
    words: tuple[str, ...] = ()

    @property
    def link(self) -> Link:
        """Return the pair as a report writes it: the smaller name first."""
        turned = {"->": "<-", "<-": "->"}.get(self.way, self.way)
        ends, way = ((self.number, self.other), self.way)
        return (node(min(ends)), node(max(ends)), way if ends[0] < ends[1] else turned)

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.link) if self.other else node(self.number)}"


def variable(number: int, name: str, value: Callable[[Site], object]) -> Strike:
    """Return a fault: a variable of a single node, which the lab's task prolog reads (see ``PROLOG``)."""

    def strike(lab: Lab, site: Site) -> None:
        folder = Path(dict(lab.state.spec.settings)["TaskProlog"]).parent
        (folder / node(number)).write_text(f"export {name}={value(site)}\n")

    return strike


def _another_torch(site: Site) -> Path:
    folder = site.project.parent / "another"
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(OTHER_TORCH)
    return folder


def _read_only(number: int) -> Strike:
    return lambda lab, site: fault("read-only", number, path=str(_home(site)))(lab, site)


def _home(site: Site) -> Path:
    site.home.mkdir(exist_ok=True)
    return site.home


OF_NODES: dict[str, Callable[[int], Ill]] = {
    "dead": lambda n: Ill("dead", n, fault("kill", n)),
    "cut off": lambda n: Ill("cut off", n, fault("cut", n)),
    "no Python": lambda n: Ill("no Python", n, no_python(n), words=("--python", "python/python")),
    "dies": lambda n: Ill("dies", n, fault("kill", n), after=PAIRS),
    "cut off in the check": lambda n: Ill("cut off in the check", n, fault("cut", n), after=PAIRS),
    "freezes": lambda n: Ill("freezes", n, fault("freeze", n), after=PAIRS),
    "examiner freezes": lambda n: Ill(
        "examiner freezes", n, fault("freeze", n, process="examine"), after="local"
    ),
    "ports blocked": lambda n: Ill("ports blocked", n, fault("cut", n, port="40000-60000")),
    "slow network": lambda n: Ill("slow network", n, fault("slow", n, rate="20mbit")),
    "corrupts": lambda n: Ill("corrupts", n, corrupts=True),
    "clock": lambda n: Ill("clock", n, fault("clock", n, offset="90s")),
    "GPU missing": lambda n: Ill("GPU missing", n, fault("gpu", n, count=GPUS - 1)),
    "driver hangs": lambda n: Ill("driver hangs", n, fault("gpu", n, hang=True)),
    "Xid 79": lambda n: Ill("Xid 79", n, fault("gpu", n, xid=79, index=0)),
    "another torch": lambda n: Ill("another torch", n, variable(n, "PYTHONPATH", _another_torch)),
    "no such interface": lambda n: Ill(
        "no such interface", n, variable(n, "NCCL_SOCKET_IFNAME", lambda _: "ens9")
    ),
    "run directory read-only": lambda n: Ill("run directory read-only", n, _read_only(n)),
    "/dev/shm full": lambda n: Ill("/dev/shm full", n, fault("disk-full", n, path="/dev/shm")),
    "127.0.1.1": lambda n: Ill(
        "127.0.1.1", n, fault("name", n, name=node(n), address="127.0.1.1"), warned=True
    ),
}
OF_LINKS: dict[str, Callable[[int, int], Ill]] = {
    "one-way cut": lambda a, b: Ill("one-way cut", a, fault("cut", a, to=node(b)), b, "->"),
    "cut": lambda a, b: Ill("cut", a, fault("cut", a, to=node(b), both=True), b),
    "ports blocked on": lambda a, b: Ill(
        "ports blocked on", a, fault("cut", a, to=node(b), port="40000-60000"), b
    ),
    "slow": lambda a, b: Ill("slow", a, fault("slow-link", a, to=node(b), rate="20mbit"), b),
}
NOT_ON_THE_COORDINATORS = {
    "dead", "cut off", "no Python", "dies", "cut off in the check", "freezes",
    "examiner freezes", "run directory read-only",
}  # fmt: skip


@dataclass(frozen=True)
class Mixture:
    """Two or three faults at once, on nodes and links that have no node in common."""

    nodes: int
    ills: tuple[Ill, ...]

    @property
    def case(self) -> Case:
        """Return the case. At most one fault strikes during the check."""
        late = [ill for ill in self.ills if ill.after]
        corrupt = ",".join(node(ill.number) for ill in self.ills if ill.corrupts)
        arguments = [word for ill in self.ills for word in ill.words]
        arguments += ["--env", f"{CORRUPT}={corrupt}"] if corrupt else []
        return Case(
            f"{self.nodes} nodes: " + ", ".join(map(str, self.ills)),
            self.nodes,
            both(*(ill.strike for ill in late or self.ills)),
            self.named,
            words=("--gpus", str(GPUS), *arguments),
            after=late[0].after if late else "",
            before=both(*(ill.strike for ill in self.ills if not ill.after)) if late else nothing,
        )

    @property
    def named(self) -> Blame:
        """Return exactly the unfit nodes and links."""
        nodes = [node(ill.number) for ill in self.ills if not (ill.other or ill.warned)]
        return Blame(frozenset(nodes), frozenset(ill.link for ill in self.ills if ill.other))


def mixture(seed: int) -> Mixture:
    """Draw 8 to 12 nodes with two or three faults, a third of them of links. The seed decides."""
    luck = random.Random(f"mixture {seed}")
    count = luck.randint(FEWEST, MOST)
    taken: set[int] = set()
    ills: list[Ill] = []
    expected = luck.choice((2, 3))
    while len(ills) < expected:
        ill = _drawn(luck, count)
        ends = {ill.number, ill.other or ill.number}
        late = ill.after and any(entry.after for entry in ills)
        if not (ends & taken or late or any(entry.kind == ill.kind == "no Python" for entry in ills)):
            ills.append(ill)
            taken |= ends
    return Mixture(count, tuple(ills))


def _drawn(luck: random.Random, count: int) -> Ill:
    if luck.random() < 1 / 3:
        at = luck.randint(1, count)
        ends = [at, at % count + 1]
        luck.shuffle(ends)
        return OF_LINKS[luck.choice(sorted(OF_LINKS))](*ends)
    kind = luck.choice(sorted(OF_NODES))
    return OF_NODES[kind](luck.randint(COORDINATOR + (kind in NOT_ON_THE_COORDINATORS), count))
