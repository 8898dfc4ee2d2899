"""Encode the reports of ranks, and join the reports of a node's ranks to one result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import frozen
from clusterrun.preflight.tasks import CPU_WAIT, STAGES, TIME, GroupResult
from clusterrun.preflight.torch_worker.error_text import most_telling

# Each rank of a pair has a link of its own. The slowest rank determines all other rates.
_PER_NODE: dict[str, Callable[[list[float]], float]] = {"send": sum, "receive": sum, CPU_WAIT: max}


@frozen
class RankReport:
    """The begin of a stage, or (``ended``) the outcome. An end without a stage keeps the last one."""

    stage: str = ""
    ended: bool = False
    rates: tuple[tuple[str, float], ...] = ()
    wrong: str = ""
    why: str = ""
    fingerprint: str = ""
    late: bool = False  # it failed because a wait reached its limit

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.why)


def line(report: RankReport) -> str:
    return json.dumps(encode(report), separators=(",", ":"))


def read(text: bytes) -> RankReport:
    return decode(RankReport, json.loads(text))


def joined(test: int, seconds: float, reports: Sequence[RankReport], transport: str = "") -> GroupResult:
    """Return a node's result from the final reports of its ranks."""
    usual_fingerprint = Counter(report.fingerprint for report in reports).most_common(1)[0][0]
    differing = [
        str(rank)
        for rank, report in enumerate(reports)
        if report.fingerprint != usual_fingerprint and not report.failed
    ]
    wrong = most_telling(report.wrong for report in reports)
    if differing and not wrong:
        wrong = f"the product of GPU {', '.join(differing)} differs from that of the others"
    why = most_telling(report.why for report in sorted(reports, key=lambda report: report.late))
    failed = [report for report in reports if report.failed]
    # Rates by name for the node, and also by rank (``send:3``) if it has several ranks.
    names = dict.fromkeys(name for report in reports for name, _ in report.rates)
    of_rank = [dict(report.rates) for report in reports]
    whole: list[tuple[str, float]] = []
    for name in names:
        join = max if name.startswith(TIME) else _PER_NODE.get(name, min)
        whole.append((name, join([rates[name] for rates in of_rank if name in rates])))
    single = [
        (f"{name}:{rank}", rates[name])
        for name in names
        for rank, rates in enumerate(of_rank)
        if name in rates and name != CPU_WAIT and not name.startswith(TIME) and len(reports) > 1
    ]
    rates = (*whole, *single)
    return GroupResult(
        test=test,
        passed=not wrong and not why,
        stage=min((report.stage for report in reports), key=STAGES.index),
        seconds=seconds,
        rates=rates,
        wrong=wrong,
        why=why,
        fingerprint=usual_fingerprint,
        late=bool(failed) and all(report.late for report in failed),
        transport=transport,
    )
