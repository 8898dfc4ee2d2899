"""Finds the channels that a rank's prelude has opened, by the names of its descriptors; asks nothing."""

from __future__ import annotations

import os

from clusterrun import proc
from clusterrun.model.frozen import frozen

STACKS, FACTS = "/memfd:clusterrun.stacks.", "/memfd:clusterrun.facts."


@frozen
class RankChannel:
    """The process of ``rank``: its two memory files, where to ask, and its main thread's number in hex."""

    rank: int
    pid: int
    stacks: int
    facts: int
    ask: int
    main: str

    def intact(self) -> bool:
        """Whether the descriptors still are what they were: a script may have closed them all."""
        return (
            _leads(self.pid, self.stacks).startswith(f"{STACKS}{self.rank}.{self.pid}.{self.main}")
            and _leads(self.pid, self.facts).startswith(f"{FACTS}{self.rank}.{self.pid}.{self.ask}")
            and _leads(self.pid, self.ask).startswith("pipe:")
        )


def _leads(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def channel(pid: int) -> RankChannel | None:
    """The channel of process ``pid``. One that was inherited by a fork is its parent's."""
    stacks = facts = ask = -1
    rank, main = "", ""
    for descriptor, target in proc.descriptors(pid).items():
        words = target.split(" ")[0].split(".")
        if len(words) != 5 or words[3] != str(pid) or not words[2].isdigit():
            continue
        if target.startswith(STACKS):
            stacks, rank, main = descriptor, words[2], words[4]
        elif target.startswith(FACTS) and words[4].isdigit():
            facts, ask = descriptor, int(words[4])
    return RankChannel(int(rank), pid, stacks, facts, ask, main) if stacks >= 0 and facts >= 0 else None


def channels(pid: int) -> list[RankChannel]:
    """The channels of what the agent started as ``pid``: its own, or those of the ranks below a launcher."""
    own = channel(pid)
    if own:
        return [own]
    return [found for found in map(channel, proc.below(pid)) if found]
