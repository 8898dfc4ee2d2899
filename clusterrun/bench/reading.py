"""Read the pace of a training script from the output of rank 0."""

from __future__ import annotations

import math
import re

from clusterrun.model.frozen import frozen

_RATE = re.compile(
    r"""(?<![A-Za-z_])(?:train_)?([A-Za-z]+)_per_second["']?\s*[=:]\s*["']?([-+0-9.eEinfa]+)"""
)
_BY_UNIT = re.compile(r"([0-9][0-9.]*(?:[eE][-+]?[0-9]+)?) ?(steps|samples|images|tokens)/s(?:ec(?:ond)?)?\b")
_PAIR = re.compile(r'\b(steps|parameters|ran_as)"?\s*[=:]\s*"?([\w.+-]+)')


@frozen
class SpeedLine:
    """One line of a script about its pace, over all ranks."""

    steps_per_second: float
    samples_per_second: float = 0.0  # 0: not reported
    steps: int = 0  # number of timed steps; 0: not reported
    parameters: int = 0  # 0: not reported
    ran_as: str = ""  # strategy that the script used


def report(text: str) -> SpeedLine | None:
    """Return the last line of ``text`` that reports a pace; None if there is none.

    A pace is ``steps_per_second=12.3`` or ``12.3 steps/s``. ``:``, JSON and the prefix ``train_`` are read
    too, and samples, images or tokens per second beside it. The number must be above 0.
    """
    for line in reversed(text.splitlines()):
        pairs = [*((name, number) for number, name in _BY_UNIT.findall(line)), *_RATE.findall(line)]
        rates = {name: number for name, text in pairs if (number := _rate(text))}
        if "steps" in rates:
            values = dict(_PAIR.findall(line))
            others = [rates[name] for name in rates if name != "steps"]
            return SpeedLine(
                rates["steps"],
                rates.get("samples", others[0] if others else 0.0),
                _whole(values.get("steps", "")),
                _whole(values.get("parameters", "")),
                values.get("ran_as", ""),
            )
    return None


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def notices(text: str) -> tuple[str, ...]:
    """Return the texts of the script's lines that begin with ``notice:``."""
    return tuple(
        dict.fromkeys(
            line.removeprefix("notice:").strip() for line in text.splitlines() if line.startswith("notice:")
        )
    )
