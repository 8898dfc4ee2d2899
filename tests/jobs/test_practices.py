"""The practices as options of the training script, in real runs on CPU ranks."""

import gzip
import json
import re

import pytest

torch = pytest.importorskip("torch")

from tests.jobs.test_train import curve, throughput  # noqa: E402


def test_bf16_learns_as_full_precision_does_but_for_rounding(pair) -> None:
    expected, result = curve(pair.out("ddp")), curve(pair.out("bf16"))
    assert result == pytest.approx(expected, rel=0.03)
    assert result != expected
    assert throughput(pair.out("bf16"))["amp"] == "bf16"


def test_fp16_learns_after_scaling_and_equally_under_ddp_and_fsdp(pair) -> None:
    expected, result = curve(pair.out("ddp")), curve(pair.out("fp16"))
    assert result[0] == pytest.approx(expected[0], rel=0.01)
    assert result[-1] == pytest.approx(expected[-1], rel=0.3)
    assert curve(pair.out("fp16 under fsdp")) == pytest.approx(result, rel=0.01)
    assert throughput(pair.out("fp16"))["amp"] == "fp16"


def test_an_option_without_effect_under_the_strategy_is_reported(single) -> None:
    message = "notice: --bucket-mb and --find-unused are for DDP, and this run is single: no effect\n"
    assert message in single.out("first")


def test_algorithms_that_repeat_bit_for_bit_give_the_same_curve(single) -> None:
    assert curve(single.out("deterministic")) == curve(single.out("single"))


def test_a_chosen_rank_writes_a_trace_and_reports_expensive_calls(pair) -> None:
    assert [path.name for path in (pair.folder / "traces").iterdir()] == ["trace-rank1.json.gz"]
    with gzip.open(pair.folder / "traces" / "trace-rank1.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "gloo:all_reduce" in names
    assert "profile of rank" not in pair.out("resnet", 0)
    printed = pair.out("resnet", 1)
    rows = re.findall(r"^ +([\d.]+)% +[\d.]+ ms/step +[\d.]+ calls/step  \S+", printed, re.MULTILINE)
    assert len(rows) == 5
    assert [float(row) for row in rows] == sorted(map(float, rows), reverse=True)
    (talking,) = re.findall(r"communication under way during ([\d.]+)% of the steps' time\n", printed)
    assert 0 < float(talking) < 100


def test_an_automatic_batch_is_the_whole_set_if_it_fits(pair) -> None:
    assert "batch size auto: 1437 (240 per rank and micro-batch × 6, 1437 samples in all)" in pair.out("auto")
    assert throughput(pair.out("auto"))["batch_size"] == "1437"


def test_a_sample_that_does_not_fit_is_reported(single) -> None:
    assert "not even one sample per rank fits into 1 MiB of memory" in single.refused("no room")[0]


def test_all_ranks_use_the_batch_that_fits_on_the_rank_with_the_least_memory(pair) -> None:
    assert all("not even one sample per rank fits" in err for err in pair.refused("no room on rank 0"))
