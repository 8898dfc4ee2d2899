"""Start and end a lab, and run programs on its hosts. Tests and the command line use this object."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from clusterrun.lab import build, cgroups, daemons, files, namespaces, needs, roots, users
from clusterrun.lab.faults import order
from clusterrun.lab.namespaces import as_caller, enter, started_at, wait_for
from clusterrun.lab.place import (
    Fault,
    LabPlace,
    LabState,
    boot_id,
    labs_home,
    locked,
    read_state,
    write_state,
)
from clusterrun.lab.processes import LabProcess, processes, waiting_outside
from clusterrun.lab.site import LabSite
from clusterrun.lab.spec import LOGIN, LabSpec, Proctrack
from clusterrun.model.errors import BadInput
from clusterrun.system import Completed, ProgramTimeout, run

# Seconds for slurmctld to answer `lab status`. A frozen one never does.
ANSWER_SECONDS = 20.0
COLLECT_SECONDS = 3.0


class Lab:
    """One lab by name, up or not. ``say`` gets the messages for the user."""

    def __init__(self, name: str = "lab", say: Callable[[str], None] = lambda line: None) -> None:
        LabSpec(name=name)
        self.name = name
        self.place = LabPlace(labs_home() / name)
        self._say = say

    # --- what it is ---

    @property
    def state(self) -> LabState:
        """Return the present state of the lab. Raises ``BadInput`` if it is not up."""
        state = read_state(self.place)
        if state is None or not state.up or not alive(state):
            if around := lab_around():
                raise BadInput(*outside_of(around))
            raise BadInput(f"no lab named {self.name!r} is up", f"start it: {command(self.name, 'up')}")
        return state

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return self.state.layout.node_names

    @property
    def slurm_conf(self) -> Path:
        """Return the value of SLURM_CONF on the hosts."""
        return self.place.slurm_conf

    # --- up and down ---

    def up(self, spec: LabSpec | None = None) -> None:
        """Start the lab. Return when every node is idle. Raises ``BadInput`` if it is up already."""
        _refuse_inside()
        spec = spec or LabSpec(name=self.name)
        needs.check(spec)
        self._claim()
        try:
            ground = roots.choose_root(spec.slurm)
            others = [read_state(LabPlace(folder)) for folder in self.place.folder.parent.iterdir()]
            taken = {state.slot for state in others if state is not None}
            state = LabState(
                spec,
                next((slot for slot in range(100) if slot not in taken), 0),
                boot_id(),
                os.getpid(),
                slurm_version=ground.version,
                root=ground.root,
                graft=ground.graft,
            )
            write_state(self.place, state)
            files.write_files(self.place, state)
            write_state(self.place, build.build(self.place, state))
        except BaseException:
            self.down()
            raise

    def _claim(self) -> None:
        """Make the lab's folder, which nobody else can make at the same time."""
        state = read_state(self.place)
        if state is not None and state.up and alive(state):
            raise BadInput(
                f"the lab {self.name!r} is already up ({state.spec.nodes} nodes)",
                f"use it: {command(self.name, 'exec')} -- sinfo\nor end it: {command(self.name, 'down')}",
            )
        if state is not None and not state.up and state.owner != os.getpid() and started_at(state.owner):
            raise BadInput(
                f"the lab {self.name!r} is being started by process {state.owner}",
                f"wait for it, or end it: {command(self.name, 'down')}",
            )
        if self.place.folder.exists():
            self._say(f"what was left of an earlier lab {self.name!r} is cleaned up")
            self.down()
        self.place.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        try:
            self.place.folder.mkdir(mode=0o755)
        except FileExistsError as error:
            raise BadInput(f"the lab {self.name!r} is being started by somebody else") from error

    def down(self, collected: bool = False) -> bool:
        """End the lab, or what is left of it. Return whether there was anything, once no process runs.

        ``collected``: also wait until `ps` does not even show a dead process of it any more.
        """
        _refuse_inside()
        state = read_state(self.place)
        first = namespaces.first_processes(self.place)
        keepers = {process for host, process in first if host == "keeper"}
        if state is not None and alive(state):
            keepers.add(state.keeper)
        existed = bool(keepers) or self.place.folder.exists()
        waiting = waiting_outside(dict(first))
        for keeper in keepers:
            namespaces.end(keeper, waiting)
        grouped = state.layout.node_names if state and state.spec.proctrack is Proctrack.CGROUP else ()
        cgroups.remove(self.place, grouped)
        self.place.remove()
        if collected:  # the machine's process 1 collects ended keepers soon, or never
            wait_for(
                lambda: not any(os.path.exists(f"/proc/{keeper}") for keeper in keepers), COLLECT_SECONDS
            )
        return existed

    # --- programs on its hosts ---

    def exec(
        self,
        argv: Sequence[str],
        host: str = LOGIN,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
        user: str = "",
    ) -> Completed:
        """Run a program on a host of the lab, with the caller's directory and environment.

        ``env`` is added to the environment; ``timeout`` is in seconds; ``user`` is an ordinary
        user of the lab (alice, bob) or of this machine. Raises what ``system.run`` raises.
        """
        inside, environment = self.entering(host, env or {}, os.fspath(cwd or os.getcwd()), user)
        return run([*inside, *argv], timeout, stdin, environment, "/")

    def entering(
        self, host: str, env: Mapping[str, str], cwd: str, user: str = ""
    ) -> tuple[list[str], dict[str, str]]:
        """Return the argument list and the environment that run a program on a host."""
        state = self.state
        first = LabSite(self.place, state).first(host)
        if Fault("freeze", host) in state.faults:
            raise BadInput(f"{host} is frozen", f"thaw it: {command(self.name, 'fault')} thaw {host}")
        environment = daemons.caller_environment(self.place, os.path.dirname(sys.executable))
        inside = [*enter(first, state.root), *as_caller()]
        if user and user != pwd.getpwuid(os.geteuid()).pw_name:
            identity = users.identity(user, self.place)
            inside += identity.words
            environment = identity.environment(environment)
            cwd = identity.folder(cwd)
        return [*inside, "env", "-C", cwd], {**environment, **env}

    # --- faults ---

    def fault(self, kind: str, host: str = "", **details: str | int | bool) -> Fault:
        """Inject a fault on a host: ``lab.fault("cut", "n0001", to="n0002", port=29500)``.

        Kinds and details are those of `clusterrun lab fault`. Raises ``BadInput`` for what cannot be
        meant, ``LabError`` for what this machine cannot do.
        """
        settings = {key: value for key, value in details.items() if value is not False}
        pairs = tuple((key, "yes" if value is True else str(value)) for key, value in settings.items())
        with self._changing() as site:
            return order.apply(site, Fault(kind, host, pairs))

    def heal(self, host: str = "", kind: str = "") -> tuple[Fault, ...]:
        """End every fault, or those on one host, or of one kind. Return the faults that have ended."""
        with self._changing() as site:
            return order.heal(site, host, kind)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[LabSite]:
        assert self.state.up
        with locked(self.place):
            yield LabSite(self.place, self.state)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the faults in force."""
        return self.state.faults

    # --- looking ---

    def wait_idle(self, seconds: float = 60.0) -> bool:
        """Return whether all nodes are idle again within ``seconds``."""
        state = self.state
        return wait_for(lambda: build.idle_nodes(self.place, state) == state.spec.nodes, seconds, 0.02)

    def node_states(self) -> dict[str, str]:
        """Return each node's state in Slurm's words; empty when slurmctld does not answer."""
        state = self.state
        if not daemons.controller_listens(state):
            return {}
        try:
            command = ("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T")
            answer = LabSite(self.place, state).ask(*command, limit=ANSWER_SECONDS)
        except ProgramTimeout:
            return {}
        return dict(line.split() for line in answer.out.splitlines() if answer.code == 0)

    def processes(self) -> tuple[LabProcess, ...]:
        """Return every process on the hosts, the lab's own daemons included."""
        return processes(self.state.processes)


