"""The prelude never changes what a script sees or does, and opens its channels in ranks alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.agent import rank_signals
from clusterrun.monitor.rank_channels import (
    RankChannel,
    StackReply,
    channel,
    channels,
    facts,
    keep_last,
    stacks,
)
from clusterrun.monitor.rank_instrumentation import STACKS_SIGNAL, instrumented, write_hooks
from clusterrun.rank_hooks import clusterrun_prelude
from tests.coordinator.runs import pythons
from tests.monitor.stage import ROOT, until

RANK = {"RANK": "3", "WORLD_SIZE": "1", "PATH": os.defpath}
SAY = "import os, sys; print(os.environ.get('PYTHONPATH'), os.environ.get('CLUSTERRUN_PRELUDE')); "
SAY += "print([p for p in sys.path if 'prelude' in p], sorted(m for m in sys.modules if 'clusterrun' in m))"
COMPILED = ("sitecustomize", "clusterrun_prelude")
SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_hooks(str(tmp_path / "prelude"))
    return str(tmp_path / "prelude")


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts programs. They are ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def begin(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def printed(argv: list[str], environment: dict[str, str], cwd: str = "/") -> tuple[str, str]:
    """Return a program's stdout and stderr. Its exit code must be 0."""
    result = subprocess.run(
        argv, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.strip(), result.stderr.strip()


@pytest.mark.parametrize("python", pythons())
def test_a_rank_sees_nothing_of_the_prelude(python: str, folder: str) -> None:
    assert printed([python, "-c", SAY], instrumented(RANK, folder)) == ("None None\n[] []", "")


def test_the_users_own_path_stays_as_it_was(folder: str, tmp_path: Path) -> None:
    mine = f"{tmp_path}:{tmp_path / 'other'}"
    out, err = printed([sys.executable, "-c", SAY], instrumented({**RANK, "PYTHONPATH": mine}, folder))
    assert (out.split("\n")[0], err) == (f"{mine} None", "")


def test_a_rank_opens_its_channels_and_answers(folder: str, start: Start) -> None:
    process = start([sys.executable, "-c", SLEEP], instrumented(RANK, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    result = channel(process.pid)
    assert result is not None
    assert (result.rank, result.pid, result.intact()) == (3, process.pid, True)
    assert facts([result], 5, 0, 30.0) == {process.pid: {"ask": 5, "torch": False}}
    assert stacks([result], 30.0) == {process.pid: StackReply(("<string>:1 <module>",))}
    assert facts([result], 6, 8, 30.0) == {process.pid: {"ask": 6, "torch": False}}


def test_a_script_that_waits_for_signals_in_a_thread_gets_them_all(folder: str, start: Start) -> None:
    """It blocks them in its own threads. Another thread that does not would be ended by them."""
    waits = (
        "import signal; signals = {signal.SIGUSR1, signal.SIGTERM};"
        " signal.pthread_sigmask(signal.SIG_BLOCK, signals); print('up', flush=True);"
        " [signal.sigwait(signals) for _ in signals]; print('both')"
    )
    process = start([sys.executable, "-c", waits], instrumented(RANK, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert rank_signals.handles(process.pid, signal.SIGUSR1) and not rank_signals.handles(
        process.pid, signal.SIGHUP
    )
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "both\n"


@pytest.mark.parametrize("python", pythons())
def test_every_python_answers(python: str, folder: str, start: Start) -> None:
    process = start([python, "-c", SLEEP], instrumented(RANK, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    result = channel(process.pid)
    assert result is not None
    assert stacks([result], 30.0) == {process.pid: StackReply(("<string>:1 <module>",))}


def test_a_rank_that_holds_the_interpreter_lock_shows_its_stack(folder: str, start: Start) -> None:
    process = start(
        [sys.executable, "-c", "print('up', flush=True)\nsum(range(10**13))"], instrumented(RANK, folder)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    result = channel(process.pid)
    assert result is not None
    inside = {process.pid: StackReply(("<string>:2 <module>",))}
    until(lambda: stacks([result], 30.0) == inside, "the line that computes")


@pytest.mark.parametrize(
    "environment", [{"PATH": os.defpath}, {**RANK, "CLUSTERRUN_PRELUDE": "off"}, {**RANK, "RANK": "x"}]
)
def test_other_processes_and_ranks_without_the_prelude_have_no_channels(
    environment: dict[str, str], folder: str, start: Start
) -> None:
    process = start([sys.executable, "-c", SLEEP], instrumented(environment, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert channels(process.pid) == []


def test_stacks_of_ranks_are_written_before_their_end_except_of_stopped_ranks(
    folder: str, start: Start, tmp_path: Path
) -> None:
    pids = {}
    for rank in (3, 4):
        process = start([sys.executable, "-c", SLEEP], instrumented({**RANK, "RANK": str(rank)}, folder))
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        pids[rank] = process.pid
    os.kill(pids[4], signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pids[4]}/stat").read_text().split(") ")[1][0] == "T", "the stop")
    retained = tmp_path / "node-0000.stacks"
    until(lambda: keep_last(str(retained), pids) or retained.exists(), "an answer on a crowded machine")
    assert json.loads(retained.read_text()) == {"3": {"stack": ["<string>:1 <module>"]}}
    assert retained.stat().st_mode & 0o777 == 0o600
    keep_last(str(tmp_path / "none" / "node-0000.stacks"), pids)  # a folder that is gone is no error


def test_children_of_a_rank_have_no_channel(folder: str, start: Start) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    process = start([sys.executable, "-c", child], instrumented(RANK, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert [result.pid for result in channels(process.pid)] == [process.pid]
    (inside,) = [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert channel(inside) is None


def test_ranks_below_a_shell_and_below_a_python_launcher_are_recognized(
    folder: str, start: Start, tmp_path: Path
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(
        "import os, subprocess, sys\nos.environ['RANK'] = '5'\n"
        f"subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    )
    for rank, argv in (
        (3, ["/bin/sh", "-c", f'{sys.executable} -c "{SLEEP}"; true']),
        (5, [sys.executable, str(launcher)]),
    ):
        process = start(argv, instrumented(RANK, folder))
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (result,) = until(lambda pid=process.pid: channels(pid), f"a channel of rank {rank}")
        assert (result.rank, result.pid != process.pid) == (rank, True)


def test_a_sitecustomize_behind_it_is_loaded_as_ever(folder: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys\nsys.theirs = __name__\n")
    environment = instrumented({**RANK, "PYTHONPATH": str(tmp_path / "site")}, folder)
    code = "import sys; print(sys.theirs, sys.modules['sitecustomize'].__file__)"
    assert printed([sys.executable, "-c", code], environment) == (
        f"sitecustomize {tmp_path / 'site/sitecustomize.py'}",
        "",
    )


def test_a_sitecustomize_behind_it_that_fails_is_reported_as_ever(folder: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("raise ValueError('theirs')\n")
    environment = {**RANK, "PYTHONPATH": str(tmp_path / "site")}
    alone = printed([sys.executable, "-c", "print('goes on')"], environment)
    assert printed([sys.executable, "-c", "print('goes on')"], instrumented(environment, folder)) == alone
    assert "ValueError: theirs" in alone[1]


@pytest.mark.parametrize("number", ["", "nonsense", "0", "9", "99999"])
def test_a_signal_that_cannot_be_breaks_no_script(number: str, folder: str) -> None:
    environment = {**instrumented(RANK, folder), "CLUSTERRUN_PRELUDE": number}
    assert printed([sys.executable, "-c", "print('goes on')"], environment) == ("goes on", "")


def test_a_prelude_that_cannot_be_read_breaks_no_script(folder: str) -> None:
    Path(folder, "clusterrun_prelude.py").write_text("this is no python (")
    assert printed([sys.executable, "-c", "print('goes on')"], instrumented(RANK, folder)) == ("goes on", "")


def test_a_users_file_with_a_name_of_ours_is_not_touched(folder: str, tmp_path: Path) -> None:
    """The thread imports nothing: a json.py beside the script would be the user's."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "train.py").write_text("print('goes on')\n")
    assert printed([sys.executable, str(tmp_path / "train.py")], instrumented(RANK, folder)) == (
        "goes on",
        "",
    )


def test_a_process_that_would_die_of_a_signal_gets_none(folder: str, start: Start) -> None:
    """A process that took another program's place has the rank's number, not its handler."""
    code = "import os, sys; print('up', flush=True); os.execv('/bin/sleep', ['sleep', '600'])"
    process = start([sys.executable, "-c", code], instrumented(RANK, folder))
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "the other program")
    forged = RankChannel(3, process.pid, 1, 1, 1, "0")
    assert (stacks([forged]), facts([forged], 1, 0), process.poll()) == ({}, {}, None)


def test_a_script_that_closes_every_descriptor_gets_no_questions(
    folder: str, start: Start, tmp_path: Path
) -> None:
    """The script's next files get our descriptors. No stack may be written into a user's file."""
    mine = tmp_path / "mine"
    code = "import os, time\nos.closerange(3, 64)\n"
    code += f"files = [open({str(mine)!r} + str(n), 'w') for n in range(8)]\n"
    process = start(
        [sys.executable, "-c", code + "print('up', flush=True)\ntime.sleep(600)"], instrumented(RANK, folder)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert channel(process.pid) is None
    assert stacks([RankChannel(3, process.pid, 4, 3, 5, "0")]) == {}
    assert [Path(f"{mine}{n}").stat().st_size for n in range(8)] == [0] * 8


def test_the_signal_is_used_by_nobody_else() -> None:
    assert int(signal.SIGRTMIN) < STACKS_SIGNAL <= int(signal.SIGRTMAX)


def test_the_files_are_their_owners_alone(folder: str) -> None:
    results = [Path(folder), *Path(folder).rglob("*")]
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in results}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_ranks_of_the_coordinators_python_compile_nothing(folder: str) -> None:
    """To compile the prelude takes longer than all else that it does."""
    _, message = printed([sys.executable, "-v", "-c", ""], instrumented(RANK, folder))
    compiled = [
        line for line in message.split("\n") if line.startswith("# code object from") and folder in line
    ]
    ready = [
        f"# code object from '{bytecode(folder, name)}'" for name in ("sitecustomize", "clusterrun_prelude")
    ]
    assert compiled == ready


def bytecode(folder: str, name: str) -> str:
    return os.path.join(folder, "__pycache__", f"{name}.{sys.implementation.cache_tag}.pyc")


def test_bytecode_that_is_damaged_is_compiled_again(folder: str) -> None:
    for name in COMPILED:
        Path(bytecode(folder, name)).write_bytes(b"no bytecode")
    assert printed([sys.executable, "-c", SAY], instrumented(RANK, folder)) == ("None None\n[] []", "")


@pytest.mark.parametrize(
    ("groups", "alone"),
    [
        ([{"size": 1, "sequence": 40}], True),
        ([{"size": 4, "sequence": 0}], True),
        ([{"size": 4, "sequence": 7}], False),
        ([{"size": 4, "sequence": -1}], False),
        ([{"size": 4, "sequence": 0}, {"size": 2, "sequence": 3}], False),
        ([], False),
    ],
)
def test_a_rank_was_alone_where_no_group_of_several_was_ever_used(
    groups: list[dict[str, int]], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch loaded nobody knows what was taken apart before."""
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d", raising=False)
    space = clusterrun_prelude.witness(str(ROOT / "clusterrun/rank_hooks"))
    assert space["never_joined_a_collective"](groups, []) is alone


RECORDS = "import os; print(sorted((n, v) for n, v in os.environ.items() if n.startswith('TORCH_')))"


@pytest.mark.parametrize(
    ("version", "provided", "size", "file"),
    [
        ("2.4.1+cu121", {}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.6.0", {}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.8.0", {}, "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.13.0+cpu", {}, "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("unreadable", {}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.6.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, "", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.13.0", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d"}, "TORCH_FR_BUFFER_SIZE", ""),
        ("2.13.0", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_torch_records_under_its_releases_names_and_user_settings_stay(
    folder: str, tmp_path: Path, version: str, provided: dict[str, str], size: str, file: str
) -> None:
    (tmp_path / "site/torch").mkdir(parents=True)
    (tmp_path / "site/torch/version.py").write_text(f"__all__ = []\n__version__ = '{version}'\n")
    environment = {**RANK, "CLUSTERRUN_RUN_DIR": "/run", "PYTHONPATH": str(tmp_path / "site"), **provided}
    out, _ = printed(
        [sys.executable, "-S", "-c", "import sitecustomize; " + RECORDS], instrumented(environment, folder)
    )
    expected = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", **provided}
    expected.update({size: "2000"} if size else {})
    expected.update({file: "/run/attempts/000/flight-records-"} if file else {})
    assert out == str(sorted(expected.items()))


@pytest.mark.parametrize(
    ("times", "per_node", "leaves"),
    [
        ((2.0, 1.0, 0.0, 0.0), False, True),
        ((2.0, 1.0, 0.0, 0.0), True, False),
        ((40.0, 1.0, 5.0, 1.0), True, True),
        ((40.0, 1.0, 500.0, 9.0), True, False),
    ],
)
def test_the_launcher_per_node_sends_farewell_only_if_it_worked_more_than_its_children(
    monkeypatch: pytest.MonkeyPatch, times: tuple[float, ...], per_node: bool, leaves: bool
) -> None:
    space: dict[str, Any] = {"__name__": "prelude"}
    exec((ROOT / "clusterrun/rank_hooks/clusterrun_prelude.py").read_text(), space)
    remaining: list[tuple[str, int]] = []
    space["witness"] = lambda local: {"dump_at_exit": lambda name, size: remaining.append((name, size))}
    space["knows_others"] = lambda: True
    monkeypatch.setattr(os, "times", lambda: (*times, 0.0))
    space["farewell"]("name", os.getpid(), "here", 2, per_node)
    assert remaining == ([("name", 2)] if leaves else [])


@pytest.mark.parametrize(
    ("programs", "remaining"),
    [
        (["{}['seed']"], b'{"failed": true, "alone": false}\n'),
        (["print(0)"], None),
        (["import sys; sys.exit(3)"], None),  # nothing that its stderr would not say
        (["import flash_attn_of_nobody", "print(0)"], None),  # what started it went on without
        (["print(0)", "{}['seed']"], b'{"failed": true, "alone": false}\n'),
        (["import flash_attn_of_nobody", "{}['seed']"], b'{"failed": true, "alone": false}\n'),
    ],
)
def test_a_rank_without_torch_that_ended_with_an_exception_leaves_its_reason(
    folder: str, tmp_path: Path, programs: list[str], remaining: bytes | None
) -> None:
    """Below a pipe nothing else tells: the exit code is that of its last program."""
    attempt = tmp_path / "attempts/000"
    attempt.mkdir(parents=True)
    environment = instrumented({**RANK, "CLUSTERRUN_RUN_DIR": str(tmp_path)}, folder)
    for program in programs:
        command = [sys.executable, "-S", "-c", f"import sitecustomize; {program}"]
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)
    results = {path.name: path.read_bytes() for path in attempt.iterdir()}
    assert results == ({f"{int(RANK['RANK']):05d}.farewell.json": remaining} if remaining else {})


# As setuptools writes it for an editable install of a project whose packages lie in a folder with others.
FINDER = """
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
MAPPING = {mapping!r}
class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            folder = Path(MAPPING[fullname])
            for place in (folder / "__init__.py", folder.with_suffix(".py")):
                if place.exists():
                    return spec_from_file_location(fullname, place)
def install():
    sys.meta_path.append(_EditableFinder)
"""


def test_a_relative_path_out_of_the_copy_leads_to_the_neighbour_of_the_project(
    folder: str, tmp_path: Path
) -> None:
    original, copy, neighbour = tmp_path / "project", tmp_path / "run/copy", tmp_path / "neighbour"
    for place, name in ((original / "src", "own"), (copy / "src", "own"), (neighbour, "other")):
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text("")
    environment = {
        **RANK,
        "CLUSTERRUN_CODE_ORIGINAL": str(original),
        "CLUSTERRUN_CODE_COPY": str(copy),
        "PYTHONPATH": "../src:../../neighbour:../../project/src",
    }
    (copy / "scripts").mkdir()
    code = "import os, own, other; print(own.__file__, other.__file__, os.environ['PYTHONPATH'])"
    out, err = printed([sys.executable, "-c", code], instrumented(environment, folder), str(copy / "scripts"))
    search_path = f"../src:{neighbour}:{copy}/src"
    assert (out, err) == (f"{copy}/src/own.py {neighbour}/other.py {search_path}", "")


@pytest.mark.parametrize("way", ["PYTHONPATH", "pth", "finder of a package", "finder of a module"])
def test_a_rank_imports_the_copy_of_its_code_by_any_path_to_the_original(
    way: str, folder: str, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    for root in (original, copy):
        (root / "src/package").mkdir(parents=True)
        (root / "src/package/__init__.py").write_text("")
        (root / "src/module.py").write_text("")
    (original / "only_there").mkdir()
    (original / "only_there/lost.py").write_text("")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    (packages,) = venv.glob("lib/python3*/site-packages")
    environment = {
        **RANK,
        "CLUSTERRUN_CODE_ORIGINAL": str(original),
        "CLUSTERRUN_CODE_COPY": str(copy),
        "PYTHONPATH": str(original / "only_there"),
    }
    if way == "PYTHONPATH":
        environment["PYTHONPATH"] += f":{original}/src"
    elif way == "pth":
        (packages / "__editable__.project.pth").write_text(f"{original}/src\n")
    else:
        mapping = {name: f"{original}/src/{name}" for name in ("package", "module")}
        (packages / "__editable___project_finder.py").write_text(FINDER.format(mapping=mapping))
        install = "import __editable___project_finder; __editable___project_finder.install()\n"
        (packages / "__editable__.project.pth").write_text(install)
    name = "module" if way == "finder of a module" else "package"
    code = f"import os, {name}, lost; print({name}.__file__, lost.__file__, os.environ['PYTHONPATH'])"
    out, err = printed([str(venv / "bin/python"), "-c", code], instrumented(environment, folder))
    file = copy / "src" / ("module.py" if name == "module" else "package/__init__.py")
    search_path = environment["PYTHONPATH"].replace(f"{original}/src", f"{copy}/src")
    assert (out, err) == (f"{file} {original}/only_there/lost.py {search_path}", "")
