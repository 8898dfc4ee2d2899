"""A matrix product on every node: its bits as on the others, and its speed near their median."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import split
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.thresholds import Outlier, for_backend, limits_of, outliers
from clusterrun.preflight.untrusted import number, pairs, text

NAME = "product"
OF = "product"
_LIES = "drain the node: its GPU (or memory) computes wrong results without an error; have it replaced"
_SLOW = (
    "look at the node's clocks, power and heat (nvidia-smi -q -d PERFORMANCE) and at other processes there"
)


def judge(request: RunNeeds, readings: Readings) -> Findings:
    for node, reading in readings.items():
        failure = _failure(reading)
        if failure:
            yield node, Finding(NAME, Grade.FAIL, failure, _LIES if text(reading, "wrong") else _SLOW)
    yield from _unlike_others(readings)
    for node, far in slow(request, readings).items():
        said = f"slow matrix product: {far.value:.3g} TFLOP/s, {far.share:.0%} of the median"
        said += f" {far.median:.3g} (limit {far.limit:.3g})"
        yield node, Finding(NAME, far.grade, said, _SLOW)


def _failure(reading: object) -> str:
    if not isinstance(reading, dict) or text(reading, "stage") == "warm":
        return ""
    if text(reading, "wrong"):
        return f"a matrix product is wrong: {text(reading, 'wrong')}"
    if reading.get("late") is True:
        return f"a matrix product was not done after {number(reading, 'seconds') or 0:.0f} s"
    if reading.get("passed") is False:
        return f"a matrix product failed: {text(reading, 'why')}"
    return ""


def _unlike_others(readings: Readings) -> Findings:
    for kind in sorted({_kind(reading) for reading in readings.values()} - {""}):
        alike = {node: reading for node, reading in readings.items() if _kind(reading) == kind}
        prints = {node: text(reading, "fingerprint") for node, reading in alike.items()}
        found = split(prints)
        for node in found.odd:
            agreeing = len(prints) - len(found.odd)
            said = f"the product's bits are {prints[node][:24]}, {found.usual[:24]} on {agreeing} other nodes"
            yield node, Finding(NAME, Grade.FAIL, said, _LIES)
        if not found.agreed and not found.odd:
            said = f"the product has {len(found.values)} results; it is not known which is right"
            remedy = "test these nodes together with a third: --spares 1"
            for node in prints if len(prints) == 2 else ("",):
                yield node, Finding(NAME, Grade.UNDETERMINED, said, remedy)


def _kind(reading: object) -> str:
    """On what and how large it was: ``cuda 4096``; only like is compared with like."""
    kind, colon, _ = text(reading, "fingerprint").partition(":")
    return kind if colon else ""


def slow(request: RunNeeds, readings: Readings) -> dict[str, Outlier]:
    found: dict[str, Outlier] = {}
    for kind in sorted({_kind(reading) for reading in readings.values()}):
        alike = {node: reading for node, reading in readings.items() if _kind(reading) == kind}
        rates = {node: number(pairs(reading, "rates").get("product")) for node, reading in alike.items()}
        known = {node: rate for node, rate in rates.items() if rate is not None and rate > 0}
        limits = for_backend(limits_of(request.limits), "nccl" if kind.startswith("cuda") else "gloo")
        found.update(outliers(known, limits) if len(known) > 2 else {})
    return found
