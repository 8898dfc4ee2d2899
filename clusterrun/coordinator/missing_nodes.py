"""Who is not here while agents are gathered, and what is known of them; knows no limit and no launch."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.slurm_text.srun_messages import unreached, words_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.membership import Membership


class MissingNodes:
    """Nodes by number: ``without`` whom agents were launched, who ``left`` after joining, and why.

    ``said`` are the launcher's lines; ``hoped`` are those whose loss is why agents are launched again.
    """

    def __init__(self, membership: Membership) -> None:
        self.without: dict[int, str] = {}
        self.left: dict[int, str] = {}
        self.hoped: tuple[int, ...] = ()
        self.said: tuple[str, ...] = ()
        self._membership = membership

    @property
    def complete(self) -> bool:
        """Nobody else can come."""
        return self._membership.present + len(self.without) == self._membership.size

    @property
    def here(self) -> int:
        """How many are here."""
        return self._membership.present - len(self.left)

    def unnamed(self) -> list[int]:
        """Those of whom the launcher says nothing."""
        missing = [node for node in self._membership.missing() if node not in self.without]
        return [node for node in missing if not self._words_on(node)]

    def unreached(self) -> list[int]:
        """Those of whom the launcher says that it could not reach them."""
        said = unreached(self.said)
        nodes = [node for node in range(self._membership.size) if node not in self.without]
        return [node for node in nodes if self._membership.name_of(node) in said]

    def unfulfilled(self) -> int:
        """One that was hoped for and has not come; -1 where there is none."""
        missing = {*self._membership.missing(), *self.left}
        return next((node for node in self.hoped if node in missing), -1)

    def reaches_nothing(self, node: int, host: str, others: int, seconds: float) -> None:
        """Agents are launched without it from now on: nothing comes from there to the launcher."""
        as_others = f"as the {others} other nodes did" if others else "and no other node did"
        words = f"it {contract.NO_CONNECTION} to {host} within {seconds:.0f} s, {as_others}"
        self.without.setdefault(node, words)

    def give_up(self, node: int, seconds: float) -> None:
        """Agents are launched without it from now on; it was waited for so long."""
        self.without.setdefault(node, self._why(node, seconds))

    def absent(self, seconds: float) -> list[tuple[int, str, str]]:
        """All who are not here: number, name, why; they were waited for so long."""
        nodes = sorted({*self._membership.missing(), *self.left})
        whys = [self.without.get(node) or self._why(node, seconds) for node in nodes]
        return [(node, self._membership.name_of(node), why) for node, why in zip(nodes, whys)]

    def _why(self, node: int, seconds: float) -> str:
        if node in self.left:
            return f"its agent was lost before the others had joined: {self.left[node]}"
        said = self._words_on(node)
        return f"its agent did not join within {seconds:.0f} s" + (f" ({' / '.join(said)})" if said else "")

    def _words_on(self, node: int) -> list[str]:
        return words_on(self._membership.name_of(node), self.said)
