"""Find a clusterrun on the cluster, or installs a copy of this one with its dependencies."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping

import clusterrun
from clusterrun.model.contract import VERSION
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.remote.connection import SharedConnection
from clusterrun.remote.login_shell import GONE, HOME, command, place

LOOK_SECONDS, INSTALL_SECONDS = 60.0, 600.0
CANDIDATES = ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python")
# A compiled package, which only runs without Slurm use.
_NOT_CARRIED = {"psutil"}
_FOLDERS = ("templates", "jobs", "docs")
_STALE_DAYS = 30

_OLD = "import sys; sys.exit(sys.version_info < (3, 9))"
_PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
names = sys.argv[2:]
print(json.dumps({"python": sys.executable, "version": list(sys.version_info[:2]), "program": sys.argv[1],
                  "there": {name: version(name) for name in names}}))
"""
_LOOK = """p=; seen=
for one in {candidates}; do
  command -v "$one" >/dev/null 2>&1 || continue
  seen="$seen$one is $("$one" -V 2>&1), "
  "$one" -c {old} 2>/dev/null || continue
  p=$one; break
done
own=; command -v clusterrun >/dev/null 2>&1 && own=$(clusterrun --version 2>/dev/null </dev/null)
[ -n "$p" ] || {{ printf '%s' "$seen"; exit 3; }}
exec "$p" -c {probe} "$own" {names}"""
_UNPACK = """umask 077; c={home}/client; mkdir -p "$c" && cd "$c" || exit 4
find . -mindepth 1 -maxdepth 1 -mtime +{days} ! -name {name} -exec rm -rf {{}} +
n=.new-{name}-$$; mkdir "$n" && tar -xzf - -o -C "$n" || {{ rm -rf "$n"; exit 4; }}
rm -rf {name}; mv "$n" {name}"""


# Without the current directory, since a file of the user's may have the name of a Python module.
_AS_MODULE = "import sys; sys.path = [p for p in sys.path if p]; from clusterrun.cli.main import main; main()"


@frozen
class Machine:
    """The software of the cluster."""

    python: str  # path of the interpreter
    version: tuple[int, int]  # of the interpreter
    program: str  # ``clusterrun --version`` of the program on PATH; empty if there is none
    packages: Mapping[str, str]  # versions of installed packages


class NotInstalled(ClusterrunError):
    """The client could not be installed on the cluster."""


def find_or_install(connection: SharedConnection) -> str:
    """Return the sh text that starts a compatible clusterrun on the cluster. Raise ``ClusterrunError``."""
    dependencies = []
    names, waiting = {"clusterrun", *_NOT_CARRIED}, list(importlib.metadata.requires("clusterrun") or ())
    while waiting:
        needed = waiting.pop()
        dependency = re.split(r"[^A-Za-z0-9._-]", needed, maxsplit=1)[0].lower().replace("_", "-")
        if dependency in names or "extra ==" in needed:
            continue
        names.add(dependency)
        try:
            distribution = importlib.metadata.distribution(dependency)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another version of Python
        waiting += distribution.requires or ()
        dependencies.append(distribution)
    carried = {distribution.name.lower(): distribution for distribution in dependencies}
    machine = _look(connection, ("clusterrun", *carried))
    if not connection.host.python and compatible(machine.program.rpartition(" ")[2]):
        return "exec clusterrun"
    if compatible(machine.packages.get("clusterrun", "")):
        return f"exec {shlex.quote(machine.python)} -c {shlex.quote(_AS_MODULE)}"
    needs = {
        name: str(distribution.metadata["Requires-Python"] or "") for name, distribution in carried.items()
    }
    taken = suited(machine, needs, connection.name)
    with tempfile.TemporaryFile() as archive:
        # The folder of the client is named by its version, and by a digest of its content.
        sha = hashlib.sha256()
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=6) as tar:
            for path, content in sorted(_content([carried[name] for name in taken])):
                sha.update(f"{path} {len(content)}\n".encode() + content)
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o600
                tar.addfile(member, io.BytesIO(content))
        version = f"{VERSION}-{sha.hexdigest()[:12]}"
        archive.seek(0)
        script = _UNPACK.format(home=HOME, days=_STALE_DAYS, name=version)
        answer = connection.ask(command(script), INSTALL_SECONDS, archive)
    if answer.code != 0:
        raise refused_there(connection, "the client could not be installed there", answer.err)
    folder = f"{HOME}/client/{version}"
    return f"[ -f {folder}/__main__.py ] || exit {GONE}; exec {shlex.quote(machine.python)} {folder}"


