"""Run another program for a probe and return its output."""

from __future__ import annotations

import json

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.proc import seconds_without_processor
from clusterrun.runtime.overload import explains_wait

_MOST = 8 * 1024 * 1024


@frozen
class ProgramAnswer:
    """The output of a program."""

    code: int  # exit code; negative for a signal; 127 if there is no such program
    out: str
    err: str


def answer(*argv: str, seconds: float, cwd: str | None = None) -> ProgramAnswer:
    """Run ``argv`` for at most ``seconds``, without input and in the C locale.

    A program that waits for a processor gets the limit again, at most ``OVERLOAD_FACTOR`` times.
    The limit cannot end a program that hangs in the kernel. The limit of the probe covers that case.
    """
    import subprocess  # Slow to load, and most probes run no program.

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
        if not explains_wait(waited - before, seconds):
            break
    process.kill()
    process.wait()
    return ProgramAnswer(-9, "", f"no answer within {seconds:g} s")


def document(out: str, begins: str = "{") -> object:
    """Return the first JSON document in the output, which may begin with warnings, or {} if there is none."""
    start = min((place for place in map(out.find, begins) if place >= 0), default=0)
    try:
        return json.JSONDecoder().raw_decode(out[start:])[0]
    except (ValueError, RecursionError):
        return {}


def _text(data: bytes) -> str:
    return data[:_MOST].decode("utf-8", "replace")
