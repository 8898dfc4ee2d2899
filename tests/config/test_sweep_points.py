"""Notations for the points of a sweep, and the refusals of impossible ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.config.sweep_points import MOST_POINTS, at, check_places, points
from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec

SPEC = JobSpec(command=("train.py", "--lr={lr}", "{x}", '{"a": 1}'), cwd="/w", environment=(("E", "e{lr}"),))


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        (["lr=0.1,0.01"], [{"lr": "0.1"}, {"lr": "0.01"}]),
        (["a=1,2", "b=range(2)"], [{"a": a, "b": b} for a in "12" for b in "01"]),
        (["n=range(1, 9, 3)"], [{"n": "1"}, {"n": "4"}, {"n": "7"}]),
        (['n="[1,2]",(3)'], [{"n": "[1,2]"}, {"n": "(3)"}]),
        (["n=range(2,0,-1)"], [{"n": "2"}, {"n": "1"}]),
        (['opt.name="a,b",c d'], [{"opt.name": "a,b"}, {"opt.name": "c d"}]),
        (["q=$(rm -rf ~);'\"`"], [{"q": "$(rm -rf ~);'\"`"}]),
    ],
)
def test_values_make_every_combination(sets: list[str], found: list[dict[str, str]]) -> None:
    assert [dict(point) for point in points(sets)] == found


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["lr"], "is not NAME=VALUES"),
        (["=1"], "is not NAME=VALUES"),
        (["l r=1"], "is not NAME=VALUES"),
        (["lr="], "a point without a value"),
        (["lr=1,,2"], "a point without a value"),
        (["lr=1,1"], "the points 0 and 1 are the same: lr=1"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=[0.1,0.2]"], "a comma inside brackets separates values too"),
        (["lr=range(3, 3)"], "an empty range"),
        (["lr=range(3"], "is no range"),
        (["lr=range(1, 3, 0)"], "an empty range"),
        (["lr=range(1000000)"], "1,000,000 points are more than 10,000"),
        (["a=range(1000)", "b=range(1000)"], "1,000,000 points are more than 10,000"),
        (['lr="1'], "unexpected end of data"),
        (["lr=\0"], "neither text nor a number"),
    ],
)
def test_meaningless_points_are_refused_with_a_reason(sets: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=None) as refused:
        points(sets)
    assert message in refused.value.seen and refused.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "point"),
    [
        ("p.csv", "\ufefflr, seed\n0.1,1\n\n0.2 , 2\n", [("0.1", "1"), ("0.2", "2")]),
        (
            "p.toml",
            '[[point]]\nlr = 0.1\nseed = true\n[[point]]\nlr = "a"\nseed = 2\n',
            [("0.1", "true"), ("a", "2")],
        ),
    ],
)
def test_a_file_has_a_point_in_each_row(
    tmp_path: Path, name: str, content: str, point: list[tuple[str, str]]
) -> None:
    (tmp_path / name).write_text(content)
    read = points(["k=x"], str(tmp_path / name))
    assert read == tuple((("lr", lr), ("seed", seed), ("k", "x")) for lr, seed in point)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "lr,seed\n0.1\n", "row 2 has no value for seed"),
        ("p.csv", "lr,seed\n0.1,\n", "row 2 has no value for seed"),
        ("p.csv", "lr\n0.1,3\n", "row 2 has 2 cells"),
        ("p.csv", "lr,lr\n1,2\n", "a name stands twice"),
        ("p.csv", "l r\n1\n", "'l r' is not a name"),
        ("p.csv", "lr\n", "there is no point in it"),
        ("p.csv", "", "there is no point in it"),
        ("p.csv", b"\xff\xfe", "it is not UTF-8"),
        ("p.csv", '"lr\n1', "unexpected end of data"),
        ("p.toml", "lr = 1\n", "not called [[point]]"),
        ("p.toml", "[[point]]\nlr = [1]\n", "lr has the value [1]"),
        ("p.toml", "[[point]]\nlr = 1\n[[point]]\nseed = 1\n", "point 1 has no value for lr"),
        ("p.toml", "[[point]]\nlr = 1\n[[point]]\nlr = 2\nseed = 1\n", "differ in seed"),
        ("p.toml", "[[point\n", "is not TOML"),
        ("p.yaml", "lr: 1\n", "does not say what it is"),
        ("none.csv", None, "no such file"),
    ],
)
def test_a_meaningless_file_is_refused_with_a_reason(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput) as refused:
        points([], str(tmp_path / name))
    assert message in refused.value.seen


def test_values_replace_their_placeholders_and_no_other_braces() -> None:
    created = at(SPEC, (("lr", "{x}"), ("x", "$(id) '")), "t.3")
    assert (created.name, created.command, created.environment) == (
        "t.3",
        ("train.py", "--lr={x}", "$(id) '", '{"a": 1}'),
        (("E", "e{x}"),),
    )


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"lr": "1", "seed": "2"}, "seed stands nowhere in the command"),
        ({"seed": "2"}, "seed stands nowhere in the command"),
    ],
)
def test_an_unused_parameter_is_refused(point: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_places(SPEC, tuple(point.items()))
    assert message in refused.value.seen


def test_a_place_that_nearly_has_a_name_is_refused_and_others_are_the_scripts_own() -> None:
    (notice,) = check_places(SPEC, (("lr", "1"),))
    assert notice.startswith("{x} has no value")
    spec = JobSpec(command=("t.py", "{seed}", "{lr}", "${seed}"), cwd="/w")
    assert at(spec, (("seed", "1"),), "t.0").command == ("t.py", "1", "{lr}", "${seed}")
    with pytest.raises(BadInput, match="seeed"):
        check_places(JobSpec(command=("t.py", "{seed}", "{seeed}"), cwd="/w"), (("seed", "1"),))


@given(st.text(), st.text(max_size=40))
def test_any_text_is_points_or_a_refusal(name: str, values: str) -> None:
    try:
        result = points([f"{name}={values}"])
    except BadInput as refused:
        assert refused.seen and refused.remedy
    else:
        assert 0 < len(result) <= MOST_POINTS and all(value for point in result for _, value in point)


def test_a_span_of_numbers_is_refused() -> None:
    with pytest.raises(BadInput, match="a sweep needs each value"):
        points(["lr=log(1e-5,0.1)"])


def test_a_setup_line_receives_the_value_as_one_argument() -> None:
    spec = JobSpec(command=("t.py",), cwd="/w", setup=("a={a}; echo ${a} {b}",))
    created = at(spec, (("a", "x $(id)"),), "t.0")
    assert created.setup == ("a='x $(id)'; echo ${a} {b}",)
    check_places(spec, (("a", "1"), ("b", "2")))
    with pytest.raises(BadInput):
        check_places(JobSpec(command=("t.py",), cwd="/w", setup=("echo ${a}",)), (("a", "1"),))
