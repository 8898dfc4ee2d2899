"""JSON without ``json`` is JSON: the same texts, the same values, the same refusals."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model import json_text
from tests.agent.runs import ROOT, pythons

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
CHECK = """
import sys; sys.path.insert(0, {root!r})
from clusterrun.model import json_text
value = {{"a": [1, -2.5, True, None, "ü\\n"], "": {{}}}}
assert json_text.loads(json_text.dumps(value)) == value
assert json_text.loads(b' [1e3] ') == [1000.0]
print("json" in sys.modules)
"""


@given(VALUES)
def test_values_are_written_and_read_as_json_does(value: object) -> None:
    assert json_text.dumps(value) == json.dumps(value)
    assert json_text.dumps(value, separators=(",", ":")) == json.dumps(value, separators=(",", ":"))
    for indent in (None, 2):
        text = json.dumps(value, indent=indent)
        assert json_text.loads(text) == json_text.loads(f"\n {text}\t".encode()) == value


@given(st.text(st.sampled_from('{}[]",:0123.eE-+ntrufalsNIy \\u\x00é'), max_size=12))
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            json_text.loads(text)
    else:
        assert repr(json_text.loads(text)) == repr(expected)


@pytest.mark.parametrize(
    "text", ["", "  ", "[1] 2", "{'a': 1}", "[1,]", '"\n"', b"\xff", "\N{NO-BREAK SPACE}1"]
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        json_text.loads(text)


def test_constants_can_be_refused_and_what_has_no_form_is() -> None:
    def refuse(name: str) -> object:
        raise ValueError(name)

    for text in ("NaN", "[-Infinity]"):
        with pytest.raises(ValueError):
            json_text.loads(text, parse_constant=refuse)
    with pytest.raises(TypeError):
        json_text.dumps({1, 2})


@pytest.mark.parametrize("python", pythons())
def test_every_python_reads_and_writes_without_json(python: str) -> None:
    done = subprocess.run(
        [python, "-I", "-S", "-c", CHECK.format(root=str(ROOT))], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
