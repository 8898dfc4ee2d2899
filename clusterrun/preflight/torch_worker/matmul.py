"""Multiply matrices of small integers. The product is exact in every order of summing.

Sums stay below 2^24, so float32 holds them exactly, also from TF32 operands. The sums of rows and columns
reveal a wrong element without a second machine.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable

import torch

from clusterrun.preflight.tasks import DONE, PRODUCT
from clusterrun.preflight.torch_worker.backend import (
    OnCpu,
    OnGpu,
    OutOfTime,
    device_for,
    set_variables,
    variables,
)
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.rank_report import RankReport

_SIZE = {"cpu": 384, "cuda": 4096}
_BATCH = {"cpu": 1, "cuda": 10}
_FEWEST = 5
# A GPU lowers its clocks only under sustained load.
_SECONDS = {"cpu": 0.04, "cuda": 0.7}


def serve(backend: str, local: int, until: float, say: Callable[[RankReport], None]) -> None:
    """Multiply, check and time. Report the stage and the end. Never raise."""
    try:
        say(RankReport(stage=PRODUCT))
        set_variables(variables(backend, "", {}))
        say(multiplied(device_for(backend, local), until))
    except BaseException as error:  # noqa: BLE001 (any exception is the answer)
        say(RankReport(ended=True, why=of_error(error), late=isinstance(error, OutOfTime)))


def multiplied(device: OnCpu | OnGpu, until: float, load_seconds: float = 0.0) -> RankReport:
    """Return the outcome of a product. ``load_seconds`` of further products must have the same bits."""
    torch.set_float32_matmul_precision("high")
    kind = device.torch_device.type
    size = _SIZE[kind]
    model = f" {torch.cuda.get_device_name(device.torch_device)}" if kind == "cuda" else ""
    first, second = operands(size)
    factors = first.to(device.torch_device), second.to(device.torch_device)
    product = torch.mm(*factors)
    device.settle(until)
    on_cpu = product.cpu()
    times, last = _times(device, factors, until, max(_SECONDS[kind], load_seconds))
    seconds = device.usual(times)
    wrong = difference(first, second, on_cpu)
    if not wrong and not torch.equal(last.cpu(), on_cpu):
        wrong = "product: the last of many products has other bits than the first"
    return RankReport(
        stage=DONE,
        ended=True,
        rates=(("product", round(2 * size**3 / seconds / 1e12, 6)),),
        wrong=wrong,
        fingerprint=f"{kind} {size}{model}: {fingerprint(on_cpu)}",
    )


def operands(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two fixed matrices of integers from -8 to 8, as float32."""
    place = torch.arange(size * size, dtype=torch.int64)
    first, second = ((place * factor // 128) % 17 - 8 for factor in (2654435761, 2246822519))
    return first.view(size, size).float(), second.view(size, size).float()


def difference(first: torch.Tensor, second: torch.Tensor, product: torch.Tensor) -> str:
    """Return where ``product`` is not first × second, by sums of rows and columns, or '' if it is correct."""
    a, b, c = first.long(), second.long(), product.long()
    rows = (c.sum(1) != a @ b.sum(1)).nonzero().flatten().tolist()
    columns = (c.sum(0) != a.sum(0) @ b).nonzero().flatten().tolist()
    is_equal = bool((product == c).all())
    if is_equal and not rows and not columns:
        return ""
    at = f"row {rows[0]}" if rows else "no row's sum"
    across = f"column {columns[0]}" if columns else "no column's sum"
    return f"product: wrong in {at}, {across} ({len(rows)} rows and {len(columns)} columns are wrong)"


def fingerprint(product: torch.Tensor) -> str:
    as_integers = product.to(torch.int32).contiguous()  # Also unifies 0 and -0.
    return hashlib.sha256(ctypes.string_at(as_integers.data_ptr(), as_integers.numel() * 4)).hexdigest()[:16]


def _times(
    device: OnCpu | OnGpu, ours: tuple[torch.Tensor, torch.Tensor], until: float, enough: float
) -> tuple[list[float], torch.Tensor]:
    """Return the seconds of each product until their sum is ``enough``, and the last product."""
    batch = _BATCH[device.torch_device.type]
    out = torch.empty_like(ours[0])
    times: list[float] = []

    def multiply() -> None:
        for _ in range(batch):
            torch.mm(*ours, out=out)

    device.timed(multiply, until)  # Warms up.
    spent = 0.0
    while len(times) < _FEWEST or spent < enough:
        times.append(device.timed(multiply, until) / batch)
        spent += times[-1] * batch
    return times, out
