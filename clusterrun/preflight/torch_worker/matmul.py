"""A matrix product of small integers: exact in every order of summing, so equal on every sound machine.

Sums stay below 2^24, so that float32 holds them exactly, also from TF32 operands; a wrong element is
found by its row's and its column's sum, without another machine to compare with.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable

import torch

from clusterrun.preflight.torch_worker.backend import GLOO, OnCpu, OnGpu, dress, on, variables
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.rank_report import RankWord

_SIZE = {"cpu": 384, "cuda": 4096}
_BATCH = {"cpu": 1, "cuda": 10}
_FEWEST = 5
_SECONDS = {"cpu": 0.04, "cuda": 0.7}
"""A GPU's clocks fall only under load that lasts."""


def serve(backend: str, local: int, until: float, say: Callable[[RankWord], None]) -> None:
    """Multiply, check and time; says the stage and the end, never raises."""
    try:
        say(RankWord(stage="product"))
        dress(variables(backend, "", {}) if backend != GLOO else {})
        say(multiplied(on(backend, local), until))
    except BaseException as error:  # noqa: BLE001 (whatever it was is the answer)
        say(RankWord(ended=True, why=of_error(error)))


def multiplied(side: OnCpu | OnGpu, until: float) -> RankWord:
    torch.set_float32_matmul_precision("high")
    kind = side.device.type
    size = _SIZE[kind]
    model = f" {torch.cuda.get_device_name(side.device)}" if kind == "cuda" else ""
    left, right = operands(size)
    ours = left.to(side.device), right.to(side.device)
    found = torch.mm(*ours)
    side.settle(until)
    whole = found.cpu()
    seconds = side.usual(_times(side, ours, until))
    return RankWord(
        stage="done",
        ended=True,
        rates=(("product", round(2 * size**3 / seconds / 1e12, 6)),),
        wrong=difference(left, right, whole),
        fingerprint=f"{kind} {size}{model}: {fingerprint(whole)}",
    )


def operands(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two fixed matrices of integers from -8 to 8, as float32."""
    place = torch.arange(size * size, dtype=torch.int64)
    left, right = ((place * factor // 128) % 17 - 8 for factor in (2654435761, 2246822519))
    return left.view(size, size).float(), right.view(size, size).float()


def difference(left: torch.Tensor, right: torch.Tensor, found: torch.Tensor) -> str:
    """Where ``found`` is not left × right, by its sums along rows and columns; empty if all are right."""
    a, b, c = left.long(), right.long(), found.long()
    rows = (c.sum(1) != a @ b.sum(1)).nonzero().flatten().tolist()
    columns = (c.sum(0) != a.sum(0) @ b).nonzero().flatten().tolist()
    whole = bool((found == c).all())
    if whole and not rows and not columns:
        return ""
    at = f"row {rows[0]}" if rows else "no row's sum"
    across = f"column {columns[0]}" if columns else "no column's sum"
    return f"product: wrong in {at}, {across} ({len(rows)} rows and {len(columns)} columns are wrong)"


def fingerprint(found: torch.Tensor) -> str:
    whole = found.to(torch.int32).contiguous()  # also makes one zero of both
    return hashlib.sha256(ctypes.string_at(whole.data_ptr(), whole.numel() * 4)).hexdigest()[:16]


def _times(side: OnCpu | OnGpu, ours: tuple[torch.Tensor, torch.Tensor], until: float) -> list[float]:
    batch, enough = _BATCH[side.device.type], _SECONDS[side.device.type]
    out = torch.empty_like(ours[0])
    times: list[float] = []

    def multiply() -> None:
        for _ in range(batch):
            torch.mm(*ours, out=out)

    side.timed(multiply, until)  # warms up
    while len(times) < _FEWEST or sum(times) * batch < enough:
        times.append(side.timed(multiply, until) / batch)
    return times
