"""What changed between releases of Slurm, how clusterrun handles it, and the tests that show it.

docs/sites.md tells users what they notice of it. Sites of any release are in tests/lab/test_sites.py,
test_site_habits.py, test_slurm_runs.py and test_going_on.py, and in tests/operations/test_srun_ports.py.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parent


class Change(NamedTuple):
    since: str
    change: str
    handling: str
    tests: tuple[str, ...] = ()  # below tests/; none: not tried


CHANGES = (
    Change(
        "20.11",
        "a step is exclusive: one beside it waits",
        "side steps use --overlap",
        (
            "lab/test_exec_on_slurm.py::"
            "test_a_command_runs_beside_ranks_that_hold_every_gpu_and_ends_with_the_job",
        ),
    ),
    Change(
        "21.08",
        "-c implies --exact; steps start at 0 after a requeue",
        "logs are named by attempt, not by step",
        ("lab/test_sites.py::test_a_run_works_with_a_slow_prolog_no_killwait_and_few_srun_ports",),
    ),
    Change(
        "22.05",
        "srun ignores SLURM_CPUS_PER_TASK; 23.11 reads it again",
        "the batch script unsets it before the step",
        ("lab/test_slurm_runs.py::test_a_rank_on_a_gpu_gets_its_share_of_the_nodes_cpus",),
    ),
    Change(
        "22.05",
        "--overlap shares memory and GPUs too",
        "later steps request no memory",
        (
            "survive/test_faults.py::test_a_disturbed_training_ends_as_an_undisturbed_one_or_with_a_reason",
            "coordinator/test_restarts.py::"
            "test_all_agents_are_launched_again_if_a_living_step_holds_all_resources",
        ),
    ),
    Change(
        "23.02, 23.11, 24.11",
        "--json changes its form",
        "not used; text columns are, with recordings of each release in tests/recorded",
        ("slurm/test_queries.py",),
    ),
    Change(
        "23.11",
        "host lists may carry a suffix, n[1-2]-ib",
        "a parser of our own",
        ("model/test_hostlist.py::test_a_host_list_expands_in_order_with_duplicates_and_leading_zeros",),
    ),
    Change(
        "24.05",
        "stepmgr: the job's own slurmstepd starts steps",
        "the list of steps is not used",
        ("lab/test_newer_releases.py::test_a_run_works_if_the_job_starts_its_steps",),
    ),
    Change("24.05", "--segment", "passed on; not tried with a block topology"),
    Change("24.11", "a job may name several QOS", "--qos a,b is passed on; not tried with several"),
    Change(
        "24.11",
        "select/linear refuses GPUs by job, socket and task",
        "none is requested",
        ("lab/test_sites.py::test_a_run_works_and_leaves_nothing_on_each_kind_of_site",),
    ),
    Change(
        "24.11",
        "more CPUs than a node has are refused; 26.05 queues them again",
        "Slurm's message, with the partition's sizes",
        ("lab/test_slurm_runs.py::test_an_impossible_request_is_not_waited_for",),
    ),
    Change(
        "25.05",
        "srun --wait-for-children",
        "not used: agents end leftover processes",
        ("lab/test_sites.py::test_a_run_works_and_leaves_nothing_on_each_kind_of_site",),
    ),
    Change(
        "25.11",
        "--requeue=expedite",
        "--sbatch requeue=expedite replaces --requeue",
        ("script/test_requeue_options.py::test_slurm_gets_the_requeue_option_and_the_time_of_the_notice",),
    ),
    Change(
        "25.11",
        "job containers may have their own process namespace",
        "the agent finds ranks as its children; not tried",
    ),
    Change(
        "26.05",
        "topology/tree changes the order of SLURM_PROCID",
        "SLURM_NODEID is used",
        ("lab/test_site_habits.py::test_ranks_follow_nodes_if_slurm_numbers_tasks_in_another_order",),
    ),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.since} {change.change}")
def test_a_change_of_slurm_has_a_test_or_was_not_tried(change: Change) -> None:
    assert change.tests or "not tried" in change.handling
    for test in change.tests:
        path, _, function = test.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not function or function in functions, test
