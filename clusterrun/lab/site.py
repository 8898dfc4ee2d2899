"""A lab that is up, for the faults: its state, and a way to run programs inside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from clusterrun import proc
from clusterrun.lab import daemons
from clusterrun.lab.namespaces import LabError, as_caller, enter
from clusterrun.lab.place import LabPlace, LabState
from clusterrun.lab.spec import LOGIN, Host
from clusterrun.model.errors import BadInput
from clusterrun.system import Completed, run

LIMIT_SECONDS = 60.0


@dataclass
class LabSite:
    """One lab; ``state`` is replaced when a fault or a boot changes it."""

    place: LabPlace
    state: LabState

    def host(self, name: str) -> Host:
        """Return a host by name. Raises ``BadInput`` if there is none."""
        hosts = self.state.layout.hosts
        if name not in hosts:
            servers = ", ".join(host.name for host in self.state.layout.servers)
            raise BadInput(
                f"the lab {self.state.spec.name!r} has no host {name!r}",
                f"it has {servers}, {self.state.layout.node_range}",
            )
        return hosts[name]

    def node(self, name: str) -> Host:
        """Return a host that must be a node. Raises ``BadInput`` otherwise."""
        host = self.host(name)
        if name not in self.state.layout.node_names:
            raise BadInput(f"{name!r} is not a node", f"the nodes are {self.state.layout.node_range}")
        return host

    def first(self, name: str) -> int:
        """Return a host's process 1. Raises ``BadInput`` for a host that is switched off."""
        process = self.state.processes.get(self.host(name).name, 0)
        if not process:
            remedy = f"switch it on: clusterrun lab fault heal {name}"
            raise BadInput(f"{name} is switched off (fault `kill`)", remedy)
        if proc.ancestors(process)[:1] != [self.state.keeper]:
            # Another process may have its id now, and must not be entered.
            raise LabError(f"{name} has died by itself", "end the lab and start it anew: lab down, lab up")
        return process

    def router(self, *argv: str) -> str:
        """Run a program on the router and return its output."""
        return self._checked(enter(self.state.keeper), argv)

    def router_writes(self, path: str, text: str) -> None:
        """Replace the contents of a file that all hosts see."""
        command = ["sh", "-c", 'cat >"$1"', "sh", path]
        self._checked(enter(self.state.keeper), command, text)

    def on(self, name: str, *argv: str, limit: float = LIMIT_SECONDS) -> str:
        """Run a program on a host as root and return its output. Raises ``LabError`` if it fails."""
        return self._checked(enter(self.first(name), self.state.root), argv, limit=limit)

    def on_outside_root(self, name: str, *argv: str) -> str:
        """Run a program on a host with the machine's own files as root, for mounts and traffic control."""
        return self._checked(enter(self.first(name)), argv)

    def ask(self, *argv: str, limit: float = LIMIT_SECONDS) -> Completed:
        """Run one of Slurm's programs on the login host. The caller judges the exit code."""
        inside = [*enter(self.first(LOGIN), self.state.root), *as_caller()]
        return run([*inside, *argv], limit, env=daemons.environment(self.place), cwd="/")

    def _checked(
        self, inside: Sequence[str], argv: Sequence[str], stdin: str = "", limit: float = LIMIT_SECONDS
    ) -> str:
        environment = {
            **daemons.environment(self.place),
            "PATH": os.environ.get("PATH", "") + ":" + daemons.PATH,
        }
        result = run([*inside, *argv], limit, stdin, environment, "/")
        if result.code != 0:
            raise LabError(f"{' '.join(argv)}: {result.err.strip() or result.out.strip() or result.code}")
        return result.out
