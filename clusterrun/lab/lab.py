"""A lab: up, down, run programs on its hosts; the one object that tests and the command line use."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.lab import daemons, files, namespaces
from clusterrun.lab.namespaces import Boot, LabError, enter, started_at, wait_for
from clusterrun.lab.place import LabState, Place, boot_id, labs_home, read_state, write_state
from clusterrun.lab.spec import LOGIN, USERS, Host, LabSpec, Layout
from clusterrun.model.errors import BadInput
from clusterrun.system import Completed, run

READY_SECONDS = 60.0
READY_SECONDS_PER_NODE = 0.2


class Lab:
    """One lab by name, up or not. ``say`` gets a line of text when something deserves one."""

    def __init__(self, name: str = "lab", say: Callable[[str], None] = lambda line: None) -> None:
        LabSpec(name=name)
        self.name = name
        self.place = Place(labs_home() / name)
        self._say = say

    # --- what it is ---

    @property
    def state(self) -> LabState:
        """The lab as it stands. Raises ``BadInput`` when none of that name is up."""
        state = read_state(self.place)
        if state is None or not state.up or not alive(state):
            raise BadInput(f"no lab named {self.name!r} is up", f"start it: {command(self.name, 'up')}")
        return state

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return self.state.layout.node_names

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF says on its hosts."""
        return self.place.slurm_conf

    # --- up and down ---

    def up(self, spec: LabSpec | None = None) -> None:
        """Start it; returns when every node is idle. Raises ``BadInput`` if it is up already."""
        spec = spec or LabSpec(name=self.name)
        self._claim()
        try:
            self._build(spec)
        except BaseException:
            self.down()
            raise

    def _claim(self) -> None:
        """Make the lab's folder, which nobody else can make at the same time."""
        state = read_state(self.place)
        if state is not None and state.up and alive(state):
            raise BadInput(
                f"the lab {self.name!r} is already up ({state.spec.nodes} nodes)",
                f"use it: {command(self.name, 'exec')} -- sinfo\nor end it first: {command(self.name, 'down')}",
            )
        if self.place.folder.exists():
            self._say(f"what was left of an earlier lab {self.name!r} is cleaned up")
            self.down()
        self.place.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        try:
            self.place.folder.mkdir(mode=0o755)
        except FileExistsError as error:
            raise BadInput(f"the lab {self.name!r} is being started by somebody else") from error

    def _build(self, spec: LabSpec) -> None:
        state = LabState(spec, _free_slot(self.place), boot_id(), os.getpid(), slurm_version=_version())
        write_state(self.place, state)
        files.write_files(self.place, state)
        with Boot() as boot:
            state = self._boot_servers(boot, state)
            daemons.start_munge(self.place, state)
            daemons.start_controller(self.place, state)
            state = self._boot_nodes(boot, state)
        self._await_idle(state)
        write_state(self.place, replace(state, up=True))

    def _boot_servers(self, boot: Boot, state: LabState) -> LabState:
        servers = state.layout.servers
        request = {
            "keeper": {
                "state": str(self.place.folder),
                "etc": str(self.place.etc),
                "mounts": str(self.place.mounts),
                "root": state.root,
                "map_user": None,
            },
            **self._hosts_request(state, servers, with_slurmd=False),
        }
        for host, process in boot.ask(request, 1 + len(servers)):
            if not host:
                state = replace(state, keeper=process, started=started_at(process))
                write_state(self.place, state)
            else:
                state = state.with_host(host, process)
        return state

    def _boot_nodes(self, boot: Boot, state: LabState) -> LabState:
        nodes = state.layout.compute
        request = self._hosts_request(state, nodes, with_slurmd=True)
        processes = dict(boot.ask(request, len(nodes)))
        return replace(state, processes={**state.processes, **processes})

    def _hosts_request(self, state: LabState, hosts: Iterable[Host], with_slurmd: bool) -> dict[str, Any]:
        lab = {
            "state": str(self.place.folder),
            "mounts": str(self.place.mounts),
            "gateway": state.layout.gateway,
            "root": state.root,
        }
        return {"lab": lab, "hosts": [self._host_request(host, with_slurmd) for host in hosts]}

    def _host_request(self, host: Host, with_slurmd: bool) -> dict[str, Any]:
        services = [daemons.slurmd_service(self.place, host.name)] if with_slurmd else []
        return {
            "name": host.name,
            "address": host.address,
            "link": host.link,
            "mac": host.mac,
            "router_mac": host.router_mac,
            "binds": [],
            "services": services,
        }

    def _await_idle(self, state: LabState) -> None:
        limit = READY_SECONDS + state.spec.nodes * READY_SECONDS_PER_NODE
        if not wait_for(
            lambda: _idle(self._run(state, LOGIN, ["sinfo", "-h", "-N", "-o", "%N %T"])) == state.spec.nodes,
            limit,
            0.01,
        ):
            raise LabError("the nodes did not become idle", daemons.tail(self.place.log / "slurmctld.log"))

    def down(self) -> None:
        """End it, whatever is left of it; returns when no process and no file of it remains."""
        for keeper in self._keepers():
            namespaces.end(keeper)
        self.place.remove()

    def _keepers(self) -> set[int]:
        state = read_state(self.place)
        found = set(namespaces.stray_keepers(self.place))
        if state is not None and alive(state):
            found.add(state.keeper)
        return found

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
        state = self.state
        words, environment = self.entering(host, env or {}, os.fspath(cwd or os.getcwd()), user)
        del state
        return run([*words, *argv], timeout, stdin, environment, "/")

    def entering(
        self, host: str, env: Mapping[str, str], cwd: str, user: str = ""
    ) -> tuple[list[str], dict[str, str]]:
        """The argument list and the environment that run what follows on a host."""
        state = self.state
        if host not in state.processes:
            raise BadInput(
                f"the lab {self.name!r} has no host {host!r}", f"it has {_hosts_text(state.layout)}"
            )
        environment = daemons.caller_environment(self.place, os.path.dirname(sys.executable))
        words = enter(state.processes[host], state.root)
        if user and user != "root":
            identity = _identity(user, self.place)
            environment.update(HOME=identity[1], USER=user, LOGNAME=user)
            number = str(identity[0])
            words += ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]
        return [*words, "env", "-C", cwd], {**environment, **env}

    def _run(self, state: LabState, host: str, argv: Sequence[str]) -> Completed:
        words = enter(state.processes[host], state.root)
        return run([*words, *argv], 60.0, env=daemons.environment(self.place), cwd="/")


def command(name: str, verb: str) -> str:
    """How a user types a lab command."""
    return f"clusterrun lab {verb}" + ("" if name == "lab" else f" --name {name}")


def alive(state: LabState) -> bool:
    """Whether the lab's keeper still runs, in this start of the machine."""
    return bool(state.keeper) and state.boot == boot_id() and started_at(state.keeper) == state.started


def _idle(done: Completed) -> int:
    return sum(line.endswith(" idle") for line in done.out.splitlines())


def _version() -> str:
    done = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=30)
    return done.stdout.split()[-1]


def _free_slot(place: Place) -> int:
    others = [read_state(Place(folder)) for folder in place.folder.parent.iterdir()]
    taken = {state.slot for state in others if state is not None}
    return next((slot for slot in range(100) if slot not in taken), 0)


def _hosts_text(layout: Layout) -> str:
    names = [host.name for host in layout.servers]
    return ", ".join([*names, layout.node_range])


def _identity(user: str, place: Place) -> tuple[int, str]:
    if user in USERS:
        return USERS[user], str(place.homes / user)
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise BadInput(f"no user {user!r}", f"a lab has {', '.join(USERS)}") from error
    return entry.pw_uid, entry.pw_dir
