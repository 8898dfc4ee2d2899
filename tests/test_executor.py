"""Functions as runs on this machine: what they return, print and raise comes back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import submitit
from submitit.core import plugins

import clusterrun
from clusterrun.executor import ClusterrunExecutor, NotSubmitted
from clusterrun.model.errors import BadInput
from clusterrun.operations.context import Context
from clusterrun.training.function import NotOurs


@pytest.fixture
def executor(tmp_path: Path) -> ClusterrunExecutor:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLUSTERRUN_HOME": str(tmp_path / "h")}
    return ClusterrunExecutor(context=Context(environment), cluster="local", preflight="off")


def add(a: int, b: int) -> int:
    print("adding", a)
    print("aloud", file=sys.stderr)
    return a + b


def of_rank(word: str) -> tuple[str, int]:
    rank = submitit.JobEnvironment().global_rank
    if word == "fail" and rank == 1:
        raise ValueError("too bad")
    return word, rank


def test_results_return_from_one_rank_many_ranks_and_a_list_of_calls(executor: ClusterrunExecutor) -> None:
    jobs = executor.map_array(add, range(3), range(3))
    with executor.batch():
        late = executor.submit(add, 5, b=6)
    executor.update_parameters(nodes=2, tasks_per_node=2)
    wide, failing = executor.submit(of_rank, "x"), executor.submit(of_rank, "fail")
    assert [job.result() for job in jobs] == [0, 2, 4]
    assert [job.run.name for job in jobs] == ["add.0", "add.1", "add.2"]
    assert (late.result(), late.exception(), late.done(), late.submission().kwargs) == (
        11,
        None,
        True,
        {"b": 6},
    )
    assert "adding 5\n" in (late.stdout() or "") and "aloud\n" in (late.stderr() or "")
    assert wide.results() == [("x", rank) for rank in range(4)] and wide.task(3).result() == ("x", 3)
    raised = failing.exception()
    assert isinstance(raised, submitit.core.utils.FailedJobError) and "too bad" in str(raised)
    assert isinstance(raised.__cause__, ValueError) and raised.__cause__.args == ("too bad",)
    with pytest.raises(submitit.core.utils.FailedJobError) as caught:
        failing.results()
    assert isinstance(caught.value.__cause__, ValueError)
    failing.task(1)._paths.error_pickle.chmod(0o666)  # somebody else could have written it
    assert (failing.exception() or caught.value).__cause__ is None
    assert oct(os.stat(late.paths.submitted_pickle).st_mode & 0o777) == "0o600"


def test_functions_that_cannot_be_pickled_are_refused_before_anything_is_queued(
    executor: ClusterrunExecutor,
) -> None:
    with pytest.raises(NotSubmitted, match="add cannot be sent to the ranks: TypeError"):
        executor.submit(add, threading.Lock(), 1)  # type: ignore[arg-type]
    executor.max_pickle_size_gb = 1e-6
    with pytest.raises(RuntimeError, match="2 calls of add are about"):
        executor.map_array(add, ["x" * 2000] * 2, [1, 2])
    with pytest.raises(BadInput, match="no option 'nods'"):
        executor.update_parameters(nods=2)
    assert executor._context.store.ids() == []


def test_a_cancelled_call_is_reported_and_a_foreign_pickle_is_not_opened(
    executor: ClusterrunExecutor,
) -> None:
    job = executor.submit(time.sleep, 600)
    job.cancel()
    assert (job.done(), job.state) == (True, "CANCELLED")
    assert "is CANCELLED and rank 0 has returned nothing" in str(job.exception())
    path = job.paths.result_pickle
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(("success", 1)))
    os.truncate(path, 10 << 30)
    assert "has 10 GiB and would be read whole" in str(job.exception())
    path.chmod(0o666)
    with pytest.raises(NotOurs, match="a pickle runs code"):
        job.result()


def test_it_is_a_plug_in_of_submitit() -> None:
    if "clusterrun" not in plugins.get_executors():
        pytest.skip("this checkout was installed before it had entry points: install it again")
    assert plugins.get_executors()["clusterrun"] is clusterrun.Executor
    auto = submitit.AutoExecutor("x", cluster="clusterrun")
    auto.update_parameters(timeout_min=90, mem_gb=1.5, nodes=2, gpus_per_node=8, tasks_per_node=1)
    assert auto._executor.parameters == {
        "time": "90m",
        "mem": "1536M",
        "nodes": 2,
        "gpus": 8,
        "per_node": True,
    }


def test_ranks_import_a_function_of_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside_the_script.py").write_text("def more(x):\n    return x + 1\n")
    (tmp_path / "sub" / "app.py").write_text(
        "import clusterrun, beside_the_script\n"
        "executor = clusterrun.Executor(cluster='local', preflight='off')\n"
        "print(executor.submit(beside_the_script.more, 3).result())\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLUSTERRUN_HOME": str(tmp_path / "h")}
    result = subprocess.run(
        [sys.executable, "sub/app.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert result.stdout == "4\n", result.stderr
