"""The simulated world: nodes, coordinators, agents, ranks, links and a disk, all from one seed."""

from __future__ import annotations

import signal
from typing import Any

from clusterrun.agent import events as agent_events
from clusterrun.agent.agent import Agent
from clusterrun.coordinator import events as coordinator_events
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.coordinator.recovery import first_claim
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Orders, Preflight, Survival
from clusterrun.model.record import RunState
from clusterrun.protocol import messages as msg
from clusterrun.runtime import machine_events
from tests.coordinator.preflight_sessions import Simple

from . import faults
from .actors import Actor
from .agent_actor import AgentActor
from .clockwork import Clockwork
from .coordinator_actor import CoordinatorActor
from .job_plan import REPLACED, draw_jobs
from .kernel import Node
from .network import DOWN, UP, Closed, Link
from .program import Program
from .scenario import SPARE_NODES, draw
from .slurm import Slurm
from .watch import Watch

WELCOME = "welcome"
CONNECT_SECONDS = 5.0
KILL_WAIT_SECONDS = 12.0
"""From TERM to KILL when a run is ended; another time than after a failure."""
SUPERSEDED_SECONDS = 8.0
"""The most a running coordinator may take to see that another one took over."""


class World:
    """One seed's world; ``machines`` are the classes of coordinator and agent that are tried.

    ``jobs``: a scheduler starts and ends the jobs of the run.
    """

    def __init__(
        self, seed: int, machines: tuple[Any, Any] = (Coordinator, Agent), jobs: bool = False
    ) -> None:
        self.clock = Clockwork(seed)
        self.scenario = draw(self.clock)
        plan = draw_jobs(self.clock.random("jobs")) if jobs else None
        if plan is not None:
            self.scenario.faults = tuple(f for f in self.scenario.faults if f not in REPLACED)
            self.scenario.time_limit, self.scenario.resubmits = 0.0, False
            self.scenario.heal_at -= self.scenario.suspended
            self.scenario.suspensions = ()  # a scheduler's clock stops for a job that it suspends
        self.machines = machines
        self.net_chance = self.clock.random("net")
        self.process_chance = self.clock.random("process")
        self.fault_chance = self.clock.random("faults")
        self._disk_chance = self.clock.random("disk")
        self._trouble_chance = self.clock.random("claims")
        times = self.clock.random("time")
        self.wall = times.uniform(1e9, 2e9)
        pool = self.scenario.allocated + SPARE_NODES
        self.nodes = [Node(self, index, times.uniform(0, 1e5)) for index in range(pool)]
        self.coordinators: list[CoordinatorActor] = []
        self.watch = Watch(self)
        self.program = Program(self)
        self.claims: dict[int, int] = {}
        self.state_file: RunState | None = None
        self.asked_at: float | None = None
        self.was_asked = False
        self.healed = False
        self._links: dict[int, AgentActor] = {}
        self._pids = 100
        self.slurm = Slurm(self, plan) if plan is not None else None
        self.orders = Orders(
            run_id="run",
            run_name="run",
            nodes=self.scenario.nodes,
            ranks_per_node=self.scenario.per_node,
            gpus_per_node=0,
            cpus_per_rank=1,
            command=("train",),
            cwd="/",
            per_node=self.scenario.once_per_node,
            max_restarts=self.scenario.max_restarts,
            time_limit=self.scenario.time_limit,
            spares=self.scenario.spares,
            launch=("srun",) if self.scenario.one_launcher else (),
            preflight=self._preflight(),
            kill_wait=KILL_WAIT_SECONDS,
            survival=plan.survival if plan else Survival(no_progress=self.scenario.no_progress),
        )

    def _preflight(self) -> Preflight:
        if not self.scenario.examined:
            return Preflight()
        resubmit = ("sbatch", "{excluded}") if self.scenario.resubmits else ()
        return Preflight(Level.FULL, resubmit=resubmit)

    # --- running ---

    def run(self) -> Watch:
        """Let the faults happen, heal everything, and check that every run ends in time."""
        if self.slurm is None:
            self.submit(self.nodes[: self.scenario.allocated])
        else:
            self.slurm.begin()
        faults.plan(self)
        self.clock.at(self.scenario.heal_at, faults.heal, self)
        restarts = (self.scenario.max_restarts + 5) * (1 + len(self.scenario.crashes))
        bound = (
            self.scenario.heal_at
            + (500 if self.slurm is None else 5000)
            + restarts * (self.scenario.duration + 200)
        )
        while self.clock.now < bound and not (self.healed and self._quiet()):
            self.clock.run(min(bound, self.clock.now + 10.0))
        self.watch.end_of_the_world()
        if self.slurm is not None:
            self.slurm.watch.end_of_the_world()
        return self.watch

    def _quiet(self) -> bool:
        agents = any(agent.alive or agent.shim.alive for c in self.coordinators for agent in c.agents)
        running = any(c.alive or c.coming for c in self.coordinators)
        waiting = self.slurm is not None and not self.slurm.quiet()
        return not agents and not running and not waiting and not any(node.processes for node in self.nodes)

    def submit(self, hosts: list[Node], dead_since: float | None = None, dead: int | None = None) -> None:
        """Start a coordinator on the first of ``hosts``, as a batch job does.

        ``dead_since``: its supervisor starts it, after ``dead``, the one before, died (on that node's clock).
        """
        coordinator = CoordinatorActor(self, len(self.coordinators), hosts, dead_since)
        coordinator.dead = dead
        if self.slurm is not None and not self.slurm.adopt(coordinator, dead):
            hosts[0].coordinators.remove(coordinator)
            return
        self.coordinators.append(coordinator)
        coordinator.feed(machine_events.Tick())

    def make_coordinator(self, number: int, hosts: list[Node]) -> Any:
        """Return a new machine. Its process id is its number."""
        examine = Simple if self.scenario.examined else None
        collaborators = Collaborators(examine, names=tuple(f"n{node.index}" for node in hosts))
        if self.slurm is not None:
            collaborators = replace(collaborators, job_id=str(self.slurm.running.number))
        return self.machines[0](self.orders, "host", number, collaborators=collaborators)

    def make_agent(self, index: int) -> Any:
        """Return a new machine."""
        observed = self.scenario.observed
        orders = self.orders
        return self.machines[1](
            index, self.scenario.processes, orders.grace, observed=observed, kill_wait=orders.kill_wait
        )

    def succeed(self, coordinator: CoordinatorActor, excluded: tuple[str, ...]) -> bool:
        """Queue the run anew on nodes that are not excluded; it begins when the old job has ended."""
        fit = [node for node in self.nodes if not node.dead and f"n{node.index}" not in excluded]
        if len(fit) < self.scenario.allocated or self.fault_chance.random() < 0.2:
            return False
        coordinator.handed_over = True
        self.clock.after(0.5, self._begin_successor, coordinator, fit[: self.scenario.allocated])
        return True

    def _begin_successor(self, before: CoordinatorActor, hosts: list[Node]) -> None:
        if before.alive or any(agent.alive for agent in before.agents):
            self.clock.after(1.0, self._begin_successor, before, hosts)
        elif not any(node.dead for node in hosts):
            self.submit(hosts)

    # --- what happened ---

    def log(self, line: str) -> None:
        """Add a line to the fingerprint."""
        self.clock.log(line)

    def log_step(self, actor: Actor, event: Any, actions: list[Any]) -> None:
        """Log an event of a machine with its actions."""
        if self.clock.history is not None:
            self.clock.log(f"{actor.name} {event!r}\n    " + "\n    ".join(map(repr, actions)))
            return
        if type(event) is machine_events.Tick and not actions:
            return
        self.clock.log(f"{actor.name} {_short(event)} {' '.join(map(_short, actions))}")

    # --- the disk ---

    def disk(self) -> float:
        """Draw the seconds of a disk access."""
        slow = self.scenario.has("slow disk") and not self.healed
        return self._disk_chance.random() * (4.0 if slow else 0.02)

    def claim(self, coordinator: CoordinatorActor, after: int) -> None:
        """Make an attempt's folder, exclusively; a file system in trouble is tried again, or given up."""
        if not self.healed and self._trouble_chance.random() < self.scenario.trouble:
            if self._trouble_chance.random() < 0.01:
                self.watch.struck.append("no claim")
                coordinator.feed(coordinator_events.ClaimFailed("no attempt can be begun: Stale file handle"))
            else:
                coordinator.feed_later(0.5, lambda: self.claim(coordinator, after))
            return
        epoch = max(self.claims, default=-1) + 1 if after < 0 else after + 1
        if epoch in self.claims:
            coordinator.feed(coordinator_events.Superseded(epoch))
            return
        self.claims[epoch] = coordinator.number
        self.watch.claimed(coordinator, epoch)
        for other in self.coordinators:
            if other is not coordinator:
                delay = self.fault_chance.uniform(0.1, SUPERSEDED_SECONDS)
                self.clock.after(delay, self._tell_superseded, other, epoch)
        first = first_claim(epoch, self.state_file, coordinator.dead_since, coordinator.dead)
        coordinator.feed(first if after < 0 else coordinator_events.EpochClaimed(epoch))

    def _tell_superseded(self, coordinator: CoordinatorActor, epoch: int) -> None:
        # A coordinator looks every two seconds. After a stop it looks soon, not at once.
        if coordinator.frozen or coordinator.node.frozen:
            self.clock.after(self.fault_chance.uniform(0.5, 2.0), self._tell_superseded, coordinator, epoch)
        elif coordinator.alive:
            coordinator.feed(coordinator_events.Superseded(epoch))

    def write_state(self, coordinator: CoordinatorActor, state: RunState) -> None:
        """Write a state to disk, unless the disk has a newer attempt."""
        stored = self.state_file
        if not state.attempts and stored is not None:  # the runtime keeps what earlier coordinators wrote
            state = replace(state, epoch=stored.epoch, attempts=stored.attempts, started_at=stored.started_at)
        overtaken = stored is not None and (stored.updated_at, stored.state.ended) > (
            state.updated_at,
            state.state.ended,
        )
        newest = self.claims.get(max(self.claims, default=-1), coordinator.number)
        if newest == coordinator.number or coordinator.number not in self.claims.values():
            self.state_file = self.state_file if overtaken else state

    # --- agents and their links ---

    def launch(self, coordinator: CoordinatorActor, without: tuple[str, ...] = ()) -> None:
        """Start one agent per node, as srun does."""
        missing = self.scenario.allocated - 1 if self.scenario.has("no agent") else -1
        if self.clock.now < self.watch.controller_away_until:
            line = "srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller"
            coordinator.launcher_lives = False
            event = coordinator_events.LauncherEnded(
                1, (line,), True, bool(coordinator.older), coordinator.launches
            )
            self.clock.after(1.0, coordinator.feed, event)
            return
        for index, node in enumerate(coordinator.hosts):
            if index == missing or f"n{node.index}" in without:
                continue
            if self._unreachable(index, node):
                seconds = self.scenario.gives_up_after
                self.clock.after(seconds, self._give_up, coordinator, node, coordinator.launches)
            else:
                coordinator.coming += 1
                delay = self.process_chance.uniform(0.05, 2.0)
                launch = coordinator.launches
                self.clock.after(delay, self._start_agent, coordinator, index, node, launch)

    def _unreachable(self, index: int, node: Node) -> bool:
        """Return whether srun cannot reach the node. It reports that at last."""
        return self.scenario.one_launcher and (index == self.scenario.unreachable or node.dead)

    def _give_up(self, coordinator: CoordinatorActor, node: Node, launch: int) -> None:
        """End everything that srun has started, because it has not reached a node."""
        if not coordinator.launcher_lives or coordinator.launches != launch:
            return
        coordinator.launcher_lives = False
        self.watch.struck.append("unreachable")
        for agent in coordinator.newest_tasks():
            agent.feed(agent.slurm_kills)
        line = f"srun: error: Task launch for StepId=1.0 failed on node n{node.index}: Communication failure"
        self.clock.after(0.2, self._gave_up, coordinator, launch, line)

    def _gave_up(self, coordinator: CoordinatorActor, launch: int, line: str) -> None:
        # The runtime tells no end of one launcher while another one lives.
        if coordinator.launches == launch:
            others = bool(coordinator.older)
            coordinator.feed(coordinator_events.LauncherEnded(233, (line,), True, others, launch))

    def _start_agent(self, coordinator: CoordinatorActor, index: int, node: Node, launch: int) -> None:
        coordinator.coming -= 1
        if launch == coordinator.launches and coordinator.launcher_lives:
            self.new_agent(coordinator, index, node)
        coordinator.agent_ended()

    def new_agent(self, coordinator: CoordinatorActor, index: int, node: Node) -> None:
        """Start an agent process and connect it."""
        if node.dead:
            return
        self._pids += 1
        agent = AgentActor(self, coordinator, index, node, self._pids)
        coordinator.agents.append(agent)
        self.connect(agent)

    def connect(self, agent: AgentActor) -> None:
        """Connect and say hello; where nobody answers in time, once more."""
        coordinator = agent.coordinator
        if not agent.alive or agent.welcomed:
            return
        if not coordinator.alive:
            agent.feed(lambda: agent.die("a refused connection"))
            return
        number = len(self._links)
        link = Link(number, self.clock, self.net_chance, self._delay, self._deliver)
        self._links[number] = agent
        agent.link = coordinator.links[number] = link
        for cut in faults.cuts(self, agent):
            link.sever(cut, 60.0)
        epoch = 99 if self.scenario.has("old epoch") and agent.pid % 7 == 0 else -1
        link.send(UP, msg.Hello(agent.index, f"n{agent.node.index}", "10.0.0.1", agent.pid, epoch))
        self.clock.after(CONNECT_SECONDS, self._connect_again, agent, link)

    def agent_of(self, link: int) -> AgentActor | None:
        """Return the agent at the other end of ``link``; None if the agent uses another link now."""
        agent = self._links[link]
        return agent if agent.link is not None and agent.link.number == link else None

    def _connect_again(self, agent: AgentActor, link: Link) -> None:
        def again() -> None:
            if agent.link is link and not agent.welcomed:
                link.close(DOWN, "no welcome in time")
                self.connect(agent)

        agent.feed(again)

    def _delay(self) -> float:
        slow = self.scenario.slow if not self.healed else 0.0
        return 0.0002 + self.net_chance.random() * (0.001 + slow)

    def _deliver(self, link: Link, way: int, payload: Any) -> None:
        agent = self._links[link.number]
        if way == UP:
            if isinstance(payload, msg.Hello):
                agent.coordinator.feed(lambda: link.send(DOWN, WELCOME))
            agent.coordinator.arrived(link, payload)
        elif agent.link is link:
            self._to_agent(agent, payload)

    def _to_agent(self, agent: AgentActor, payload: Any) -> None:
        if payload is WELCOME:
            if self.scenario.has("lost welcome") and self.fault_chance.random() < 0.3 and not self.healed:
                return
            agent.feed(lambda: setattr(agent, "welcomed", True))
            agent.feed(agent_events.Welcomed())
        elif isinstance(payload, Closed):
            if agent.welcomed:
                agent.feed(agent_events.Disconnected(payload.why))
                self.watch.link_lost(agent)
            else:
                self.clock.after(0.5, agent.feed, lambda: self.connect(agent))
        else:
            self.watch.agent_hears(agent, payload)
            agent.feed(agent_events.Told(payload))

    def end_launcher(self, coordinator: CoordinatorActor) -> None:
        """End srun, which ends the tasks that it can reach."""
        for agent in coordinator.tasks():
            self.clock.after(0.1, agent.feed, machine_events.SignalCame(signal.SIGTERM))
            self.clock.after(2.0, agent.feed, agent.slurm_kills)
        if coordinator.launcher_lives or coordinator.older:
            coordinator.end_launchers()
            event = coordinator_events.LauncherEnded(143, (), launch=coordinator.launches)
            self.clock.after(2.5, coordinator.feed, event)

    def ask_for_end(self) -> None:
        """Request the end of the run, now or within seconds."""
        self.was_asked = True
        if self.asked_at is None:
            self.asked_at = self.clock.now

    # --- ranks ---

    def no_spawn(self) -> bool:
        """Draw whether this start fails."""
        return self.scenario.has("no spawn") and self.fault_chance.random() < 0.3

    def check_seconds(self) -> float:
        """Draw the seconds until a sweep is proven complete: mostly seconds, sometimes minutes."""
        return 100.0 if self.scenario.has("slow sweep") and self.fault_chance.random() < 0.3 else 0.01

    def mute(self) -> bool:
        """Draw whether the disk does not answer."""
        return self.scenario.has("mute disk") and not self.healed and self.fault_chance.random() < 0.4

    def no_port(self) -> bool:
        """Draw whether no port is free."""
        return self.scenario.has("no port") and self.fault_chance.random() < 0.5


def _short(value: Any) -> str:
    message = getattr(value, "message", None)
    text = type(value).__name__
    if message is not None:
        text += ":" + type(message).__name__
        value = message
    return f"{text}{getattr(value, 'epoch', '')}.{getattr(value, 'rank', '')}"
