"""Starts one agent per node, through srun or here, and reads what the launcher prints."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence

from clusterrun.coordinator.events import LauncherEnded
from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.orders import Orders
from clusterrun.protocol.bootstrap import Bootstrap, written
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.runtime.stderr import say
from clusterrun.slurm_text.srun_messages import BESIDE_SECONDS, HELD_SECONDS, OF_MEMORY, step_on, unreached

_FIRST_LINES = 5
_LAST_LINES = 15
_MOST_UNREACHED = 100
"""Lines that name a node which could not be reached are kept as well: agents are launched without it then."""
_LONGEST_LINE = 2000
_MOST_SHOWN = 1000
_KILL_AFTER = 3.0
_WORDS_AFTER = 1.0
"""An agent's end may be heard of before its words."""
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? [0-9,-]+: (?!Exited with exit code 0)(?:\D*(\d+)|.*)")
_NOT_LAUNCHED = re.compile(r"srun: error: (?:Node failure on |task \d+ launch failed)")
"""srun goes on with the others, maybe for long; where it gives all of them up, its own end says so."""
_HARMLESS = re.compile(
    r"srun: cluster configuration lacks support for cpu binding"
    r"|srun: error: get_addr_info: getaddrinfo\(\) failed: .*, attempt number "
)
"""Shown, but never the reason of anything: what srun tries again says at last what came of it."""
_GPUS = "CUDA_VISIBLE_DEVICES"


@frozen
class Launch:
    """What one start of the agents needs: ``agent`` is the argument list of one agent on this machine.

    ``open_files`` is the soft limit to give back to what is started; ``bootstrap`` is for
    every standard input. ``supervised``: who guards this process ends its launcher where it dies. Else srun,
    told by the kernel, would kill the agents at once, who must still give back a job that lost both.
    """

    orders: Orders
    agent: tuple[str, ...]
    environment: Mapping[str, str]
    bootstrap: Bootstrap
    open_files: int
    supervised: bool = False


class Launcher:
    """The programs that started the agents; ``ended`` tells of their ends.

    Not ``whole``: the first of several agents ended badly; only whoever knows who has joined can tell what
    that means. An older launch that ends under a newer one is seen by its agents' end.
    """

    def __init__(self, loop: EventLoop, launch: Launch, ended: Callable[[LauncherEnded], None]) -> None:
        self._loop, self._launch, self._ended = loop, launch, ended
        self._living: set[int] = set()
        self._older: set[int] = set()
        self._code = 0
        self._half = b""
        self._said: list[str] = []
        self._shown = self._starts = 0
        self._one_ended = False
        self._words, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self, without: tuple[str, ...] = ()) -> None:
        """Start them. A program that cannot be started has ended with code 127.

        ``without``: not on the nodes of these names; beside those that live, which are on some of these.
        """
        self._older, self._living = self._older | self._living, set()
        os.set_blocking(self._writable, True)
        self._loop.watch(self._words, lambda mask: self._hear())
        self._code, self._said, self._one_ended = 0, [], False
        argv, base = self._launch.orders.launch, self._launch.environment
        if argv and (self._starts or without):
            argv, base = relaunch(self._launch, without, beside=bool(self._older))
        self._starts += 1
        try:
            for environment in environments(self._launch.orders, base, without):
                self._living |= {self._start_one(argv, environment)}
        except NotStarted as error:
            self._said += [error.seen, error.remedy]
            self._code = 127
        if not self._living:
            self._all_ended()

    def _start_one(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
        # Each has a pipe of its own: the line is far below what a pipe holds, so nothing waits.
        stdin, line = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(line, written(self._launch.bootstrap))
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
            return start_all([program])[0]
        finally:
            os.close(stdin)
            os.close(line)

    def links_question(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The program that prints which of these nodes hold a connection to the one that was started."""
        if len(self._living) != 1:
            return ()
        (process,) = self._living
        return (*self._launch.agent[:-2], "launcher-links", str(process), fold(list(names)))

    def end(self) -> None:
        """End them: TERM (and CONT) now, KILL for those that still live a little later."""
        told = frozenset(self._living | self._older)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        # Only these: by then another launch may be under way.
        self._loop.after(_KILL_AFTER, lambda: self._signal(signal.SIGKILL, told))

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
            # Its code alone could as well be that of a task that was killed.
            self._remember(f"{self._launch.orders.launch[0]} {code_in_words(child.code)}")
        self._code = self._code or (child.code if child.code >= 0 else 128 - child.code)
        if not self._living:
            self._hear()
            self._all_ended()
        elif self._code:
            self._agent_ended(self._code)

    def _all_ended(self) -> None:
        self._ended(LauncherEnded(self._code, tuple(self._said), True, bool(self._older), self._starts))

    def _agent_ended(self, code: int) -> None:
        def tell() -> None:
            self._ended(LauncherEnded(code, tuple(self._said), whole=False, launch=launch))

        launch = self._starts
        if not self._one_ended:
            self._one_ended = True
            self._loop.after(_WORDS_AFTER, tell)

    @property
    def alive(self) -> bool:
        return bool(self._living or self._older)

    def _signal(self, number: int, told: frozenset[int] | None = None) -> None:
        living = self._living | self._older
        for pid in living if told is None else living & told:
            os.kill(pid, number)  # not reaped yet, so the number is still theirs

    def _hear(self) -> None:
        while True:
            try:
                data = os.read(self._words, 65536)
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
        if self._shown <= _MOST_SHOWN:
            say(line)

    def _remember(self, line: str) -> None:
        # The first error mostly is the cause, the last ones tell what became of it.
        between = slice(_FIRST_LINES, max(_FIRST_LINES, len(self._said) - _LAST_LINES + 1))
        self._said[between] = [one for one in self._said[between] if unreached([one])][:_MOST_UNREACHED]
        self._said.append(line)


def relaunch(
    launch: Launch, without: tuple[str, ...], beside: bool = False
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of an srun that leaves these nodes of its allocation out.

    What an earlier one started may still hold what the job has: hence ``--overlap``, and no word of memory,
    of which a step has the job's then. Where it lives on, this one is ``beside`` it.
    """
    whole = launch.environment.get("SLURM_JOB_NODELIST", "")
    kept = [name for name in expand(whole) if name not in without]
    program, *words = launch.orders.launch
    own = step_on(words, kept, BESIDE_SECONDS if beside else HELD_SECONDS)
    environment = {key: value for key, value in launch.environment.items() if key not in OF_MEMORY}
    environment[contract.NODES_VARIABLE] = whole
    return (program, *own), environment


def environments(
    orders: Orders, base: Mapping[str, str], without: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The environment of each program to start: one, or one per simulated node with its share of the GPUs.

    ``without`` are names of simulated nodes that are left out.
    """
    if orders.launch:
        return [dict(base)]
    visible = [device for device in base.get(_GPUS, "").split(",") if device]
    made = []
    for node in range(orders.allocated):
        name = f"local-{node}"
        if name in without:
            continue
        own = {**base, contract.NODE_VARIABLE: str(node), contract.NODE_NAME_VARIABLE: name}
        if orders.gpus_per_node:
            first, last = node * orders.gpus_per_node, (node + 1) * orders.gpus_per_node
            share = visible[first:last] or [str(device) for device in range(first, last)]
            own[_GPUS] = ",".join(share)
        made.append(own)
    return made
