"""Draw a world from a seed: its size, the user's program, and the kinds of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .clockwork import Clockwork

FAULTS = (
    "kill agent",
    "kill coordinator",
    "kill shim",
    "kill launcher",
    "freeze agent",
    "freeze coordinator",
    "freeze node",
    "power off",
    "cut link",
    "cut node",
    "swizzle",
    "reset link",
    "second agent",
    "late agent",
    "old epoch",
    "no agent",
    "term coordinator",
    "term agents",
    "cancel",
    "notice",
    "requeue",
    "no spawn",
    "no port",
    "crash",
    "collide",
    "time limit",
    "stuck",
    "lost welcome",
    "slow network",
    "slow disk",
    "repeat",
    "slow sweep",
    "lasting cut",
    "stopped takeover",
    "mute disk",
    "controller away",
    "supervisor",
)
"""Each world has a few of them (a swarm): all of them at once would make all worlds alike."""

# Dangerous combinations. Every second world has one of them.
THEMES = (
    ("requeue", "freeze coordinator"),
    ("requeue", "stuck", "crash"),
    ("requeue", "crash"),
    ("freeze node", "slow network"),
    ("freeze node", "requeue"),
    ("cut link", "slow network", "freeze agent"),
    ("reset link", "cut link", "slow network"),
    ("crash", "slow network"),
    ("crash", "stuck"),
    ("crash", "repeat"),
    ("crash", "kill agent"),
    ("crash",),
    ("crash",),
    ("cancel", "slow sweep"),
    ("term agents", "slow sweep"),
    ("freeze coordinator",),
    ("lasting cut", "slow network"),
    ("stopped takeover",),
    ("power off", "crash"),
    ("power off", "freeze node"),
    ("kill agent", "kill launcher"),
    ("cut node", "kill agent"),
    ("mute disk", "crash"),
    ("power off",),
    ("kill agent",),
    ("kill launcher",),
    ("controller away",),
    ("supervisor",),
    ("supervisor", "freeze agent"),
    ("supervisor", "freeze node", "slow network"),
    ("controller away", "kill agent"),
)

RARE_FAULTS = ("echoes", "mute takeover", "late answer")
# One world in six has one of these themes in addition, with fixed times, and a spare node.
RARE_THEMES = (
    ("repeat", "echoes"),
    ("mute takeover",),
    ("late answer",),
    ("kill launcher",),
    ("kill launcher", "power off"),
    ("kill agent", "kill launcher"),
    ("kill agent", "cut node"),
    ("kill agent", "kill shim", "cut link"),
    ("freeze node",),
)

OWN_TEXT = "NameError: name 'optimiser' is not defined"
ERRORS = ("", OWN_TEXT, "ValueError: bad shard", "KeyError: 'shard'", "ConnectionError: refused")
"""The last error that a crashing rank prints, each from a line of its own."""

SPARE_NODES = 3
"""Nodes that are not in the first allocation."""
WELL = "well"
FIT = (WELL, "slow", "chatty")
EXAMINERS = ("ill", "ill", "late", "mute", "dies", "never starts", "slow", "chatty")
"""How an examiner may behave."""

HARMLESS = (
    "controller away",
    "late agent",
    "second agent",
    "slow disk",
    "slow network",
    "lost welcome",
    "notice",
    "repeat",
)
"""A world with only these must end as the user's program does."""


@dataclass
class Scenario:
    """One seed's draws; times are virtual seconds."""

    nodes: int
    per_node: int
    max_restarts: int
    duration: float
    heal_at: float
    faults: tuple[str, ...]
    strength: float
    crashes: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    collisions: int = 0
    ignores_term: float = 0.0
    term_code: int = -15
    term_seconds: float = 0.1
    catches_term: bool = False
    leaves_children: float = 0.0
    time_limit: float = 0.0
    slow: float = 0.0
    once_per_node: bool = False
    examined: bool = False
    spares: int = 0
    examiners: tuple[str, ...] = ()
    resubmits: bool = False
    one_launcher: bool = False
    unreachable: int = -1
    gives_up_after: float = 12.0
    observed: bool = False
    progress: str = ""
    no_progress: int = 0
    trouble: float = 0.0
    suspensions: tuple[tuple[float, float, float], ...] = ()

    def has(self, fault: str) -> bool:
        """Return whether ``fault`` exists in this world."""
        return fault in self.faults

    @property
    def allocated(self) -> int:
        """Return the number of nodes that train, with the spares."""
        return self.nodes + self.spares

    @property
    def suspended(self) -> float:
        """Return the seconds in which some node of the job is suspended."""
        return sum(seconds + 2 * apart for _, seconds, apart in self.suspensions)

    def examiner(self, index: int) -> str:
        """Return how the examiner of node ``index`` of the pool behaves."""
        return self.examiners[index] if self.examined else WELL

    def unfit(self, hosts: list[int]) -> set[int]:
        """Return the ``hosts`` (numbers in the pool) that the check always finds unfit."""
        unfit = {index for index in hosts if self.examiner(index) not in FIT} - self.unsure(hosts)
        if self.examined and self.has("no agent"):
            unfit.add(hosts[-1])
        if self.examined and self.one_launcher and self.unreachable >= 0:
            unfit.add(hosts[self.unreachable])
        return unfit

    def unsure(self, hosts: list[int]) -> set[int]:
        """Return the late examiners in a suspended job. By the job's clock they may have been in time."""
        return {index for index in hosts if self.suspensions and self.examiner(index) == "late"}

    @property
    def processes(self) -> int:
        """Return the number of ranks per node."""
        return 1 if self.once_per_node else self.per_node


