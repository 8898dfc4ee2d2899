"""The container runtimes as a table: each has words in front of a command, or options of srun.

A prefix runtime starts one process per node, which forks the ranks: ranks in containers of their own would
have several user namespaces, and with some runtimes several ``/dev/shm``, where NCCL silently takes the slow
path. The ranks' variables travel in the environment under names that no image sets. So they override the
image's variables, and no command line shows them.
"""

from __future__ import annotations

import os

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterrun.model.container import Container, Mount

# Before the name of a variable on its way into a container.
FORWARDED_PREFIX = "CLUSTERRUN_CARRIED_"
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that describe the host's files. The image sets its own, unless the user sets them by --env.
_OF_THE_HOST = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CONDA_DEFAULT_ENV", "CONDA_EXE", "CONDA_PYTHON_EXE", "CONDA_SHLVL", "CUDA_HOME", "CUDA_PATH"),
        *("SHELL", "TMPDIR", "BASH_ENV", "ENV"),
    )
)
_SHARED_BY_CHARLIECLOUD = ("/dev", "/proc", "/sys", "/tmp")


@frozen
class NodeDevices:
    """The devices of a node, and the facts of user and image, that decide the options of a runtime."""

    nvidia: bool = False
    amd: bool = False
    infiniband: bool = False
    root: bool = False  # the run belongs to root
    image_environment: bool = False  # the image is a folder of Charliecloud with the image's variables
    image_is_folder: bool = False


@frozen
class ContainerRuntime:
    """One runtime."""

    programs: tuple[str, ...]  # its programs, of which any may be installed; () if it is an option of srun
    forms: tuple[str, ...]  # the kinds of images that it starts
    # Returns the words before a command, or the options of srun as ``KEY=VALUE``.
    arguments: Callable[[Container, NodeDevices], tuple[str, ...]]
    refused: str = ":"  # characters that a path of a mount must not have
    read_only: bool = True
    mounts: bool = True
    host_path: bool = False


def apptainer(container: Container, node: NodeDevices) -> tuple[str, ...]:
    flags = [*(["--nv"] if node.nvidia else []), *(["--rocm"] if node.amd else [])]
    binds = [word for mount in container.mounts for word in ("--bind", _bind(mount))]
    return ("exec", *flags, *binds, "--pwd", "/", container.image)


def charliecloud(container: Container, node: NodeDevices) -> tuple[str, ...]:
    binds = [f"--bind={mount.source}:{mount.target}" for mount in container.mounts]
    return (*(["--set-env"] if node.image_environment else []), *binds, container.image, "--")


def podman(container: Container, node: NodeDevices) -> tuple[str, ...]:
    flags = ["--rm", "--interactive", "--network=host", "--ipc=host", "--pid=host", "--ulimit=host"]
    flags += ["--security-opt=label=disable", "--log-driver=none", "--env-host"]
    flags += ["--entrypoint=", "--workdir=/"]
    flags += [] if node.root else ["--userns=keep-id", "--group-add=keep-groups"]
    flags += ["--device=nvidia.com/gpu=all"] if node.nvidia else []
    flags += ["--device=/dev/kfd", "--device=/dev/dri"] if node.amd else []
    flags += ["--device=/dev/infiniband"] if node.infiniband else []
    binds = [f"--volume={_bind(mount)}" for mount in container.mounts]
    return ("run", *flags, *binds, *(["--rootfs"] if node.image_is_folder else []), container.image)


def pyxis(container: Container, node: NodeDevices) -> tuple[str, ...]:
    binds = ",".join(map(_bind, container.mounts))
    return (f"container-image={container.image}", f"container-mounts={binds}")


