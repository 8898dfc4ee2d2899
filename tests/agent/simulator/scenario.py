"""What a seed draws before anything runs: the size, the user's program, and which faults exist at all."""

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
)
"""Each world has a few of them (a swarm): all of them at once would make all worlds alike."""

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
    ("cancel", "slow sweep"),
    ("term agents", "slow sweep"),
    ("freeze coordinator",),
    ("lasting cut", "slow network"),
    ("stopped takeover",),
)
"""What is known to be dangerous together; every other world has one of these."""

HARMLESS = ("late agent", "second agent", "slow disk", "slow network", "lost welcome", "notice", "repeat")
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
    collisions: int = 0
    ignores_term: float = 0.0
    term_code: int = -15
    term_seconds: float = 0.1
    leaves_children: float = 0.0
    time_limit: float = 0.0
    slow: float = 0.0
    once_per_node: bool = False

    def has(self, fault: str) -> bool:
        """Whether ``fault`` exists in this world."""
        return fault in self.faults

    @property
    def processes(self) -> int:
        """On each node."""
        return 1 if self.once_per_node else self.per_node


def draw(clock: Clockwork) -> Scenario:
    """The world of a seed."""
    chance = clock.random("swarm")
    count = chance.choice((0, 0, 1, 1, 2, 2, 3, 4))
    drawn = chance.sample(FAULTS, count)
    if chance.random() < 0.5:
        drawn += [fault for fault in chance.choice(THEMES) if fault not in drawn]
    faults = tuple(sorted(drawn, key=FAULTS.index))
    world = Scenario(
        nodes=chance.choice((1, 2, 2, 3, 3, 4, 5)),
        per_node=chance.choice((1, 2, 2, 3)),
        max_restarts=chance.choice((0, 0, 1, 2, 3)),
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
    return world


def _program_faults(world: Scenario, chance: random.Random) -> None:
    if world.has("crash"):
        ranks = world.nodes * world.processes
        for start in range(chance.choice((1, 1, 2, 5))):
            code = chance.choice((1, 3, -9, -11, 143))
            world.crashes[start] = (chance.randrange(ranks), chance.uniform(0.5, 30), code)
    if world.has("collide"):
        world.collisions = chance.choice((1, 2, 3, 4, 6))
    if world.has("time limit"):
        world.time_limit = chance.uniform(2, 80)
    if world.has("slow network"):
        world.slow = chance.choice((0.1, 2.0, 4.0, 4.0))
