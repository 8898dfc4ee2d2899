"""What a rank says over its pipe, and how the words of a node's ranks become one result; reads no clock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import frozen
from clusterrun.preflight.tasks import CPU_WAIT, GroupResult
from clusterrun.preflight.torch_worker.error_text import most_telling

STAGES = ("", "store", "group", "exact", "send", "receive", "timed", "product", "done")
_PER_NODE: dict[str, Callable[[list[float]], float]] = {"send": sum, "receive": sum, CPU_WAIT: max}
"""Each rank of a pair has a way of its own; all else is one thing that all ranks do: the slowest counts."""


@frozen
class RankWord:
    """A stage that begins, or (``ended``) all that a rank found; an end without a stage keeps the last."""

    stage: str = ""
    ended: bool = False
    rates: tuple[tuple[str, float], ...] = ()
    wrong: str = ""
    why: str = ""
    fingerprint: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.why)


def line(word: RankWord) -> str:
    return json.dumps(encode(word), separators=(",", ":"))


def read(text: bytes) -> RankWord:
    return decode(RankWord, json.loads(text))


def joined(test: int, seconds: float, words: Sequence[RankWord], transport: str = "") -> GroupResult:
    """A node's result from the last words of its ranks, all ended; ``why`` is the first that tells most."""
    differing = _odd(words)
    wrong = most_telling(word.wrong for word in words) or differing
    why = most_telling(word.why for word in words)
    return GroupResult(
        test=test,
        passed=not wrong and not why,
        stage=min((word.stage for word in words), key=STAGES.index),
        seconds=seconds,
        rates=_rates(words),
        wrong=wrong,
        why=why,
        fingerprint=_most_common(words),
        transport=transport,
    )


def _rates(words: Sequence[RankWord]) -> tuple[tuple[str, float], ...]:
    """By name for the node, and where it has several ranks also by rank: ``send:3``."""
    names = dict.fromkeys(name for word in words for name, _ in word.rates)
    of_rank = [dict(word.rates) for word in words]
    whole = [(name, _PER_NODE.get(name, min)([r[name] for r in of_rank if name in r])) for name in names]
    single = [
        (f"{name}:{rank}", rates[name])
        for name in names
        for rank, rates in enumerate(of_rank)
        if name in rates and name != CPU_WAIT and len(words) > 1
    ]
    return (*whole, *single)


def _most_common(words: Sequence[RankWord]) -> str:
    return Counter(word.fingerprint for word in words).most_common(1)[0][0]


def _odd(words: Sequence[RankWord]) -> str:
    """Which GPUs of a node have another product than most of them."""
    usual = _most_common(words)
    odd = [str(rank) for rank, word in enumerate(words) if word.fingerprint != usual and not word.failed]
    return f"the product of GPU {', '.join(odd)} differs from that of the others" if odd else ""
