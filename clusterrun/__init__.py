"""clusterrun: PyTorch on many nodes with one command; the public names, each loaded when first used."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.api import Run as Run
    from clusterrun.api import check as check
    from clusterrun.api import find as find
    from clusterrun.api import submit as submit

__all__ = ["Run", "check", "find", "submit"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clusterrun' has no attribute {name!r}")
    from clusterrun import api  # the client's side: absent from the node-side program

    return getattr(api, name)
