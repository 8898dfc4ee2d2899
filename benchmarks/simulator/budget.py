"""What restarts may cost, counted once more with the world's eyes; knows no record and no machine."""

from __future__ import annotations

from clusterrun.coordinator.restart_policy import FREE_PORT_RETRIES


class Budget:
    """One coordinator's: full again whenever a step was told that is above all before."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._used = 0
        self._ports = 0
        self._highest = -1

    def reached(self, step: int) -> None:
        """A step was told."""
        if step > self._highest:
            self._highest = step
            self._used = 0

    def pays(self, collided: bool) -> bool:
        """One more attempt is made; False where nothing is left to pay for it."""
        if collided and self._ports < FREE_PORT_RETRIES:
            self._ports += 1
            return True
        self._used += 1
        return self._used <= self.most
