"""A kind of fault: its details, how it is applied, how it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusterrun.lab.place import Fault
from clusterrun.lab.site import LabSite


@dataclass(frozen=True)
class FaultType:
    """A kind of fault: how it is injected and healed."""

    name: str
    details: frozenset[str]  # the details that it accepts
    apply: Callable[[LabSite, Fault], Fault]  # injects the fault and returns its record
    heal: Callable[[LabSite, Fault], None]  # undoes exactly the recorded fault
    needs_host: bool = True  # the user must name a host; otherwise the fault is on ``host``
    host: str = ""
    alone: bool = False  # a host has at most one fault of this kind
    lives_in_host: bool = False  # the fault ends when its host is switched off
