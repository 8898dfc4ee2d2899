"""A kind of fault: its details, how it is applied, how it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusterrun.lab.place import Fault
from clusterrun.lab.site import LabSite


@dataclass(frozen=True)
class FaultType:
    """``apply`` injects it and returns the fault as it is to be recorded; ``heal`` undoes exactly that.

    ``details`` are those that it takes; ``needs_host`` whether one must be named, else it is on
    ``host``; ``alone``: a host has one of it at most; ``lives_in_host``: it ends by itself when that
    host is switched off.
    """

    name: str
    details: frozenset[str]
    apply: Callable[[LabSite, Fault], Fault]
    heal: Callable[[LabSite, Fault], None]
    needs_host: bool = True
    host: str = ""
    alone: bool = False
    lives_in_host: bool = False


def with_details(fault: Fault, **more: str) -> Fault:
    """The fault with details added."""
    return Fault(fault.kind, fault.host, (*fault.details, *more.items()))
