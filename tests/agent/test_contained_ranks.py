"""The laws of ranks in a container that a program starts: a stand-in everywhere, Charliecloud where it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.container_image import make_image, mounts, python, why_no_charliecloud
from clusterrun.model.container import Container, Mount
from clusterrun.model.orders import Interpreter, Level, Preflight
from clusterrun.model.states import State
from tests.coordinator.runs import Run, runs

Make = Callable[..., Run]
SHOW = "import json, os, sys; json.dump({**os.environ, 'ns': os.readlink('/proc/self/ns/mnt')}, sys.stdout)"
STAND_IN = """#!/bin/sh
# Charliecloud's way of being called, without a container: the image is the variables that it sets.
[ -n "${BROKEN-}" ] && { echo "ch-run: error: no such image" >&2; exit 57; }
while [ "$1" != -- ]; do shift; done
shift
export PATH="/image/bin:$PATH" OF_THE_IMAGE=1 MASTER_PORT=1 MINE=images PYTHONPATH=/image/lib
exec "$@"
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ch-run").write_text(STAND_IN)
    (programs / "ch-run").chmod(0o755)
    with runs(tmp_path) as maker:

        def contained(command: list[str], **more: object) -> Run:
            container = Container("/no/image", "charliecloud", (Mount("/x", "/x"),))
            run = maker(command, container=container, interpreter=Interpreter(sys.executable), **more)
            run.environment["PATH"] = f"{programs}:{run.environment['PATH']}"
            run.environment["PYTHONPATH"] = "/ours"
            return run

        yield contained


def test_the_ranks_variables_win_over_the_images_but_for_those_of_its_files(make: Make) -> None:
    run = make([sys.executable, "-c", SHOW], environment=(("MINE", "a b'$x\n"), ("LD_LIBRARY_PATH", "/said")))
    run.environment |= {"LD_PRELOAD": "", "CONDA_PREFIX": "/host"}
    assert run.ended().state is State.COMPLETED, run.words
    results = [json.loads(run.output(rank)) for rank in range(4)]
    assert [entry["RANK"] for entry in results] == ["0", "1", "2", "3"]
    assert {entry["WORLD_SIZE"] for entry in results} == {"4"}
    assert "1" not in {entry["MASTER_PORT"] for entry in results}
    for entry in results:
        assert entry["PATH"].startswith("/image/bin:/usr/local/sbin")
        assert (entry["OF_THE_IMAGE"], entry["MINE"], entry["LD_LIBRARY_PATH"]) == ("1", "a b'$x\n", "/said")
        assert entry["PYTHONPATH"].split(":")[-2:] == ["/ours", "/image/lib"]
        assert "CONDA_PREFIX" not in entry
        assert not [name for name in entry if name.startswith("CLUSTERRUN_CARRIED_")]


def test_a_failed_rank_is_named_with_its_code_and_starts_again_in_a_new_container(make: Make) -> None:
    script = "echo $PPID; [ $CLUSTERRUN_ATTEMPT$RANK != 01 ] || { echo gives up >&2; exit 3; }; sleep 0.1"
    run = make(["/bin/sh", "-c", script], max_restarts=1)
    assert run.ended().state is State.COMPLETED, run.words
    assert b"rank 1 on local-0 exited with code 3" in run.words
    forkers = [{run.output(rank, epoch=epoch) for rank in (0, 1)} for epoch in (0, 1)]
    assert [len(entry) for entry in forkers] == [1, 1], "the ranks of a node have one parent"
    assert forkers[0] != forkers[1]


def test_a_container_that_exits_ends_its_ranks_and_is_reported(make: Make) -> None:
    run = make(["/bin/sh", "-c", "echo up; exec sleep 600"], nodes=1)
    run.start()
    run.running(2)
    forker = next(p.parent for p in run.marked() if p.name == "sleep")
    os.kill(forker, signal.SIGKILL)
    run.wait()
    assert run.state().state is State.FAILED
    failure = run.state().attempts[-1].failure
    assert "the container was killed by signal 9" in str(failure), failure


