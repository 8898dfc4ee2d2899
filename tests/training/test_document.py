"""The example of docs/training.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.training.of_gloo import ROOT, finished  # noqa: E402

STEPS = 200


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """Write the first block of the document as a script."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    script = tmp_path_factory.mktemp("example") / "example.py"
    script.write_text(
        re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0], encoding="utf-8"
    )
    return script


def train(example: Path, folder: Path, **environment: str) -> list[tuple[str, ...]]:
    """Return the checkpoints after a start: step and checksum, the newest first."""
    folder.mkdir(exist_ok=True)
    finished(2, str(example), cwd=folder, **environment)
    names = sorted((path.name for path in (folder / "checkpoints").iterdir()), reverse=True)
    return [re.fullmatch(r"step-(\d+)\.a\d+\.(\w+)\.pt", name).groups() for name in names]


def test_the_example_that_is_stopped_and_resumed_ends_as_an_undisturbed_run(example, tmp_path) -> None:
    whole = train(example, tmp_path / "whole")
    assert [int(step) for step, _ in whole] == [STEPS, STEPS - 50]
    attempt = tmp_path / "run" / "attempts" / "000"
    attempt.mkdir(parents=True)
    (attempt / "notice.json").write_text('{"why": "preemption"}', encoding="ascii")
    stopped = train(example, tmp_path / "stopped", CLUSTERRUN_RUN_DIR=str(tmp_path / "run"))
    assert [int(step) for step, _ in stopped] == [1]
    assert train(example, tmp_path / "stopped") == whole
