"""Count restarts independently of the coordinator, from the events of the world."""

from __future__ import annotations

from clusterrun.coordinator.restart_policy import FREE_PORT_RETRIES


class Budget:
    """The restarts of one coordinator. A step above all earlier ones resets the count."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._used = 0
        self._ports = 0
        self._highest = -1

    def reached(self, step: int) -> None:
        """Note a reported step."""
        if step > self._highest:
            self._highest = step
            self._used = 0

    def pays(self, collided: bool) -> bool:
        """Charge one more attempt. Return whether the budget allows it."""
        if collided and self._ports < FREE_PORT_RETRIES:
            self._ports += 1
            return True
        self._used += 1
        return self._used <= self.most
