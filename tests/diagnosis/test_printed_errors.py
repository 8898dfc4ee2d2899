"""Errors as they are read from what ranks printed into their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.diagnosis.printed_errors import ErrorListener, last_message
from clusterrun.model.paths import RunPaths
from clusterrun.operations.postmortem_input import errors

SAID = """Traceback (most recent call last):
  File "/home/me/train.py", line 93, in ask
    input("go on? ")
EOFError: EOF when reading a line
"""


def test_output_during_a_traceback_does_not_become_the_error(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    folder = Path(paths.attempt(0).folder)
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"{rank:05d}.err").write_text(SAID)
        (folder / f"{rank:05d}.out").write_text("up\ngo on? ")
        for stream in ("out", "err"):
            os.utime(folder / f"{rank:05d}.{stream}", (100.0, 100.0))
    notice = "EOFError: EOF when reading a line, at train.py:93 (ask)"
    assert [(entry.rank, entry.message) for entry in errors(paths, 0)] == [(0, notice), (1, notice)]
    assert [entry.rank for entry in errors(paths, 0, frozenset({1}))] == [1]


HINT = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
SEARCH_PATH = """Config search path:
\tprovider=hydra, path=pkg://hydra.conf
\tprovider=main, path=file:///home/me/conf"""
# The errors of hydra 1.3 without a traceback, with the message that each of them must give.
UNTRACED = {
    "override": (
        "Could not override 'model.hiden'.\nTo append to your config use +model.hiden=3\n"
        "Key 'hiden' is not in struct\n    full_key: model.hiden\n    object_type=dict\n\n",
        "Could not override 'model.hiden'. To append to your config use +model.hiden=3; "
        "Key 'hiden' is not in struct",
    ),
    "no such config": (
        "Cannot find primary config 'nope'. Check that it's in your config search path.\n\n"
        f"{SEARCH_PATH}\n\n",
        "Cannot find primary config 'nope'. Check that it's in your config search path.",
    ),
    "no such option": (
        "In 'config': Could not find 'model/big'\n\nAvailable options in 'model':\n\tsmall\n"
        f"{SEARCH_PATH}\n\n",
        "In 'config': Could not find 'model/big'",
    ),
    "grammar": (
        "Error parsing override 'foo'\nmissing EQUAL at '<EOF>'\n"
        "See https://hydra.cc/docs/1.2/advanced/override_grammar/basic for details\n\n",
        "Error parsing override 'foo'; missing EQUAL at '<EOF>'",
    ),
    "append": (
        "Could not append to config. An item is already at 'lr'.\nEither remove + prefix: 'lr=3'\n"
        "Or add a second + to add or override 'lr': '++lr=3'\n\n\n",
        "Could not append to config. An item is already at 'lr'. Either remove + prefix: 'lr=3'; "
        "Or add a second + to add or override 'lr': '++lr=3'",
    ),
    "one line": (
        "model appears more than once in the final defaults list\n\n",
        "model appears more than once in the final defaults list",
    ),
}
WARNING = (
    "/home/me/app.py:2: UserWarning: \nThe version_base parameter is not specified.\n"
    "Will assume defaults for version 1.1\n  @hydra.main(config_path='conf')\n"
)


@pytest.mark.parametrize("name", UNTRACED)
@pytest.mark.parametrize("before", ["", WARNING, "[W1126 10:00:00.1 socket.cpp:1] no IPv6\n"])
def test_an_error_without_a_traceback_is_the_paragraph_before_the_hint(name: str, before: str) -> None:
    output, message = UNTRACED[name]
    listener = ErrorListener(0)
    for line in (before + output + HINT).splitlines():
        listener.hear(100.0, line)
    assert [error.message for error in listener.errors] == [message]


def test_a_hint_below_a_traceback_adds_no_second_error() -> None:
    listener = ErrorListener(0)
    output = f"{SAID}more about it\n\nand more\n\n{HINT}"
    for line in output.splitlines():
        listener.hear(100.0, line)
    assert [error.text for error in listener.errors] == ["EOFError: EOF when reading a line"]


def test_a_hint_without_a_message_is_no_error() -> None:
    listener = ErrorListener(0)
    listener.hear(90.0, "loading")
    for line in (*WARNING.splitlines(), HINT):
        listener.hear(100.0, line)
    assert listener.errors == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("Key 'a' is not in struct", "    full_key: a", "    object_type=dict"), "Key 'a' is not in struct"),
        (("no config", "See https://example.com/config for details"), "no config"),
        (("step 3", "  error: no data"), "error: no data"),
        (("  loss: 0.3",), "loss: 0.3"),
    ],
)
def test_details_below_the_last_message_are_not_the_message(lines: tuple[str, ...], message: str) -> None:
    assert last_message(lines) == message