def compatible(version: str) -> bool:
    """Return whether that version understands this one: the same, with an equal or higher last number."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return False
    own_version, other_version = ([int(number) for number in text.split(".")] for text in (VERSION, version))
    return other_version[:2] == own_version[:2] and other_version[2] >= own_version[2]


def suited(machine: Machine, needs: Mapping[str, str], cluster: str) -> list[str]:
    """Return the packages to carry. Packages for a newer Python are left out if the cluster has its own."""
    least = {name: re.search(r">=\s*(\d+)\.(\d+)", text) for name, text in needs.items()}
    newer = {
        name for name, match in least.items() if match and (int(match[1]), int(match[2])) > machine.version
    }
    absent = sorted(name for name in newer if not machine.packages.get(name))
    if absent:
        version = ".".join(map(str, machine.version))
        raise too_old(cluster, f"{machine.python} is Python {version}, too old for {', '.join(absent)}")
    return [name for name in needs if name not in newer]


def too_old(name: str, reason: str) -> BadInput:
    """Return the error for a cluster ``name`` whose Python cannot run the client."""
    place = f"~/.config/clusterrun/config.toml, below [host.{name}]"
    remedy = f'name one that can in {place}: python = "/path/to/python3"'
    return BadInput(f"no Python on {name} can run clusterrun: {reason}", remedy)


def _look(connection: SharedConnection, names: tuple[str, ...]) -> Machine:
    configured = connection.host.python
    candidates = place(configured) if configured else " ".join(CANDIDATES)
    script = _LOOK.format(
        candidates=candidates, old=shlex.quote(_OLD), probe=shlex.quote(_PROBE), names=shlex.join(names)
    )
    answer = connection.ask(command(script), LOOK_SECONDS)
    if answer.code == 3:
        reason = answer.out.rstrip(", ") or f"there is none by the name {configured or 'python3'}"
        raise too_old(connection.name, reason)
    try:
        document = json.loads(answer.out)
        return Machine(document["python"], tuple(document["version"]), document["program"], document["there"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotInstalled(
            f"{connection.name} could not be looked at (exit code {answer.code}): {_last(answer.err)}",
            f"does its login shell start without an error? ssh {shlex.quote(connection.host.host)}",
        ) from error


def refused_there(connection: SharedConnection, what: str, errors: str) -> NotInstalled:
    full = re.search(r"quota exceeded|No space left", errors, re.IGNORECASE)
    room = f"free some space there: ssh {connection.host.host}; or let CLUSTERRUN_HOME name a folder"
    remedy = f"{room} with room, in your profile there" if full else f"look there: ssh {connection.host.host}"
    return NotInstalled(f"{what}: {_last(errors)}", remedy)


def _last(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"quota|space left|denied|read-only", line, re.IGNORECASE)]
    return telling[0] if telling else (lines or ["it says nothing"])[-1]


_START = b"""import sys
from clusterrun.cli.main import main
sys.exit(main())
"""


def _content(distributions: list[importlib.metadata.Distribution]) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _START
    package = os.path.dirname(os.path.abspath(clusterrun.__file__))
    yield from _files(package, "clusterrun")
    for name in _FOLDERS:
        beside = os.path.join(os.path.dirname(package), name)
        if not os.path.isdir(os.path.join(package, name)) and os.path.isdir(beside):
            yield from _files(beside, f"clusterrun/{name}")
    for distribution in distributions:
        for path in distribution.files or ():
            inside = path.as_posix()
            if not inside.startswith(("..", "/")) and _wanted(inside):
                yield inside, path.read_binary()


def _files(folder: str, inside: str) -> Iterator[tuple[str, bytes]]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in filter(_wanted, names):
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                yield os.path.join(inside, os.path.relpath(path, folder)), file.read()


def _wanted(name: str) -> bool:
    return not name.endswith((".pyc", ".so", ".pyd", ".dylib", ".pth")) and "__pycache__" not in name
