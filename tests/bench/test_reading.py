"""The pace of a script is found in whatever it printed around it."""

from __future__ import annotations

import pytest

from clusterrun.bench.reading import SpeedLine, notices, report


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("steps_per_second=12.5", SpeedLine(12.5)),
        ("epoch 3: steps_per_second: 12.5, loss 0.1", SpeedLine(12.5)),
        ('{"steps_per_second": 12.5, "samples_per_second": 800, "steps": 40}', SpeedLine(12.5, 800.0, 40)),
        ("steps_per_second=2e1 images_per_second=640", SpeedLine(20.0, 640.0)),
        ("epoch 3: 12.5 steps/s, 800 images/sec", SpeedLine(12.5, 800.0)),
        (
            "{'train_samples_per_second': 800.0, 'train_steps_per_second': 12.5, 'epoch': 1.0}",
            SpeedLine(12.5, 800.0),
        ),
        ("tokens_per_second=9 samples_per_second=3 steps_per_second=1", SpeedLine(1.0, 3.0)),
        (
            "throughput steps_per_second=13.2364 samples_per_second=833 steps=35 ran_as=ddp parameters=38282",
            SpeedLine(13.2364, 833.0, 35, 38282, "ddp"),
        ),
    ],
)
def test_a_throughput_is_read_in_each_of_its_forms(text, pace) -> None:
    assert report(text) == pace


def test_the_last_pace_counts() -> None:
    assert report("steps_per_second=1\nsteps_per_second=2\nsteps_per_second=nan\ndone\n") == SpeedLine(2.0)


@pytest.mark.parametrize(
    "text",
    ["", "steps_per_second=", "steps_per_second=nan", "steps_per_second=inf", "steps_per_second=0",
     "steps_per_second=-3", "samples_per_second=3", "steps per second 12", "steps_per_second=fast",
     "{'eval_steps_per_second': 3.0}", "0 steps/s", "30 steps/sample"],
)  # fmt: skip
def test_other_lines_are_not_read_as_a_throughput(text) -> None:
    assert report(text) is None


def test_notices_are_stored_once() -> None:
    assert notices("notice: a\nx\nnotice: b\nnotice: a") == ("a", "b")
