"""Find what this machine lacks for a lab, with the exact remedy. Only `install` changes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from clusterrun import proc
from clusterrun.lab.daemons import PATH
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.place import labs_home
from clusterrun.lab.spec import LabSpec, Proctrack, memory_mib, memory_text
from clusterrun.model.errors import BadInput

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
# Programs of the machine itself that a lab with another Slurm needs too.
OF_A_ROOT = ("ip", "tc", "nsenter", "setpriv", "mount")
ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
EXTRAS = ("libfaketime",)
# A socket's path may have 107 characters, and slurmstepd puts up to 45 behind this.
LONGEST_FOLDER = 60
INSTALL_SECONDS = 1800.0
CGROUPS = Path("/sys/fs/cgroup")
FREEZER = CGROUPS / "freezer"
OWN_CGROUPS = Path("/proc/self/cgroup")


def program(name: str) -> str | None:
    """Return the path of a program. An ordinary user's PATH often lacks the sbin folders."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + PATH)


def check(spec: LabSpec) -> None:
    """Raise ``LabError`` or ``BadInput`` with everything that this machine lacks for the lab."""
    missing = list(_missing(spec))
    if missing:
        raise LabError(
            "this machine cannot run the lab yet: " + "; ".join(what for what, _ in missing),
            "\n".join(dict.fromkeys(remedy for _, remedy in missing)),
        )
    free = proc.memory()[1] / 2**20
    if memory_mib(spec.nodes) > free:
        raise BadInput(
            f"--nodes {spec.nodes} would take {memory_text(spec.nodes)}; {free / 1024:,.1f} GiB are free",
            f"up to --nodes {int((free - memory_mib(0)) / (memory_mib(1) - memory_mib(0)))} would fit",
        )


def _missing(spec: LabSpec) -> Iterator[tuple[str, str]]:
    if sys.platform != "linux":
        yield "this is not Linux", "use one, for instance in a virtual machine"
        return
    required = {name: PACKAGES[name] for name in (OF_A_ROOT if spec.slurm else PACKAGES)}
    if spec.accounting:
        required |= {
            name: package for name, package in ACCOUNTING.items() if name != "slurmdbd" or not spec.slurm
        }
    absent = [name for name in required if program(name) is None]
    if absent:
        packages = " ".join(dict.fromkeys(required[name] for name in absent))
        flag = " --accounting" if set(absent) & set(ACCOUNTING) else ""
        yield (
            f"no {', '.join(absent)}",
            f"clusterrun lab install{flag}    (Debian, Ubuntu: apt-get install {packages})",
        )
    folder = labs_home() / spec.name
    if len(str(folder)) > LONGEST_FOLDER:
        yield f"{folder} is too long a path for sockets in it", "set CLUSTERRUN_LAB_HOME to a short one"
    yield from _kernel(spec)


def _kernel(spec: LabSpec) -> Iterator[tuple[str, str]]:
    has_overlay = "overlay" in Path("/proc/filesystems").read_text()
    if not has_overlay and not (os.geteuid() == 0 and _succeeds("modprobe", "overlay")):
        yield "the kernel has no overlay file system", "as root: modprobe overlay"
    if os.geteuid() != 0:
        if not _succeeds("unshare", "--user", "--map-root-user", "--net", "true"):
            yield (
                "you are not root, and this user may not make user namespaces",
                "run it with sudo, or allow them as root:\n"
                "  sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000\n"
                "  sysctl -w kernel.apparmor_restrict_unprivileged_userns=0    (Ubuntu)",
            )
        for is_requested, option in (
            (spec.proctrack is Proctrack.CGROUP, "--proctrack cgroup"),
            (bool(spec.slurm), "--slurm"),
            (spec.accounting, "--accounting"),
        ):
            if is_requested:
                yield f"{option} needs root", "run it with sudo"
    elif not _succeeds("unshare", "--net", "--mount", "--pid", "--fork", "true"):
        yield (
            "this root may not make namespaces, as in most containers",
            "give the container the right: docker run --privileged …",
        )
    if spec.proctrack is Proctrack.CGROUP and not FREEZER.is_dir() and not unified_cgroups():
        yield (
            "--proctrack cgroup needs the freezer of cgroup version 1, or version 2 alone",
            "take --proctrack linuxproc or pgid here",
        )


def unified_cgroups() -> bool:
    """Return whether the kernel has cgroup version 2 alone: slurmd refuses it beside version 1."""
    return (CGROUPS / "cgroup.controllers").exists() and len(OWN_CGROUPS.read_text().splitlines()) == 1


def _succeeds(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install_commands(accounting: bool, roots: bool) -> list[list[str]]:
    """Return the commands of `lab install`. Raises ``LabError`` without apt or without root."""
    packages = [*dict.fromkeys(PACKAGES.values()), *EXTRAS]
    packages += dict.fromkeys(ACCOUNTING.values()) if accounting else ()
    packages += ["debootstrap"] if roots else []
    if shutil.which("apt-get") is None:
        raise LabError(
            "`lab install` knows Debian's and Ubuntu's packages only",
            "install slurmctld, slurmd, Slurm's commands, munge, iproute2 and libfaketime another way",
        )
    if os.geteuid() != 0:
        raise LabError("packages are installed by root", "sudo clusterrun lab install")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    return [["apt-get", "update"], install]


def install(commands: list[list[str]]) -> None:
    """Run the commands with visible output. Raises ``LabError`` at the first that fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in commands:
        if subprocess.run(argv, env=environment, timeout=INSTALL_SECONDS).returncode != 0:
            raise LabError(f"{' '.join(argv[:2])} failed", "its output is above")
