"""What one rank of a test does, stage by stage, and says of it; knows neither processes nor ports.

It runs in a forked child that may be killed at any moment: each stage is said before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from clusterrun.preflight.tasks import GroupTask
from clusterrun.preflight.torch_worker import sum_patterns
from clusterrun.preflight.torch_worker.backend import dress, on, variables
from clusterrun.preflight.torch_worker.bandwidth import BandwidthTest
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.rank_report import RankWord

_COUNT = 16384
_LOOPBACK = "127.0.0.1"
_MOST_GATHERED = 1 << 20
_PART_SECONDS = 2.0
_OWN_SHARE = 0.75
"""Of the time that is left, what torch's own limits get: its words come before the kill."""
_WORDS_SHARE = 0.05


class Rank:
    """One of a node's ranks in a test, number ``local``.

    ``listening`` is the descriptor of the store's socket in the lead's first rank, else -1. ``until`` is
    monotonic. ``spoils``: the test hook that makes this rank's contribution wrong.
    """

    def __init__(self, task: GroupTask, local: int, listening: int, until: float, spoils: bool) -> None:
        self._task, self._local, self._listening, self._spoils = task, local, listening, spoils
        self._rank, self._world = task.place * task.ranks + local, len(task.members) * task.ranks
        self._peer = (1 - task.place) * task.ranks + local
        """The rank of a pair's other node with the same local number: the same rail."""
        self._killed_at = until
        # Before the kill, so that a GPU that hangs is told in words.
        self._until = until - _WORDS_SHARE * task.limit
        self._wrong: list[str] = []

    def serve(self, backend: str, users: Mapping[str, str], say: Callable[[RankWord], None]) -> None:
        """Run this rank's part of the test and report each stage and the end; never raises."""
        self._say = say
        try:
            self._run(backend, users)
        except BaseException as error:  # noqa: BLE001 (whatever it was is the answer)
            say(RankWord(ended=True, why=of_error(error)))

    def _run(self, backend: str, users: Mapping[str, str]) -> None:
        self._stage("store")
        dress(variables(backend, self._task.interface, users))
        self._side = on(backend, self._local)
        store = self._store()
        self._stage("group")
        self._side.join(dist.PrefixStore("group", store), self._rank, self._world, self._left())
        self._stage("exact")
        self._sums()
        paired = self._task.kind == "pair" and len(self._task.members) == 2
        peer = self._peer if paired else None
        pace = BandwidthTest(self._side, self._rank, self._world, peer, self._until)
        if paired:
            self._both_ways(pace)
        self._stage("timed")
        rates = pace.rates(self._task.megabytes)
        self._wrong += filter(None, [pace.large_sum()])
        self._say(RankWord(stage="done", ended=True, rates=rates, wrong="; ".join(self._wrong)))
        self._part(store)

    def _stage(self, name: str) -> None:
        self._say(RankWord(stage=name))

    def _left(self) -> float:
        return max(0.2, (self._killed_at - time.monotonic()) * _OWN_SHARE)

    def _store(self) -> dist.Store:
        port, world, left = self._task.port, self._world, self._left()
        if self._listening >= 0:
            whole = host_store(self._listening, port, world, left)
        else:
            whole = connect_store(self._task.members[0].address, port, world, left)
        return dist.PrefixStore(f"test {self._task.test}", whole)

    def _sums(self) -> None:
        for kind in sum_patterns.KINDS:
            found = self._given(_COUNT, kind)
            dist.all_reduce(found)
            self._side.settle(self._until)
            said = sum_patterns.difference(found.cpu(), self._world, kind)
            self._wrong += [said] if said else []
        seen = torch.tensor([int(bool(self._wrong))], dtype=torch.int64, device=self._side.device)
        dist.all_reduce(seen)
        self._side.settle(self._until)
        if seen.item():
            self._whose(int(seen.item()))

    def _given(self, count: int, kind: str) -> torch.Tensor:
        given = sum_patterns.contribution(self._rank, count, kind)
        if self._spoils:
            given[count // 3] += 1
        return given.to(self._side.device)

    def _whose(self, saw: int) -> None:
        """Gather what each rank gave: what arrives changed names its rank."""
        count = max(64, min(_COUNT, _MOST_GATHERED // self._world))
        given = self._given(count, "int64")
        gathered = [torch.zeros_like(given) for _ in range(self._world)]
        dist.all_gather(gathered, given)
        self._side.settle(self._until)
        changed = sum_patterns.changed([one.cpu() for one in gathered], "int64").items()
        said = [f"what {self._named(rank)} gave arrived changed at element {at}" for rank, at in changed]
        if not said:
            where = f", on {self._named(self._rank)} alone" if saw == 1 else ""
            said = [f"what each rank gave arrived right: the summing itself is wrong{where}"]
            if not self._wrong:
                said = ["another rank saw a wrong sum"]
        # Who it was before how it showed: a table has room for the first words.
        self._wrong[:0] = said

    def _named(self, rank: int) -> str:
        place, local = divmod(rank, self._task.ranks)
        name = self._task.members[place].name
        return name if self._task.ranks == 1 else f"local rank {local} of {name}"

    def _both_ways(self, pace: BandwidthTest) -> None:
        ways = (("send", pace.first_send), ("receive", pace.first_receive))
        for name, step in ways if self._task.place == 0 else ways[::-1]:
            self._stage(name)
            if not step():
                self._wrong.append(f"what {self._named(self._peer)} sent arrived changed")

    def _part(self, store: dist.Store) -> None:
        """Stay until all are done: a connection that closes early may take a peer's last bytes with it."""
        limit = timedelta(seconds=_PART_SECONDS)
        if store.add("done", 1) == self._world:
            store.set("all done", "1")
        store.wait(["all done"], limit)
        if store.add("left", 1) == self._world:
            store.set("all left", "1")
        elif self._listening >= 0:
            store.wait(["all left"], limit)


def host_store(listening: int, port: int, world: int, seconds: float) -> dist.Store:
    """The store itself, on a socket that listens already; what dialled it before is served. Raises as torch.

    The lead reaches itself by loopback: what becomes of its address is for the others to see.
    """
    given = {"is_master": True, "master_listen_fd": listening}
    try:
        return _store(_LOOPBACK, port, world, seconds, **given)
    except NotImplementedError:
        # Before torch 2.8 only the older of its two servers takes a socket over.
        return _store(_LOOPBACK, port, world, seconds, **given, use_libuv=False)


def connect_store(address: str, port: int, world: int, seconds: float) -> dist.Store:
    return _store(address, port, world, seconds, is_master=False)


def _store(address: str, port: int, world: int, seconds: float, **given: bool | int) -> dist.Store:
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(address, port, world, timeout=limit, wait_for_workers=False, **given)
