"""Runs another program for a probe and brings back what it said; knows no program and judges nothing."""

from __future__ import annotations

import json

from clusterrun.model.frozen import frozen

_MOST = 8 * 1024 * 1024


@frozen
class ProgramAnswer:
    """What a program said; ``code`` is its exit code, negative for a signal, 127: there is none."""

    code: int
    out: str
    err: str


def answer(*argv: str, seconds: float, cwd: str | None = None) -> ProgramAnswer:
    """Return what ``argv`` prints within ``seconds``, without input and in the C locale.

    A program that hangs in the kernel cannot be ended by its limit: the probe's own limit is for that.
    """
    import subprocess  # slow to load, and most probes run no program

    try:
        done = subprocess.run(
            ["env", "LC_ALL=C", *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        return ProgramAnswer(-9, "", f"no answer within {seconds:g} s")
    except OSError as error:
        return ProgramAnswer(127, "", str(error))
    return ProgramAnswer(done.returncode, _text(done.stdout), _text(done.stderr))


def document(out: str, begins: str = "{") -> object:
    """The first JSON document in what a program printed, which may warn before it; {} where there is none."""
    start = min((place for place in map(out.find, begins) if place >= 0), default=0)
    try:
        return json.JSONDecoder().raw_decode(out[start:])[0]
    except ValueError:
        return {}


def _text(data: bytes) -> str:
    return data[:_MOST].decode("utf-8", "replace")
