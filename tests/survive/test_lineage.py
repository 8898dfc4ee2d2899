"""What earlier jobs of a run have left is never overwritten before it was read."""

from __future__ import annotations

from clusterrun.agent.events import Now
from clusterrun.agent.ledger import Ledger
from clusterrun.model.record import Attempt


def test_a_coordinator_writes_no_state_before_it_knows_what_an_earlier_one_has_left() -> None:
    ledger, now = Ledger("r", "n1", 7, 10.0, "41"), Now(5.0, 1_800_000_000.0)
    assert (ledger.due_at(), ledger.due(now)) == (None, None)
    earlier = Attempt(0, "first start", ("n0",), 1.0, 2.0, "NODE_FAIL")
    ledger.remember((earlier,))
    ledger.open(now, 1, "started again", "node")
    saved = ledger.due(now)
    assert saved is not None
    assert (saved.state.epoch, [a.epoch for a in saved.state.attempts]) == (1, [0, 1])
