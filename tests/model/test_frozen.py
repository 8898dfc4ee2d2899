"""The laws of frozen values and of their documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.document import BadDocument, decode, encode, encode_set
from clusterrun.model.frozen import fields, frozen, replace
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State


@frozen
class Point:
    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


def test_fields_take_positions_names_and_defaults() -> None:
    assert [fields(Point(1)), fields(Point(1, 3)), fields(Point(y=5, x=4))] == [
        {"x": 1, "y": 2},
        {"x": 1, "y": 3},
        {"x": 4, "y": 5},
    ]


@pytest.mark.parametrize("args, named", [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})])
def test_a_value_is_refused_with_fields_missing_double_or_unknown(
    args: tuple[int], named: dict[str, int]
) -> None:
    with pytest.raises(TypeError):
        Point(*args, **named)


def test_a_value_cannot_be_changed_only_replaced_and_is_validated_again() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    assert replace(point, y=7) == Point(1, 7)
    with pytest.raises(ValueError):
        replace(point, x=-1)


def test_equality_and_hash_depend_on_class_and_fields() -> None:
    assert Point(1) == Point(1, 2) and hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2) and Point(1) != (1, 2)


STATE = RunState(
    run_id="r",
    epoch=1,
    state=State.FAILED,
    phase=Phase.ENDED,
    reason="rank 3 failed",
    host="n0001",
    pid=7,
    updated_at=2.0,
    attempts=(
        Attempt(
            0,
            "first start",
            ("n0001",),
            1.0,
            1.5,
            "failed",
            Failure(3, "n0001", -9, 1.4, "killed", ("a", "b\udcff")),
        ),
    ),
    exit_code=1,
)


def test_a_document_survives_json_byte_for_byte() -> None:
    assert decode(RunState, json.loads(json.dumps(encode(STATE)))) == STATE


@pytest.mark.parametrize(
    "change, message",
    [
        ({"state": "DONE"}, "RunState.state: 'DONE' is not a valid State"),
        ({"epoch": "1"}, "RunState.epoch: expected int, found '1'"),
        ({"epoch": True}, "RunState.epoch: expected int, found True"),
        ({"attempts": 3}, "RunState.attempts: expected a list, found 3"),
        ({"attempts": [4]}, "RunState.attempts[0]: expected an object, found 4"),
        (
            {"colour": 1, "must_understand": ["colour"]},
            "RunState: field 'colour' is of a newer clusterrun and changes what the others mean",
        ),
        (
            {"must_understand": "colour"},
            "RunState: field 'must_understand' is of a newer clusterrun and changes what the others mean",
        ),
    ],
)
def test_a_damaged_document_is_refused_by_the_name_of_the_field(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(BadDocument) as caught:
        decode(RunState, {**encode(STATE), **change})
    assert caught.value.seen == message


@given(st.dictionaries(st.text(min_size=1), st.none() | st.integers() | st.lists(st.text())))
def test_fields_that_only_a_newer_version_knows_are_ignored(more: dict[str, object]) -> None:
    state_json = encode(STATE)
    ours = {*fields(STATE), *fields(STATE.attempts[0]), "must_understand"}
    more = {name: value for name, value in more.items() if name not in ours}
    attempts = [{**attempt, **more} for attempt in state_json["attempts"]]
    assert decode(RunState, {**more, **state_json, "attempts": attempts}) == STATE
    assert decode(RunState, {**more, **state_json, "must_understand": ["epoch"]}) == STATE


def test_fields_that_have_their_defaults_need_not_be_written() -> None:
    written = encode_set(STATE)
    assert written.keys() == {
        *("run_id", "epoch", "state", "phase", "reason", "host", "pid", "updated_at"),
        *("attempts", "exit_code", "format"),
    }
    assert decode(RunState, json.loads(json.dumps(written))) == STATE