def command(name: str, verb: str) -> str:
    """Return a lab command as a user types it."""
    return f"clusterrun lab {verb}" + ("" if name == "lab" else f" --name {name}")


def labs_up() -> list[Lab]:
    """Return every lab of this user that is up."""
    home = labs_home()
    states = {f.name: read_state(LabPlace(f)) for f in sorted(home.iterdir())} if home.is_dir() else {}
    return [Lab(name) for name, state in states.items() if state is not None and state.up and alive(state)]


def alive(state: LabState) -> bool:
    """Return whether the lab's keeper still runs, in this start of the machine."""
    return bool(state.keeper) and state.boot == boot_id() and started_at(state.keeper) == state.started


def lab_around() -> str:
    """Return the name of the lab that has this machine as a host; '' if there is none.

    A host does not see the lab's keeper, which shows that a lab is up.
    """
    name = Path(namespaces.label_of(1)[1]).name
    if name:
        return name
    place = LabPlace(Path(os.environ.get("SLURM_CONF", "")).parent.parent)
    state = read_state(place)
    if state is None or not state.up or state.boot != boot_id() or alive(state):
        return ""
    return place.name if os.uname().nodename in state.layout.hosts else ""


def outside_of(name: str) -> tuple[str, str]:
    """Return the message for a lab command on a host of the lab ``name``, and the remedy."""
    message = f"this is a host of the lab {name!r}, and lab commands work only outside of it"
    return message, f"leave it (exit), or type in another terminal: {command(name, 'status')}"


def _refuse_inside() -> None:
    """Refuse to start or end a lab on a host of one: it would take live labs for leftovers of dead ones."""
    if around := lab_around():
        raise BadInput(*outside_of(around))
