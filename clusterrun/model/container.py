"""Describe the container of the ranks: image, runtime and mounts. Starts nothing."""

from __future__ import annotations

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

RUNTIMES = ("pyxis", "apptainer", "charliecloud", "podman", "slurm")
# Runtimes that are a prefix of a command. The others are options of srun, and the agent runs inside.
PREFIXES = ("apptainer", "charliecloud", "podman")
# The image's Python if the user names none.
PYTHON = "python3"


@frozen
class Mount:
    """A folder or file of the host, and its path in the container. Both paths are absolute."""

    source: str
    target: str
    read_only: bool = False


@frozen
class Container:
    """The container of the ranks. ``mounts`` includes the mounts of clusterrun."""

    image: str = ""  # empty if ranks run on the host itself
    runtime: str = ""
    mounts: tuple[Mount, ...] = ()

    @property
    def is_prefix(self) -> bool:
        """Return whether the agent runs outside and starts the container."""
        return self.runtime in PREFIXES


def mount(text: str) -> Mount:
    """Return the mount of ``SRC[:DST[:ro]]``. Raises ``BadInput``."""
    source, *others = text.split(":")
    target = others[0] if others else source
    absolute = source.startswith("/") and target.startswith("/")
    if not absolute or ".." in target.split("/") or others[1:] not in ([], ["ro"], ["rw"]) or "\0" in text:
        raise BadInput(f"--mount {text!r} is not a mount", "write absolute paths: --mount /data:/data:ro")
    return Mount(source, target, others[1:] == ["ro"])
