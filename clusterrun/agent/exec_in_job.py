"""Run a command on a node of a running job, with the environment of a rank (``clusterrun exec``)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.model.container import PYTHON
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.run_files import read_orders
from clusterrun.runtime.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SHELLS = ("/bin/bash", "/bin/sh")


class CannotExecute(ClusterrunError):
    """The rank whose environment the command needs is not on this node."""


@frozen
class Model:
    """The rank whose environment and directory the command gets."""

    pid: int  # 0 if no rank lives on this node
    environment: Mapping[str, str]
    cwd: str


def become(
    paths: RunPaths, node: str, rank: int, command: tuple[str, ...], own: Mapping[str, str]
) -> NoReturn:
    """Replace this process by ``command`` in the environment of ``rank`` (-1: any) of the run on ``node``.

    An empty command means a shell. ``own`` is this process's environment. If no rank lives on this node (a
    spare, or before the start), the command gets the job's environment, and a line reports that. Exit as a
    shell does if the command cannot be started. Raise ``CannotExecute`` if ``rank`` is not on this node.
    """
    orders = read_orders(paths)
    candidates = []
    for pid in proc.pids():
        variables = proc.environment(pid)
        owner, _, epoch = variables.get(contract.MARKER_VARIABLE, "").rpartition(".")
        if owner != orders.run_id or not epoch.isdigit() or not variables.get("RANK", "").isdigit():
            continue
        if variables.get(contract.NODE_NAME_VARIABLE, node) != node:
            continue
        process = proc.find_alive(pid)
        if process is None:
            continue
        # A process below a rank inherits its environment.
        if proc.environment(process.parent).get("RANK") == variables["RANK"]:
            continue
        if rank in (-1, int(variables["RANK"])):
            candidates.append((-int(epoch), int(variables["RANK"]), pid))
    try:
        pid = min(candidates)[2]
        model = Model(pid, proc.environment(pid), os.readlink(f"/proc/{pid}/cwd"))
    except (ValueError, OSError):  # there is none, or it has just ended
        model = None
    if model is None:
        if rank >= 0:
            problem = f"rank {rank} does not live on {node}"
            raise CannotExecute(problem, "clusterrun status RUN shows the node of each rank")
        say(f"clusterrun: no rank lives on {node}: the command gets the job's environment")
        model = Model(0, {**own, **dict(orders.environment)}, orders.cwd)
    environment = _environment(model, own, beside_slurm=bool(orders.launch))
    if not (orders.container.image and model.pid and _enter_container(model.pid)):
        _enter(model.cwd)
        # Some runtimes (Apptainer with a setuid program) forbid entering a running container. A new one has
        # the image and the mounts of the ranks. The command runs outside if only srun starts containers.
        if orders.container.is_prefix:
            from clusterrun import container_runtimes

            container_runtimes.make_places(orders.container)
            user_names = [name for name, _ in orders.environment]
            python = orders.interpreter.path or PYTHON
            within = (python, "-I", "-S", paths.agent, "within", orders.cwd, "--")
            argv = (*within, *(command or SHELLS[-1:]))
            command, environment = container_runtimes.in_container(
                orders.container, argv, environment, user_names
            )
        elif orders.container.image:
            say("clusterrun: the container cannot be entered: the command runs outside of it")
    _execute(command or (_shell(environment),), environment, node)


def become_beside(
    job_id: str, node: str, pid: int, command: tuple[str, ...], own: Mapping[str, str]
) -> NoReturn:
    """Replace this process by ``command`` beside rank process ``pid`` of a job that clusterrun did not start.

    0 means the lowest rank of this node. Raise ``CannotExecute``.
    """
    from clusterrun.monitor.job_look import loads_torch
    from clusterrun.monitor.job_processes import of_job, sorted_out

    ranks = sorted_out(of_job(job_id, own.get("SLURM_STEP_ID", ""), node), loads_torch).ranks
    chosen = [rank for rank in ranks if pid in (0, rank.pid)]
    model = Model(0, own, os.getcwd())
    if chosen:
        first = min(chosen, key=lambda rank: (rank.name.rank, rank.pid))
        with suppress(OSError):  # it has just ended
            model = Model(first.pid, first.environment, os.readlink(f"/proc/{first.pid}/cwd"))
    if not model.pid:
        if pid:
            raise CannotExecute(
                f"the rank does not live on {node} any more", "clusterrun top JOB shows the ranks"
            )
        say(f"clusterrun: no rank of the job lives on {node}: the command gets the environment of a step")
    environment = _environment(model, own, beside_slurm=True)
    if not (model.pid and _is_elsewhere(model.pid) and _enter_container(model.pid)):
        if model.pid and _is_elsewhere(model.pid):
            say("clusterrun: the rank's container cannot be entered: the command runs outside of it")
        _enter(model.cwd)
    _execute(command or (_shell(environment),), environment, node)


def _is_elsewhere(pid: int) -> bool:
    """Return whether a process sees other files than this one: it is in a container."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _execute(argv: tuple[str, ...], environment: Mapping[str, str], node: str) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        problem = f"{argv[0]!r} cannot be started on {node}: {error.strerror}"
        say(f"clusterrun: {problem}\ncheck that it is installed on that node")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)  # as a shell does


def _environment(model: Model, own: Mapping[str, str], beside_slurm: bool) -> dict[str, str]:
    """Return the rank's environment with the variables of this terminal.

    Under Slurm the command carries the run's mark, so that it is killed when the run ends. On the user's own
    machine the user ends it.
    """
    terminal = {name: own[name] for name in ("TERM", "COLUMNS", "LINES") if name in own}
    environment = {**model.environment, **terminal}
    if model.pid:
        environment[contract.RANK_PID_VARIABLE] = str(model.pid)
    if not beside_slurm:
        environment.pop(contract.MARKER_VARIABLE, None)
    return environment


def _enter_container(pid: int) -> bool:
    """Enter the user and mount namespaces, root and folder of ``pid``; return False if that is forbidden."""
    try:
        target, own_folder = f"/proc/{pid}/", "/proc/self/"
        names = [
            name
            for name in ("ns/user", "ns/mnt")
            if os.readlink(target + name) != os.readlink(own_folder + name)
        ]
        flags = os.O_RDONLY | os.O_CLOEXEC
        *namespaces, root, folder = (os.open(target + name, flags) for name in (*names, "root", "cwd"))
        libc = ctypes.CDLL(None, use_errno=True)
        if any(libc.setns(namespace, 0) for namespace in namespaces):
            return False
        os.fchdir(root)
        os.chroot(".")
        os.fchdir(folder)
    except OSError:
        return False
    return True


def _shell(environment: Mapping[str, str]) -> str:
    shells = (environment.get("SHELL", ""), *SHELLS)
    return next((shell for shell in shells if os.access(shell, os.X_OK)), SHELLS[-1])


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        say(f"clusterrun: {folder} cannot be entered ({error.strerror}): staying in {os.getcwd()}")
