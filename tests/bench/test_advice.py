"""Memory and speed of a model, by the textbook formulas."""

from __future__ import annotations

import pytest

from clusterrun.bench import sizes
from clusterrun.bench.advice import AdviceQuestion, advise
from clusterrun.model.errors import BadInput


def question(parameters: float = 1e9, **changes: object) -> AdviceQuestion:
    defaults = {"optimizer": "adam", "precision": "fp32", "memory": 80e9}
    return AdviceQuestion(parameters, **{**defaults, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "optimizer", "each"),
    [
        ("fp32", "adam", 16),
        ("fp32", "sgd", 8),
        ("fp32", "momentum", 12),
        ("amp", "adam", 18),
        ("bf16", "adam", 8),
    ],
)
def test_bytes_per_parameter_are_those_of_the_textbook(precision, optimizer, each) -> None:
    single = advise(question(precision=precision, optimizer=optimizer)).fits[0]
    assert single.needs == each * 1e9


@pytest.mark.parametrize(
    ("parameters", "nodes", "gpus", "take"),
    [(1e9, 1, 1, "single"), (1e9, 1, 8, "ddp"), (7e9, 2, 8, "fsdp"), (7e9, 1, 1, ""), (1e12, 2, 8, "")],
)
def test_the_simplest_fitting_strategy_is_chosen(parameters, nodes, gpus, take) -> None:
    assert advise(question(parameters, nodes=nodes, gpus_per_node=gpus)).take == take


def test_sharding_divides_all_but_the_block_at_work() -> None:
    fsdp = advise(question(gpus_per_node=8)).fits[2]
    assert fsdp.needs == 16e9 / 8 + 4e9 * 2 / 32
    assert fsdp.lines[-1] == "together 2.25 GB: fits in 90% of 80 GB = 72.0 GB"


def test_a_step_waits_for_sending_that_its_backward_pass_cannot_hide() -> None:
    """4 GB over 8 GPUs at 10 GB/s take 0.7 s; a step of 0.6 s hides 0.4 s of them."""
    last = next(e for e in advise(question(bandwidth=10e9, step_seconds=0.6)).expected if e.gpus == 8)
    assert (last.strategy, last.sending, last.step) == ("ddp", pytest.approx(0.7), pytest.approx(0.9))
    assert last.efficiency == pytest.approx(2 / 3)


@pytest.mark.parametrize(("values", "asks"), [({}, "--bandwidth"), ({"bandwidth": 1e9}, "--step-time")])
def test_missing_inputs_of_a_prediction_are_requested(values, asks) -> None:
    advice = advise(question(**values))
    assert advice.expected == () and asks in " ".join(advice.lines)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (sizes.count, "7e9", 7e9),
        (sizes.count, "7B", 7e9),
        (sizes.count, "1.5 m", 1.5e6),
        (sizes.size, "80GB", 80e9),
        (sizes.size, "40GiB", 40 * 2**30),
        (sizes.size, "24", 24e9),
    ],
)
def test_amounts_are_read_as_people_write_them(read, text, value) -> None:
    assert read(text, "--x") == value


@pytest.mark.parametrize("text", ["", "many", "-7B", "0", "1e999", "1..2", "7 Q", "nan"])
def test_an_invalid_amount_is_refused(text) -> None:
    with pytest.raises(BadInput, match="is not an amount"):
        sizes.count(text, "--parameters")


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"gpus_per_node": -1}, {"memory": 0.0}, {"bandwidth": -1.0}])
def test_machines_that_cannot_be_are_refused(wrong) -> None:
    with pytest.raises(BadInput):
        question(**wrong)
