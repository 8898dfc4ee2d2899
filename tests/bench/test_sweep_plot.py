"""The picture of a sweep says which values were tried, what came out, and which was best."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.bench.sweep_plot import draw_sweep
from clusterrun.model.errors import BadInput
from clusterrun.operations.sweep_results import SweepResult, SweepResults

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'clusterrun[plot]'")


def one(place: int, lr: str, kind: str, loss: object) -> SweepResult:
    reported = () if loss is None else (("loss", loss),)
    return SweepResult(f"t.{place}", "", "COMPLETED", (("lr", lr), ("kind", kind)), reported)


def test_numbers_texts_and_runs_without_a_result_are_plotted(tmp_path: Path) -> None:
    results = [one(0, "0.0001", "adam<b>", 0.001), one(1, "0.1", "sgd", 5.0), one(2, "1", "sgd", None)]
    odd = one(3, "1", "sgd", float("nan"))
    for name in ("a.svg", "a.png"):
        draw_sweep(SweepResults("s", "loss", False, (*results, odd)), "rates", str(tmp_path / name))
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {word} -->" in drawn for word in ("lr", "kind", "loss", "sgd"))
    assert "rates: 2 of 4 runs; best: lr=0.0001 kind=adam" in drawn and "<b>" not in drawn
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_sweep_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has reported a number"):
        draw_sweep(SweepResults("s", "", False, (one(0, "1", "a", None),)), "t", str(tmp_path / "a.svg"))
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        draw_sweep(SweepResults("s", "loss", False, (one(0, "1", "a", 1.0),)), "t", str(tmp_path / "a.gif"))
