"""Other releases of Slurm: Debian suites fetched into a cache, and how a lab is to run on each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.namespaces import LabError
from clusterrun.lab.needs import program
from clusterrun.model.errors import BadInput

HOME_VARIABLE = "CLUSTERRUN_LAB_ROOTS"
SUITES = {"bullseye": "20.11", "bookworm": "22.05", "trixie": "24.11", "forky": "26.05", "sid": "26.05"}
"""Debian suites and the release of Slurm in each, as far as known; what is fetched says for itself."""
SLURM = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge")
BESIDE = ("libfaketime", "iproute2", "procps", "python3")
"""What a login node has; and with its own python3 come the libraries that any other Python needs."""
FETCH_SECONDS = 1800.0
VERSION_FILE, GRAFT = "slurm-version", "graft"
LIBRARY_ROUNDS = 3
SCRIPTS = Path("/usr/share/debootstrap/scripts")


@dataclass(frozen=True)
class RootChoice:
    """The root file system of a lab's hosts: another root folder, or the machine's own with another Slurm.

    Both empty: the machine as it is. ``graft`` is a folder laid over /usr.
    """

    version: str
    root: str = ""
    graft: str = ""


def cache() -> Path:
    """Where fetched suites lie."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named).absolute() if named else Path("/var/cache/clusterrun-lab/roots")


def choose_root(wanted: str) -> RootChoice:
    """What a lab with that release stands on ('' = the machine's own). Raises ``BadInput``."""
    if not wanted:
        return RootChoice(_version([program("slurmctld") or "slurmctld"]))
    own = program("slurmctld")
    if own is not None and _version([own]).startswith(wanted):
        return RootChoice(_version([own]))
    for version, path in found().items():
        if version.startswith(wanted):
            grafted = path / GRAFT
            return (
                RootChoice(version, graft=str(grafted))
                if grafted.is_dir()
                else RootChoice(version, root=str(path))
            )
    makers = [f"clusterrun lab root make {suite}" for suite, release in SUITES.items() if release == wanted]
    raise BadInput(
        f"there is no Slurm {wanted} here",
        makers[0] if makers else f"fetchable are {', '.join(dict.fromkeys(SUITES.values()))}",
    )


def found() -> dict[str, Path]:
    """Fetched releases: version → folder."""
    folders = sorted(cache().glob(f"*/{VERSION_FILE}"))
    return {file.read_text().strip(): file.parent for file in folders}


def make(suite: str, mirror: str, say: Callable[[str], None]) -> str:
    """Fetch a suite; returns its Slurm's version. What was fetched before is left as it is.

    An empty ``mirror`` is the one that debootstrap itself takes.
    """
    final = cache() / suite
    if (final / VERSION_FILE).exists():
        return (final / VERSION_FILE).read_text().strip()
    _check_can_fetch()
    part = cache() / f"{suite}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching Debian {suite}{mirror and ' from ' + mirror} into {final}")
    try:
        _debootstrap(suite, part, mirror)
        version = _version(["chroot", str(part), "slurmctld"])
        if _libc(part) < _libc(None):
            _graft(part)
        (part / VERSION_FILE).write_text(version + "\n")
        part.rename(final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return version


def _check_can_fetch() -> None:
    if os.geteuid() != 0:
        raise LabError("a suite is fetched by root", "run it with sudo")
    if program("debootstrap") is None:
        raise LabError("there is no debootstrap", "clusterrun lab install --roots")


def _debootstrap(suite: str, folder: Path, mirror: str) -> None:
    argv = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(SLURM + BESIDE)}",
        suite,
        str(folder),
        mirror,
    ]
    if not (SCRIPTS / suite).exists():
        argv.append(str(SCRIPTS / "sid"))  # a suite younger than this debootstrap
    done = subprocess.run(argv, capture_output=True, text=True, timeout=FETCH_SECONDS)
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise LabError(f"debootstrap {suite} failed", words)


def remove(suite: str) -> None:
    """Delete a fetched suite."""
    shutil.rmtree(cache() / suite, ignore_errors=True)


def _version(slurmctld: list[str]) -> str:
    done = subprocess.run([*slurmctld, "-V"], capture_output=True, text=True, timeout=30)
    words = done.stdout.split()
    if done.returncode != 0 or not words:
        raise LabError("slurmctld does not say its version", done.stderr.strip())
    return words[-1]


def _libc(root: Path | None) -> tuple[int, ...]:
    """The version of a C library: programs run on their own or a younger one."""
    inside = ["chroot", str(root)] if root else []
    done = subprocess.run([*inside, "ldd", "--version"], capture_output=True, text=True, timeout=30)
    return tuple(int(part) for part in done.stdout.splitlines()[0].split()[-1].split("."))


def _graft(root: Path) -> None:
    """Collect a suite's Slurm alone, with the libraries the machine lacks.

    A suite older than this machine cannot run the machine's Python, but this machine can run its
    Slurm: the collected files are laid over the machine's /usr in the lab.
    """
    for path in _slurm_files(root):
        _copy(root, path)
    for _ in range(LIBRARY_ROUNDS):  # a library copied may itself lack another
        for path in _lacking_libraries(root):
            _copy(root, path)


def _slurm_files(root: Path) -> Iterator[str]:
    listed = subprocess.run(
        ["chroot", str(root), "sh", "-c", "cat /var/lib/dpkg/info/*slurm*.list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for line in sorted(set(listed.stdout.split("\n"))):
        path = line.lstrip("/")
        if path.startswith("usr/") and not path.startswith("usr/share/") and not (root / path).is_dir():
            yield path


def _lacking_libraries(root: Path) -> Iterator[str]:
    graft = root / GRAFT
    here = {path.name for path in graft.rglob("*.so*")}
    lacking: set[str] = set()
    for file in graft.rglob("*"):
        if file.is_file() and _is_program(file):
            done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=30)
            lacking |= {line.split()[0] for line in done.stdout.splitlines() if "not found" in line}
    for name in sorted(lacking - here):
        for path in sorted(root.glob(f"usr/lib/*/{name}"))[:1]:
            yield str(path.relative_to(root))


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _copy(root: Path, path: str) -> None:
    source, target = root / path, root / GRAFT / path
    while source.is_symlink():
        link = os.readlink(source)
        source = root / link.lstrip("/") if link.startswith("/") else source.parent / link
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy2(source, target)
