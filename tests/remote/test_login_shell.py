"""Words that go through a login shell arrive as they were given, whichever shell it is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.model.errors import BadInput
from clusterrun.remote.login_shell import LONGEST, command, place, runs

SHELLS = [path for name in ("bash", "dash", "zsh", "ksh", "tcsh", "fish") if (path := shutil.which(name))]
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('NOTE')]))"
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
NASTY = st.sampled_from(
    (
        "",
        "!",
        "!!",
        "a'b",
        "'",
        "\\",
        "\\'",
        "$HOME",
        "`id`",
        "$(id)",
        "a\nb",
        "\n",
        "~",
        "*",
        "#",
        "%s\\n",
        "-n",
        "\\0101",
        "; id",
        "&",
        "é\u2028",
    )
)


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=5)
@given(arguments=st.lists(st.one_of(TEXT, NASTY), min_size=1, max_size=30), note=NASTY)
def test_every_word_arrives(shell, arguments, note) -> None:
    prefix = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(ECHO)}"
    sent = command(runs(prefix, shlex.join(arguments), place("~"), {"NOTE": note}))
    environment = {"HOME": "/", "SHELL": shell, "PATH": os.defpath}
    result = subprocess.run((shell, "-c", sent), env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, json.loads(result.stdout)) == (0, [arguments, "/", note]), result.stderr


def test_output_of_a_profile_is_not_taken_for_data(tmp_path) -> None:
    (tmp_path / ".profile").write_text("echo welcome to the cluster\n")
    environment = {"HOME": str(tmp_path), "SHELL": "/bin/sh", "PATH": os.defpath}
    result = subprocess.run(
        ("/bin/sh", "-c", command("echo data")), env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.stdout, "welcome" in result.stderr) == ("data\n", True)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("", '"$HOME"'),
        ("~", '"$HOME"'),
        ("~/my code", "\"$HOME\"/'my code'"),
        ("/a b", "'/a b'"),
        ("~bob", "'~bob'"),
    ],
)
def test_a_tilde_is_the_remote_home(path, word) -> None:
    assert place(path) == word


def test_arguments_that_no_shell_can_pass_are_refused() -> None:
    with pytest.raises(BadInput, match="too long"):
        command("x" * LONGEST)
