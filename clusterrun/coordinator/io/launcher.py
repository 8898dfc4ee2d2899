"""Start one agent per node, through srun or on this machine, and read the launcher's output."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence

from clusterrun.coordinator.events import LauncherEnded, MemoryKilled
from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.orders import Orders
from clusterrun.model.phrases import code_in_words
from clusterrun.protocol.bootstrap import Bootstrap, encode_bootstrap
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.machine_events import Event
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text.srun_messages import (
    BESIDE_SECONDS,
    HELD_SECONDS,
    OF_MEMORY,
    memory_kill,
    step_on,
    unreached,
)

_FIRST_LINES = 5
_LAST_LINES = 15
# Lines that name an unreachable node are kept as well. The next launch leaves that node out.
_MOST_UNREACHED = 100
_LONGEST_LINE = 2000
_MOST_SHOWN = 1000
_KILL_AFTER = 3.0
# The end of an agent may be reported before its output.
_OUTPUT_SECONDS = 1.0
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? [0-9,-]+: (?!Exited with exit code 0)(?:\D*(\d+)|.*)")
# srun keeps the other tasks, perhaps for long. If it gives up all of them, it ends.
_NOT_LAUNCHED = re.compile(r"srun: error: (?:Node failure on |task \d+ launch failed)")
# These lines are shown, but are never a reason. srun retries, and reports the final result later.
_HARMLESS = re.compile(
    r"srun: cluster configuration lacks support for cpu binding"
    r"|srun: error: get_addr_info: getaddrinfo\(\) failed: .*, attempt number "
)
_GPUS = "CUDA_VISIBLE_DEVICES"


@frozen
class Launch:
    """The input of a start of the agents."""

    orders: Orders
    agent: tuple[str, ...]  # arguments of an agent on this machine
    environment: Mapping[str, str]
    bootstrap: Bootstrap  # for the standard input of every agent
    open_files: int  # soft limit of open files to restore for the started programs
    # The supervisor ends the launcher if this process dies. Without it the kernel ends srun, which kills the
    # agents at once. The agents must live to give back a job that lost both.
    supervised: bool = False


class Launcher:
    """The programs that started the agents. ``ended`` is called with their ends.

    A report that is not ``whole`` says that the first of several agents failed. Its meaning depends on the
    agents that have joined. An older launch that ends beside a newer one is seen by the end of its agents.
    """

    def __init__(self, loop: EventLoop, launch: Launch, happened: Callable[[Event], None]) -> None:
        self._loop, self._launch, self._happened = loop, launch, happened
        self._living: set[int] = set()
        self._older: set[int] = set()
        self._code = 0
        self._half = b""
        self._output: list[str] = []
        self._shown = self._starts = 0
        self._has_agent_ended = False
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self, without: tuple[str, ...] = ()) -> None:
        """Start agents, but not on the nodes ``without``. Agents of an earlier launch may run on those.

        A program that cannot be started is reported as ended with code 127.
        """
        self._older, self._living = self._older | self._living, set()
        os.set_blocking(self._writable, True)
        self._loop.watch(self._readable, lambda mask: self._hear())
        self._code, self._output, self._has_agent_ended = 0, [], False
        argv, base = self._launch.orders.launch, self._launch.environment
        if argv and (self._starts or without):
            argv, base = relaunch(self._launch, without, beside=bool(self._older))
        self._starts += 1
        try:
            for environment in environments(self._launch.orders, base, without):
                # Each program has its own pipe. The line fits into the pipe, so the write does not block.
                stdin, line = os.pipe2(os.O_CLOEXEC)
                try:
                    os.write(line, encode_bootstrap(self._launch.bootstrap))
                    program = Program(
                        argv=argv or self._launch.agent,
                        environment=tuple(environment.items()),
                        cwd="/",
                        stdin=stdin,
                        stdout=self._writable,
                        stderr=self._writable,
                        death_signal=0 if self._launch.supervised and argv else signal.SIGTERM,
                        open_files=self._launch.open_files,
                    )
                    pid = start_all([program])[0]
                finally:
                    os.close(stdin)
                    os.close(line)
                self._living |= {pid}
        except NotStarted as error:
            self._output += [error.seen, error.remedy]
            self._code = 127
        if not self._living:
            self._all_ended()

    def links_question(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that prints which of these nodes hold a connection to the launcher."""
        if len(self._living) != 1:
            return ()
        (process,) = self._living
        return (*self._launch.agent[:-2], "launcher-links", str(process), fold(list(names)))

    def end(self) -> None:
        """End the launchers: send TERM and CONT now, and KILL a little later to those that still run."""
        processes = frozenset(self._living | self._older)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        # Signal only these: another launch may run by then.
        self._loop.after(_KILL_AFTER, lambda: self._signal(signal.SIGKILL, processes))

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def reaped(self, child: ProcessEnd) -> None:
        if child.pid in self._older:
            self._older.discard(child.pid)
            if not self._living and not self._older:
                self._all_ended()
        if child.pid not in self._living:
            return
        self._living.discard(child.pid)
        if child.code < 0 and self._launch.orders.launch:
            # The code alone could also be that of a killed task.
            self._remember(f"{self._launch.orders.launch[0]} {code_in_words(child.code)}")
        self._code = self._code or (child.code if child.code >= 0 else 128 - child.code)
        if not self._living:
            self._hear()
            self._all_ended()
        elif self._code:
            self._agent_ended(self._code)

    def _all_ended(self) -> None:
        self._happened(LauncherEnded(self._code, tuple(self._output), True, bool(self._older), self._starts))

    def _agent_ended(self, code: int) -> None:
        def report() -> None:
            self._happened(LauncherEnded(code, tuple(self._output), whole=False, launch=launch))

        launch = self._starts
        if not self._has_agent_ended:
            self._has_agent_ended = True
            self._loop.after(_OUTPUT_SECONDS, report)

    @property
    def alive(self) -> bool:
        return bool(self._living or self._older)

    def _signal(self, number: int, only: frozenset[int] | None = None) -> None:
        living = self._living | self._older
        for pid in living if only is None else living & only:
            os.kill(pid, number)  # not reaped yet, so the process id is still valid

    def _hear(self) -> None:
        while True:
            try:
                data = os.read(self._readable, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._half = (self._half + data).split(b"\n")
            self._half = self._half[-_LONGEST_LINE:]
            for line in lines:
                self._show(line[:_LONGEST_LINE].decode("utf-8", "backslashreplace"))

    def _show(self, line: str) -> None:
        self._shown += 1
        if not _HARMLESS.match(line):
            self._remember(line)
        task = _TASK_ENDED.match(line)
        if task:
            self._agent_ended(int(task[1] or 1))
        elif _NOT_LAUNCHED.match(line):
            self._agent_ended(1)
        if (node := memory_kill(line)) is not None:
            self._happened(MemoryKilled(node, line))
        if self._shown <= _MOST_SHOWN:
            say(line)

    def _remember(self, line: str) -> None:
        # The first error is usually the cause. The last errors show the consequence.
        between = slice(_FIRST_LINES, max(_FIRST_LINES, len(self._output) - _LAST_LINES + 1))
        self._output[between] = [line for line in self._output[between] if unreached([line])][
            :_MOST_UNREACHED
        ]
        self._output.append(line)


def relaunch(
    launch: Launch, without: tuple[str, ...], beside: bool = False
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return arguments and environment of an srun that leaves out the nodes ``without``.

    An earlier srun may still hold the job's resources. The new step therefore uses ``--overlap``, and
    requests no memory: it then shares the job's. ``beside``: the earlier srun keeps running.
    """
    nodelist = launch.environment.get("SLURM_JOB_NODELIST", "")
    nodes = [name for name in expand(nodelist) if name not in without]
    program, *arguments = launch.orders.launch
    step_arguments = step_on(arguments, nodes, BESIDE_SECONDS if beside else HELD_SECONDS)
    environment = {key: value for key, value in launch.environment.items() if key not in OF_MEMORY}
    environment[contract.NODES_VARIABLE] = nodelist
    return (program, *step_arguments), environment


def environments(
    orders: Orders, base: Mapping[str, str], without: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return the environments of the programs to start: one, or one per simulated node with its GPUs.

    ``without`` are names of simulated nodes that are left out.
    """
    if orders.launch:
        return [{**base, contract.SUBMIT_DIR_VARIABLE: base.get("SLURM_SUBMIT_DIR", "")}]
    visible = [device for device in base.get(_GPUS, "").split(",") if device]
    result = []
    for node in range(orders.allocated):
        name = f"local-{node}"
        if name in without:
            continue
        environment = {**base, contract.NODE_VARIABLE: str(node), contract.NODE_NAME_VARIABLE: name}
        if orders.gpus_per_node:
            first, last = node * orders.gpus_per_node, (node + 1) * orders.gpus_per_node
            share = visible[first:last] or [str(device) for device in range(first, last)]
            environment[_GPUS] = ",".join(share)
        result.append(environment)
    return result
