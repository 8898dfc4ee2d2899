"""Runs a command on a node of a running job, with the environment of a rank (``clusterrun exec``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.model.container import PYTHON
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.run_files import read_orders
from clusterrun.runtime.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SHELLS = ("/bin/bash", "/bin/sh")


class CannotExecute(ClusterrunError):
    """The command cannot be started here."""


@frozen
class Model:
    """The rank whose environment and directory the command gets; ``pid`` 0 if none lives here."""

    pid: int
    environment: Mapping[str, str]
    cwd: str


def become(
    paths: RunPaths, node: str, rank: int, command: tuple[str, ...], own: Mapping[str, str]
) -> NoReturn:
    """Turn into ``command`` (none: a shell) in the environment of ``rank`` of the run on ``node`` (-1: any).

    ``own`` is this process's environment. Where no rank lives here (a spare, before the start) the
    command gets the job's own environment instead, and a line says so. Raises ``CannotExecute``.
    """
    orders = read_orders(paths)
    model = _rank_here(orders.run_id, node, rank)
    if model is None:
        if rank >= 0:
            seen = f"rank {rank} does not live on {node}"
            raise CannotExecute(seen, "clusterrun status RUN says which ranks live where")
        say(f"clusterrun: no rank lives on {node}: the command gets the job's environment")
        model = Model(0, {**own, **dict(orders.environment)}, orders.cwd)
    environment = _environment(model, own, beside_slurm=bool(orders.launch))
    if not (orders.container.image and model.pid and _enter_container(model.pid)):
        _enter(model.cwd)
        if orders.container.image:
            command, environment = _another_container(orders, paths, command, environment)
    argv = command or (_shell(environment),)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        seen = f"{argv[0]!r} cannot be started on {node}: {error.strerror}"
        raise CannotExecute(seen, "is it installed there?") from error


def _rank_here(run_id: str, node: str, rank: int) -> Model | None:
    """The wanted rank of the newest attempt, or the lowest one of this node."""
    found = []
    for pid in proc.pids():
        environment = proc.environment(pid)
        owner, _, epoch = environment.get(contract.MARKER_VARIABLE, "").rpartition(".")
        if owner != run_id or not epoch.isdigit() or not environment.get("RANK", "").isdigit():
            continue
        if environment.get(contract.NODE_NAME_VARIABLE, node) != node or not _is_first(pid, environment):
            continue
        if rank in (-1, int(environment["RANK"])):
            found.append((-int(epoch), int(environment["RANK"]), pid))
    try:
        pid = min(found)[2]
        return Model(pid, proc.environment(pid), os.readlink(f"/proc/{pid}/cwd"))
    except (ValueError, OSError):  # none was found, or it has just ended
        return None


def _is_first(pid: int, environment: Mapping[str, str]) -> bool:
    """The rank itself, not a process that it started: those have inherited all that it carries."""
    process = proc.read(pid)
    if process is None or process.state in proc.GONE_STATES:
        return False
    return proc.environment(process.parent).get("RANK") != environment["RANK"]


def _environment(model: Model, own: Mapping[str, str], beside_slurm: bool) -> dict[str, str]:
    """The rank's environment with this terminal.

    Under Slurm the command carries the run's mark, so that it is swept when the run ends; on the
    user's own machine it is the user's to end.
    """
    terminal = {name: own[name] for name in ("TERM", "COLUMNS", "LINES") if name in own}
    environment = {**model.environment, **terminal}
    if model.pid:
        environment[contract.RANK_PID_VARIABLE] = str(model.pid)
    if not beside_slurm:
        environment.pop(contract.MARKER_VARIABLE, None)
    return environment


def _enter_container(pid: int) -> bool:
    """Go where ``pid`` is: its user and mount namespaces, root and folder; False if that is forbidden."""
    try:
        there, here = f"/proc/{pid}/", "/proc/self/"
        names = [one for one in ("ns/user", "ns/mnt") if os.readlink(there + one) != os.readlink(here + one)]
        flags = os.O_RDONLY | os.O_CLOEXEC
        *namespaces, root, folder = (os.open(there + one, flags) for one in (*names, "root", "cwd"))
        libc = ctypes.CDLL(None, use_errno=True)
        if any(libc.setns(namespace, 0) for namespace in namespaces):
            return False
        os.fchdir(root)
        os.chroot(".")
        os.fchdir(folder)
    except OSError:
        return False
    return True


def _another_container(
    orders: Orders, paths: RunPaths, command: tuple[str, ...], environment: dict[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command in a container of its own, with the image and the mounts of the ranks.

    Some runtimes (Apptainer with a setuid program) let nobody into one that runs. Where only srun starts
    containers there is none.
    """
    container = orders.container
    if not container.is_prefix:
        say("clusterrun: the container cannot be entered: the command runs outside of it")
        return command, environment
    from clusterrun import container_runtimes

    container_runtimes.make_places(container)
    said = [name for name, _ in orders.environment]
    python = orders.interpreter.path or PYTHON
    within = (python, "-I", "-S", paths.agent, "within", orders.cwd, "--")
    words = (*within, *(command or SHELLS[-1:]))
    return container_runtimes.in_container(container, words, environment, said)


def _shell(environment: Mapping[str, str]) -> str:
    wanted = (environment.get("SHELL", ""), *SHELLS)
    return next((shell for shell in wanted if os.access(shell, os.X_OK)), SHELLS[-1])


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        say(f"clusterrun: {folder} cannot be entered ({error.strerror}): staying in {os.getcwd()}")
