"""The picture: drawn in both formats, refused early with its remedy."""

from __future__ import annotations

import sys

import pytest

from clusterrun.bench import plot
from clusterrun.bench.result import ResultRow, Table
from clusterrun.bench.shape import Shape
from clusterrun.bench.study import Cell
from clusterrun.bench.study_results import MachineInfo
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace

SINGLE, DDP = Cell("single", 1), Cell("ddp", 4)
ROWS = (
    ResultRow(SINGLE, Shape(1, 1), 3, 10.0, 10.0, speed_up=1.0, predicted=1.0),
    ResultRow(DDP, Shape(1, 4), 3, 17.0, 17.0, speed_up=1.7, spread=0.2, predicted=1.9),
    ResultRow(Cell("fsdp", 4), Shape(1, 4), 0, failed="no"),
)
TABLE = Table(ROWS, SINGLE, "steps/s", 100, 0, 0.1, MachineInfo(device="cpu", cluster="local", cores=2))


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_a_picture_is_drawn_by_the_name_of_its_file(name, begins, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(TABLE, "train.py", "two cores", str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_the_plot_has_its_labels_and_values(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(TABLE, "my title", "two cores", str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    for arguments in (
        "ideal",
        "ddp",
        "ddp, predicted",
        "my title",
        "two cores",
        "more ranks than the 2 cores",
    ):
        assert f"<!-- {arguments} -->" in text
    assert "fsdp" not in text


def test_a_world_that_failed_breaks_the_line_and_is_marked(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    cells = [Cell("", world) for world in (1, 2, 4)]
    rows = (
        replace(ROWS[0], cell=cells[0]),
        ResultRow(cells[1], Shape(1, 2), 0, failed="FAILED: no"),
        replace(ROWS[1], cell=cells[2]),
    )
    plot.draw(replace(TABLE, rows=rows, baseline=cells[0]), "train.py", "two cores", str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {arguments} -->" in text for arguments in ("measured", "predicted", "failed"))


def test_a_missing_matplotlib_is_reported_with_its_remedy(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput) as error:
        plot.check(str(tmp_path / "a.png"))
    assert error.value.remedy == "pip install 'clusterrun[plot]'"


@pytest.mark.parametrize("name", ["a.pdf", "a", "nowhere/a.png"])
def test_a_plot_file_that_cannot_be_written_is_refused(name, tmp_path) -> None:
    with pytest.raises(BadInput, match="--plot"):
        plot.check(str(tmp_path / name))
