"""The checked options of a lab, and the names and addresses that follow from them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

# Memory one node takes (its shell, slurmd and kernel objects): measured at 1,250 nodes.
MIB_PER_NODE = 4.4
# Most nodes of the address plan. Memory is the limit long before.
MOST_NODES = 50_000
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
# Ordinary users that exist in every lab and nowhere else, with their ids.
USERS = {"alice": 20001, "bob": 20002}
CONTROLLER, LOGIN = "ctl", "login"


class Proctrack(enum.Enum):
    """How Slurm follows a job's processes; each leaves others behind."""

    LINUXPROC = "linuxproc"
    PGID = "pgid"
    CGROUP = "cgroup"


class Preempt(enum.Enum):
    """The way in which a job in `debug` leaves its nodes to one in `urgent`."""

    OFF = "off"
    REQUEUE = "requeue"
    CANCEL = "cancel"


@frozen
class LabSpec:
    """The options of a lab. Raises ``BadInput`` for values without a meaning."""

    name: str = "lab"
    nodes: int = 4
    gpus: int = 8
    cpus: int = 16
    proctrack: Proctrack = Proctrack.LINUXPROC
    preempt: Preempt = Preempt.OFF
    accounting: bool = False
    slurm: str = ""
    settings: tuple[tuple[str, str], ...] = ()  # more lines of slurm.conf; they win over the lab's own

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadInput(
                f"{self.name!r} cannot be the name of a lab",
                "use up to 32 lower-case letters, digits and inner hyphens, as in a host name",
            )
        _within("--nodes", self.nodes, 1, MOST_NODES, f"that would take {memory_text(self.nodes)}")
        _within("--gpus", self.gpus, 0, 64)
        _within("--cpus", self.cpus, 1, 1024)
        if self.slurm and not re.fullmatch(r"\d\d\.\d\d(\.\d+)?", self.slurm):
            raise BadInput(f"--slurm {self.slurm} is not a release of Slurm", "write it as in 24.11")
        for key, value in self.settings:
            if not re.fullmatch(r"\w+", key) or "\n" in value:
                raise BadInput(f"{key}={value!r} is not a line of slurm.conf", "write it as in KillWait=30")

    @property
    def cluster(self) -> str:
        """Return the name of the cluster in Slurm, which allows no hyphens there."""
        return self.name.replace("-", "_")


def _within(option: str, value: int, least: int, most: int, why: str = "") -> None:
    if not least <= value <= most:
        reason = f" ({why})" if why and value > most else ""
        raise BadInput(f"{option} must not be {value}{reason}", f"choose {least} to {most}")


def memory_mib(nodes: int) -> float:
    """Return the approximate memory of a lab of that many nodes, in MiB."""
    return 120 + nodes * MIB_PER_NODE


def memory_text(nodes: int) -> str:
    """The same for a reader."""
    return f"about {memory_mib(nodes) / 1024:,.1f} GiB of memory"


@dataclass(frozen=True)
class Host:
    """One host of a lab: its name and IPv4 address."""

    name: str
    address: str
    number: int

    @property
    def link(self) -> str:
        """Return the router's end of the cable to this host."""
        return f"r{self.number}"

    @property
    def mac(self) -> str:
        """Return the host's own link address."""
        return self._mac(0)

    @property
    def router_mac(self) -> str:
        """Return the link address of the router's end."""
        return self._mac(1)

    def _mac(self, end: int) -> str:
        return f"02:{end:02x}:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))


@dataclass(frozen=True)
class Layout:
    """The names and addresses of a lab. ``slot`` (0…99) is its part of the private addresses."""

    nodes: int
    slot: int

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """n0001, n0002, …"""
        width = max(4, len(str(self.nodes)))
        return tuple(f"n{number:0{width}d}" for number in range(1, self.nodes + 1))

    @property
    def node_range(self) -> str:
        """Return all nodes in Slurm's notation."""
        first, last = self.node_names[0], self.node_names[-1]
        return first if first == last else f"n[{first[1:]}-{last[1:]}]"

    @property
    def network(self) -> str:
        """Return all addresses of the lab."""
        return f"10.{100 + self.slot}.0.0/16"

    @property
    def gateway(self) -> str:
        """Return the router's address, the same on every link."""
        return f"10.{100 + self.slot}.255.254"

    @cached_property
    def servers(self) -> tuple[Host, ...]:
        """Return the hosts that are no nodes."""
        return tuple(
            Host(name, f"10.{100 + self.slot}.255.{number}", self.nodes + number)
            for number, name in enumerate((CONTROLLER, LOGIN), 1)
        )

    @cached_property
    def compute(self) -> tuple[Host, ...]:
        """Return the nodes."""
        return tuple(
            Host(name, f"10.{100 + self.slot}.{number // 250}.{number % 250 + 1}", number)
            for number, name in enumerate(self.node_names, 1)
        )

    @cached_property
    def hosts(self) -> dict[str, Host]:
        """Return all hosts by name."""
        return {host.name: host for host in (*self.servers, *self.compute)}

    def lines(self) -> Iterator[str]:
        """Return the lab's /etc/hosts."""
        yield "127.0.0.1 localhost"
        for host in self.hosts.values():
            yield f"{host.address} {host.name}"
