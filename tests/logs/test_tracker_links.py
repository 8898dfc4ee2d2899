"""The links of experiment trackers are found in lines as these tools print them, and in nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.logs.tracker_links import BEGINNING, MOST_LINKS, TrackerLink, links_in, tracker_links
from clusterrun.model.paths import RunPaths
from clusterrun.model.visible import visible

PRINTED = [
    (
        "wandb: 🚀 View run \x1b[33mdrawn-sun-7\x1b[0m at: \x1b[34m\x1b[4mhttps://wandb.ai/ada/gpt/runs/k3f9x2ab\x1b[0m",
        ("W&B", "https://wandb.ai/ada/gpt/runs/k3f9x2ab"),
    ),
    (
        "wandb: 🚀 View run at https://wandb.example.org/ada/gpt/runs/k3f9x2ab",
        ("W&B", "https://wandb.example.org/ada/gpt/runs/k3f9x2ab"),
    ),
    (
        "🏃 View run popular-fox-1 at: http://127.0.0.1:5000/#/experiments/1/runs/8c3f6a0e6d2b4c57",
        ("MLflow", "http://127.0.0.1:5000/#/experiments/1/runs/8c3f6a0e6d2b4c57"),
    ),
    (
        "🏃 View run a b at: https://adb-1.azuredatabricks.net/ml/experiments/42/runs/8c3f",
        ("MLflow", "https://adb-1.azuredatabricks.net/ml/experiments/42/runs/8c3f"),
    ),
    (
        "COMET INFO: Experiment is live on comet.com https://www.comet.com/ada/gpt/a51199ef5824451897f3ab0c1900ec4b",
        ("Comet", "https://www.comet.com/ada/gpt/a51199ef5824451897f3ab0c1900ec4b"),
    ),
    (
        "COMET INFO: Experiment is live on comet.ml https://www.comet.ml/ada/gpt/a51199ef",
        ("Comet", "https://www.comet.ml/ada/gpt/a51199ef"),
    ),
    (
        "ClearML results page: https://app.clear.ml/projects/14f0119/experiments/799a905/output/log",
        ("ClearML", "https://app.clear.ml/projects/14f0119/experiments/799a905/output/log"),
    ),
    (
        "[neptune] [info   ] Neptune initialized. Open in the app: https://app.neptune.ai/ada/gpt/e/GPT-20",
        ("Neptune", "https://app.neptune.ai/ada/gpt/e/GPT-20"),
    ),
    ("https://app.neptune.ai/ada/gpt/e/GPT-20", ("Neptune", "https://app.neptune.ai/ada/gpt/e/GPT-20")),
    (
        "TensorBoard 2.16.2 at http://n0001:6006/ (Press CTRL+C to quit)",
        ("TensorBoard", "http://n0001:6006/"),
    ),
    (
        "Running Aim UI on repo `<Repo#-5930451821203570655 path=/.aim read_only=None>`\nOpen http://127.0.0.1:43800",
        ("Aim", "http://127.0.0.1:43800"),
    ),
]


@pytest.mark.parametrize(
    ("text", "link"), PRINTED, ids=[link[0] + str(n) for n, (_, link) in enumerate(PRINTED)]
)
def test_a_line_of_a_tracker_has_its_link(text: str, link: tuple[str, str]) -> None:
    data = f"epoch 1\n{text}\r\nepoch 2\n".encode()
    assert list(links_in(data)) == [link]


@pytest.mark.parametrize(
    "text",
    [
        "wandb: ⭐️ View project at https://wandb.ai/ada/gpt",
        "🧪 View experiment at: http://127.0.0.1:5000/#/experiments/1",
        "downloading https://example.org/data.tar",
        "Open http://127.0.0.1:43800",
        "see https://app.neptune.ai/ada/gpt/e/GPT-20 for more",
        "wandb: View run at: file:///tmp/x",
        "",
    ],
)
def test_other_lines_have_none(text: str) -> None:
    assert list(links_in(text.encode())) == []


def test_a_login_in_a_link_is_removed() -> None:
    line = b"View run x at: https://ada:secret@mlflow.example.org/#/experiments/1/runs/8c3f"
    assert list(links_in(line)) == [("MLflow", "https://mlflow.example.org/#/experiments/1/runs/8c3f")]


def test_control_characters_of_a_link_are_escaped() -> None:
    line = b"wandb: View run at https://wandb.ai/a/b/runs/x\x1b]0;evil\x07\x1b[2J\xff\n"
    ((_, url),) = links_in(line)
    assert visible(url) == "https://wandb.ai/a/b/runs/x\\x1b]0;evil\\x07\\x1b[2J\\xff"


@pytest.mark.parametrize("unit", [b"View run ", b"x", b"\x1b[0m", b"https://app.neptune.ai/e/"])
def test_a_line_without_an_end_holds_nobody_up(unit: bytes) -> None:
    assert list(links_in(unit * (BEGINNING * 4 // len(unit)))) == []


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    for epoch in range(2):
        (tmp_path / f"attempts/{epoch:03d}").mkdir(parents=True)
    return RunPaths(str(tmp_path))


URL = "https://wandb.ai/a/b/runs/x"


def test_links_of_the_newest_attempt_are_shown_once(paths: RunPaths) -> None:
    first, second = (Path(paths.attempt(epoch).folder) for epoch in range(2))
    (first / "00000.err").write_text(f"wandb: View run at {URL}\nwandb: View run at {URL}\n")
    (first / "00001.out").write_text(f"wandb: View run at {URL}\nwandb: View run at {URL}1\n")
    (second / "00000.err").write_text("starting\n")
    assert tracker_links(paths) == (TrackerLink("W&B", URL, 0), TrackerLink("W&B", f"{URL}1", 1))
    (second / "00000.err").write_text(f"wandb: View run at {URL}2\n")
    assert tracker_links(paths) == (TrackerLink("W&B", f"{URL}2", 0),)


def test_a_long_log_is_read_at_both_ends(paths: RunPaths) -> None:
    log = Path(paths.attempt(1).folder, "00000.err")
    with log.open("wb") as file:
        file.truncate(50 << 30)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(f"\nwandb: View run at {URL}\n".encode())
    assert tracker_links(paths) == (TrackerLink("W&B", URL, 0),)


def test_many_links_and_odd_files_do_no_harm(paths: RunPaths) -> None:
    folder = Path(paths.attempt(1).folder)
    os.mkfifo(folder / "00000.out")
    (folder / "00000.err").symlink_to("/dev/zero")
    (folder / "00001.err").mkdir()
    (folder / "00002.out").write_text("".join(f"wandb: View run at {URL}{n}\n" for n in range(100)))
    assert len(tracker_links(paths)) == MOST_LINKS
    assert tracker_links(RunPaths("/nowhere")) == ()
