"""Foreign text can drive no terminal and forge no line."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.visible import visible

FOREIGN = st.one_of(
    st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text(max_size=60),
    st.text("\x1b[0123m;abc\r\n\t\x9b\u2028\u202e\u0085", max_size=60),
)


@pytest.mark.parametrize(
    "text, displayed",
    [
        ("loss 0.1 é 漢 🙂", "loss 0.1 é 漢 🙂"),
        ("a\tb", "a       b"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b\x1b[0m[2J", "\\x1b[2J"),
        ("one\rtwo\x7f", "one\\rtwo\\x7f"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("abc\u202edcba\u2066", "abc\\u202edcba\\u2066"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_everything_harmful_is_written_out(text: str, displayed: str) -> None:
    assert visible(text) == displayed


@pytest.mark.parametrize(
    "text, displayed",
    [
        ("\x1b[1;31mred\x1b[0m black", "\x1b[1;31mred\x1b[0m black"),
        ("\x1b[32mgreen for ever", "green for ever"),
        ("\x1b[32ma\x1b[m \x1b[2K", "\x1b[32ma\x1b[m \\x1b[2K"),
        ("no colour\t.", "no colour       ."),
    ],
)
def test_colours_stay_if_the_line_ends_them(text: str, displayed: str) -> None:
    assert visible(text, colours=True) == displayed


@given(FOREIGN)
def test_the_result_never_has_a_control_character(text: str) -> None:
    output = visible(text)
    assert [
        c for c in output if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in "\u202e\u2066\u200f"
    ] == []


@given(FOREIGN)
def test_only_balanced_colour_sequences_are_printed(text: str) -> None:
    parts = visible(text, colours=True).split("\x1b[")
    assert all(
        part.split("m")[0].replace(";", "").replace(":", "").isdecimal() or part[0] == "m"
        for part in parts[1:]
    )
    assert len(parts) == 1 or parts[-1].split("m")[0].strip("0") == ""
