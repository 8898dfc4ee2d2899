"""The rules as a whole: each is listed and explained, and some rule always answers."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.diagnosis import decide as decisions
from clusterrun.diagnosis import rules
from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.decide import decide, decide_end
from clusterrun.diagnosis.evidence import Group
from clusterrun.diagnosis.explain import RULES
from clusterrun.diagnosis.hypothesis import AFTER_CRASH, SCALE, Hypothesis, certainty_in_words
from clusterrun.diagnosis.printed_errors import heard
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.absent_rank import explain_never_arrived
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.diagnosis.vote import RankVote
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from tests.diagnosis.ranks import ALL_REDUCE, BARRIER, LOADER, LOOP, MEETING, case, history, rank, record

NAMES = sorted(path.stem for path in Path(str(rules.__file__)).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_is_listed_with_its_certainty_and_its_pitfall(name: str) -> None:
    module = importlib.import_module(f"{rules.__name__}.{name}")
    assert module.rule in RULES
    assert 0 < module.CERTAINTY <= 100
    assert module.__doc__


def test_contributing_shows_the_scale_of_certainty() -> None:
    text = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\d+)` \| (.*) \|$", text, re.MULTILINE)
    bases = [
        (least, f"{basis}; {AFTER_CRASH[basis]}" if basis in AFTER_CRASH else basis) for least, basis in SCALE
    ]
    assert [(int(least), basis) for least, basis in rows] == bases


def test_the_certainty_about_a_node_that_ended_first_does_not_rest_on_stacks() -> None:
    assert "stacks" in certainty_in_words(40)
    assert "stacks" not in certainty_in_words(40, has_crashed=True)


STACKS = st.sampled_from([ALL_REDUCE, BARRIER, LOADER, LOOP, MEETING, ()])
CALLS = st.sampled_from(["", "send", "recv", "wait", "store"])


@st.composite
def ranks(draw: st.DrawFn, size: int) -> list[Any]:
    """Draw any mixture of states, places and calls."""
    observed = []
    for number in range(size):
        begun = draw(st.integers(0, 4))
        operation = draw(st.sampled_from(["all_reduce", "barrier"]))
        inside = (record(begun + 1, False, operation),) if draw(st.booleans()) else ()
        observed.append(
            rank(
                number,
                size,
                begun,
                state=draw(st.sampled_from(["S", "R", "D", "T", ""])),
                busy=draw(st.sampled_from([0.0, 1.0])),
                stack=draw(STACKS),
                call=draw(CALLS),
                peer=draw(st.integers(-1, size - 1)),
                records=(*history(begun), *inside),
                groups=(Group("0", size, begun, True, "gloo", f"0-{size - 1}"),) if begun else (),
                world=draw(st.sampled_from([0, size, size + 1])),
                started=size,
                moved=draw(st.booleans()),
            )
        )
    return observed


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 5), stalled=st.sampled_from([0.0, 60.0]), data=st.data())
def test_some_rule_decides_each_look_and_blames_only_seen_ranks(
    size: int, stalled: float, data: st.DataObject
) -> None:
    observed = data.draw(ranks(size))
    result = decide(case(*observed, stalled=stalled)).diagnosis
    assert result.message
    assert {culprit.rank for culprit in result.culprits} <= {-1, *range(size)}
    assert not result.culprits or result.verdict is not Verdict.NOTHING


LINES = [
    "",
    "ValueError: bad",
    "ConnectionError: gone",
    "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received",
    "RuntimeError: Timed out waiting 30000ms for recv operation to complete",
    "OSError: [Errno 28] No space left on device",
]


@settings(max_examples=150, deadline=None)
@given(
    printed=st.lists(st.sampled_from(LINES), min_size=3, max_size=3),
    state=st.sampled_from([State.FAILED, State.COMPLETED, State.CANCELLED, State.OUT_OF_MEMORY]),
    failed=st.one_of(st.none(), st.tuples(st.integers(-1, 2), st.sampled_from([1, -9, -6, 124]))),
    ended=st.sampled_from(["", "1", "0-1"]),
)
def test_some_rule_decides_each_end(
    printed: list[str], state: State, failed: tuple[int, int] | None, ended: str
) -> None:
    pieces = [
        (number, "err", 100.0, f"[rank{number}]: Traceback (most recent call last):\n[rank{number}]: {line}")
        for number, line in enumerate(printed)
    ]
    failure = Failure(failed[0], "n0", failed[1], 101.0, "it ended", ended=ended) if failed else None
    assert decide_end(Remains(state, "", failure, heard(pieces), ("n0", "n0", "n1"))).message


def test_equally_certain_hypotheses_with_different_culprits_are_both_reported_without_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*culprits: int) -> Any:
        def rule(table: CallTable) -> list[Hypothesis]:
            return [Hypothesis(explain_never_arrived, 99, culprits)]

        return rule

    monkeypatch.setattr(decisions, "RULES", (late(0), late(1)))
    result = decide(case(rank(0, stack=LOOP), rank(1, stack=LOADER), stalled=60.0)).diagnosis
    assert (result.verdict, result.culprits) == (Verdict.NEVER_ARRIVED, ())
    assert result.message.startswith("either rank 0 on n0")
    assert ", or rank 1 on n0" in result.message


@pytest.mark.parametrize(
    ("values", "odd", "suspects", "lone"),
    [
        ("aaba", (2,), (2,), 2),
        ("aabb", (), (0, 1, 2, 3), -1),
        ("aabc", (2, 3), (2, 3), -1),
        ("ab", (), (0, 1), -1),
        ("aaaa", (), (), -1),
        ("", (), (), -1),
    ],
)
def test_the_majority_is_right_and_of_equal_sides_none_is(
    values: str, odd: tuple[int, ...], suspects: tuple[int, ...], lone: int
) -> None:
    vote = RankVote(dict(enumerate(values)))
    assert (vote.odd, vote.suspects, vote.lone()) == (odd, suspects, lone)
