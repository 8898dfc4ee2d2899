"""The container that ranks run in, as a value: image, runtime, what is mounted; starts nothing."""

from __future__ import annotations

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

RUNTIMES = ("pyxis", "apptainer", "charliecloud", "podman", "slurm")
PREFIXES = ("apptainer", "charliecloud", "podman")
"""Programs that stand before a command; the others are options of srun, and the agent runs inside."""
PYTHON = "python3"
"""The image's Python where nobody names one."""


@frozen
class Mount:
    """A folder or file of the host, at ``target`` in the container; both are absolute."""

    source: str
    target: str
    read_only: bool = False


@frozen
class Container:
    """Empty ``image``: ranks run on the host itself. ``mounts`` holds those that clusterrun adds too."""

    image: str = ""
    runtime: str = ""
    mounts: tuple[Mount, ...] = ()

    @property
    def is_prefix(self) -> bool:
        """Whether the agent stays outside, and starts the container."""
        return self.runtime in PREFIXES


def mount(said: str) -> Mount:
    """The mount that ``SRC[:DST[:ro]]`` means. Raises ``BadInput``."""
    source, *others = said.split(":")
    target = others[0] if others else source
    absolute = source.startswith("/") and target.startswith("/")
    if not absolute or ".." in target.split("/") or others[1:] not in ([], ["ro"], ["rw"]) or "\0" in said:
        raise BadInput(f"--mount {said!r} is not a mount", "write absolute paths: --mount /data:/data:ro")
    return Mount(source, target, others[1:] == ["ro"])
