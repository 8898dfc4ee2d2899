"""The Python API, with real runs on this machine."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterrun
from clusterrun.api import statuses
from clusterrun.config.spec_fields import spec_of
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.errors import BadInput, ClusterrunError, NoSuchRun
from clusterrun.model.preflight_report import Grade
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context
from clusterrun.operations.report import NoReport
from clusterrun.runs.store import Store

SCRIPT = """
import os, sys, time
print("rank", os.environ["RANK"], sys.argv[1:], os.environ.get("MINE"), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    (tmp_path / "train.py").write_text(SCRIPT)
    created = Context({"PATH": os.defpath, "HOME": str(tmp_path), "CLUSTERRUN_HOME": str(tmp_path / "home")})
    yield created
    for status in statuses(context=created):
        clusterrun.find(status.run_id, created).cancel()


def submit(context: Context, *args: str, **options: object) -> clusterrun.Run:
    folder = Path(context.environ["HOME"])
    expected = {"cluster": "local", "preflight": "off", **options}
    return clusterrun.submit("train.py", *args, cwd=str(folder), context=context, **expected)


def test_a_run_is_submitted_waited_for_and_read(context: Context) -> None:
    run = submit(context, "0", "0", nodes=2, env={"MINE": "x y"})
    assert run.wait(timeout=120).state is State.COMPLETED
    assert [run.state, run.failure, sorted(run.logs()), list(run.logs(ranks=[1], stream="err"))] == [
        State.COMPLETED,
        None,
        [f"local-{r} r{r} | rank {r} ['0', '0'] x y" for r in (0, 1)],
        [],
    ]
    assert (
        clusterrun.find(run.job_id, context).run_id == clusterrun.find("train", context).run_id == run.run_id
    )


def test_nodes_are_checked_without_training_and_the_report_is_a_value(context: Context) -> None:
    run = clusterrun.check(
        nodes=2, cluster="local", preflight="quick", preflight_budget="3m", context=context
    )
    assert run.wait(timeout=240).state is State.COMPLETED
    report = run.report()
    assert (report.verdict, report.world, report.level) == (Grade.PASS, ("local-0", "local-1"), "quick")


def test_a_run_without_a_check_has_no_report(context: Context) -> None:
    run = submit(context, "0", "0")
    run.wait(timeout=120)
    with pytest.raises(NoReport, match="was submitted with --preflight off"):
        run.report()


def test_a_state_equals_its_name() -> None:
    assert (State.COMPLETED == "COMPLETED", str(State.FAILED), f"{Phase.QUEUED}") == (
        True,
        "FAILED",
        "queued",
    )


def test_a_failed_run_has_its_first_failure(context: Context) -> None:
    run = submit(context, "0", "3")
    assert run.wait(timeout=120).exit_code == 3
    assert run.failure is not None and (run.failure.rank, run.failure.code) == (0, 3)


def test_a_failed_run_has_its_attempts_and_the_reason_of_each(context: Context) -> None:
    run = submit(context, "0", "3", max_restarts=1)
    run.wait(timeout=120)
    assert [(attempt.epoch, attempt.failure.why if attempt.failure else "") for attempt in run.attempts] == [
        (n, "rank 0 on local-0 exited with code 3") for n in (0, 1)
    ]
    diagnosis = run.diagnose()
    assert (diagnosis.verdict, [(attempt.rank, attempt.node) for attempt in diagnosis.culprits]) == (
        Verdict.CRASHED,
        [(0, "local-0")],
    )


def test_a_run_that_never_started_has_no_attempts(context: Context) -> None:
    run = submit(context, "0", "0")
    run.wait(timeout=120)
    os.unlink(run.paths.state)
    assert run.attempts == ()


def test_waiting_with_a_limit_returns_the_state_so_far_and_cancel_ends_the_run(context: Context) -> None:
    run = submit(context, "60", "0")
    assert run.wait(timeout=0.1).state is State.RUNNING
    assert run.cancel().state is State.CANCELLED
    assert run.cancel().state is State.CANCELLED


def test_following_yields_lines_until_the_run_has_ended(context: Context) -> None:
    assert list(submit(context, "0.5", "0").logs(follow=True)) == ["local-0 r0 | rank 0 ['0.5', '0'] None"]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"node": 2}, "submit() has no option 'node'\ndid you mean 'nodes'?"),
        ({"zzz": 1}, "submit() has no option 'zzz'\nhelp(clusterrun.submit) shows every option"),
        ({"wait": True}, "submit() has no option 'wait'\nsubmit(...).wait()"),
        ({"alone": True}, "submit() has no option 'alone'\nhelp(clusterrun.submit) shows every option"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ClusterrunError) as refused:
        clusterrun.submit("train.py", **options)
    assert str(refused.value) == error


WRONG = [
    object(),
    -1,
    "x y",
    2.5,
    float("nan"),
    True,
    b"x",
    {"a": object()},
    [1],
    [None],
    [("a", "b", "c")],
    "\0",
]


NO_OPTIONS = {"command", "cwd", "context", "tell"}


