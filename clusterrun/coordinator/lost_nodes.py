"""Decide which nodes of the allocation may still train, and which are lost or suspect; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterrun.coordinator.run_part import RunPart, Shared
from clusterrun.model import contract
from clusterrun.runtime.machine_events import Now
from clusterrun.slurm_text.srun_messages import ended_on, failed_nodes, unreached


class LostNodes(RunPart):
    """The failed nodes so far, by number in the allocation.

    A node that is *out* is excluded for good. A node that is *lost* has no agent now and may come back.
    ``awaited`` are nodes that were lost while others were not. Too few nodes remain without them.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._need, self._local = self._orders.nodes, not self._orders.launch
        self._out: dict[int, str] = {}
        self._suspects: dict[int, bool] = {}
        self.awaited: tuple[int, ...] = ()
        self._places: tuple[int, ...] = ()
        self.launcher_output: tuple[str, ...] = ()

    def trained(self) -> None:
        self._places = tuple(member.node for member in self._membership.world)
        self._suspects.clear()
        self.awaited = ()

    def note_launcher_output(self, lines: tuple[str, ...]) -> None:
        self.launcher_output = lines
        for name in failed_nodes(lines):
            self.leave_out(name, contract.NOT_BACK)

    def blame(self, name: str, network: bool = False) -> None:
        for node in self._numbers([name]):
            self._suspects[node] = network or self._suspects.get(node, False)

    def swap(self, name: str, why: str) -> bool:
        """Exclude the node of this name if enough nodes remain without it. Return whether they do."""
        if not name or self._membership.size - len(self._gone()) <= self._need:
            return False
        self.leave_out(name, why)
        return True

    def leave_out(self, name: str, why: str) -> None:
        """Exclude the node of this name for good, from this job and from later jobs of the run."""
        for node in self._numbers([name]):
            self._out.setdefault(node, why)
        self._state_keeper.exclude((name,))

    def before(self, inherited: Sequence[str]) -> dict[int, str]:
        """Return the nodes that the first launch leaves out, and why.

        ``inherited`` are the nodes that an earlier coordinator had. It had lost the others. They are
        tried all the same if too few nodes remain without them.
        """
        names = [self._membership.name_of(node) for node in range(self._membership.size)]
        lost = [name for name in names if name not in inherited]
        if self._membership.names_known and len(names) - len(lost) >= self._need:
            for name in lost:
                self.leave_out(name, contract.NOT_BACK)
        return dict(self._out)

    @property
    def enough_nodes(self) -> bool:
        return self._membership.size - len(self._gone()) >= self._need

    @property
    def enough(self) -> bool:
        return len(self._present()) >= self._need

    def without(self, launcher_lives: bool) -> dict[int, str]:
        """Return the nodes that the next launch of agents leaves out, and why.

        Silent nodes are left out, earliest first, as long as enough nodes remain. A node is not silent if
        the launcher reports the end of its agent, or if an overload explains the silence. If all agents or
        the launcher ended, that says nothing about the nodes.
        """
        unusable = self._gone()
        lost = [
            node for node in range(self._membership.size) if not self._is_here(node) and node not in unusable
        ]
        telling = launcher_lives and bool(self._present())
        silent_nodes = [node for node in lost if self._fell_silent(node, telling)]
        to_spare = self._membership.size - len(unusable) - self._need
        members = self._membership.members
        silent_nodes.sort(key=lambda node: member.heard if (member := members[node]) else float("-inf"))
        for node in silent_nodes[: max(to_spare, 0)]:
            self.leave_out(self._membership.name_of(node), contract.NOT_BACK)
        lost = [node for node in lost if node not in self._out]
        if self._present():
            self.awaited = tuple(lost)
        for node in lost:
            self._suspects[node] = True
        self.launcher_output = ()
        return self._gone()

    def suspects(self) -> tuple[tuple[int, ...], bool]:
        """Return the present nodes that are suspect or new, and whether their links are suspect too."""
        present, places = set(self._present()), set(self._places)
        fresh = [node for node in self.world() if node not in places]
        nodes = sorted({*(node for node in self._suspects if node in present), *fresh})
        return tuple(nodes), any(self._suspects.get(node, False) for node in nodes)

    def world(self) -> tuple[int, ...]:
        """Return the nodes that train.

        Each keeps its place, and the first idle nodes take the free places.
        """
        present = self._present()
        places = self._places or tuple(present[: self._need])
        present_nodes, placed = set(present), set(places)
        idle = iter([node for node in present if node not in placed])
        world = [node if node in present_nodes else next(idle, -1) for node in places]
        return tuple(node for node in world if node >= 0)

    def absent(self, whys: Iterable[tuple[int, str, str]] = ()) -> list[tuple[int, str, str]]:
        """Return number, name and reason of each absent node; ``whys`` gives the reasons of late nodes."""
        why_by_node = {node: why for node, _, why in whys}
        present = set(self._present())
        nodes = [node for node in range(self._membership.size) if node not in present]
        why = {node: why_by_node.get(node) or self._out.get(node) or contract.AGENT_LOST for node in nodes}
        return [(node, self._membership.name_of(node), why[node]) for node in nodes]

    def excused(self, now: Now, since: float) -> set[int]:
        """Return the absent nodes that an overload excuses: it explains that they did not join, or were lost.

        ``since``: when agents were launched. A node that was excluded before is not among them.
        """
        excused = set()
        for node in {*range(self._membership.size)} - {*self._present(), *self._gone()}:
            member = self._membership.members[node]
            if member is not None and member.lost:
                is_excused = member.is_excused
            else:
                is_excused = self._membership.excuse([node], since, now)
            if is_excused:
                excused.add(node)
        return excused

    def _gone(self) -> dict[int, str]:
        excluded = self._numbers(self._state_keeper.excluded_here)
        return {**dict.fromkeys(excluded, "it was found unfit before"), **self._out}

    def _present(self) -> list[int]:
        unusable = self._gone()
        return [node for node in range(self._membership.size) if self._is_here(node) and node not in unusable]

    def _is_here(self, node: int) -> bool:
        member = self._membership.members[node]
        return member is not None and member.here

    def _fell_silent(self, node: int, telling: bool) -> bool:
        """Return whether ``node`` fell silent. ``telling``: a missing agent is the node's own fault."""
        member = self._membership.members[node]
        name = self._membership.name_of(node)
        if name in unreached(self.launcher_output):
            return True
        if member is not None and (member.silent or member.is_excused):
            return not member.is_excused
        ended = member is not None and (self._local or ended_on(name, self.launcher_output))
        return telling and not ended

    def _numbers(self, names: Sequence[str]) -> list[int]:
        nodes = range(self._membership.size if names else 0)
        return [node for node in nodes if self._membership.name_of(node) in names]
