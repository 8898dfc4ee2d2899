"""Every option of sbatch is passed on, or it is refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.script.job_array import instead_of_array
from clusterrun.script.plan import MachineFacts, Plan, plan
from clusterrun.script.sbatch_options import check_entries
from clusterrun.script.sbatch_table import OPTIONS, SRUN_REFUSED, SbatchOption, full_name, instead_of

RECORDED = Path(__file__).parents[1] / "recorded/sbatch-options.txt"
RELEASES = ("22.05.8", "26.05.3")
ROWS = [line.split() for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
PASSED_ON = [option for option in OPTIONS.values() if not option.refused]
REFUSED = [option for option in OPTIONS.values() if option.refused]


def planned(*entries: str) -> Plan:
    spec = JobSpec(("train.py",), cwd="/", sbatch=entries)
    return plan(spec, "r", "t", "/runs/r", MachineFacts(slurm=True, python="/usr/bin/python3"))


def directives(created: Plan, name: str) -> list[str]:
    lines = [line.removeprefix("#SBATCH ") for line in created.script.split("\n")]
    return [line for line in lines if line.strip('"').partition("=")[0] == f"--{name}"]


def entry(option: SbatchOption, value: str) -> str:
    return option.name if option.takes == "none" else f"{option.name}={value}"


@pytest.mark.parametrize("release, name, letter, takes", ROWS, ids=lambda value: value)
def test_the_table_has_every_option_of_sbatch(release: str, name: str, letter: str, takes: str) -> None:
    option = OPTIONS[name]
    assert option.short == letter.strip("-")
    assert option.takes in (takes, "optional")


def test_the_table_has_no_other_option() -> None:
    assert {*OPTIONS} == {name for _, name, _, _ in ROWS}
    assert {release for release, _, _, _ in ROWS} == {*RELEASES}


@pytest.mark.parametrize("option", PASSED_ON, ids=lambda option: option.name)
def test_a_passed_on_option_is_one_directive_and_the_last_value_counts(option: SbatchOption) -> None:
    (directive,) = directives(planned(entry(option, "1")), option.name)
    assert directive.strip('"').endswith(entry(option, "1")) or option.name == "comment"
    twice = planned(entry(option, "1"), entry(option, "2"))
    (directive,) = directives(twice, option.name)
    if option.takes == "none":
        assert directive == f"--{option.name}"
    elif option.joined:
        assert directive == f"--{option.name}=1{option.joined}2"
    else:
        assert directive.strip('"').endswith("2")
        assert any(notice.startswith(f"--sbatch {option.name}=1 has no effect") for notice in twice.notices)


def test_no_mail_counts_alone_and_not_for_later_values() -> None:
    """sbatch stops reading a list at NONE."""
    for entries, value, without_effect in (
        (("mail-type=BEGIN,FAIL", "mail-type=NONE"), "NONE", "mail-type=BEGIN,FAIL"),
        (("mail-type=NONE", "mail-type=BEGIN", "mail-type=END"), "BEGIN,END", "mail-type=NONE"),
    ):
        made = planned(*entries)
        assert directives(made, "mail-type") == [f"--mail-type={value}"]
        notices = [notice for notice in made.notices if "has no effect" in notice]
        assert [notice.startswith(f"--sbatch {without_effect} ") for notice in notices] == [True]


@pytest.mark.parametrize("option", REFUSED, ids=lambda option: option.name)
def test_an_option_with_another_effect_is_refused_with_a_remedy(option: SbatchOption) -> None:
    with pytest.raises(BadInput) as caught:
        planned(entry(option, "1"))
    assert (caught.value.seen, caught.value.remedy) == (
        f"--sbatch {option.name} cannot be passed on",
        instead_of_array("1") if option.name == "array" else option.refused,
    )


def test_the_refused_options_of_sbatch_and_srun_are_reported_together() -> None:
    with pytest.raises(BadInput) as refusal:
        check_entries(["output=x", "exclusive"], ["label", "mpi=none"])
    problems = ("--sbatch output", "--srun label")
    assert [problem in str(refusal.value) for problem in problems] == [True, True]


def test_all_options_that_are_refused_are_reported_at_once_and_equal_remedies_once() -> None:
    with pytest.raises(BadInput) as caught:
        planned("output=a", "nodes=2", "error=b", "open-mode=append", "qos=long")
    refused = ("output", "error", "open-mode", "nodes")
    assert all(f"--sbatch {name} cannot be passed on" in caught.value.seen for name in refused)
    assert str(caught.value).count(OPTIONS["output"].refused) == 1
    assert OPTIONS["nodes"].refused in str(caught.value)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_an_option_of_sbatch_that_is_typed_as_ours_gets_an_answer_that_holds(option: SbatchOption) -> None:
    """The remedy of a refusal is not refused in turn."""
    for typed in (f"--{option.name}", *([f"-{option.short}"] if option.short else [])):
        answer = instead_of(typed)
        assert answer
        if option.refused:
            assert answer.lower() == option.refused.lower()
        if "Pass it on" in answer:
            assert not option.refused
            assert f"--sbatch {option.name}" in answer


@pytest.mark.parametrize(
    ("array", "options"),
    [
        ("1-3", "--set task='range(1,4)' --env"),
        ("[0-18]%5", "--set task='range(0,19)' --at-most 5 --env"),
        ("1,7", "--set task='1,7' --env"),
        ("$N", "--set task='range(0,4)' --env"),
    ],
)
def test_the_sweep_to_type_has_the_indices_of_the_array(array: str, options: str) -> None:
    assert options in instead_of("--array", array)
    assert options in instead_of("-a", array)


@pytest.mark.parametrize("name", SRUN_REFUSED)
def test_an_option_of_srun_that_would_break_the_launch_is_refused(name: str) -> None:
    spec = JobSpec(("train.py",), cwd="/", srun=(name,))
    with pytest.raises(BadInput, match=f"--srun {name} cannot be passed on") as caught:
        plan(spec, "r", "t", "/runs/r", MachineFacts(slurm=True, python="/usr/bin/python3"))
    assert caught.value.remedy == SRUN_REFUSED[name]


def test_a_second_value_of_an_srun_option_replaces_the_first_with_a_notice() -> None:
    spec = JobSpec(("train.py",), cwd="/", srun=("mpi=pmix", "mpi=none", "mpi=none"))
    created = plan(spec, "r", "t", "/runs/r", MachineFacts(slurm=True, python="/usr/bin/python3"))
    assert [word for word in created.orders.launch if word.startswith("--mpi")] == ["--mpi=none"]
    assert created.notices == (
        "--srun mpi=pmix has no effect: --srun mpi=none comes later, and the last one counts",
    )


def test_an_abbreviation_that_sbatch_would_read_is_read_as_it_does() -> None:
    names = ("arr", "part", "mail-t", "mem", "cont", "nowhere", "out", "workdir")
    assert [full_name(name) for name in names] == [
        *("array", "partition", "mail-type", "mem", "cont", "nowhere", "output", "chdir")
    ]
    with pytest.raises(BadInput, match="--sbatch array cannot be passed on"):
        planned("arr=1-5")


def test_an_option_that_no_table_knows_is_for_this_site_s_sbatch_to_judge() -> None:
    assert directives(planned("container-image=a.sqsh"), "container-image") == ["--container-image=a.sqsh"]
    assert (instead_of("--nowhere"), instead_of("-Z")) == ("", "")


@pytest.mark.parametrize(
    ("entries", "winner", "replaced"),
    [
        (("requeue", "no-requeue"), "no-requeue", ["requeue"]),
        (("no-requeue", "requeue"), "requeue", ["no-requeue"]),
        (("requeue", "no-req", "requeue"), "requeue", ["no-req"]),
        (("exclusive", "oversubscribe"), "oversubscribe", ["exclusive"]),
        (("oversubscribe", "exclusive=user"), "exclusive=user", ["oversubscribe"]),
    ],
)
def test_the_last_of_opposite_options_counts_and_the_others_are_named(
    entries: tuple[str, ...], winner: str, replaced: list[str]
) -> None:
    submission = planned(*entries)
    names = ("requeue", "no-requeue", "exclusive", "oversubscribe")
    values = [line for name in names for line in directives(submission, name)]
    assert values == [f"--{winner}"]
    dropped = [notice for notice in submission.notices if "has no effect" in notice]
    assert dropped == [
        f"--sbatch {entry} has no effect: --sbatch {winner} comes later, and the last one counts"
        for entry in replaced
    ]
    assert submission.spec.goes_on == ("requeue" if winner == "requeue" else "")
