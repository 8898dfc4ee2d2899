"""What `clusterrun rehearse` wants of one start of a rank."""

from __future__ import annotations

import os

from .trace_file import lines_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RankPlan:
    """The strikes of this start, and the step at which it ends; 0 if it ends by itself."""

    def __init__(self, plan: Any, folder: str, rank: int) -> None:
        self.folder, self._rank = folder, rank
        self._attempt = int(os.environ.get("CLUSTERRUN_ATTEMPT", "0"))
        self._past = plan.get("past", ())
        self.limit = int(plan.get("steps", 0))
        mine = [one for one in plan.get("strikes", ()) if one["attempt"] == self._attempt]
        self._strikes = [one for one in mine if one.get("rank", rank) == rank]
        self.trace = f"{folder}/{rank:05d}.rehearsal.jsonl"
        self.done = f"{folder}/{rank:05d}.rehearsal.done"

    def strike(self, *kinds: str) -> Any:
        """The first one of these kinds, if there is any."""
        return next((one for one in self._strikes if one["kind"] in kinds), None)

    def begins_with(self, parameters: int) -> None:
        """The plan counts the steps of the run, and we those of this start: both go by the parameters."""
        done = self._steps_before().get(parameters, 0)
        if self.limit:
            self.limit = max(1, self.limit - done)
        for strike in self._strikes:
            strike["step"] -= done

    def _steps_before(self) -> dict[int, int]:
        """After which step of the run it had which parameters, by what the starts before this one said."""
        starts = [os.path.join(run, name) for run in self._past for name in sorted(os.listdir(run))]
        here = os.path.dirname(self.folder)
        starts += [os.path.join(here, f"{number:03d}") for number in range(self._attempt)]
        found: dict[int, int] = {}
        for start in starts:
            mine = f"{start}/{self._rank:05d}.rehearsal.jsonl"
            begin = 0
            for line in lines_of(mine if os.path.exists(mine) else f"{start}/00000.rehearsal.jsonl"):
                if line["t"] == "before" and not begin:
                    begin = found.get(line["p"], 0)
                elif line["t"] in ("step", "moved"):
                    found[line["p"]] = begin + line["n"]
        return found