def draw(clock: Clockwork) -> Scenario:
    """Return the world of a seed."""
    chance = clock.random("swarm")
    count = chance.choice((0, 0, 1, 1, 2, 2, 3, 4))
    drawn = chance.sample(FAULTS, count)
    if chance.random() < 0.5:
        drawn += [fault for fault in chance.choice(THEMES) if fault not in drawn]
    faults = tuple(sorted(drawn, key=FAULTS.index))
    world = Scenario(
        nodes=chance.choice((1, 2, 2, 3, 3, 4, 5)),
        per_node=chance.choice((1, 2, 2, 3)),
        max_restarts=chance.choice((0, 0, 1, 2, 3, 5)),
        duration=chance.uniform(5, 60),
        heal_at=chance.uniform(20, 100),
        faults=faults,
        strength=chance.random(),
        ignores_term=chance.choice((0.0, 0.0, 0.3, 1.0)),
        term_code=chance.choice((-15, -15, 0, 143)),
        term_seconds=chance.choice((0.05, 0.5, 4.0, 7.5)),
        leaves_children=chance.choice((0.0, 0.5)),
        once_per_node=chance.random() < 0.15,
    )
    _program_faults(world, chance)
    _draw_check(world, clock.random("examination"))
    reports = clock.random("progress")
    world.progress = reports.choice(("", "", "further", "same"))
    world.no_progress = reports.choice((0, 1, 1, 2, 3))
    world.catches_term = clock.random("handlers").random() < 0.5
    trouble = clock.random("trouble")
    world.trouble = trouble.choice((0.3, 0.9, 0.97)) if trouble.random() < 1 / 8 else 0.0
    rare = clock.random("rare")
    if rare.random() < 1 / 6:
        _rarity(world, rare)
    world.suspensions = _suspensions(world, clock.random("suspensions"))
    world.heal_at += world.suspended
    _errors(world, clock.random("errors"))
    return world


def _errors(world: Scenario, chance: random.Random) -> None:
    """Draw the errors that crashing ranks print. After a suspension nobody knows how long ranks ran."""
    if world.suspensions or chance.random() < 1 / 6:
        return
    likely = chance.choice(ERRORS)
    for start, (_, _, code) in world.crashes.items():
        error = likely if chance.random() < 5 / 6 else chance.choice(ERRORS)
        if code not in (-9, 143):
            world.errors[start] = error


def _suspensions(world: Scenario, chance: random.Random) -> tuple[tuple[float, float, float], ...]:
    """Draw the suspensions of the whole job: start, duration, and time between its nodes."""
    if chance.random() >= 1 / 8:
        return ()
    times = sorted(chance.uniform(3, world.heal_at) for _ in range(chance.choice((1, 1, 2, 5))))
    seconds = (chance.choice((1.0, 8.0, 15.0, 19.0, 24.0, 70.0, 3600.0)) for _ in times)
    return tuple(
        (at, length, chance.choice((0.0, 0.5, 3.0))) for at, length in zip(times, seconds, strict=True)
    )


def _rarity(world: Scenario, chance: random.Random) -> None:
    """Draw worlds in which a second fault meets the consequences of the first."""
    theme = chance.choice(RARE_THEMES)
    faults = {*theme, *(world.faults if chance.random() < 0.5 else ())}
    world.faults = tuple(sorted(faults, key=(*FAULTS, *RARE_FAULTS).index))
    world.strength = max(world.strength, 0.5)
    world.duration = chance.uniform(20, 100)
    world.heal_at = max(world.heal_at, 90.0)
    world.max_restarts = chance.choice((3, 5, 7))
    _program_faults(world, chance)
    world.examined = world.examined and "late answer" not in theme
    if "kill launcher" in theme:
        world.progress, world.no_progress = "same", 1
    if not world.spares:
        world.spares = 1
        world.examiners += (WELL,)


def _draw_check(world: Scenario, chance: random.Random) -> None:
    """Let a third of all worlds check their nodes. Some nodes or examiners are faulty."""
    world.observed = chance.random() < 0.2
    world.spares = chance.choice((0, 0, 0, 1, 1, 2)) if chance.random() < 0.5 else 0
    world.examined = chance.random() < 0.4
    well = chance.choice((1.0, 0.9, 0.6))
    pool = world.allocated + SPARE_NODES
    drawn = [WELL if chance.random() < well else chance.choice(EXAMINERS) for _ in range(pool)]
    world.examiners = tuple(drawn)
    world.resubmits = chance.random() < 0.5
    world.one_launcher = world.examined and chance.random() < 0.5
    if world.one_launcher and chance.random() < 0.3 and world.allocated > 1:
        world.unreachable = chance.randrange(world.allocated)
        world.gives_up_after = chance.choice((12.0, 40.0))


def _program_faults(world: Scenario, chance: random.Random) -> None:
    world.crashes, world.collisions, world.time_limit, world.slow = {}, 0, 0.0, 0.0
    if world.has("crash"):
        ranks = world.nodes * world.processes
        for start in range(chance.choice((1, 1, 2, 5, 7))):
            code = chance.choice((1, 3, -9, -11, 143))
            world.crashes[start] = (chance.randrange(ranks), chance.uniform(0.5, 30), code)
    if world.has("collide"):
        world.collisions = chance.choice((1, 2, 3, 4, 6))
    if world.has("time limit"):
        world.time_limit = chance.uniform(2, 80)
    if world.has("slow network"):
        world.slow = chance.choice((0.1, 2.0, 4.0, 4.0))
