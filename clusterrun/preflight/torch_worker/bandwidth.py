"""Measure the bandwidth of a rank's links with sends, receives and all-reduces in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from clusterrun import proc
from clusterrun.model.world import ring_share
from clusterrun.preflight.tasks import BUS_SHARES, CPU_WAIT, TABLE_SIZES
from clusterrun.preflight.torch_worker import sum_patterns
from clusterrun.preflight.torch_worker.backend import GLOO, PIECE_BYTES, OnCpu, OnGpu

# Maximum seconds per message. A slower link gets smaller messages.
_MOST_SECONDS = 0.1
_STEP = 32
_ROUNDS_SECONDS = 0.2
_FEWEST, _MOST = 3, 60
# Bytes. The check takes four times as much memory, and the GPU may be small.
_MOST_CHECKED = 64 * 10**6
# Period of the position-dependent element values. It is prime, so that swapped blocks differ.
_PERIOD = 251
# One round is enough if it takes longer: scheduler noise is smaller.
_LONG_ROUND_SECONDS = 0.3


class BandwidthTest:
    """The measurements of a rank in a formed group. ``peer`` is None unless the group is a pair."""

    def __init__(self, device: OnCpu | OnGpu, rank: int, world: int, peer: int | None, until: float) -> None:
        self._device, self._until = device, until
        self._rank, self._world, self._peer = rank, world, peer
        self._largest = 0

    def first_send(self) -> bool:
        for count in (1, PIECE_BYTES // 8):
            self._send(sum_patterns.contribution(self._rank, count, "int64").to(self._device.torch_device))
        return True

    def first_receive(self) -> bool:
        """Receive from the peer. Return whether the data are correct, bit for bit."""
        assert self._peer is not None
        right = True
        for count in (1, PIECE_BYTES // 8):
            received = torch.zeros(count, dtype=torch.int64, device=self._device.torch_device)
            self._receive(received)
            right = right and sum_patterns.wrong_at(received.cpu(), self._peer, "int64") is None
        return right

    def rates(self, megabytes: float) -> tuple[tuple[str, float], ...]:
        """Return GB/s by name for messages of ``megabytes``, or of less if the group is slow.

        ``CPU_WAIT`` is the part of the all-reduce for which the ranks waited for a processor.
        """
        moved = {"send": 1.0, "receive": 1.0, "all_reduce": ring_share(self._world)}
        rate_by_name: dict[str, float] = {}
        share = 0.0
        for size in self._device.sizes(self._size(megabytes)):
            self._largest = max(self._largest, size)
            taken, waited = self._seconds_by_step(size)
            longest = torch.tensor(waited, dtype=torch.float32, device=self._device.torch_device)
            dist.all_reduce(longest)
            self._device.settle(self._until)
            waited_by_round = longest.tolist()
            for name, seconds in taken.items():
                rate = round(moved[name] * size / 1e9 / self._device.usual(seconds), 6)
                if name == "all_reduce" and rate > rate_by_name.get(name, 0.0):
                    # The fastest message represents all of them on a crowded machine.
                    fastest = min(range(len(seconds)), key=seconds.__getitem__)
                    share = min(1.0, waited_by_round[fastest] / max(seconds[fastest], 1e-9))
                rate_by_name[name] = max(rate_by_name.get(name, 0.0), rate)
        rates = [(name, rate) for name, rate in rate_by_name.items() if moved[name]]
        return (*rates, (CPU_WAIT, round(share, 3))) if rates else ()

    def large_sum(self) -> str:
        """Return how the sum of the largest timed message size is wrong, or '' if it is correct.

        Large messages take other paths than small ones, in NCCL and through GPUs, links and switches.
        """
        count = min(self._largest, _MOST_CHECKED) // 4
        if not count:
            return ""
        pattern = torch.arange(count, dtype=torch.int32, device=self._device.torch_device) % _PERIOD
        total = (pattern + sum_patterns.weight(self._rank, "float32")).float()
        dist.all_reduce(total)
        self._device.settle(self._until)
        total_weight = sum(sum_patterns.weight(rank, "float32") for rank in range(self._world))
        wrong = (total != (pattern * self._world + total_weight).float()).nonzero().flatten()
        if not len(wrong):
            return ""
        first = int(wrong[0])
        expected = first % _PERIOD * self._world + total_weight
        return (
            f"sum of a large message ({count * 4 / 1e6:.3g} MB): element {first} is {total[first].item():g} "
            f"instead of {expected} ({len(wrong)} of {count} elements differ)"
        )

    def table(self, megabytes: float) -> Iterator[tuple[str, float]]:
        """Yield the microseconds of each operation and size: ``us all_reduce 1048576``.

        Sizes count as in nccl-tests: the bytes of the larger of input and output of a rank. gloo of some
        versions of torch has no reduce_scatter.
        """
        sizes = [size for size in TABLE_SIZES if size <= int(megabytes * 1e6)]
        for name in BUS_SHARES:
            for size in sizes:
                step = self._collective(name, size)
                try:
                    self._device.timed(step, self._until)  # Warms up.
                except RuntimeError:
                    if self._device.name != GLOO:
                        raise
                    break
                first = self._device.timed(step, self._until)
                rounds = self._least(max(_FEWEST, min(_MOST, int(_ROUNDS_SECONDS / max(first, 1e-6)))))
                seconds = [self._device.timed(step, self._until) for _ in range(rounds)]
                yield f"us {name} {size}", round(1e6 * self._device.usual(seconds), 3)

    def _collective(self, name: str, size: int) -> Callable[[], object]:
        """Return a call of the collective ``name`` on buffers of ``size`` bytes."""
        world, device = self._world, self._device.torch_device
        count = max(1, size // 4 // world) * world
        gathered = torch.zeros(count, dtype=torch.float32, device=device)
        part = gathered[: count // world].clone()
        other = torch.empty_like(gathered)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(gathered),
            "all_gather": lambda: dist.all_gather_into_tensor(other, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, gathered),
            "broadcast": lambda: dist.broadcast(gathered, 0),
            "all_to_all": lambda: dist.all_to_all_single(other, gathered),
        }
        return calls[name]

    def _seconds_by_step(self, size: int) -> tuple[dict[str, list[float]], list[float]]:
        """Return the seconds of each step per round, and the processor wait of each all-reduce."""
        content = torch.zeros(size // 4, dtype=torch.float32, device=self._device.torch_device)
        steps: dict[str, Callable[[], object]] = {"all_reduce": lambda: dist.all_reduce(content)}
        if self._peer is not None:
            # In this rank's order: its send matches its peer's receive.
            directions = [("send", lambda: self._send(content)), ("receive", lambda: self._receive(content))]
            steps.update(directions if self._rank < self._peer else directions[::-1])
        began = time.monotonic()
        for step in steps.values():  # Warms up.
            self._device.timed(step, self._until)
        seconds = time.monotonic() - began
        fewest = _FEWEST if seconds < _LONG_ROUND_SECONDS else 1
        rounds = self._least(max(fewest, min(_MOST, int(_ROUNDS_SECONDS / seconds))))
        taken: dict[str, list[float]] = {name: [] for name in steps}
        waited = []
        for _ in range(rounds):
            before = waited_for_processors()
            for name, step in steps.items():
                taken[name].append(self._device.timed(step, self._until))
                if name == "all_reduce":
                    waited.append(waited_for_processors() - before)
        return taken, waited

    def _size(self, megabytes: float) -> int:
        """Return the bytes per message, a multiple of 4, equal on all ranks."""
        most = int(megabytes * 1e6) // 4 * 4
        size = min(most, PIECE_BYTES)
        while size < most:
            probe = torch.zeros(size // 4, dtype=torch.float32, device=self._device.torch_device)
            step = partial(dist.all_reduce, probe)
            seconds = min(self._device.timed(step, self._until) for _ in range(2))
            affordable = int(size * _MOST_SECONDS / max(seconds, 1e-6))
            # The size grows in steps. Latency dominates small messages, so they predict large ones badly.
            larger = self._least(min(most, _STEP * size, affordable)) // 4 * 4
            if larger < 2 * size:
                break
            size = larger
        return size

    def _least(self, number: int) -> int:
        smallest = torch.tensor([number], dtype=torch.int64, device=self._device.torch_device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        self._device.settle(self._until)
        return int(smallest.item())

    def _send(self, content: torch.Tensor) -> None:
        """Send between two tokens, so that both sides measure the whole transfer."""
        token = torch.zeros(1, dtype=torch.float32, device=self._device.torch_device)
        self._move(dist.irecv, token)
        self._move(dist.isend, content)
        self._move(dist.irecv, token)
        self._device.settle(self._until)

    def _receive(self, content: torch.Tensor) -> None:
        token = torch.zeros(1, dtype=torch.float32, device=self._device.torch_device)
        self._move(dist.isend, token)
        self._move(dist.irecv, content)
        self._move(dist.isend, token)
        self._device.settle(self._until)

    def _move(self, way: Callable[..., object], content: torch.Tensor) -> None:
        # NCCL uses the group's connections for a batch of one operation, and opens none for the pair.
        for work in dist.batch_isend_irecv([dist.P2POp(way, content, self._peer)]):
            work.wait()


def waited_for_processors() -> float:
    """Return the seconds that runnable threads of this process waited, or 0 if the kernel does not count."""
    threads = proc.listed("/proc/self/task")
    statistics = [proc.content(f"/proc/self/task/{thread}/schedstat").split() for thread in threads]
    return sum(int(fields[1]) for fields in statistics if len(fields) > 1) / 1e9
