"""Run every shell example of README and docs/ on a cluster, unless a mark gives a reason not to."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.system import Completed
from tests.cli.conftest import CommandLine, leave_report
from tests.lab_fixture import MakeLab
from tests.reports.reports import FOUND

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = (
    *("clusterrun", "sudo", "make", "pip", "pipx", "uv", "python", "torchrun", "accelerate", "apptainer"),
    *("sh", "bash", "tar", "source", "sbatch", "scontrol", "module", "conda", "spack", "eb", "git", "jq"),
)
FENCE = re.compile(r"^ *```")
MARK = re.compile(r"^<!-- not run: (.+) -->$")
BESIDE = ("exec", "shell", "top", "diagnose", "forward")
"""Commands that want a live run."""
HERE = """import os, sys, time
print("rank", os.environ["RANK"], flush=True)
time.sleep(600 * ("stay" in sys.argv))
"""
NODES = 10


@dataclass(frozen=True)
class Example:
    """A line that a reader may type; ``why_not``: it is not run, because."""

    document: str
    number: int
    line: str
    why_not: str


def examples(name: str, text: str) -> Iterator[Example]:
    """Yield the lines of indented and fenced blocks that begin with a program, or with `$` and a program."""
    fenced, output, why_not, code = False, "", "", False
    held = ""
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
            output = line.strip("` ") if fenced else ""
            code = fenced
        elif not fenced:
            if mark := MARK.match(line):
                why_not = mark[1]
            indented = line.startswith("    ") and (code or not held)
            if line.strip() and not indented and not mark:
                why_not = "" if code or not line.startswith("<!--") else why_not
            code = indented
        if FENCE.match(line) or not (fenced or code) or output not in ("", "console", "sh"):
            continue
        typed = held + line.strip().removeprefix("$ ")
        held = typed[:-1] if typed.endswith("\\") and typed.split()[0] in PROGRAMS else ""
        prompted = output != "console" or line.startswith("$ ") or typed != line.strip()
        if not held and prompted and typed.split() and typed.split()[0] in PROGRAMS:
            yield Example(name, number, typed, why_not)


def every() -> list[Example]:
    return [
        example for path in DOCUMENTS for example in examples(path.name, path.read_text(encoding="utf-8"))
    ]


def test_blocks_lines_and_marks_are_distinguished() -> None:
    text = (
        "Words:\n\n    clusterrun status\n    run  state\n\nMore `clusterrun logs`.\n\n"
        "<!-- not run: no pip -->\n\n"
        "    pip install .\n\nThen:\n\n```console\n$ clusterrun logs\nclusterrun is no line\n```\n\n"
        "    clusterrun submit \\\n        a.py\n\n```python\nmake(1)\n```\n"
    )
    assert [(example.line, example.why_not) for example in examples("x", text)] == [
        ("clusterrun status", ""),
        ("pip install .", "no pip"),
        ("clusterrun logs", ""),
        ("clusterrun submit a.py", ""),
    ]


def test_an_example_uses_clusterrun_or_has_a_reason_not_to_run() -> None:
    odd = [entry for entry in every() if not entry.why_not and shlex.split(entry.line)[0] != "clusterrun"]
    assert odd == []
    assert len([entry for entry in every() if not entry.why_not]) >= 60


@dataclass
class Reader:
    """A user who types the lines of one document: a login host, a project, two homes."""

    lab: Lab
    folder: Path

    def type(self, line: str, home: str = "home", limit: float = 180) -> Completed:
        environment = {
            "HOME": str(self.folder / "user"),
            "CLUSTERRUN_HOME": str(self.folder / home),
            "CLUSTERRUN_PREFLIGHT": "off",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        arguments = ["bash", "-c", f'PATH="{Path(sys.executable).parent}:$PATH"\n{line}']
        return self.lab.exec(arguments, env=environment, cwd=str(self.folder / "work"), timeout=limit)

    def stays(self) -> None:
        """Start a lasting run of 40 ranks in the other home, on the nodes that the examples name."""
        options = "--nodes 5 --gpus 8 --sbatch 'nodelist=n[0001-0005]' --name stays"
        created = self.type(f"clusterrun submit {options} train.py stay", "other")
        assert created.code == 0, created.err
        end = time.monotonic() + 120
        while '"training"' not in self.type("clusterrun status stays --json", "other").out:
            assert time.monotonic() < end, "the ranks do not run within the limit"


@pytest.fixture(scope="module")
def cluster(make_lab: MakeLab) -> Lab:
    return make_lab(nodes=NODES)


@pytest.fixture(scope="module")
def reader(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("reader")
    for name in ("user", "work"):
        (folder / name).mkdir()
    for name in ("train.py", "evaluate.py"):
        (folder / "work" / name).write_text(HERE)
    (folder / "work" / "jobs").symlink_to(ROOT / "jobs")
    created = [["venv", name] for name in ("venv", ".venv")]
    for _, name in created:
        binary = folder / "work" / name / "bin"
        binary.mkdir(parents=True)
        (binary / "python").symlink_to(sys.executable)
        (binary / "activate").write_text(f'PATH="{binary}:$PATH"\n')
    typing = Reader(cluster, folder)
    first = typing.type("clusterrun submit --ranks-per-node 2 --wait train.py")
    assert first.code == 0, first.err
    return typing


def is_beside(line: str) -> bool:
    return shlex.split(line, comments=True)[1] in BESIDE


def lines() -> list[Example]:
    """Return every example that is run, once."""
    by_line: dict[str, Example] = {}
    for entry in every():
        if not entry.why_not:
            by_line.setdefault(entry.line, entry)
    return list(by_line.values())


def alone() -> list[object]:
    examples = [entry for entry in lines() if not is_beside(entry.line)]
    return [pytest.param(entry.line, id=f"{entry.document}:{entry.number}") for entry in examples]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("line", alone())
def test_an_example_works(line: str, reader: Reader) -> None:
    tokens = shlex.split(line, comments=True)
    if tokens[1] == "submit" and "--dry-run" not in tokens:
        dry = "--dry-run" if any(word.startswith("jobs/") for word in tokens) else "--wait"
        line = line.replace("submit", f"submit {dry}", 1)
    elif tokens[1] == "check":
        line = line.replace("check", "check --dry-run", 1)
    elif tokens[1:3] == ["bench", "scaling"]:
        line = line.replace("scaling", "scaling --dry-run --oversubscribe", 1)
    elif tokens[1] == "report":
        leave_report(CommandLine(reader.folder, {"CLUSTERRUN_HOME": str(reader.folder / "home")}), FOUND)
    result = reader.type(line)
    assert result.code == 0, (line, result.out[-2000:], result.err[-2000:])


@pytest.mark.lab
@pytest.mark.slow
def test_examples_for_a_live_run_work(reader: Reader) -> None:
    examples = [entry.line for entry in lines() if is_beside(entry.line)]
    assert len(examples) > 5
    reader.stays()
    for line in examples:
        tokens = shlex.split(line, comments=True)
        if tokens[1] == "top" and "--once" not in tokens:
            line = f"timeout --preserve-status --signal INT 8 {line}"
        result = reader.type(line, "other")
        assert result.code == 0, (line, result.out[-2000:], result.err[-2000:])
    reader.type("clusterrun cancel stays", "other")
