"""Build a lab from its state, host by host and daemon by daemon."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clusterrun.lab import cgroups, daemons
from clusterrun.lab.conf import DATABASE_PORT
from clusterrun.lab.namespaces import Boot, LabError, enter, started_at, wait_for
from clusterrun.lab.place import LabPlace, LabState, write_state
from clusterrun.lab.site import LabSite
from clusterrun.lab.spec import CONTROLLER, Host, Proctrack
from clusterrun.model.frozen import replace

READY_SECONDS = 60.0
READY_SECONDS_PER_NODE = 0.2
ASK_SECONDS = 120.0
DATABASE_SECONDS = 120.0
OF_A_DISTRIBUTION = frozenset(
    {
        *("bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "lost+found"),
        *("proc", "sbin", "sys", "usr", "var"),
    }
)


def build(place: LabPlace, state: LabState) -> LabState:
    """Make every host and start every daemon; returns when all nodes are idle."""
    with Boot() as boot:
        servers = state.layout.servers
        request = {
            "keeper": {
                "state": str(place.folder),
                "etc": str(place.etc),
                "mounts": str(place.mounts),
                "root": state.root,
                "graft": state.graft,
                "shared": [str(path) for path in _shared(place)] if state.root else [],
                "devices": [
                    str(path) for path in sorted(place.devices.iterdir()) if not path.is_char_device()
                ],
                "network": state.layout.network,
                "map_user": (0, os.geteuid(), os.getegid()) if os.geteuid() else None,
            },
            **_hosts_request(place, state, servers, with_slurmd=False),
        }
        for host, process in boot.ask(request, 1 + len(servers)):
            if host:
                state = state.with_host(host, process)
            else:
                state = replace(state, keeper=process, started=started_at(process))
                write_state(place, state)
        daemons.start_munge(place, state)
        if state.spec.accounting:
            _start_accounting(place, state)
        daemons.start_controller(place, state)
        nodes = state.layout.compute
        process_by_host = dict(boot.ask(_hosts_request(place, state, nodes, with_slurmd=True), len(nodes)))
        state = replace(state, processes={**state.processes, **process_by_host})
    limit = READY_SECONDS + state.spec.nodes * READY_SECONDS_PER_NODE
    if not wait_for(lambda: idle_nodes(place, state) == state.spec.nodes, limit, 0.01):
        raise LabError("the nodes did not become idle", daemons.tail(place.log / "slurmctld.log"))
    return replace(state, up=True)


def _start_accounting(place: LabPlace, state: LabState) -> None:
    """Start a MariaDB and a slurmdbd of the lab's own, and make the cluster known to them."""
    machine = replace(state, root="")  # the database is this machine's, whatever Slurm the lab runs
    common = ["--no-defaults", "--user=root", f"--datadir={place.spool}/mysql"]
    make = ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"]
    LabSite(place, machine).on(CONTROLLER, *make, limit=DATABASE_SECONDS)
    serve = [
        "mariadbd",
        *common,
        f"--port={DATABASE_PORT}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=32M",
        "--innodb-flush-log-at-trx-commit=0",
        f"--socket={place.run}/mysql.socket",
        f"--pid-file={place.run}/mysql.pid",
    ]
    daemons.start(place, machine, CONTROLLER, serve, "mariadbd.out")
    daemons.await_port(place, state, "mariadbd", DATABASE_PORT)
    daemons.start(place, state, CONTROLLER, ["slurmdbd", "-D"], "slurmdbd.out")
    daemons.await_port(place, state, "slurmdbd")
    add = ("sacctmgr", "--immediate", "add", "cluster", state.spec.cluster)
    LabSite(place, state).on(CONTROLLER, *add, limit=DATABASE_SECONDS)


def boot_node(place: LabPlace, state: LabState, node: Host) -> LabState:
    """Switch one node of a running lab on again, with its slurmd."""
    with Boot(inside=enter(state.keeper)) as boot:
        request = {**_hosts_request(place, state, [node], with_slurmd=True), "again": True}
        ((name, process),) = boot.ask(request, 1)
    return state.with_host(name, process)


def _hosts_request(
    place: LabPlace, state: LabState, hosts: Iterable[Host], with_slurmd: bool
) -> dict[str, Any]:
    lab = {
        "state": str(place.folder),
        "mounts": str(place.mounts),
        "gateway": state.layout.gateway,
        "root": state.root,
    }
    requests = []
    for host in hosts:
        # The mounts of this host alone: its kernel log, and its part of the cgroups.
        log = place.kernel_messages(host.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        own = cgroups.binds(place, host.name) if state.spec.proctrack is Proctrack.CGROUP else []
        requests.append(
            {
                "name": host.name,
                "address": host.address,
                "link": host.link,
                "mac": host.mac,
                "router_mac": host.router_mac,
                "binds": [(str(log), "/dev/kmsg"), *own],
                "services": [daemons.slurmd_service(place, host.name)] if with_slurmd else [],
            }
        )
    return {"lab": lab, "hosts": requests}


def _shared(place: LabPlace) -> Iterator[Path]:
    """Return the machine's folders that a lab in another root shares: those of no distribution."""
    yield from (Path("/usr/local"), Path("/var/tmp"), place.folder.parent)
    for path in sorted(Path("/").iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in OF_A_DISTRIBUTION:
            yield path


def idle_nodes(place: LabPlace, state: LabState) -> int:
    """Return how many nodes could start a job now."""
    sinfo = ("sinfo", "-h", "-N", "-p", "debug", "-o", "%T")
    return LabSite(place, state).ask(*sinfo, limit=ASK_SECONDS).out.split().count("idle")
