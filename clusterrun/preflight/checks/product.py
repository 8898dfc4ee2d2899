"""Compare a matrix product on every GPU: its bits and its speed, within one GPU model."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import vote
from clusterrun.preflight.tasks import NO_WORKER, Findings, Readings, RunNeeds
from clusterrun.preflight.thresholds import Outlier, Thresholds, for_backend, outliers
from clusterrun.preflight.untrusted import number, pairs, text

NAME = "product"
OF = "product"
_WRONG = "drain the node: its GPU (or memory) computes wrong results without an error; have it replaced"
_SLOW = (
    "look at the node's clocks, power and heat (nvidia-smi -q -d PERFORMANCE) and at other processes there"
)
_LOADS_SLOWLY = (
    "turn persistence mode on (nvidia-smi -pm 1), and look at the file system with torch's CUDA libraries"
)
# Two values have no usual one. A product cannot be too fast, so the check reports the slower GPU if it has
# less than half of the other's speed.
_SLOW_OF_TWO = 0.5


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if a product is wrong, late or has other bits than most. Warn or fail if it is slow.

    Products that are late on all of several nodes are one warning: the drivers or libraries load slowly.
    """
    late = late_nodes(readings)
    is_late_everywhere = len(late) == len(readings) > 1
    if is_late_everywhere:
        seconds = max(number(reading, "seconds") or 0 for reading in readings.values())
        message = f"a matrix product was not done after {seconds:.0f} s on any node"
        yield "", Finding(NAME, Grade.WARN, message, _LOADS_SLOWLY)
    for node, reading in readings.items():
        failure = "" if is_late_everywhere else _failure(reading)
        if failure:
            known_error = meaning(failure)
            remedy = known_error.remedy if known_error else _SLOW
            yield node, Finding(NAME, Grade.FAIL, failure, _WRONG if text(reading, "wrong") else remedy)
    for kind in sorted({_kind(reading) for reading in readings.values()} - {""}):
        bits = {
            node: text(reading, "fingerprint").rpartition(": ")[2]
            for node, reading in readings.items()
            if _kind(reading) == kind
        }
        result = vote(bits)
        for node in result.outliers:
            agreeing = len(bits) - len(result.outliers)
            message = (
                f"the product's bits are {bits[node]}, {result.majority} on {agreeing} other nodes ({kind})"
            )
            yield node, Finding(NAME, Grade.FAIL, message, _WRONG)
        if not result.is_unanimous and not result.outliers:
            message = f"the product has {len(result.nodes_by_value)} results; it is not known which is right"
            remedy = "test these nodes together with a third: --spares 1"
            for node in bits if len(bits) == 2 else ("",):
                yield node, Finding(NAME, Grade.UNDETERMINED, message, remedy)
    for (node, gpu), outlier in _slow_gpus(request, readings).items():
        where = f" of GPU {gpu}" if gpu else ""
        message = (
            f"slow matrix product{where}: {outlier.value:.3g} TFLOP/s, {outlier.share:.0%} of the median "
            f"{outlier.median:.3g} (limit {outlier.limit:.3g})"
        )
        yield node, Finding(NAME, outlier.grade, message, _SLOW)


def late_nodes(readings: Readings) -> list[str]:
    """Return the nodes with a product that was not done in time, to be measured again."""
    return [
        node
        for node, reading in readings.items()
        if isinstance(reading, dict) and reading.get("late") is True and text(reading, "stage") != NO_WORKER
    ]


def slow_nodes(request: RunNeeds, readings: Readings) -> list[str]:
    """Return the nodes with a slow GPU, to be measured again."""
    return list(dict.fromkeys(node for node, _ in _slow_gpus(request, readings)))


def _failure(reading: object) -> str:
    if not isinstance(reading, dict) or text(reading, "stage") == NO_WORKER:
        return ""
    if text(reading, "wrong"):
        return f"a matrix product is wrong: {text(reading, 'wrong')}"
    if reading.get("late") is True:
        return f"a matrix product was not done after {number(reading, 'seconds') or 0:.0f} s"
    if reading.get("passed") is False:
        return f"a matrix product failed: {text(reading, 'why')}"
    return ""


def _kind(reading: object) -> str:
    """Return device, size and model: ``cuda 4096 NVIDIA L4``. Only products of one kind are compared."""
    kind, colon, _ = text(reading, "fingerprint").rpartition(": ")
    return kind if colon else ""


def _slow_gpus(request: RunNeeds, readings: Readings) -> dict[tuple[str, str], Outlier]:
    """Return the GPUs with a slow product by (node, local rank). The rank is '' on a node with one rank."""
    result: dict[tuple[str, str], Outlier] = {}
    for kind in sorted({_kind(reading) for reading in readings.values()}):
        rates = {
            (node, gpu): rate
            for node, reading in readings.items()
            if _kind(reading) == kind
            for gpu, rate in _rates(reading)
            if rate > 0
        }
        backend = "nccl" if kind.startswith("cuda") else "gloo"
        thresholds = for_backend(Thresholds.of_user(request.limits), backend)
        if len(rates) > 2:
            result.update(outliers(rates, thresholds))
        elif len(rates) == 2:
            (slower, value), (_, other) = sorted(rates.items(), key=lambda item: item[1])
            limit = _SLOW_OF_TWO * other
            if kind.startswith("cuda") and value < limit:
                result[slower] = Outlier(value, other, limit, value / other, Grade.WARN)
    return result


def _rates(reading: object) -> Iterator[tuple[str, float]]:
    """Yield (local rank, TFLOP/s) of each rank of a node."""
    rates = pairs(reading, "rates")
    by_rank = {name.partition(":")[2]: rate for name, rate in rates.items() if name.startswith("product:")}
    for gpu, value in (by_rank or {"": rates.get("product")}).items():
        rate = number(value)
        if rate is not None:
            yield gpu, rate
