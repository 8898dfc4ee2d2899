"""Fetch Debian suites with other releases of Slurm into a cache, and choose the one for a lab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.namespaces import LabError
from clusterrun.lab.needs import program
from clusterrun.model.errors import BadInput
from clusterrun.system import run

HOME_VARIABLE = "CLUSTERRUN_LAB_ROOTS"
# Debian suites and the usual release of Slurm in each. A fetched suite records its own release.
SUITES = {"bullseye": "20.11", "bookworm": "22.05", "trixie": "24.11", "forky": "26.05", "sid": "26.05"}
SLURM = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge")
# Packages of a login node. Its python3 brings the libraries that any other Python needs.
LOGIN_PACKAGES = ("libfaketime", "iproute2", "procps", "python3")
FETCH_SECONDS, ANSWER_SECONDS = 1800.0, 30.0
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
    """Return the folder of fetched suites."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named).absolute() if named else Path("/var/cache/clusterrun-lab/roots")


def choose_root(requested: str) -> RootChoice:
    """Return the root file system for a release ('': the machine's own). Raise ``BadInput``."""
    if not requested:
        return RootChoice(_version([program("slurmctld") or "slurmctld"]))
    own = program("slurmctld")
    if own is not None and _version([own]).startswith(requested):
        return RootChoice(_version([own]))
    for version, path in fetched_roots().items():
        if version.startswith(requested):
            grafted = path / GRAFT
            if grafted.is_dir():
                return RootChoice(version, graft=str(grafted))
            return RootChoice(version, root=str(path))
    makers = [
        f"clusterrun lab root make {suite}" for suite, release in SUITES.items() if release == requested
    ]
    raise BadInput(
        f"there is no Slurm {requested} here",
        makers[0] if makers else f"fetchable are {', '.join(dict.fromkeys(SUITES.values()))}",
    )


def fetched_roots() -> dict[str, Path]:
    """Return the folder of each fetched release, by its version."""
    folders = sorted(cache().glob(f"*/{VERSION_FILE}"))
    return {file.read_text().strip(): file.parent for file in folders}


def make(suite: str, mirror: str, say: Callable[[str], None]) -> str:
    """Fetch a suite and return the version of its Slurm. A suite that was fetched before stays as it is.

    If ``mirror`` is empty, debootstrap chooses the mirror.
    """
    final = cache() / suite
    if (final / VERSION_FILE).exists():
        return (final / VERSION_FILE).read_text().strip()
    if os.geteuid() != 0:
        raise LabError("a suite is fetched by root", "run it with sudo")
    if program("debootstrap") is None:
        raise LabError("there is no debootstrap", "clusterrun lab install --roots")
    part = cache() / f"{suite}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching Debian {suite}{mirror and ' from ' + mirror} into {final}")
    try:
        _debootstrap(suite, part, mirror)
        version = _version(["chroot", str(part), "slurmctld"])
        if _libc(part) < _libc(None):
            # Collect a suite's Slurm alone, with the libraries the machine lacks. A suite older than this
            # machine cannot run the machine's Python, but this machine can run its Slurm: the collected files
            # are laid over the machine's /usr in the lab.
            paths: set[str] = set()
            for package in part.glob("var/lib/dpkg/info/*slurm*.list"):
                paths.update(line.lstrip("/") for line in package.read_text().splitlines())
            for path in sorted(paths):
                is_shared = not path.startswith("usr/") or path.startswith("usr/share/")
                if not is_shared and not (part / path).is_dir():
                    _copy(part, path)
            for _ in range(LIBRARY_ROUNDS):  # a copied library may lack another one
                for path in _lacking_libraries(part):
                    _copy(part, path)
        (part / VERSION_FILE).write_text(version + "\n")
        part.rename(final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return version


def _debootstrap(suite: str, folder: Path, mirror: str) -> None:
    argv = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(SLURM + LOGIN_PACKAGES)}",
        suite,
        str(folder),
        mirror,
    ]
    if not (SCRIPTS / suite).exists():
        argv.append(str(SCRIPTS / "sid"))  # a suite younger than this debootstrap
    result = run(argv, FETCH_SECONDS)
    if result.code != 0:
        last_lines = "\n".join((result.out + result.err).strip().splitlines()[-3:])
        raise LabError(f"debootstrap {suite} failed", last_lines)


def remove(suite: str) -> None:
    """Delete a fetched suite."""
    shutil.rmtree(cache() / suite, ignore_errors=True)


def _version(slurmctld: list[str]) -> str:
    result = run([*slurmctld, "-V"], ANSWER_SECONDS)
    parts = result.out.split()
    if result.code != 0 or not parts:
        raise LabError("slurmctld does not say its version", result.err.strip())
    return parts[-1]


def _libc(root: Path | None) -> tuple[int, ...]:
    """Return the version of a C library. Programs run on this or a newer version."""
    inside = ["chroot", str(root)] if root else []
    result = run([*inside, "ldd", "--version"], ANSWER_SECONDS)
    return tuple(int(part) for part in result.out.splitlines()[0].split()[-1].split("."))


def _lacking_libraries(root: Path) -> Iterator[str]:
    graft = root / GRAFT
    grafted = {path.name for path in graft.rglob("*.so*")}
    lacking: set[str] = set()
    for file in graft.rglob("*"):
        if not file.is_file():
            continue
        with file.open("rb") as content:
            is_program = content.read(4) == b"\x7fELF"
        if is_program:
            lines = run(["ldd", str(file)], ANSWER_SECONDS).out.splitlines()
            lacking |= {line.split()[0] for line in lines if "not found" in line}
    for name in sorted(lacking - grafted):
        for path in sorted(root.glob(f"usr/lib/*/{name}"))[:1]:
            yield str(path.relative_to(root))


def _copy(root: Path, path: str) -> None:
    source, target = root / path, root / GRAFT / path
    while source.is_symlink():
        link = os.readlink(source)
        source = root / link.lstrip("/") if link.startswith("/") else source.parent / link
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy2(source, target)