@pytest.mark.parametrize("name", sorted(inspect.signature(clusterrun.submit).parameters.keys() - NO_OPTIONS))
def test_a_wrong_value_of_any_option_is_an_error_with_a_message(name: str, tmp_path: Path) -> None:
    for value in WRONG:
        try:
            spec_of(("train.py",), str(tmp_path), {name: value})
        except ClusterrunError as error:
            assert error.seen


@pytest.mark.parametrize("arguments", [(), ("",), (5,), (["train.py"],)])
def test_a_wrong_command_is_an_error_with_a_message(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput):
        clusterrun.submit(*arguments)


def test_a_run_shows_itself_and_its_logs_print_as_text(context: Context) -> None:
    run = submit(context, "0", "0")
    run.wait(timeout=120)
    line = "local-0 r0 | rank 0 ['0', '0'] None"
    logs = run.logs()
    assert (str(logs), next(logs), list(logs), run.run_id in repr(logs)) == (line, line, [], True)
    assert repr(run) == f"<Run {run.run_id}: train, process {run.job_id}>"
    again = clusterrun.run("last", context)
    assert (again.run_id, again.state) == (run.run_id, State.COMPLETED)
    assert submit(context, "0", "0", after=None).wait(timeout=120).state is State.COMPLETED


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.wait(timeout="soon"),
        lambda run: run.logs(stream="all"),
        lambda run: run.logs(ranks="0"),
        lambda run: run.logs(ranks=[-1]),
        lambda run: run.logs(tail="x"),
        lambda run: run.logs(attempt=1.5),
        lambda run: list(run.logs(follow=True, attempt=0)),
        lambda run: run.report(attempt="first"),
        lambda run: clusterrun.run("nothing", run._context),
        lambda run: clusterrun.run(987654321, run._context),
    ],
)
def test_a_wrong_argument_of_a_run_is_an_error_with_a_message(
    context: Context, call: Callable[..., Any]
) -> None:
    run = submit(context, "0", "0")
    run.wait(timeout=120)
    with pytest.raises(ClusterrunError):
        call(run)


def test_the_public_names_are_those_that_dir_shows() -> None:
    assert set(dir(clusterrun)) == {*clusterrun.__all__, "training"}
    assert all(getattr(clusterrun, name) for name in (*clusterrun.__all__, "__version__"))
    with pytest.raises(AttributeError):
        _ = clusterrun.sumbit


def test_options_are_read_as_people_write_them() -> None:
    message = {
        "time": "2h",
        "notice": "5m",
        "environment": {"A": "1"},
        "cluster": "slurm",
        "setup": "module load x",
        "sbatch": ["a"],
    }
    assert spec_of(["train.py"], "/w", message) == JobSpec(
        command=("train.py",),
        cwd="/w",
        time=7200,
        notice=300,
        environment=(("A", "1"),),
        cluster=Cluster.SLURM,
        setup=("module load x",),
        sbatch=("a",),
    )


@pytest.mark.parametrize(
    "options", [{"nodes": 0}, {"time": "soon"}, {"after": "nothing"}, {"python": "/no/python"}]
)
def test_a_refused_submission_leaves_no_trace(context: Context, options: dict[str, object]) -> None:
    with pytest.raises(ClusterrunError):
        submit(context, "0", "0", **options)
    assert not os.path.exists(context.store.home)


def test_nothing_follows_after_a_failed_run(context: Context) -> None:
    failed = submit(context, "0", "1")
    failed.wait(timeout=120)
    with pytest.raises(BadInput, match="has ended as FAILED"):
        submit(context, "0", "0", after=failed.run_id)


def test_an_error_during_preparation_leaves_no_partial_run(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "save", full)
    with pytest.raises(OSError, match="No space left"):
        submit(context, "0", "0")
    assert [context.store.ids(), os.listdir(context.store.live)] == [[], []]


def test_an_unknown_selector_is_no_run(context: Context) -> None:
    with pytest.raises(NoSuchRun):
        clusterrun.find("nothing", context)


def test_the_page_on_python_names_existing_attributes_only() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    trees = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    keywords = [
        (ast.unparse(call.func), keyword.arg)
        for call in calls
        for keyword in call.keywords
        if ast.unparse(call.func).startswith("clusterrun.") and ".run(" not in ast.unparse(call.func)
    ]
    parameters = {
        name: set(inspect.signature(getattr(clusterrun, name)).parameters)
        for name in ("submit", "check", "sweep", "Executor")
    }
    for name in ("sweep", "Executor"):  # they take those of a submission too
        parameters[name] |= parameters["submit"]
    assert len(keywords) > 5
    wrong = [(name, key) for name, key in keywords if key not in parameters[name.partition(".")[2]]]
    assert wrong == [("clusterrun.submit", "node")], "the page shows one mistake, and its answer"
    names = {name for name in re.findall(r"`(?:clusterrun\.)?run\.(\w+)", page) if name != "clusterrun"}
    assert [name for name in names if not hasattr(clusterrun.Run, name) and name != "run_id"] == []
