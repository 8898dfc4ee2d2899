"""Planted bugs: small patches of the machines' source, each of which the simulator must notice."""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any

from .agent_bugs import AGENT_BUGS
from .coordinator_bugs import COORDINATOR_BUGS
from .mutant import Mutant
from .restart_bugs import RESTART_BUGS

AGENT = Path(__file__).resolve().parents[3] / "clusterrun" / "agent"
MACHINES = (
    "lease",
    "port",
    "ranks",
    "company",
    "agent",
    "verdict",
    "tally",
    "launch_words",
    "controller_away",
    "lineage",
    "roster",
    "ledger",
    "judge",
    "relay",
    "handover",
    "parting",
    "closing",
    "attempt",
    "missing",
    "gathering",
    "fitness",
    "examining",
    "casualties",
    "selection",
    "watching",
    "muster",
    "sequel",
    "herald",
    "course",
    "coordinator",
)
"""In the order in which they import each other."""


def build(mutant: Mutant) -> tuple[Any, Any]:
    """The classes of coordinator and agent with the bug in them."""
    source = (AGENT / f"{mutant.module}.py").read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: the place to patch is not there exactly once")
    package = "mutant_" + re.sub(r"\W", "_", mutant.name)
    sys.modules[package] = types.ModuleType(package)
    try:
        for name in MACHINES:
            text = (AGENT / f"{name}.py").read_text()
            if name == mutant.module:
                text = text.replace(mutant.old, mutant.new)
            text = re.sub(rf"clusterrun\.agent\.({'|'.join(MACHINES)})\b", rf"{package}.\1", text)
            text = re.sub(r"\nfrom clusterrun\.agent import ", f"\nfrom {package} import ", text)
            module = types.ModuleType(f"{package}.{name}")
            sys.modules[module.__name__] = module
            setattr(sys.modules[package], name, module)
            exec(compile(text, f"{package}/{name}.py", "exec"), module.__dict__)
        machines = importlib.import_module(f"{package}.coordinator").Coordinator
        return machines, importlib.import_module(f"{package}.agent").Agent
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]


MUTANTS = AGENT_BUGS + COORDINATOR_BUGS + RESTART_BUGS
