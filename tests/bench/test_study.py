"""A study has configurations and runs. Two studies share results under conditions."""

from __future__ import annotations

import pytest

from clusterrun.bench.shape import Shape, shape, spec_of
from clusterrun.bench.study import (
    Cell,
    Growth,
    StudySubject,
    cells,
    read_strategies,
    read_worlds,
    worlds_up_to,
)
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec


def subject(
    *command: str, growth: Growth = Growth.STRONG, reference: bool = False, **spec: object
) -> StudySubject:
    return StudySubject(JobSpec(command or ("train.py",), "/work", **spec), growth, reference)  # type: ignore[arg-type]


def test_one_process_is_measured_once_and_ranks_at_every_larger_world() -> None:
    requested = ("single", "ddp", "fsdp")
    assert cells(requested, (4, 1, 2, 2), 0) == (
        Cell("single", 1),
        Cell("ddp", 2),
        Cell("fsdp", 2),
        Cell("ddp", 4),
        Cell("fsdp", 4),
    )


def test_the_smallest_world_is_the_baseline_without_single() -> None:
    assert cells(("",), (1, 2), 0) == (Cell("", 1), Cell("", 2))


def test_data_parallel_runs_once_without_gpus() -> None:
    assert cells(("single", "dp"), (1, 2, 4), 0) == (Cell("single", 1), Cell("dp", 1))
    assert cells(("single", "dp"), (1, 2, 4), 4) == (Cell("single", 1), Cell("dp", 2), Cell("dp", 4))


def test_a_question_without_an_answer_is_refused() -> None:
    with pytest.raises(BadInput, match="leaves nothing to measure"):
        cells(("single",), (2, 4), 0)


@pytest.mark.parametrize(("text", "worlds"), [("1,2,4", (1, 2, 4)), (" 8, 2 ,2", (2, 8)), ("1,", (1,))])
def test_worlds_are_read_as_people_write_them(text, worlds) -> None:
    assert read_worlds(text) == worlds


@pytest.mark.parametrize("text", ["", "0", "two", "1;2", "-1", "1.5", "²"])
def test_an_invalid_list_of_worlds_is_refused(text) -> None:
    with pytest.raises(BadInput, match="not a list of world sizes"):
        read_worlds(text)


def test_only_the_reference_script_has_fixed_strategies() -> None:
    assert read_strategies("mine, other", reference=False) == ("mine", "other")
    with pytest.raises(BadInput, match="no strategy 'mine'"):
        read_strategies("mine", reference=True)


@pytest.mark.parametrize(("most", "worlds"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_default_worlds_double_up_to_the_number_of_devices(most, worlds) -> None:
    assert worlds_up_to(most) == worlds


@pytest.mark.parametrize(
    ("world", "per_node", "laid"),
    [
        (3, 0, Shape(1, 3)),
        (3, 8, Shape(1, 3)),
        (8, 8, Shape(1, 8)),
        (24, 8, Shape(3, 8)),
        (1, 8, Shape(1, 1)),
    ],
)
def test_a_world_fills_whole_nodes(world, per_node, laid) -> None:
    assert shape(world, per_node) == laid


def test_a_world_that_leaves_a_node_half_full_is_refused() -> None:
    with pytest.raises(BadInput, match="12 does not fill nodes of 8"):
        shape(12, 8)


@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        (Cell("", 1), {"ranks_per_node": 1}),
        (Cell("", 2), {"ranks_per_node": 2}),
        (Cell("single", 1), {"ranks_per_node": 1}),
        (Cell("dp", 1), {"ranks_per_node": 1}),
        (Cell("ddp-spawn", 2), {"ranks_per_node": 2, "per_node": True}),
    ],
)
def test_cpu_ranks_are_ranks_of_one_node(cell, changes) -> None:
    requested = subject("train.py", "--lr", "1")
    assert spec_of(requested, cell) == replace(requested.spec, **changes)


