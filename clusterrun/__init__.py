"""clusterrun: PyTorch on many nodes with one command; the public names, each loaded when first used."""

from __future__ import annotations

__all__ = [
    "ClusterrunError",
    "Executor",
    "Run",
    "State",
    "check",
    "find",
    "run",
    "statuses",
    "submit",
    "sweep",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from clusterrun.model.contract import VERSION

        return VERSION
    if name not in __all__:
        raise AttributeError(f"module 'clusterrun' has no attribute {name!r}")
    if name == "Executor":
        from clusterrun.executor import ClusterrunExecutor  # submitit comes with it

        return ClusterrunExecutor
    from clusterrun import api  # the client's side: absent from the node-side program

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__, "training"]
