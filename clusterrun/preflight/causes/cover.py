"""Choose the cheapest set of causes that explains what failed, and measure how far each cause leads.

The currency is the nat: the negative natural logarithm of a probability. So costs of independent events add
up. An explanation costs the prices of its causes, and the observations that its causes leave to chance.

- A cause has a *price*: its rarity (`Prices`).
- A failure that no cause explains costs ``log(1 / noise)``: the test failed by chance.
- A pass in spite of a cause that makes tests fail at a ``rate`` costs ``log(1 / (1 - rate))``.

The *saving* of a cause is the cost of the failures that it explains, less its price and the passes in spite
of it. The *lead* of a cause is the cost of the best explanation without it, less that of the best with it. A
lead of ``n`` nats means that the cause is ``e ** n`` times as likely as the best alternative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.model.frozen import Any
from clusterrun.preflight.thresholds import Thresholds

# One check in a hundred meets a bad link. Two bad links cost more than the one node between them.
RARE_LINK = math.log(100)

Cause = Any  # a hashable value that names the cause
Scope = Any  # a hashable value that names what was tested: a link or a way


def sure(thresholds: Thresholds) -> float:
    """Return the lead over chance, in nats, that blame requires."""
    return math.log(1 / thresholds.false_blame)


def excess(tests: int, failures: int, usual: float, least: float) -> float:
    """Return by how many nats a larger share of failures than ``usual`` explains these tests better.

    Both shares are binomial. The larger one is the share that was measured, and at least ``least``. The
    logarithm of the ratio of the likelihoods is
    ``failures * log(larger / usual) + (tests - failures) * log((1 - larger) / (1 - usual))``.
    """
    larger = max(failures / tests, least)
    nats = failures * math.log(larger / usual)
    passes = tests - failures
    return nats + passes * math.log((1 - larger) / (1 - usual)) if passes else nats


class Prices:
    """The prices of causes among ``count`` nodes, in nats.

    ``node``: a faulty node, or a group that is cut off. It may be any of them, or none. So more nodes do not
    raise the chance of a wrong name.
    ``link``: a bad link. It may be at any node, too.
    ``rival``: the lead over every other cause that blame requires. Two causes can explain the same failures
    if a second fault adds some: a node seems faulty if one of its links is bad and the network lost a packet
    on another. A second fault is as likely as a faulty node or a bad link, so its price is the lead.
    """

    def __init__(self, count: int) -> None:
        self.node = math.log(count + 1)
        self.link = max(RARE_LINK, self.node)
        self.rival = min(RARE_LINK, self.node)


class Cover:
    """A greedy cover of failed scopes by causes.

    ``explains``: the failed scopes that each candidate explains.
    ``saving(cause, explained)``: the nats that a cause saves if the scopes in ``explained`` have another one.
    ``chosen``: the causes of the cheapest explanation, the one that saves most first.
    """

    def __init__(
        self,
        explains: Mapping[Cause, Sequence[Scope]],
        saving: Callable[[Cause, Counter[Scope]], float],
        excluded: Iterable[Cause] = (),
    ) -> None:
        self._explains, self._saving = explains, saving
        self._causes_of: dict[Scope, list[Cause]] = {}
        for cause, scopes in explains.items():
            for scope in scopes:
                self._causes_of.setdefault(scope, []).append(cause)
        excluded = set(excluded)
        candidates = [cause for cause in explains if cause not in excluded]
        self.chosen = self._cheapest(candidates, Counter())

    def _cheapest(self, candidates: Iterable[Cause], explained: Counter[Scope]) -> dict[Cause, float]:
        """Choose the cause that saves most, until none saves anything; ``explained`` grows."""
        chosen: dict[Cause, float] = {}
        savings = {cause: self._saving(cause, explained) for cause in candidates}
        while savings:
            best = max(savings, key=savings.__getitem__)
            if savings[best] <= 0:
                break
            chosen[best] = savings.pop(best)
            explained.update(self._explains[best])
            touched = {cause for scope in self._explains[best] for cause in self._causes_of[scope]}
            for cause in touched & savings.keys():
                savings[cause] = self._saving(cause, explained)
        return chosen

    def leads(self, cause: Cause) -> tuple[float, float]:
        """Return the lead of a chosen cause over chance, and over the best other causes.

        Causes that were excluded from the explanation count as rivals.
        """
        others = (other for other in self.chosen if other != cause)
        explained = Counter(scope for other in others for scope in self._explains[other])
        own_saving = self._saving(cause, explained)
        open_scopes = [scope for scope in self._explains[cause] if not explained[scope]]
        rivals = dict.fromkeys(rival for scope in open_scopes for rival in self._causes_of[scope])
        rivals.pop(cause, None)
        return own_saving, own_saving - sum(self._cheapest(rivals, explained).values())