@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        (Cell("ddp", 4), {"gpus": 4}),
        (Cell("ddp", 16), {"gpus": 8, "nodes": 2}),
        (Cell("dp", 4), {"gpus": 4, "per_node": True}),
        (Cell("single", 1), {"gpus": 1}),
    ],
)
def test_every_gpu_is_a_device(cell, changes) -> None:
    requested = subject("train.py", gpus=8)
    assert spec_of(requested, cell) == replace(requested.spec, **changes)


def test_one_process_does_not_span_machines() -> None:
    with pytest.raises(BadInput, match="one process on one machine"):
        spec_of(subject("train.py", gpus=8), Cell("dp", 16))


def test_gpus_that_this_machine_lacks_are_not_replaced_by_cpu_ranks() -> None:
    requested = StudySubject(JobSpec(("train.py",), "/work", gpus=2), Growth.STRONG, gpus_here=1)
    with pytest.raises(BadInput, match="a world of 2 GPUs: this machine has 1"):
        spec_of(requested, Cell("ddp", 2))


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{world}", "4"),
        ("--mode={strategy}", "--mode=ddp"),
        ("{64/world}", "16"),
        ("{64*world}", "256"),
        ("{world}x{64*world}", "4x256"),
        ('{"lr": 1}', '{"lr": 1}'),
        ("{World}", "{World}"),
        ("{64/worlds}", "{64/worlds}"),
    ],
)
def test_placeholders_are_replaced_and_other_braces_stay(word, filled) -> None:
    requested = subject("mine.py", word, environment=(("HOW", word),))
    created = spec_of(requested, Cell("ddp", 4))
    assert (created.command, created.environment) == (("mine.py", filled), (("HOW", filled),))


def test_a_share_with_a_rest_is_refused() -> None:
    with pytest.raises(BadInput, match="63 cannot be divided by a world of 4"):
        spec_of(subject("mine.py", "{63/world}"), Cell("", 4))


@pytest.mark.parametrize(
    ("growth", "arguments", "cell", "message"),
    [
        (Growth.STRONG, (), Cell("ddp", 2), ("--strategy", "ddp")),
        (Growth.WEAK, (), Cell("ddp", 2), ("--strategy", "ddp", "--batch-size", "128")),
        (Growth.WEAK, ("--batch-size", "8"), Cell("fsdp", 4), ("--strategy", "fsdp", "--batch-size", "32")),
        (Growth.WEAK, ("--batch-size=8",), Cell("single", 1), ("--strategy", "single", "--batch-size", "8")),
        (Growth.WEAK, ("--batch-size", "auto"), Cell("ddp", 2), ("--strategy", "ddp")),
        (Growth.STRONG, (), Cell("ddp-spawn", 2), ("--strategy", "ddp-spawn", "--ranks", "2")),
    ],
)
def test_the_reference_script_gets_strategy_and_batch(growth, arguments, cell, message) -> None:
    requested = subject("train.py", *arguments, growth=growth, reference=True)
    assert spec_of(requested, cell).command == ("train.py", *arguments, *message)


def test_results_are_shared_only_where_subject_growth_script_and_environment_are_the_same() -> None:
    base = subject("train.py", environment=(("KEY", "secret"),))
    others = [
        subject("train.py", "--lr", "1", environment=(("KEY", "secret"),)),
        subject("train.py", environment=(("KEY", "other"),)),
        replace(base, growth=Growth.WEAK),
        replace(base, content="changed"),
    ]
    assert len({entry.digest for entry in (base, *others)}) == 5
    assert replace(base, gpus_here=3).digest == base.digest


@pytest.mark.parametrize("changed", [{"time": 3600}, {"account": "other"}, {"qos": "high"}])
def test_time_limit_and_account_do_not_change_the_study(changed) -> None:
    assert subject("train.py", **changed).digest == subject("train.py").digest