def test_ranks_in_a_container_get_pipes_and_input_and_their_children_may_finish(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("said\n")
    script = f"(sleep 1; touch {tmp_path}/done-$RANK) & cat; echo two > /dev/stdout; echo three > /dev/stdout"
    run = make(["/bin/sh", "-c", script], nodes=1, pipes_output=True, input=f"{tmp_path}/input")
    assert run.ended().state is State.COMPLETED, run.words
    assert [run.output(rank) for rank in (0, 1)] == [b"said\ntwo\nthree\n"] * 2
    assert [(tmp_path / f"done-{rank}").exists() for rank in (0, 1)] == [True, True]


def test_a_runtime_that_fails_is_quoted(make: Make) -> None:
    run = make(["/bin/true"], nodes=1)
    run.environment["BROKEN"] = "1"
    state = run.ended()
    assert state.state is State.FAILED
    assert "the container exited with code 57: ch-run: error: no such image" in state.reason


def test_a_missing_runtime_and_a_missing_program_have_different_reasons(make: Make) -> None:
    run = make(["/bin/true"], nodes=1)
    run.environment["PATH"] = "/usr/bin:/bin"
    if not shutil.which("ch-run", path=run.environment["PATH"]):
        assert "the program 'ch-run' cannot be executed" in run.ended().reason
    run = make(["/no/program"], nodes=1)
    assert "in the container: the program '/no/program' cannot be executed" in run.ended().reason


def test_cancelling_leaves_nothing_though_ranks_hold_on(make: Make) -> None:
    run = make(["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"], grace=0.5)
    run.start()
    run.running(4)
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait()
    assert run.left() == []


def test_the_check_starts_its_torch_in_the_container(make: Make) -> None:
    checked = Preflight(Level.FULL, 40.0, python=sys.executable, alone=True)
    run = make([sys.executable, "-c", ""], nodes=1, ranks=1, preflight=checked)
    assert run.ended().state is State.COMPLETED, run.words
    report = json.loads(Path(run.paths.attempt(0).preflight).read_bytes())
    assert report["verdict"] in ("pass", "warn")
    assert report["tests"], "torch was found"


# --- a real container ---


def test_charliecloud_runs_all_ranks_of_a_node_in_one_container(tmp_path: Path) -> None:
    if why := why_no_charliecloud():
        pytest.skip(why)
    image = make_image(tmp_path / "image")
    folders = (str(tmp_path), *mounts())
    container = Container(str(image), "charliecloud", tuple(Mount(folder, folder) for folder in folders))
    script = f"import os; os.stat('/IMAGE'); {SHOW}"
    inside = {"container": container, "interpreter": Interpreter(python())}
    with runs(tmp_path) as make:
        run = make([python(), "-c", script], **inside)
        assert run.ended().state is State.COMPLETED, run.words
        results = [json.loads(run.output(rank)) for rank in range(4)]
        spaces = [folder["ns"] for folder in results]
        assert spaces[0] == spaces[1] != spaces[2] == spaces[3]
        assert os.readlink("/proc/self/ns/mnt") not in spaces
        sleeping = make(["/bin/sh", "-c", "echo up; exec sleep 600"], nodes=1, **inside)
        sleeping.start()
        sleeping.running(2)
        agent = (sys.executable, "-I", "-S", sleeping.paths.agent)
        command = (*agent, "beside", sleeping.paths.run_dir, "local-0", "1", "--", "/bin/sh", "-c")
        result = subprocess.run([*command, "ls /IMAGE; echo $RANK"], capture_output=True, text=True)
        assert result.stdout.split() == ["/IMAGE", "1"], result.stderr
        sleeping.coordinator.send_signal(signal.SIGTERM)
        sleeping.wait()
