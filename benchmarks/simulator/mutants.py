"""Plant bugs: small patches of the state machines. The simulator must detect each of them."""

from __future__ import annotations

import importlib
import re
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

from .agent_bugs import AGENT_BUGS
from .coordinator_bugs import COORDINATOR_BUGS
from .mutant import Mutant
from .restart_bugs import RESTART_BUGS

PACKAGE = Path(__file__).resolve().parents[2] / "clusterrun"
MACHINES = (
    "agent/lease",
    "agent/ranks",
    "agent/sidecars",
    "agent/agent",
    "coordinator/failures",
    "slurm_text/srun_messages",
    "slurm_text/controller_away",
    "coordinator/membership",
    "coordinator/run_state",
    "coordinator/run_part",
    "coordinator/requeue",
    "coordinator/attempt",
    "coordinator/termination",
    "coordinator/rendezvous",
    "coordinator/failure_rules",
    "coordinator/lost_nodes",
    "coordinator/restart_policy",
    "coordinator/shutdown",
    "coordinator/preflight_gate",
    "coordinator/world_formation",
    "coordinator/lifecycle",
    "coordinator/coordinator",
)
"""In the order in which they import each other."""
COPIES = "copies_of_machines"
"""The package in which the copies import each other while they are made."""


def build(mutant: Mutant) -> tuple[Any, Any]:
    """Return the classes of coordinator and agent with the bug."""
    source = (PACKAGE / f"{mutant.module}.py").read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: the place to patch is not there exactly once")
    sys.modules[COPIES] = types.ModuleType(COPIES)
    try:
        for place in MACHINES:
            text = (PACKAGE / f"{place}.py").read_text()
            if place == mutant.module:
                text = text.replace(mutant.old, mutant.new)
            name = place.rpartition("/")[2]
            module = types.ModuleType(f"{COPIES}.{name}")
            sys.modules[module.__name__] = module
            setattr(sys.modules[COPIES], name, module)
            exec(_compiled(text, f"{COPIES}/{place}.py"), module.__dict__)
        machines = importlib.import_module(f"{COPIES}.coordinator").Coordinator
        return machines, importlib.import_module(f"{COPIES}.agent").Agent
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == COPIES]:
            del sys.modules[name]


@cache
def _compiled(text: str, path: str) -> types.CodeType:
    """Compile a machine. All machines but the patched one are the same in every mutant."""
    return compile(_imports_of(text), path, "exec")


def _imports_of(text: str) -> str:
    """Return the text with every import of a machine redirected to its copy."""
    for place in MACHINES:
        module = f"clusterrun.{place.replace('/', '.')}"
        text = re.sub(
            rf"\bfrom {re.escape(module)} import ", f"from {COPIES}.{place.rpartition('/')[2]} import ", text
        )
    return re.sub(r"(?m)^( *)from clusterrun\.(\w+) import (\w+(?:, \w+)*)$", _one_by_one, text)


def _one_by_one(match: re.Match[str]) -> str:
    """Return an import of several modules as one line each, with the copies as machines."""
    indent, folder, names = match.groups()
    where = {
        name: COPIES if f"{folder}/{name}" in MACHINES else f"clusterrun.{folder}"
        for name in names.split(", ")
    }
    return "\n".join(f"{indent}from {place} import {name}" for name, place in where.items())


MUTANTS = AGENT_BUGS + COORDINATOR_BUGS + RESTART_BUGS
