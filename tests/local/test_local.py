"""The laws of runs on this machine: known by process and start, out of the terminal's reach, started once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun import system
from clusterrun.local import gpus, processes
from clusterrun.local.start_run import start as started_here
from clusterrun.model.errors import SchedulerError
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.script.plan import MachineFacts, Plan, plan

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def until(true: Callable[[], object], limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "not within the limit"
        time.sleep(0.01)


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def one(program: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_is_identified_by_its_number_and_start_time(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    job_id = processes.identity(start("import time; time.sleep(600)").pid)
    number, _, since = job_id.partition(".")
    assert processes.alive(job_id)
    assert not processes.alive(f"{number}.{int(since) + 1}")
    assert [processes.alive(word) for word in ("", "x", "1", "999999999.1", "-1.5")] == [False] * 5


def test_a_process_that_has_ended_but_was_not_collected_is_not_alive(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("")
    job_id = processes.identity(process.pid)
    until(lambda: not processes.alive(job_id))
    assert process.returncode is None


def test_an_end_is_requested_first_and_reaches_a_stopped_process(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("import time; time.sleep(600)")
    os.kill(process.pid, signal.SIGSTOP)
    assert processes.end(processes.identity(process.pid), system.RealClock(), limit=60)
    assert process.wait(60) == -signal.SIGTERM


def test_a_process_that_ignores_the_request_is_killed_after_the_limit(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start(STUBBORN)
    assert process.stdout and process.stdout.readline() == "up\n"
    messages: list[str] = []
    job_id = processes.identity(process.pid)
    assert processes.end(job_id, system.RealClock(), limit=0.2, slow=lambda: messages.append("waiting"))
    assert (process.wait(60), messages) == (-signal.SIGKILL, ["waiting"])


def test_ending_an_ended_process_returns_at_once() -> None:
    assert processes.end("999999999.1", system.RealClock())


COORDINATOR = """
import json, os, sys, time
seen = [sys.argv[1:], os.getsid(0), os.getpgid(0), dict(os.environ), sys.stdin.read()]
print(json.dumps(seen), flush=True)
with open(os.path.join(sys.argv[2], "starts"), "a") as file:
    file.write("once\\n")
time.sleep(0 if "QUICK" in os.environ else 600)
sys.exit(144)
"""
"""Stands in for the packed program; 144 is the code upon which submitit starts a task again."""


def prepared(tmp_path: Path, program: str = COORDINATOR, **wish: object) -> Plan:
    run_dir = tmp_path / "a b%j\n"
    run_dir.mkdir()
    spec = JobSpec(("train.py",), cwd=str(tmp_path), cluster=Cluster.LOCAL, **wish)  # type: ignore[arg-type]
    created = plan(spec, "r", "t", str(run_dir), MachineFacts(slurm=False, python=sys.executable))
    paths = RunPaths(str(run_dir))
    Path(paths.script).write_text(created.script)
    Path(paths.agent).write_text(program)
    return created


def said(created: Plan) -> str:
    path = Path(RunPaths(created.run_dir).job_output)
    return path.read_text() if path.exists() else ""


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **more}


def test_the_coordinator_has_its_own_session_and_its_id_is_the_job_id(tmp_path: Path) -> None:
    created = prepared(tmp_path, setup=("export BY_SETUP='a b'",))
    job_id = started_here(created, environment())
    try:
        until(lambda: said(created).endswith("]\n"))
        argv, session, _, observed, stdin = json.loads(said(created))
        assert (argv, stdin, observed["BY_SETUP"]) == (["coordinate", created.run_dir], "", "a b")
        assert "SUBMITIT_LOCAL_COMMAND" not in observed
        assert session not in (os.getsid(0), 0)
        assert processes.alive(job_id)
    finally:
        assert processes.end(job_id, system.RealClock())
    assert sorted(os.listdir(created.run_dir)) == ["agent.pyz", "job.out", "script.sh", "starts"]


def test_a_coordinator_is_started_once_for_every_exit_code(tmp_path: Path) -> None:
    created = prepared(tmp_path)
    job_id = started_here(created, environment(QUICK="1"))
    until(lambda: not processes.alive(job_id))
    until(lambda: not inside(created.run_dir))
    assert Path(created.run_dir, "starts").read_text() == "once\n"


def test_a_file_of_the_user_named_as_a_module_of_python_is_not_loaded_to_start_a_run(tmp_path: Path) -> None:
    for name in ("grp", "shutil", "platform"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user')\n")
    created = prepared(tmp_path)
    job_id = started_here(created, environment(QUICK="1"))
    until(lambda: not processes.alive(job_id))
    assert Path(created.run_dir, "starts").read_text() == "once\n"


def inside(folder: str) -> list[str]:
    """Return the processes that work in ``folder``."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            results += [path.parent.name] if os.readlink(path) == folder else []
        except OSError:
            continue
    return results


def test_a_run_that_cannot_be_started_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    created = prepared(tmp_path)
    with pytest.raises(SchedulerError) as caught:
        started_here(created, {"PATH": "/nowhere", "TMPDIR": str(tmp_path), "PYTHONHOME": "/nowhere"})
    assert caught.value.seen == "the run could not be started: exit code 1"
    assert "No module named 'encodings'" in caught.value.remedy, "job.out goes with the run directory"


def listed(text: str, code: int = 0) -> Callable[..., system.Completed]:
    return lambda argv, timeout: system.Completed(tuple(argv), code, text, "", 0.0)


def hung(argv: object, timeout: float) -> system.Completed:
    raise system.ProgramTimeout("nvidia-smi gave no answer within 15 s")


@pytest.mark.parametrize(
    "run, visible, count",
    [
        (listed("GPU 0: H200 (UUID: x)\n  MIG 1g\nGPU 1: H200\n"), None, 2),
        (listed("GPU 0: H200\nGPU 1: H200\n"), "1", 1),
        (listed("GPU 0: H200\nGPU 1: H200\n"), "", 0),
        (listed("GPU 0: H200\n"), "0,1,2", 1),
        (listed("No devices were found\n"), None, 0),
        (listed("Unable to determine the device handle for GPU0: Unknown Error\nGPU 1: H200\n", 14), None, 1),
        (hung, None, 0),
    ],
)
def test_gpus_are_the_gpus_that_a_program_would_see(
    tmp_path: Path, run: Callable[..., system.Completed], visible: str | None, count: int
) -> None:
    (tmp_path / "nvidia-smi").touch(0o755)
    environment = {"PATH": str(tmp_path), **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    assert gpus.count_gpus(environment, run, str(tmp_path), places=()) == count


def test_gpus_are_counted_in_the_drivers_folder_without_nvidia_smi(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    nowhere = {"PATH": "/nowhere"}
    assert gpus.count_gpus(nowhere, hung, str(tmp_path), places=()) == 1
    assert gpus.count_gpus(nowhere, hung, str(tmp_path / "none"), places=()) == 0
