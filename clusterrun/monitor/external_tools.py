"""Queries py-spy, nvidia-smi and NCCL's RAS service for the observer, within a limit; judges nothing."""

from __future__ import annotations

import os
import time

from clusterrun.diagnosis.stacks import of_py_spy
from clusterrun.model.usage import UNKNOWN, GpuUse

ANSWER_SECONDS = 5.0
NAME = "py-spy"
GPU_PROGRAM = "nvidia-smi"
GPU_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,uuid"
RAS_VARIABLE = "NCCL_RAS_ADDR"
RAS_ADDRESS = "localhost:28028"
RAS_QUESTIONS = b"CLIENT PROTOCOL 2\nTIMEOUT 3\nVERBOSE STATUS\n"
"""What NCCL's own client says (src/ras/client.cc), which its wheels lack; its peers have 3 s."""
_RAS_GREETING = b"SERVER PROTOCOL "
# Before this version a request may crash ranks (NVIDIA/nccl#1669 in 2.26.2, #1718 in 2.26.5) or report the
# wrong ranks as missing (#1762 in 2.27.3).
RAS_SINCE = (2, 29, 2)
RAS_SECTIONS = ("Communicators", "Errors", "Warnings")
MOST_LINES, MOST_CHARACTERS, MOST_BYTES = 30, 200, 1 << 20
MEBIBYTE = 1 << 20


def spy(pid: int, path: str) -> tuple[str, ...]:
    """The main thread's stack of ``pid``; () where py-spy is missing, may not look, or finds no Python.

    It is looked for beside the rank's interpreter, then on ``path``. It stops the rank for some
    milliseconds, which is why it is not what is tried first.
    """
    try:
        beside = os.path.dirname(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ()
    program = _found(NAME, [beside, *path.split(os.pathsep)])
    return of_py_spy(_said([program, "dump", "--json", "--pid", str(pid)])) if program else ()


def nvidia_smi(path: str) -> tuple[GpuUse, ...]:
    """Every GPU now; () where there is no such program, or no answer that can be read."""
    program = _found(GPU_PROGRAM, path.split(os.pathsep))
    if not program:
        return ()
    rows = _said([program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]).splitlines()
    return tuple(gpu for gpu in map(gpu_of_row, rows) if gpu)


def nccl_ras(address: str = RAS_ADDRESS) -> tuple[str, ...]:
    """Return what NCCL's service on this node reports of communicators, errors and warnings; () without one.

    The first line is NCCL's version. The sections that describe the job are left out.
    """
    import socket  # only where ranks use NCCL

    host, _, port = address.rpartition(":")
    until = time.monotonic() + ANSWER_SECONDS
    said = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as peer:
            peer.sendall(RAS_QUESTIONS)
            while len(said) < MOST_BYTES and time.monotonic() < until:
                peer.settimeout(max(0.01, until - time.monotonic()))
                data = peer.recv(1 << 16)
                if not data:
                    break
                said += data
    except (OSError, ValueError, OverflowError):
        pass  # nobody there, or somebody else: what came by then is looked at
    if not said.startswith(_RAS_GREETING):
        return ()
    text = said.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()[2:] if line.strip()]  # the third answer
    report = lines[:1]
    is_wanted = False
    for line, next_line in zip(lines, [*lines[1:], ""]):
        if set(line) == {"="}:
            continue
        if set(next_line) == {"="}:
            is_wanted = line.startswith(RAS_SECTIONS)
        elif is_wanted:
            report.append(line[:MOST_CHARACTERS])
    return tuple(report[:MOST_LINES])


def gpu_of_row(row: str) -> GpuUse | None:
    """One line of nvidia-smi's table; what a GPU does not support reads ``[N/A]``."""
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) != len(GPU_FIELDS.split(",")) or not cells[0].isdecimal():
        return None
    busy, used, total, watts, celsius = map(_number, cells[1:-1])
    held, whole = (one * MEBIBYTE if one >= 0 else UNKNOWN for one in (used, total))
    return GpuUse(int(cells[0]), busy, held, whole, watts, celsius, cells[-1])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return UNKNOWN


def _said(command: list[str]) -> str:
    """What ``command`` printed; empty if it could not be run, or not in time."""
    import subprocess

    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    try:
        return process.communicate(timeout=ANSWER_SECONDS)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a driver may hold it
        if process.stdout:
            process.stdout.close()
        return ""


def _found(name: str, folders: list[str]) -> str:
    paths = (os.path.join(folder, name) for folder in folders if os.path.isabs(folder))
    return next((one for one in paths if os.access(one, os.X_OK)), "")
