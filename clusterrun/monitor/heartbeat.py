"""Report the pulses of this node's ranks, often at first, then every few seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from clusterrun import proc
from clusterrun.diagnosis.evidence import Digest, Pulse
from clusterrun.model.document import encode
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import GpuUse
from clusterrun.monitor.collector import begun, output, rank_processes
from clusterrun.monitor.job_processes import read_each
from clusterrun.monitor.oom import killed
from clusterrun.monitor.process_sample import used
from clusterrun.monitor.rank_channels import channel, facts, groups

LEAST_PERIOD = 1.0
# A hang is declared at half a group's timeout. Several digests must report no movement before that.
PERIODS_PER_TIMEOUT = 8
# Seconds after the start of the ranks. These early digests cover short runs.
EAGER = (2.0, 5.0)


SEARCH_SECONDS = 60.0
# A launcher inside a rank starts processes soon, and a short run may end before the next digest.
SEARCH_PERIOD = 1.0
# A step that can start does so within seconds.
_STEP_SECONDS = 10.0


class Digests:
    """The part of the observer that reports the ranks' progress without a request."""

    def __init__(self, period: float, look: Callable[[], tuple[GpuUse, ...]] = tuple) -> None:
        self._period, self._look_at_gpus = period, look
        self._used_gpus: set[int] = set()
        self._pids: Mapping[int, int] = {}
        self._paths: AttemptPaths | None = None
        self._times: list[float] = []
        self._number = 0
        self._killed = killed()
        self._search_at: float | None = None
        self._search_until = 0.0
        self._inner_ranks: tuple[tuple[int, int, str], ...] = ()
        # ``RANK`` and address of processes that are ranks below a rank
        self._places: dict[int, tuple[str, str]] = {}

    def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
        self._paths, self._pids, self._used_gpus = paths, pids, set()
        first = sorted({*EAGER, self._period})
        self._times = [now + seconds for seconds in first if seconds <= self._period]
        self._search_at, self._search_until = now + SEARCH_PERIOD if pids else None, now + SEARCH_SECONDS
        self._inner_ranks, self._places = (), {}

    def wakes_at(self) -> float | None:
        times = [*self._times[:1], *([] if self._search_at is None else [self._search_at])]
        return min(times, default=None)

    def run(self, now: float) -> list[str]:
        is_due = bool(self._times) and self._times[0] <= now
        if self._search_at is not None and self._search_at <= now:
            launchers = {
                rank: pid for rank, pid in self._pids.items() if channel(pid) is None and proc.find_alive(pid)
            }
            before, self._inner_ranks = self._inner_ranks, self._ranks_below(launchers)
            idle_launchers = {*launchers} - {starter for starter, _, _ in self._inner_ranks}
            goes_on = bool(idle_launchers) and now + SEARCH_PERIOD <= self._search_until
            self._search_at = now + SEARCH_PERIOD if goes_on else None
            is_due = bool({*self._inner_ranks} - {*before}) or is_due
        if not is_due:
            return []
        digest = self.digest()
        timeouts = [pulse.timeout / PERIODS_PER_TIMEOUT for pulse in digest.ranks if pulse.timeout]
        period = min(self._period, max(LEAST_PERIOD, min(timeouts, default=self._period)))
        later = [time for time in self._times if time > now]
        self._times = later or [now + period]
        return [json.dumps({"digest": encode(digest)})]

    def ended(self, now: float) -> list[str]:
        """Report the end of a rank. No rank is asked, because ranks that also end do not answer in time."""
        return [json.dumps({"digest": encode(self.digest(asks=False))})]

    def digest(self, asks: bool = True) -> Digest:
        if self._paths is None:
            return Digest(())
        self._number += 1
        ranks = rank_processes(self._pids)
        moments = {rank: proc.find_alive(pid) for rank, (pid, _) in ranks.items()}
        running = [rank for rank, moment in moments.items() if moment and not moment.stopped]
        open_channels = [own for rank in running if (own := ranks[rank][1])]
        answers = facts(open_channels, self._number, 0) if asks else {}
        pulses = []
        for rank, (pid, _) in ranks.items():
            moment, answer = moments[rank], answers.get(pid, {})  # empty if its thread gave none
            is_answered = bool(answer) and "problem" not in answer
            known_groups = groups(answer)
            counts = begun(answer)
            farewell = (
                proc.content(self._paths.beside(f"{rank:05d}.farewell.json")) if moment is None else b""
            )
            pulses.append(
                Pulse(
                    rank,
                    pid,
                    moment.state if moment else "",
                    round(used(pid), 2),
                    output(self._paths, rank),
                    is_answered,
                    bool(answer.get("torch")),
                    next((group.size for group in known_groups if group.default), 0),
                    sum(counts) if is_answered and all(count >= 0 for count in counts) else -1,
                    b'"alone": true' in farewell,
                    min(
                        (group.timeout for group in known_groups if group.timeout and group.size > 1),
                        default=0.0,
                    ),
                    bool(answer.get("meets")),
                )
            )
        # A rank in a group trains. A rank that does not answer may train. Others may have started a launcher.
        training = {
            pulse.pid for pulse in pulses if pulse.size or (ranks[pulse.rank][1] and not pulse.answered)
        }
        starters = {rank: pid for rank, pid in self._pids.items() if pid not in training}
        gpus_work = None
        if asks:
            # All GPUs work that were busy since the start of the ranks; None if unknown.
            gpus = self._look_at_gpus()
            self._used_gpus |= {gpu.index for gpu in gpus if gpu.busy > 0}
            works = [gpu.works for gpu in gpus if gpu.index in self._used_gpus]
            gpus_work = None if None in works or not works else all(works)
        inner_ranks = self._ranks_below(starters)
        children_of = proc.children_lookup()
        blocked = tuple(rank for rank, pid in self._pids.items() if _is_blocked(pid, children_of))
        return Digest(tuple(pulses), max(0, killed() - self._killed), inner_ranks, gpus_work, blocked)

    def _ranks_below(self, starters: Mapping[int, int]) -> tuple[tuple[int, int, str], ...]:
        """Return (rank, ``RANK`` of a rank below it, address at which that rank meets the others).

        ``starters`` maps ranks to processes. A process below a rank that has the rank's own variables is a
        launcher or a helper.
        """
        children_of = proc.children_lookup()
        pids_below = {rank: proc.below(pid, children_of=children_of) for rank, pid in starters.items()}
        pids = {pid for below in pids_below.values() for pid in below}
        new = [pid for pid in {*pids, *starters.values()} if pid not in self._places]
        environs = read_each(new, lambda pid: proc.content(f"/proc/{pid}/environ")) if new else {}
        places = dict(self._places)
        for pid in new:
            variables = proc.variables(environs.get(pid, b""))
            address = f"{variables.get('MASTER_ADDR', '')}:{variables.get('MASTER_PORT', '')}"
            places[pid] = (variables.get("RANK", ""), address)
        inner_ranks = set()
        for starter, below in pids_below.items():
            for pid in below:
                number, address = places[pid]
                if number.isdigit() and places[pid] != places[starters[starter]]:
                    inner_ranks.add((starter, int(number), address))
                    # The variables of other processes may change: a fork has those of its parent until exec.
                    self._places[pid] = places[pid]
        return tuple(sorted(inner_ranks))


def _is_blocked(pid: int, children_of: Callable[[int], list[int]]) -> bool:
    """Return whether an ``srun`` below a rank has waited for long for resources of the job.

    It has one thread until it has a step. Then it also has a child, another ``srun`` that watches over it.
    """
    processes = filter(None, map(proc.find_alive, proc.below(pid, children_of=children_of)))
    sruns = {process.pid: process for process in processes if process.name == "srun"}
    return any(
        process.parent not in sruns
        and "SLURM_JOB_ID" in proc.environment(srun)
        and time.time() - proc.started_at(srun) >= _STEP_SECONDS
        and len(proc.listed(f"/proc/{srun}/task")) == 1
        for srun, process in sruns.items()
    )
