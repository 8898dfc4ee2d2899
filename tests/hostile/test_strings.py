"""Whatever a user types arrives in the rank byte for byte, through bash, sbatch, srun and both backends."""

from __future__ import annotations

import json
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.conftest import Person, logs

SHOW = """import json, os, sys
own = {k: v for k, v in os.environb.items() if k.startswith(b"HOSTILE_")}
text = lambda data: data.decode("latin-1")
json.dump({"args": [text(os.fsencode(a)) for a in sys.argv[1:]], "cwd": text(os.getcwdb()),
           "env": {text(k): text(v) for k, v in own.items()}}, sys.stdout)
"""
CORPUS = (
    *("", " ", "  two  ", "-", "--", "-x", "--nodes=9", "--help", "-m", "=", "a=b", "#SBATCH --nodes=9", "#"),
    *(
        "$(touch pwned)",
        "`touch pwned`",
        "${IFS}",
        "$HOME",
        "$$",
        "$'\\n'",
        "!!",
        "~",
        "~root",
        "*",
        "?",
        "[a]",
    ),
    *(
        "'",
        '"',
        "'\"'",
        '"$(id)"',
        "\\",
        "\\\\",
        "\\n",
        "\\'",
        "a\\",
        "end;",
        "a|b",
        "a&b",
        "a>b",
        "a<b",
        "(a)",
    ),
    *(
        "\n",
        "a\nb",
        "\r",
        "\t",
        "\x01",
        "\x1b[31m",
        "\x7f",
        "\n#SBATCH --nodes=9\n",
        "EOF\n",
        "%j %t %% %n",
        "%",
    ),
    *("é", "日本語", "\u202e", "\u2028", "\ufeff", "🚀", "\udcff", "\udc80\udcfe", "a\udcc3", "{{ run_id }}"),
    *("@{quoted:cwd}@", "{% raw %}", "{1..3}", "packjob", "hetjob", "x" * 3000, "NaN", "null", '{"a": 1}'),
)
PIECES = (*CORPUS, *map(chr, range(1, 256)), "a", "b", " ")
SEEDS = (1, 2)


def strings(seed: int, count: int) -> list[str]:
    """Draw strings of hostile pieces."""
    chance = random.Random(seed)
    return ["".join(chance.choices(PIECES, k=chance.randint(1, 5))) for _ in range(count)]


def arrives(person: Person, args: list[str], values: list[str], nodes: int = 1) -> None:
    (person.folder / "show.py").write_text(SHOW)
    env = {f"HOSTILE_{place}": value for place, value in enumerate(values)}
    options = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    run = person.waits("--nodes", str(nodes), *options, "show.py", *args)
    expected = {
        "args": [os.fsencode(arg).decode("latin-1") for arg in args],
        "cwd": os.fsencode(person.folder).decode("latin-1"),
        "env": {name: os.fsencode(value).decode("latin-1") for name, value in env.items()},
    }
    messages = [json.loads(path.read_bytes()) for path in logs(run)]
    assert messages == [expected] * nodes
    assert not (person.folder / "pwned").exists()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thousand_hostile_arguments_and_values_arrive_as_typed(anybody: Person, seed: int) -> None:
    arrives(anybody, [*CORPUS, *strings(seed, 700)], [*CORPUS, *strings(-seed, 200)], nodes=2)


WORDS = st.text(st.characters(exclude_characters="\0", max_codepoint=0xFFFF, exclude_categories=("Cs",)))


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(args=st.lists(WORDS, max_size=40), values=st.lists(WORDS, max_size=20))
def test_any_text_arrives_as_typed(anybody: Person, args: list[str], values: list[str]) -> None:
    arrives(anybody, args, values)


NAMES = [
    *("with space", "q\"u'o`te$(touch pwned)", "line\nbreak\n#SBATCH --nodes=9", "-dash", "per%j cent %%"),
    *("back\\slash", "üñi 日本", "inv\udcff\udcfe", "tab\there", "~", "packjob", "a;b&c|d>e"),
]


def test_names_and_folders_may_be_called_anything(anybody: Person) -> None:
    runs = []
    for name in NAMES:
        inside = Person(anybody.folder / name, anybody.lab)
        inside.folder.mkdir()
        (inside.folder / "-show.py").write_text(SHOW)
        runs.append((name, inside, inside.submits("--name", name, "--", "./-show.py", name)))
    for name, inside, run in runs:
        assert inside.reaches(run, "COMPLETED")["name"] == name
        document = json.loads(logs(run)[0].read_bytes())
        assert document["cwd"] == os.fsencode(inside.folder).decode("latin-1")
        output = inside.types("logs", "--", name)
        assert (output.code, "\x1b" in output.out) == (0, False)
    assert not list(anybody.folder.rglob("pwned"))
