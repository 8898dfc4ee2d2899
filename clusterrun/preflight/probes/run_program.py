"""Runs another program for a probe and brings back what it said; knows no program and judges nothing."""

from __future__ import annotations

import json

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.proc import seconds_without_processor

_MOST = 8 * 1024 * 1024


@frozen
class ProgramAnswer:
    """What a program said; ``code`` is its exit code, negative for a signal, 127: there is none."""

    code: int
    out: str
    err: str


def answer(*argv: str, seconds: float, cwd: str | None = None) -> ProgramAnswer:
    """Return what ``argv`` prints within ``seconds``, without input and in the C locale.

    A program that waits for a processor for a quarter of its limit gets the limit again, at most five times.
    A program that hangs in the kernel cannot be ended by its limit: the limit of the probe is for that.
    """
    import subprocess  # slow to load, and most probes run no program

    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            ["env", "LC_ALL=C", *argv], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=cwd
        )
    except OSError as error:
        return ProgramAnswer(127, "", str(error))
    waited = 0.0
    for _ in range(1 + int(contract.OVERLOAD_FACTOR)):
        try:
            out, err = process.communicate(timeout=seconds)
            return ProgramAnswer(process.returncode, _text(out), _text(err))
        except subprocess.TimeoutExpired:
            before, waited = waited, seconds_without_processor(process.pid)
        if waited - before < seconds / 4:
            break
    process.kill()
    process.wait()
    return ProgramAnswer(-9, "", f"no answer within {seconds:g} s")


def document(out: str, begins: str = "{") -> object:
    """The first JSON document in what a program printed, which may warn before it; {} where there is none."""
    start = min((place for place in map(out.find, begins) if place >= 0), default=0)
    try:
        return json.JSONDecoder().raw_decode(out[start:])[0]
    except ValueError:
        return {}


def _text(data: bytes) -> str:
    return data[:_MOST].decode("utf-8", "replace")
