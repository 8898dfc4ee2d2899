"""Run one rank of a test, stage by stage.

It runs in a forked child that may be killed at any time, so it reports each stage before the stage begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from clusterrun.preflight.tasks import DONE, EXACT, GROUP, PAIR, RECEIVE, SEND, STORE, TABLE, TIMED, GroupTask
from clusterrun.preflight.torch_worker import sum_patterns
from clusterrun.preflight.torch_worker.backend import OutOfTime, device_for, set_variables, variables
from clusterrun.preflight.torch_worker.bandwidth import BandwidthTest
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.rank_report import RankReport

_COUNT = 16384
_LOOPBACK = "127.0.0.1"
_MOST_GATHERED = 1 << 20
_PART_SECONDS = 2.0
# The share of the remaining time for torch's own limits, so that its error arrives before the kill.
_OWN_SHARE = 0.75
_WORDS_SHARE = 0.05


class Rank:
    """The rank with local number ``local`` in a test.

    ``listening`` is the descriptor of the store's socket in the lead's first rank, else -1. The rank is
    killed at ``kill_at`` (monotonic). ``spoils`` is a test hook that makes this rank's contribution wrong.
    """

    def __init__(self, task: GroupTask, local: int, listening: int, kill_at: float, spoils: bool) -> None:
        self._task, self._local, self._listening, self._spoils = task, local, listening, spoils
        self._rank, self._world = task.place * task.ranks + local, len(task.members) * task.ranks
        # The rank of a pair's other node with the same local number, on the same rail.
        self._peer = (1 - task.place) * task.ranks + local
        self._kill_at = kill_at
        # Before the kill, so that the rank itself reports a GPU that hangs.
        self._report_by = kill_at - _WORDS_SHARE * task.limit
        self._wrong: list[str] = []

    def serve(self, backend: str, users: Mapping[str, str], say: Callable[[RankReport], None]) -> None:
        """Run this rank's part of the test. Report each stage and the end. Never raise."""
        self._say = say
        try:
            self._run(backend, users)
        except BaseException as error:  # noqa: BLE001 (any exception is the answer)
            say(RankReport(ended=True, why=of_error(error), late=isinstance(error, OutOfTime)))

    def _run(self, backend: str, users: Mapping[str, str]) -> None:
        self._stage(STORE)
        set_variables(variables(backend, self._task.interface, users))
        self._device = device_for(backend, self._local)
        store = self._store()
        self._stage(GROUP)
        self._device.join(dist.PrefixStore("group", store), self._rank, self._world, self._left())
        self._stage(EXACT)
        self._sums()
        paired = self._task.kind == PAIR and len(self._task.members) == 2
        peer = self._peer if paired else None
        pace = BandwidthTest(self._device, self._rank, self._world, peer, self._report_by)
        if paired:
            ways = ((SEND, pace.first_send), (RECEIVE, pace.first_receive))
            for name, step in ways if self._task.place == 0 else ways[::-1]:
                self._stage(name)
                if not step():
                    self._wrong.append(f"what {self._named(self._peer)} sent arrived changed")
        self._stage(TIMED)
        rates = pace.rates(self._task.megabytes)
        self._wrong += filter(None, [pace.large_sum()])
        if self._task.kind == TABLE:
            rates += tuple(pace.table(self._task.megabytes))
        self._say(RankReport(stage=DONE, ended=True, rates=rates, wrong="; ".join(self._wrong)))
        self._leave_together(store)

    def _stage(self, name: str) -> None:
        self._say(RankReport(stage=name))

    def _left(self) -> float:
        return max(0.2, (self._kill_at - time.monotonic()) * _OWN_SHARE)

    def _store(self) -> dist.Store:
        port, world, seconds = self._task.port, self._world, self._left()
        if self._listening >= 0:
            store = host_store(self._listening, port, world, seconds)
        else:
            store = connect_store(self._task.members[0].address, port, world, seconds)
        return dist.PrefixStore(f"test {self._task.test}", store)

    def _sums(self) -> None:
        for kind in sum_patterns.KINDS:
            total = self._contribution(_COUNT, kind)
            dist.all_reduce(total)
            self._device.settle(self._report_by)
            difference = sum_patterns.difference(total.cpu(), self._world, kind)
            self._wrong += [difference] if difference else []
        affected = torch.tensor([int(bool(self._wrong))], dtype=torch.int64, device=self._device.torch_device)
        dist.all_reduce(affected)
        self._device.settle(self._report_by)
        if affected.item():
            # Gather the contribution of each rank. A changed contribution names its rank.
            count = max(64, min(_COUNT, _MOST_GATHERED // self._world))
            contribution = self._contribution(count, "int64")
            gathered = [torch.zeros_like(contribution) for _ in range(self._world)]
            dist.all_gather(gathered, contribution)
            self._device.settle(self._report_by)
            changed = sum_patterns.changed([tensor.cpu() for tensor in gathered], "int64").items()
            problems = [
                f"what {self._named(rank)} gave arrived changed at element {at}" for rank, at in changed
            ]
            if not problems:
                where = f", on {self._named(self._rank)} alone" if affected.item() == 1 else ""
                problems = [f"what each rank gave arrived right: the summing itself is wrong{where}"]
                if not self._wrong:
                    problems = ["another rank saw a wrong sum"]
            # The culprit precedes the symptom: a table shows only the beginning.
            self._wrong[:0] = problems

    def _contribution(self, count: int, kind: str) -> torch.Tensor:
        contribution = sum_patterns.contribution(self._rank, count, kind)
        if self._spoils:
            contribution[count // 3] += 1
        return contribution.to(self._device.torch_device)

    def _named(self, rank: int) -> str:
        place, local = divmod(rank, self._task.ranks)
        name = self._task.members[place].name
        return name if self._task.ranks == 1 else f"local rank {local} of {name}"

    def _leave_together(self, store: dist.Store) -> None:
        """Stay until all ranks finish. A connection that closes early may lose a peer's last bytes."""
        limit = timedelta(seconds=_PART_SECONDS)
        if store.add("done", 1) == self._world:
            store.set("all done", "1")
        store.wait(["all done"], limit)
        if store.add("left", 1) == self._world:
            store.set("all left", "1")
        elif self._listening >= 0:
            store.wait(["all left"], limit)


def host_store(listening: int, port: int, world: int, seconds: float) -> dist.Store:
    """Serve the store on a socket that already listens, including earlier connections. Raise as torch does.

    The lead connects to itself by loopback. The other nodes test its address.
    """
    options = {"is_master": True, "master_listen_fd": listening}
    try:
        return _store(_LOOPBACK, port, world, seconds, **options)
    except NotImplementedError:
        # Only the older of the two servers of torch accepts a socket before torch 2.8.
        return _store(_LOOPBACK, port, world, seconds, **options, use_libuv=False)


def connect_store(address: str, port: int, world: int, seconds: float) -> dist.Store:
    return _store(address, port, world, seconds, is_master=False)


def _store(address: str, port: int, world: int, seconds: float, **options: bool | int) -> dist.Store:
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(address, port, world, timeout=limit, wait_for_workers=False, **options)
