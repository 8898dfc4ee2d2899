"""Check the kernel's limits for a rank: locked memory, files, processes, TCP ports and buffers."""

from __future__ import annotations

import resource

from clusterrun import proc
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import infiniband
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number

NAME = "resource-limits"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the limits of processes could not be read within 10 s", "")
_KINDS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "file_size": resource.RLIMIT_FSIZE,
}
_PROCESSES_PER_RANK = 64
_MEMLOCK = (
    "LimitMEMLOCK=infinity in slurmd's unit file (systemctl edit slurmd), and "
    "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
)
_FILES = "ulimit -n 65536 before the job, or LimitNOFILE in slurmd's unit file"
# A rank of a small group opens about this many: a store, a listener, and connections in both directions.
_PORTS_PER_RANK = 32
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_PORTS = 'sysctl net.ipv4.ip_local_port_range="32768 60999"'
# Bytes. Linux allows megabytes. With less than this a socket never fills a fast network.
_LEAST_BUFFER = 64 << 10
_BUFFERS = {
    "receive": ("/proc/sys/net/ipv4/tcp_rmem", 'sysctl net.ipv4.tcp_rmem="4096 131072 6291456"'),
    "send": ("/proc/sys/net/ipv4/tcp_wmem", 'sysctl net.ipv4.tcp_wmem="4096 16384 4194304"'),
}
# Logs and small checkpoints fit below this.
LEAST_FILE_BYTES = 1 << 30
_FILE_SIZE = "ulimit -f unlimited before the job, or LimitFSIZE in slurmd's unit file"
_PROCESSES = "ulimit -u, or LimitNPROC in slurmd's unit file"


def probe(request: RunNeeds) -> object:
    """Return soft and hard limits (None if unlimited), and whether NCCL would use an RDMA port."""
    values = {}
    for name, kind in _KINDS.items():
        soft_and_hard = (
            None if most == resource.RLIM_INFINITY else most for most in resource.getrlimit(kind)
        )
        values[name] = dict(zip(("soft", "hard"), soft_and_hard))
    rdma = bool(infiniband.used(infiniband.ports(infiniband.CLASS)))
    ports = dict(zip(("first", "last"), map(int, proc.text(_RANGE).split())))
    buffers = {
        kind: int(sizes[2])
        for kind, (path, _) in _BUFFERS.items()
        if len(sizes := proc.text(path).split()) > 2
    }
    return {**values, "rdma": rdma, "ports": ports, "buffers": buffers}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if RDMA cannot register memory or if ports are lacking. Warn of few files or processes.

    A job on one node does not use RDMA: NCCL registers no memory of a network adapter inside a node.
    """
    limits = chosen(request.limits)
    gib, files, processes = limits["memlock"], limits["open_files"], request.ranks * _PROCESSES_PER_RANK
    for node, reading in readings.items():
        locked, most_files = number(reading, "memlock", "soft"), number(reading, "open_files", "hard")
        most_processes = number(reading, "processes", "soft")
        has_rdma = isinstance(reading, dict) and reading.get("rdma") is True
        if request.gpus and len(readings) > 1 and has_rdma and locked is not None and locked < gib * 2**30:
            message = f"a rank may lock {locked / 2**30:.3g} GiB of memory; RDMA needs {gib:g} GiB or more"
            yield node, Finding(NAME, Grade.FAIL if locked < 2**30 else Grade.WARN, message, _MEMLOCK)
        if most_files is not None and most_files < files:
            message = f"a rank may have {most_files:.0f} files open, and needs {files:.0f}"
            yield node, Finding(NAME, Grade.WARN, message, _FILES)
        if most_processes is not None and most_processes < processes:
            message = f"the user may have {most_processes:.0f} processes"
            message += f", and {request.ranks} ranks need {processes}"
            yield node, Finding(NAME, Grade.WARN, message, _PROCESSES)
        file_size = number(reading, "file_size", "soft")
        if file_size is not None and file_size < LEAST_FILE_BYTES:
            message = f"a rank may write files of at most {file_size / 2**20:.3g} MiB (ulimit -f)"
            yield node, Finding(NAME, Grade.WARN, message, _FILE_SIZE)
        for kind, (path, remedy) in _BUFFERS.items():
            most = number(reading, "buffers", kind)
            if most is not None and most < _LEAST_BUFFER:
                message = f"TCP sockets {kind} at most {most:.0f} bytes at a time ({path}); "
                message += f"a fast network needs {_LEAST_BUFFER} or more"
                yield node, Finding(NAME, Grade.FAIL, message, remedy)
        first, last = number(reading, "ports", "first"), number(reading, "ports", "last")
        if first is not None and last is not None and last - first + 1 < request.ranks * _PORTS_PER_RANK:
            message = f"the kernel hands out {last - first + 1:.0f} TCP ports, {first:.0f} to {last:.0f}; "
            message += f"each rank needs {_PORTS_PER_RANK} or more"
            yield node, Finding(NAME, Grade.FAIL, message, _PORTS)
