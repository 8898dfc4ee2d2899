"""Start, signal and reap the rank processes of this node, and kill leftover processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from clusterrun import proc
from clusterrun.agent import rank_environment
from clusterrun.agent.rank_environment import AgentPlace
from clusterrun.model import contract
from clusterrun.model.contract import STARVED
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.world import Lineage
from clusterrun.protocol.messages import (
    RankExited,
    RanksGone,
    RanksStarted,
    SignalRanks,
    SignalTaken,
    StartFailed,
    StartRanks,
    ToCoordinator,
)
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.kill_tree import KillTarget, below, everywhere, send, sweep
from clusterrun.runtime.network import interface_of
from clusterrun.runtime.processes import ProcessEnd, Program, ended_children, start_all
from clusterrun.runtime.run_files import GrowthIndex, in_words, may_pass, no_room, open_log

_REAP_SECONDS, _REAP_PAUSE = 0.5, 0.002


class RankProcesses:
    """The ranks of one node.

    ``whole_lineage``: all descendants of this process stay below it, because it is a subreaper.
    ``stranger`` is called with every ended child that is no rank. ``changed`` is called if ``reap`` has more
    to report than the ends of children. ``wanted`` returns whether the ranks that are being started are still
    wanted. ``instrumented`` adds the variables of the monitor to a rank's environment.
    """

    def __init__(
        self,
        orders: Orders,
        paths: RunPaths,
        place: AgentPlace,
        whole_lineage: bool,
        instrumented: Callable[[Mapping[str, str]], dict[str, str]] = dict,
    ) -> None:
        self.run_id = orders.run_id
        self.per_node = orders.per_node
        self.stranger: Callable[[ProcessEnd], object] = lambda child: None
        self.changed: Callable[[], object] = lambda: None
        self.wanted: Callable[[], bool] = lambda: True
        self._orders, self._paths = orders, paths
        self._base = {**place.environment, contract.NODE_NAME_VARIABLE: place.name}
        self._place, self._instrumented = place, instrumented
        # Whether parents show all leftover processes. Otherwise the run's mark is searched for too.
        self.whole_lineage = whole_lineage
        self._started: set[int] = set()
        self._epoch = -1
        self._port = 0
        self._memory_kills = 0
        self._ranks: dict[int, int] = {}
        self._processes: list[proc.Process] = []
        self._forker = os.getpid()
        self._sessions: frozenset[int] = frozenset()
        self.termed: set[int] = set()  # processes that got a TERM in this attempt
        self._signalled: set[tuple[int, int]] = set()  # ranks (process ids) that got a signal (number)
        self._saving: frozenset[int] = frozenset()
        self.cut: tuple[str, ...] = ()  # processes that outlived their ranks, and were ended
        self._index: GrowthIndex | None = None
        self._stacks = ""
        # Each rank reads its standard input from a descriptor of its own, from the beginning.
        self._inputs: list[int] = []
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def spawn(self, message: StartRanks, again: bool) -> tuple[RanksStarted | StartFailed, ...] | None:
        """Start the ranks of this node. Return None if a file failed and ``again`` allows another try."""
        self._epoch, self._port, self.cut = message.epoch, message.meeting.port, ()
        self._started.add(message.epoch)
        self._memory_kills = _memory_kills()
        try:
            paths = self._paths.attempt(message.epoch)
            logs: dict[tuple[int, str], int] = {}
            self._index = GrowthIndex(paths, message.node, logs)
            self._stacks = paths.stacks(message.node)
            interface = interface_of(self._place.address)
            kind = self._orders.numa_binding
            cpus: list[frozenset[int]] = []  # of each rank, near its GPU
            if kind:
                from clusterrun.agent import numa_binding  # few runs bind ranks

                environment = {**self._base, **dict(self._orders.environment)}
                nodes = numa_binding.gpu_nodes(environment, message.world.ranks_per_node)
                cpus = numa_binding.cpus_of_ranks(
                    kind, nodes, numa_binding.read_cpus(os.sched_getaffinity(0))
                )
            programs: list[Program] = []
            for rank in self._numbers(message):
                logs[rank, "o"] = open_log(paths.out(rank))
                logs[rank, "e"] = open_log(paths.err(rank))
                own = self._environment(message, rank, paths.error(rank), interface)
                if self._orders.input:
                    self._inputs.append(os.open(self._orders.input, os.O_RDONLY | os.O_CLOEXEC))
                stdin = self._inputs[-1] if self._inputs else self._null
                descriptors = (stdin, logs[rank, "o"], logs[rank, "e"])
                command, cwd = self._orders.command, self._orders.cwd
                if command[0].startswith(("./", "../")):  # srun starts it so: ``$0`` holds after a ``cd``
                    command = (os.path.join(cwd, command[0]), *command[1:])
                program = Program(command, tuple(own.items()), cwd, *descriptors, signal.SIGKILL)
                programs.append(replace(program, cpus=cpus[len(programs)]) if cpus else program)
            return self._start(message, programs)
        except ClusterrunError as error:
            return (StartFailed(message.epoch, f"{error.seen}; {error.remedy}"),)
        except OSError as error:
            self._close_index()
            if again and may_pass(error):
                return None
            return (StartFailed(message.epoch, f"a file cannot be opened: {in_words(error)}"),)
        finally:
            while self._inputs:
                os.close(self._inputs.pop())

    def _start(self, message: StartRanks, programs: list[Program]) -> tuple[RanksStarted | StartFailed, ...]:
        if self._orders.pipes_output:
            from clusterrun.agent.log_pipes import start_with_pipes  # few commands need pipes

            pids = start_with_pipes(programs)
        else:
            pids = start_all(programs)
        return (self._begun(message, pids, os.getpid()),)

    def _begun(self, message: StartRanks, pids: list[int], forker: int) -> RanksStarted:
        self._ranks = dict(zip(pids, self._numbers(message)))
        self._forker = forker
        self._sessions = self._sessions | frozenset(pids)
        self.termed, self._signalled = set(), set()
        self._processes = [process for process in map(proc.find, pids) if process]
        return RanksStarted(message.epoch)

    @property
    def node_name(self) -> str:
        return self._place.name

    @property
    def living(self) -> dict[int, int]:
        return {rank: pid for pid, rank in self._ranks.items()}

    def _numbers(self, message: StartRanks) -> range:
        """Return the ranks of this node; with one launcher per node, the node's number."""
        if self._orders.per_node:
            return range(message.node, message.node + 1)
        first, count = message.node * message.world.ranks_per_node, message.world.ranks_per_node
        return range(first, first + count)

    def _environment(self, message: StartRanks, rank: int, error_file: str, interface: str) -> dict[str, str]:
        orders = self._orders
        lineage = Lineage(
            orders.run_id, orders.run_name, self._paths.run_dir, message.epoch, message.last_epoch
        )
        if orders.per_node:
            variables = rank_environment.for_node(self._base, orders, message, lineage, interface)
        else:
            variables = rank_environment.for_rank(
                self._base, orders, message, rank, lineage, error_file, interface
            )
        return self._instrumented(variables)

    def signal(self, message: SignalRanks) -> SignalTaken:
        """Signal the processes that handle it, as plain srun does: ranks, and the programs below them.

        A rank without such a process gets it too if ``to_all`` is set, as with plain srun. TERM is an
        exception: the coordinator orders the end of such ranks. If the run has ``--requeue``, the signal is a
        notice of the end, which must not end a rank.
        """
        from clusterrun.agent.rank_signals import processes_handling  # loaded with the first signal

        number, handling, others = message.number, [], []
        for rank in self._processes:
            if message.is_held and (rank.pid, number) in self._signalled:
                continue
            own = processes_handling(rank, number, self.per_node)
            if own:
                self._signalled.add((rank.pid, number))
            handling += own
            others += [] if own else [rank]
        if number == signal.SIGTERM:
            self._term(handling)
        else:
            ending = others if message.to_all and not self._orders.survival.requeue else []
            for process in (*handling, *ending):
                send(process, number)
        return SignalTaken(self._epoch, number, len(handling))

    def terminate(self, only_unreached: bool) -> None:
        """Send TERM to the rank processes, or only to processes that did not get the signal before.

        Filters of a rank's output get none: they end with the processes that write to them.
        """
        # Loaded with the first signal.
        from clusterrun.agent.rank_signals import processes_handling, shell_programs

        handling = [
            process for rank in self._processes for process in processes_handling(rank, signal.SIGTERM)
        ]
        programs = [
            process
            for process in shell_programs(self._processes)
            if proc.catches(process.pid, signal.SIGTERM) or not proc.reads_pipe(process.pid)
        ]
        processes = {
            process.pid: process
            for process in (*self._processes, *programs, *handling)
            if not only_unreached or process.pid not in self.termed
        }
        self._term(list(processes.values()))

    def _term(self, processes: list[proc.Process]) -> None:
        """Send TERM and CONT: a stopped process gets a TERM only when it continues."""
        if processes:
            from clusterrun.monitor.rank_channels import keep_last  # loaded at their end, not with the agent

            keep_last(self._stacks, self.living)
        for process in processes:
            self.termed.add(process.pid)
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)

    def reap(self, wall: float) -> list[ToCoordinator]:
        """Reap all children, and return the ends of ranks among them, with their last output."""
        ended: list[ToCoordinator] = []
        for child in ended_children():
            rank = self._ranks.pop(child.pid, None)
            if rank is None:
                self._not_a_rank(child)
            else:
                ended.append(self._ended(rank, child.pid, child.code, wall))
        if ended:
            self.note_growth(wall)
        return ended

    def _not_a_rank(self, child: ProcessEnd) -> None:
        self.stranger(child)

    def _ended(self, rank: int, pid: int, code: int, wall: float) -> RankExited:
        self._processes = [process for process in self._processes if process.pid != pid]
        saving = pid in self._saving and code == -signal.SIGKILL
        end = RankExited(self._epoch, rank, code, saving=saving)
        return self._with_words(end, wall) if code else end

    def _with_words(self, end: RankExited, wall: float) -> RankExited:
        """Add a failed rank's last output, and causes that it cannot report: out of memory, a full disk."""
        from clusterrun.agent.log_tail import with_last_words  # loaded after a failure, not with the agent

        paths = self._paths.attempt(self._epoch)
        self.note_growth(wall)
        grown = self._index.grown if self._index else {}
        end = with_last_words(end, paths, grown, self.per_node, self._port)
        notes = (STARVED,) if _memory_kills() > self._memory_kills else ()
        trouble = no_room(paths.folder) or (self._index.trouble if self._index else "")
        if trouble:
            notes = (
                *notes,
                f"clusterrun: the output of ranks cannot be written to {paths.folder}: {trouble}",
            )
        return replace(end, last_lines=end.last_lines + notes)

    def leftovers(self, filters_only: bool = False) -> list[proc.Process]:
        """Return the living processes that ended ranks left; with ``filters_only`` only readers of a pipe.

        The process that forked the ranks adopts them, because it is a subreaper.
        """
        leftovers = below(self._forker)
        return [process for process in leftovers if not filters_only or proc.reads_pipe(process.pid)]

    def note_growth(self, wall: float) -> bool:
        if self._index is None:
            return False
        self._index.note(wall)
        return True

    def sweep(self, epoch: int, wall: float) -> list[ToCoordinator]:
        """Kill all processes of this run up to ``epoch`` on this node. Return the ends of ranks first."""
        ended: list[ToCoordinator] = []
        target = KillTarget(self._orders.run_id, epoch, self._place.name)
        self._saving = frozenset(process.pid for process in self._processes if self._is_saving(process.pid))
        flown = epoch not in self._started or not self.whole_lineage

        def find() -> list[proc.Process]:
            return everywhere(target, self._sessions) if flown else below(os.getpid())

        stuck = sweep(find, lambda: ended.extend(self.reap(wall)), contract.TEARDOWN_SECONDS)
        # A process whose first thread has ended looks like a zombie. It can be reaped when all threads ended.
        until = steady() + _REAP_SECONDS
        while self._ranks and not stuck and steady() < until:
            time.sleep(_REAP_PAUSE)
            ended.extend(self.reap(wall))
        self.note_growth(wall)
        self._close_index()
        return [*ended, RanksGone(epoch, stuck, self.cut)]

    def _is_saving(self, pid: int) -> bool:
        """Return whether a rank, or a program below it, got a TERM that it handles, and still runs."""
        termed = self.termed & {pid, *(process.pid for process in below(pid))}
        if not termed:
            return False
        from clusterrun.agent.rank_signals import handles  # loaded with the first signal

        return any(handles(termed_pid, signal.SIGTERM) for termed_pid in termed)

    def _close_index(self) -> None:
        if self._index:
            self._index.close()
            self._index = None


def _memory_kills() -> int:
    from clusterrun.monitor.oom import killed  # loaded with the first ranks, not with the agent

    return killed()
