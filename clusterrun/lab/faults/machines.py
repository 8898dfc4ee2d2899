"""Faults of whole hosts and of Slurm's daemons: freeze, kill, drain, controller."""

from __future__ import annotations

import signal

from clusterrun import proc
from clusterrun.lab import build, daemons
from clusterrun.lab.faults.kinds import FaultType
from clusterrun.lab.namespaces import LabError, end, wait_for
from clusterrun.lab.place import Fault
from clusterrun.lab.processes import LabProcess, chosen, processes, resume, send, stop_all, waiting_outside
from clusterrun.lab.site import LabSite
from clusterrun.lab.spec import CONTROLLER
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace

END_SECONDS = 15.0


def _some(site: LabSite, fault: Fault) -> tuple[LabProcess, ...]:
    matching = chosen(processes({fault.host: site.first(fault.host)}), fault.get("process"))
    if not matching:
        raise BadInput(
            f"no process {fault.get('process')!r} runs on {fault.host}",
            "name it by its id there, its name, or a part of its command line",
        )
    return matching


def freeze(site: LabSite, fault: Fault) -> Fault:
    if not fault.get("process"):
        stop_all(fault.host, site.first(fault.host))
        return fault
    stopped = _some(site, fault)
    send(stopped, signal.SIGSTOP)
    return fault.with_details(stopped=",".join(str(p.inner) for p in stopped))


def thaw(site: LabSite, fault: Fault) -> None:
    frozen = processes({fault.host: site.first(fault.host)})
    if fault.get("process"):
        stopped = fault.get("stopped").split(",")
        frozen = tuple(p for p in frozen if str(p.inner) in stopped)
    send(frozen, signal.SIGCONT)
    # `nsenter`, which waits for a program of `lab exec`, has stopped itself with it.
    parents = {entry.parent for entry in map(proc.find, (p.process for p in frozen)) if entry}
    waiting = [p for p in waiting_outside({fault.host: site.first(fault.host)}) if p in parents]

    def all_run() -> bool:
        stopped = [entry.pid for entry in map(proc.find, waiting) if entry and entry.stopped]
        for process in stopped:
            resume(process)
        return not stopped

    wait_for(all_run, END_SECONDS)


def kill(site: LabSite, fault: Fault) -> Fault:
    if fault.get("process"):
        targets = _some(site, fault)
        send(targets, signal.SIGKILL)
        killed = {process.process for process in targets}
        hosts = {fault.host: site.first(fault.host)}
        wait_for(lambda: not any(p.process in killed for p in processes(hosts)), END_SECONDS)
        return fault
    site.node(fault.host)
    first = site.first(fault.host)
    end(first, waiting_outside({fault.host: first}))
    site.state = site.state.with_host(fault.host, 0)
    return fault


def switch_on(site: LabSite, fault: Fault) -> None:
    if not fault.get("process"):
        site.state = build.boot_node(site.place, site.state, site.node(fault.host))
        return
    running = {p.name for p in processes({fault.host: site.first(fault.host)})}
    if fault.host in site.state.layout.node_names and "slurmd" not in running:
        daemons.start_slurmd(site.place, site.state, fault.host)
    elif fault.host == CONTROLLER and "slurmctld" not in running:
        daemons.start_controller(site.place, site.state)


def drain(site: LabSite, fault: Fault) -> Fault:
    reason = fault.get("reason") or "drained by the lab"
    _scontrol(site, "update", f"nodename={site.node(fault.host).name}", "state=drain", f"reason={reason}")
    return fault


def _scontrol(site: LabSite, *arguments: str) -> None:
    answer = site.ask("scontrol", *arguments)
    if answer.code != 0:
        raise LabError(f"scontrol {' '.join(arguments)}: {answer.err.strip() or answer.out.strip()}")


def stop_controller(site: LabSite, fault: Fault) -> Fault:
    def running() -> tuple[LabProcess, ...]:
        return chosen(processes({CONTROLLER: site.first(CONTROLLER)}), "slurmctld")

    controllers = running()
    send(controllers, signal.SIGTERM)
    if not wait_for(lambda: not running(), END_SECONDS):
        send(controllers, signal.SIGKILL)
    return replace(fault, host=CONTROLLER)


KINDS = (
    FaultType("freeze", frozenset({"process"}), freeze, thaw, lives_in_host=True),
    FaultType("kill", frozenset({"process"}), kill, switch_on),
    FaultType(
        "drain",
        frozenset({"reason"}),
        drain,
        lambda site, fault: _scontrol(site, "update", f"nodename={fault.host}", "state=resume"),
        alone=True,
    ),
    FaultType(
        "controller",
        frozenset(),
        stop_controller,
        lambda site, fault: daemons.start_controller(site.place, site.state),
        needs_host=False,
        host=CONTROLLER,
        alone=True,
    ),
)
