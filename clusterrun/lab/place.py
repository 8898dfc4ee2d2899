"""The paths of a lab's files, and its state file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from clusterrun import atomic_file
from clusterrun.lab.spec import LabSpec, Layout
from clusterrun.model.contract import LAB_HOME_VARIABLE
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.frozen import frozen, replace

STATE_FORMAT = 1


def labs_home() -> Path:
    """Return the folder that holds one folder per lab.

    Not below /run, where a lab would belong by its nature: Debian forbids to run programs there,
    and Slurm runs batch scripts out of its spool folder.
    """
    named = os.environ.get(LAB_HOME_VARIABLE)
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/clusterrun-lab")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusterrun-lab"


def boot_id() -> str:
    """Return the id of this start of the machine. Process ids of another start are invalid."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class LabPlace:
    """The paths of one lab's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name  # of the lab
        self.state = folder / "state.json"
        self.conf = folder / "conf"  # Slurm's configuration files, readable by all
        self.slurm_conf = self.conf / "slurm.conf"  # the value of SLURM_CONF
        self.etc = folder / "etc"  # files that are mounted over /etc on every host
        self.mounts = folder / "mounts"  # a mount point whose mounts only the lab sees
        self.programs = folder / "bin"  # the stand-ins (nvidia-smi, dmesg), first on every host's PATH
        self.devices = folder / "dev"  # the files that stand for GPUs
        self.log = folder / "log"  # every daemon's log
        self.run = folder / "run"  # sockets and pid files
        self.spool = folder / "spool"  # Slurm's own state, a folder per daemon
        self.homes = folder / "home"  # home directories of the lab's ordinary users

    def host(self, name: str) -> Path:
        """Return the files of one host alone (its GPUs' state, its kernel log, its faults' files)."""
        return self.folder / "hosts" / name

    def kernel_messages(self, host: str) -> Path:
        """Return the file that is /dev/kmsg on a host."""
        return self.host(host) / "kmsg"

    def remove(self) -> None:
        """Delete the lab's folder, and the folder of labs with the last one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:
            return


@frozen
class Fault:
    """One fault in force: ``kind`` (cut, slow, …), the host it is on, and its details."""

    kind: str
    host: str
    details: tuple[tuple[str, str], ...] = ()

    def get(self, key: str) -> str:
        """Return a detail, or ''."""
        return dict(self.details).get(key, "")

    def with_details(self, **more: str) -> Fault:
        return replace(self, details=(*self.details, *more.items()))

    def __str__(self) -> str:
        details = " ".join(f"{key}={value}" for key, value in self.details if value)
        return " ".join(part for part in (self.kind, self.host, details) if part)


@frozen
class LabState:
    """The present state of a lab: written when it changes, read by every command."""

    spec: LabSpec
    slot: int
    boot: str
    owner: int
    up: bool = False
    keeper: int = 0  # the process that owns the namespaces; 0: none yet
    started: int = 0  # start time of the keeper in kernel ticks
    processes: dict[str, int] = {}  # process 1 of each host, as this machine sees it
    faults: tuple[Fault, ...] = ()
    slurm_version: str = ""
    root: str = ""
    graft: str = ""
    format: int = STATE_FORMAT

    @property
    def layout(self) -> Layout:
        """Names and addresses."""
        return Layout(self.spec.nodes, self.slot)

    def with_host(self, name: str, process: int) -> LabState:
        """Return the state with one host started again."""
        return replace(self, processes={**self.processes, name: process})


def write_state(place: LabPlace, state: LabState) -> None:
    """Write the state whole, or leave the old one."""
    write_whole(place.state, json.dumps(encode(state)))


def read_state(place: LabPlace) -> LabState | None:
    """Return the state of a lab; None if there is none, or only a part of one."""
    try:
        return decode(LabState, json.loads(place.state.read_text()))
    except (OSError, ValueError, BadDocument):
        return None


@contextlib.contextmanager
def locked(place: LabPlace) -> Iterator[None]:
    """Keep every other command from changing this lab meanwhile."""
    handle = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    atomic_file.write_whole(str(path), text.encode(), mode)
