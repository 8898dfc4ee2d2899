"""Format the configuration files of a lab's Slurm; knows Slurm's options by release, writes no file."""

from __future__ import annotations

import os
import pwd

from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import CONTROLLER, LabSpec, Layout, Preempt, Proctrack

# Seconds until a job's credential expires. A requeued job starts after that.
CREDENTIAL_SECONDS = 20
SITE_CREDENTIAL_SECONDS = 120
NODE_TIMEOUT_SECONDS = 10
# Labs of this many nodes and more have a site's timeouts, because two cores must serve all nodes.
MANY = 100
DATABASE_PORT = 3306
PORTS = {"slurmctld": 6817, "slurmd": 6818, "slurmdbd": 6819}


def release(version: str) -> tuple[int, int]:
    """Return (22, 5) for '22.05.8'."""
    parts = version.split(".")
    return int(parts[0]), int(parts[1])


def slurm_conf(spec: LabSpec, layout: Layout, place: LabPlace, version: str) -> str:
    """Return the text of slurm.conf."""
    choices = {"ProctrackType": f"proctrack/{spec.proctrack.value}"}
    if spec.preempt is not Preempt.OFF:
        choices |= {"PreemptType": "preempt/partition_prio", "PreemptMode": spec.preempt.value.upper()}
    if spec.accounting:
        choices |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": CONTROLLER,
            "AccountingStoragePort": str(PORTS["slurmdbd"]),
            "AccountingStoragePass": f"{place.run}/munge.socket",
            "AccountingStorageTRES": "gres/gpu" if spec.gpus else "",
        }
    elif release(version) < (21, 8):
        choices["AccountingStorageType"] = "accounting_storage/none"
    lines = {**_base(spec, place), **_times(spec), **choices, **dict(spec.settings)}
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if value)
    return text + _nodes(spec, layout) + _partitions(spec, layout)


def _base(spec: LabSpec, place: LabPlace) -> dict[str, str]:
    run, spool, log = place.run, place.spool, place.log
    caller = pwd.getpwuid(os.geteuid()).pw_name
    # A launch over many nodes must finish before its credential expires.
    expire = SITE_CREDENTIAL_SECONDS if spec.nodes > MANY else CREDENTIAL_SECONDS
    return {
        "ClusterName": spec.cluster,
        "SlurmctldHost": CONTROLLER,
        "SlurmUser": caller,
        "SlurmdUser": caller,
        "SlurmctldPort": str(PORTS["slurmctld"]),
        "SlurmdPort": str(PORTS["slurmd"]),
        "AuthType": "auth/munge",
        "CryptoType": "",
        "AuthInfo": f"socket={run}/munge.socket,cred_expire={expire}",
        "StateSaveLocation": f"{spool}/ctl",
        "SlurmdSpoolDir": f"{spool}/%n",
        "SlurmctldPidFile": f"{run}/slurmctld.pid",
        "SlurmdPidFile": f"{run}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{log}/slurmctld.log",
        "SlurmdLogFile": f"{log}/slurmd.%n.log",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "GresTypes": "gpu" if spec.gpus else "",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SwitchType": "",
        "JobCompType": "jobcomp/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "ReturnToService": "2",
        "JobRequeue": "1",
    }


def _times(spec: LabSpec) -> dict[str, str]:
    many = spec.nodes > MANY
    return {
        "KillWait": "5",
        # If the controller misses the end of a step, the node reports it again after 60 s. It must not be
        # drained before. Newer releases warn below five times MessageTimeout.
        "UnkillableStepTimeout": "300" if many else "180",
        "SlurmdTimeout": "120" if many else str(NODE_TIMEOUT_SECONDS),
        "SlurmctldTimeout": "60",
        "MessageTimeout": "60" if many else "10",
        "InactiveLimit": "0",
        "MinJobAge": "300",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0,bf_interval=1",
    }


def _nodes(spec: LabSpec, layout: Layout) -> str:
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    memory = spec.cpus * 4000
    return f"NodeName={layout.node_range} CPUs={spec.cpus} RealMemory={memory}{gres} State=UNKNOWN\n"


def _partitions(spec: LabSpec, layout: Layout) -> str:
    line = f"Nodes={layout.node_range} MaxTime=INFINITE State=UP"
    text = f"PartitionName=debug Default=YES PriorityTier=1 {line}\n"
    if spec.preempt is not Preempt.OFF:
        text += f"PartitionName=urgent Default=NO PriorityTier=10 {line}\n"
    return text


def gres_conf(spec: LabSpec, place: LabPlace) -> str:
    """Return gres.conf, with the files that represent the GPUs of every node."""
    if not spec.gpus:
        return ""
    last = f"[0-{spec.gpus - 1}]" if spec.gpus > 1 else "0"
    return f"Name=gpu File={place.devices}/nvidia{last}\n"


def cgroup_conf(spec: LabSpec, version: str, unified: bool) -> str:
    """Return cgroup.conf. ``unified``: this machine has cgroup version 2 only."""
    if spec.proctrack is Proctrack.CGROUP:
        plugin = "cgroup/v2" if unified else "cgroup/v1"
    elif release(version) >= (24, 5):
        plugin = "disabled"  # 23.11 accepts this value too, but its nodes then stay down
    else:
        plugin = "cgroup/v1"
    lines = [f"CgroupPlugin={plugin}"] if release(version) >= (21, 8) else []
    if plugin == "cgroup/v2":
        lines.append("IgnoreSystemd=yes")  # slurmd is not a service here: it makes its cgroups itself
    lines += ["ConstrainCores=no", "ConstrainRAMSpace=no", "ConstrainDevices=no"]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(place: LabPlace) -> str:
    """Return the accounting daemon's configuration. Its database is the lab's own, over a socket file."""
    return "\n".join(
        (
            "AuthType=auth/munge",
            f"AuthInfo=socket={place.run}/munge.socket",
            f"DbdHost={CONTROLLER}",
            f"DbdPort={PORTS['slurmdbd']}",
            f"SlurmUser={pwd.getpwuid(os.geteuid()).pw_name}",
            f"LogFile={place.log}/slurmdbd.log",
            f"PidFile={place.run}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={DATABASE_PORT}",
            "StorageLoc=slurm",
            "StorageUser=root",
            "",
        )
    )