def _bind(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


# In the order of the default choice. ``slurm`` is used only on request.
TABLE = {
    "pyxis": ContainerRuntime((), ("squashfs", "name"), pyxis, ":,"),
    "apptainer": ContainerRuntime(
        ("apptainer", "singularity"), ("sif", "squashfs", "folder", "url"), apptainer, ":,\\", host_path=True
    ),
    "charliecloud": ContainerRuntime(("ch-run",), ("folder", "squashfs"), charliecloud, read_only=False),
    "podman": ContainerRuntime(("podman-hpc", "podman"), ("name", "folder"), podman),
    "slurm": ContainerRuntime((), (), lambda container, _: (f"container={container.image}",), mounts=False),
}


def form(image: str, is_folder: bool) -> str:
    if "://" in image:
        return "url"
    if image.endswith(".sif"):
        return "sif"
    if image.endswith((".sqsh", ".sqfs", ".squashfs")):
        return "squashfs"
    return "folder" if is_folder or image.startswith("/") else "name"


def srun_options(container: Container) -> tuple[tuple[str, str], ...]:
    """Return the options of srun; none if the runtime is a prefix, or there is no container."""
    if not container.image or container.is_prefix:
        return ()
    pairs = (word.partition("=") for word in TABLE[container.runtime].arguments(container, NodeDevices()))
    return tuple((key, value) for key, _, value in pairs if value)


# --- variables ---


def environment_inside(environment: Mapping[str, str], set_by_user: Iterable[str]) -> dict[str, str]:
    """Return ``environment`` without variables of the host that are not in ``set_by_user``."""
    user_names = frozenset(set_by_user)
    return {
        name: value for name, value in environment.items() if name in user_names or name not in _OF_THE_HOST
    }


def forwarded_environment(
    runtime: str, environment: Mapping[str, str], set_by_user: Iterable[str]
) -> dict[str, str]:
    """Return the environment of the runtime's program. It holds that of the inner command twice."""
    inside = environment_inside(environment, set_by_user)
    path = environment.get("PATH", STANDARD_PATH) if TABLE[runtime].host_path else STANDARD_PATH
    doubles = {FORWARDED_PREFIX + name: value for name, value in inside.items()}
    return {"USER": str(os.getuid()), **inside, **doubles, "PATH": path}  # ch-run ends where USER is absent


def restored_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an inner command, from that of the container's first process."""
    variables = {
        name[len(FORWARDED_PREFIX) :]: value
        for name, value in environment.items()
        if name.startswith(FORWARDED_PREFIX)
    }
    return merged_environment(environment, variables)


def merged_environment(image: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the image's environment overlaid by ours. Our PYTHONPATH comes before the image's."""
    image_variables = {name: value for name, value in image.items() if not name.startswith(FORWARDED_PREFIX)}
    places = [side.get("PYTHONPATH", "").split(os.pathsep) for side in (ours, image_variables)]
    folders = dict.fromkeys(folder for side in places for folder in side if folder)
    return {**image_variables, **ours, **({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})}


# --- on a node ---


def in_container(
    container: Container, argv: Sequence[str], environment: Mapping[str, str], set_by_user: Iterable[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return ``argv`` and its environment for a container of this node.

    They do not change if srun starts the container.
    """
    if not container.is_prefix:
        return tuple(argv), dict(environment)
    runtime = TABLE[container.runtime]
    program = program_of(container.runtime, environment.get("PATH", os.defpath)) or runtime.programs[0]
    hidden = environment.get("CUDA_VISIBLE_DEVICES") == ""
    arguments = runtime.arguments(container, devices_here(container, hidden))
    return (program, *arguments, *argv), forwarded_environment(container.runtime, environment, set_by_user)


def program_of(runtime: str, path: str) -> str:
    """Return the path of the program of a prefix runtime; '' if there is none."""
    places = (os.path.join(folder, name) for name in TABLE[runtime].programs for folder in path.split(":"))
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), "")


def devices_here(container: Container, hidden: bool) -> NodeDevices:
    """Return the devices of this node. ``hidden``: ranks may not see its GPUs."""
    return NodeDevices(
        nvidia=not hidden and os.path.exists("/dev/nvidiactl"),
        amd=not hidden and os.path.exists("/dev/kfd"),
        infiniband=os.path.exists("/dev/infiniband"),
        root=os.getuid() == 0,
        image_environment=os.path.isfile(os.path.join(container.image, "ch", "environment")),
        image_is_folder=os.path.isdir(container.image),
    )


def make_places(container: Container) -> None:
    """Make the mount points in an image folder of Charliecloud, which does not make them itself."""
    if container.runtime != "charliecloud" or not os.path.isdir(container.image):
        return
    for mount in container.mounts:
        if any(mount.target == top or mount.target.startswith(top + "/") for top in _SHARED_BY_CHARLIECLOUD):
            continue
        try:
            # Part by part: a link in the image may lead to a folder of the host, where nothing may be made.
            place = container.image
            parts = [part for part in mount.target.split("/") if part]
            for number, part in enumerate(parts):
                place = os.path.join(place, part)
                if os.path.lexists(place):
                    if os.path.islink(place):
                        break
                    continue
                if number == len(parts) - 1 and not os.path.isdir(mount.source):
                    with open(place, "a"):
                        break
                try:
                    os.mkdir(place)
                except FileExistsError:  # another node was faster
                    pass
        except OSError as error:
            raise ClusterrunError(
                f"{mount.target} cannot be made in the image {container.image}: {error.strerror}",
                f"make it where the image can be written: mkdir -p {container.image}{mount.target}",
            ) from error
