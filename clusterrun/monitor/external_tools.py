"""Query py-spy and nvidia-smi for the observer, within a time limit."""

from __future__ import annotations

import os
from collections.abc import Sequence

from clusterrun.diagnosis.stacks import of_py_spy
from clusterrun.model.usage import UNKNOWN, GpuUse

ANSWER_SECONDS = 5.0
NAME = "py-spy"
GPU_PROGRAM = "nvidia-smi"
GPU_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,uuid"
MEBIBYTE = 1 << 20


def spy(pid: int, path: str) -> tuple[str, ...]:
    """Return the main thread's stack of ``pid``; () if py-spy is missing, not permitted or finds no Python.

    py-spy is searched next to the rank's interpreter, then on ``path``. It is the last resort, because it
    stops the rank for some milliseconds.
    """
    program = spy_program(pid, path)
    if not program:
        return ()
    return of_py_spy(_run([program, "dump", "--json", "--pid", str(pid)], ANSWER_SECONDS)[0])


def spy_program(pid: int, path: str) -> str:
    """Return py-spy: beside the interpreter of ``pid``, else on ``path``; '' if there is none."""
    try:
        beside = os.path.dirname(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        beside = ""
    return find_program(NAME, [beside, *path.split(os.pathsep)])


def spy_dump(program: str, pid: int, options: Sequence[str], seconds: float) -> tuple[str, str]:
    """Return py-spy's JSON of the stacks of ``pid``, or '' and the reason why there is none.

    ``--nonblocking`` does not stop the process. ``--native`` does, for as long as py-spy reads.
    """
    out, problem = _run([program, "dump", "--json", *options, "--pid", str(pid)], seconds)
    return ("" if problem else out), problem.removeprefix("Error: ")


def nvidia_smi(path: str) -> tuple[GpuUse, ...]:
    """Return the use of every GPU; () if nvidia-smi is missing or its answer cannot be read."""
    program = find_program(GPU_PROGRAM, path.split(os.pathsep))
    if not program:
        return ()
    argv = [program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
    rows = _run(argv, ANSWER_SECONDS)[0].splitlines()
    return tuple(gpu for gpu in map(gpu_of_row, rows) if gpu)


def gpu_of_row(row: str) -> GpuUse | None:
    """Parse one line of nvidia-smi's table. A value that a GPU does not support is ``[N/A]``."""
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) != len(GPU_FIELDS.split(",")) or not cells[0].isdecimal():
        return None
    busy, used, total, watts, celsius = map(_number, cells[1:-1])
    held, total_memory = (mebibytes * MEBIBYTE if mebibytes >= 0 else UNKNOWN for mebibytes in (used, total))
    return GpuUse(int(cells[0]), busy, held, total_memory, watts, celsius, cells[-1])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return UNKNOWN


def _run(argv: list[str], seconds: float) -> tuple[str, str]:
    """Return the output of a program, and why it failed; '' if it did not."""
    import subprocess

    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except OSError as error:
        return "", f"{argv[0]} cannot be started: {error.strerror}"
    try:
        out, err = (text.decode("utf-8", "replace") for text in process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a driver or the process that it reads may hold it
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        return "", f"{os.path.basename(argv[0])} gave no answer within {seconds:.0f} s"
    lines = err.strip().splitlines() or [f"exit code {process.returncode}"]
    return out, lines[0] if process.returncode else ""


def find_program(name: str, folders: list[str]) -> str:
    paths = (os.path.join(folder, name) for folder in folders if os.path.isabs(folder))
    return next((path for path in paths if os.access(path, os.X_OK)), "")
