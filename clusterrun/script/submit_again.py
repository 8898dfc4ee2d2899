"""Write the command line that submits a recorded run again: every option that differs from its default."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from clusterrun.model.frozen import replace
from clusterrun.model.option_table import DURATIONS, EVERY, Option
from clusterrun.model.run_words import default_name
from clusterrun.model.spec import UNSAID, Cluster, JobSpec

UNITS = ((3600, "h"), (60, "m"), (1, "s"))


def line(spec: JobSpec, verb: str = "submit", with_values: bool = False) -> str:
    """Return ``clusterrun submit …``, quoted for a shell. ``with_values``: with the values of ``--env``."""
    arguments = ["clusterrun", "check" if spec.alone else verb]
    plain = JobSpec(spec.command, spec.cwd)
    for option in EVERY:
        if not _by_itself(option.name, spec):
            arguments += _words(option, spec, plain, with_values)
    # The jobs that must succeed first. Of those that have succeeded, submit leaves the option out.
    arguments += [word for job_id in spec.after for word in ("--after", job_id)]
    if spec.alone:
        arguments += ["--level", spec.preflight] if spec.preflight == "quick" else []
        arguments += ["--all-pairs"] if spec.all_pairs else []
        arguments += ["--table"] if spec.table else []
        arguments += ["--burn", f"{spec.burn}s"] if spec.burn else []
    else:
        arguments += spec.command
    directory_change = "" if spec.cwd == os.getcwd() else f"cd {_quoted(spec.cwd)} && "
    return directory_change + " ".join(map(_quoted, arguments))


def _quoted(word: str) -> str:
    """Return the word quoted for bash, in characters that every terminal shows."""
    if word.replace("\n", "").isprintable():
        return shlex.quote(word)
    escaped = [
        character
        if character.isprintable() and character not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
        for character in word
    ]
    return f"$'{''.join(escaped)}'"


def _by_itself(name: str, spec: JobSpec) -> bool:
    """Return whether the user did not type the option, or whether omitting it has the same effect."""
    if name == "max-restarts":
        return spec.max_restarts in (UNSAID, replace(spec, max_restarts=UNSAID).restarts)
    if name == "requeue-by" and spec.requeue:
        return spec.requeue_by == ("chain" if spec.fits_holes else "requeue")
    if name == "notice" and spec.goes_on and (limit := spec.time_min or spec.time):
        # A notice is at most half of the time limit, in whole minutes.
        return spec.notice == min(JobSpec.notice, -(-limit // 60) * 30)
    return {
        "name": spec.name == default_name(spec.command),
        "python": spec.python == sys.executable,
        "cluster": spec.cluster is not Cluster.LOCAL,
        "preflight": spec.alone or spec.level is replace(spec, preflight="").level,
        "follow": True,
        "wait": True,
    }.get(name, False)


def _words(option: Option, spec: JobSpec, plain: JobSpec, with_values: bool) -> Iterator[str]:
    option_name = f"--{option.name}"
    own_fields = {
        "env": [f"{name}={value}" if with_values else name for name, value in spec.environment],
        "gpus": [spec.gpus_asked] if spec.gpus else [],
        "nodes": [spec.nodes_asked] if spec.nodes != 1 else [],
    }
    if option.name in own_fields:
        for text in own_fields[option.name]:
            yield from (option_name, text)
        return
    value: Any = getattr(spec, option.field)
    if value == getattr(plain, option.field):
        return
    if option.kind == "switch":
        yield option_name if value else f"--no-{option.name}"
    elif option.kind == "list":
        for element in value:
            yield from (option_name, element if isinstance(element, str) else f"{element[0]}={element[1]:g}")
    elif option.kind in DURATIONS:
        size, unit = next(((size, unit) for size, unit in UNITS if value % size == 0))
        yield from (option_name, f"{value // size}{unit}" if value else "off")
    else:
        yield from (option_name, str(getattr(value, "value", value)))
