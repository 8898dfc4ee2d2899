"""Parse and format durations and times as users and Slurm write them. Reads no clock."""

from __future__ import annotations

import re
import time

from clusterrun.model.errors import BadInput

# Ten years. A longer duration is a typing error.
LONGEST = 10 * 366 * 86400

_PEOPLE = r"(?ai)(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?"
_SLURM = r"(?a)(?:(?P<days>\d+)-)?(?P<fields>\d+(?::\d+){0,2})"
# Zero is no limit for Slurm.
_ENDLESS = re.compile(r"(?i)unlimited|infinite|[0:-]*0[0:-]*")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse(text: str, bare: int = 60) -> int:
    """Return the seconds of ``text``.

    Forms: ``90m``, ``2h``, ``1d12h``, ``1w``, or those of Slurm (``D-HH[:MM[:SS]]``, …).

    A bare number counts units of ``bare`` seconds, by default minutes as in Slurm. Raises ``BadInput``,
    also for an empty text and for more than ten years.
    """
    stripped = text.strip()
    number = stripped.isascii() and stripped.isdecimal()
    seconds = int(stripped) * bare if number else _people(stripped) or _slurm(stripped)
    if 0 < seconds <= LONGEST:
        return seconds
    remedy = "write 90s, 90m, 2h, 1d12h, 1w, or as Slurm does: HH:MM:SS, DAYS-HH:MM:SS"
    if _ENDLESS.fullmatch(stripped):
        remedy = (
            "leave the option out (its default holds); a job without a time limit: --sbatch time=UNLIMITED"
        )
    raise BadInput(f"{text!r} is not a duration", remedy)


def spoken(seconds: float) -> str:
    """Return ``seconds`` in the two largest units: ``1 d 12 h``; ``1 min 30 s`` for 90; ``0 s`` below 0."""
    rest = max(0, round(seconds))
    parts = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def moment(at: float) -> str:
    """Return ``at`` (seconds since the epoch) in this machine's zone, to the minute: ``2026-11-20 09:28``."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def clock_time(at: float, now: float) -> str:
    """Return ``at`` in this machine's zone, without the date if it is on the same day as ``now``."""
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def slurm_form(seconds: int) -> str:
    """Return ``seconds`` in an unambiguous form of Slurm: ``HH:MM:SS`` or ``D-HH:MM:SS``."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02d}:{minute:02d}:{second:02d}" if days else f"{hour:02d}:{minute:02d}:{second:02d}"


def _people(text: str) -> int:
    match = re.fullmatch(_PEOPLE, text)
    if not match:
        return 0
    sizes = (7 * 86400, *(size for size, _ in _UNITS))
    return sum(int(count or 0) * size for count, size in zip(match.groups(), sizes))


def _slurm(text: str) -> int:
    match = re.fullmatch(_SLURM, text)
    if not match:
        return 0
    fields = [int(field) for field in match.group("fields").split(":")]
    if match.group("days") is not None:
        hours, minutes, seconds = [*fields, 0, 0][:3]
        return int(match.group("days")) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(fields) == 3:
        return fields[0] * 3600 + fields[1] * 60 + fields[2]
    return fields[0] * 60 + (fields[1] if len(fields) == 2 else 0)
