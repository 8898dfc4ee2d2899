"""A look at the cluster for a clusterrun to use; else a copy of ours goes there with all it needs."""

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
_NOT_CARRIED = {"psutil"}
"""Compiled, and of use for runs without Slurm alone."""
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


_AS_MODULE = "import sys; sys.path = [p for p in sys.path if p]; from clusterrun.cli.main import main; main()"
"""Without the current directory, where a file of the user's may be named as a module of Python's."""


@frozen
class Machine:
    """What a look at the cluster found: its Python, the program clusterrun on PATH, versions of packages."""

    python: str
    version: tuple[int, int]
    program: str
    there: Mapping[str, str]


class NotInstalled(ClusterrunError):
    """The client could not be put there."""


def found_or_installed(connection: SharedConnection) -> str:
    """What of sh starts a clusterrun there that understands this one. Raises ``ClusterrunError``."""
    carried = {one.name.lower(): one for one in _distributions()}
    machine = _look(connection, ("clusterrun", *carried))
    if not connection.host.python and compatible(machine.program.rpartition(" ")[2]):
        return "exec clusterrun"
    if compatible(machine.there.get("clusterrun", "")):
        return f"exec {shlex.quote(machine.python)} -c {shlex.quote(_AS_MODULE)}"
    needs = {name: str(one.metadata["Requires-Python"] or "") for name, one in carried.items()}
    taken = suited(machine, needs, connection.name)
    folder = _install(connection, [carried[name] for name in taken])
    return f"[ -f {folder}/__main__.py ] || exit {GONE}; exec {shlex.quote(machine.python)} {folder}"


def compatible(version: str) -> bool:
    """Whether a clusterrun of that version understands this one: the same but for a last number as high."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return False
    ours, theirs = ([int(number) for number in one.split(".")] for one in (VERSION, version))
    return theirs[:2] == ours[:2] and theirs[2] >= ours[2]


def suited(machine: Machine, needs: Mapping[str, str], cluster: str) -> list[str]:
    """The packages to carry: without those for a newer Python, of which the cluster has its own."""
    least = {name: re.search(r">=\s*(\d+)\.(\d+)", text) for name, text in needs.items()}
    newer = {name for name, one in least.items() if one and (int(one[1]), int(one[2])) > machine.version}
    absent = sorted(name for name in newer if not machine.there.get(name))
    if absent:
        version = ".".join(map(str, machine.version))
        raise too_old(cluster, f"{machine.python} is Python {version}, too old for {', '.join(absent)}")
    return [name for name in needs if name not in newer]


def too_old(name: str, seen: str) -> BadInput:
    """What to do about a Python of the cluster ``name`` that cannot run the client."""
    place = f"~/.config/clusterrun/config.toml, below [host.{name}]"
    remedy = f'name one that can in {place}: python = "/path/to/python3"'
    return BadInput(f"no Python on {name} can run clusterrun: {seen}", remedy)


def _look(connection: SharedConnection, names: tuple[str, ...]) -> Machine:
    own = connection.host.python
    candidates = place(own) if own else " ".join(CANDIDATES)
    script = _LOOK.format(
        candidates=candidates, old=shlex.quote(_OLD), probe=shlex.quote(_PROBE), names=shlex.join(names)
    )
    done = connection.ask(command(script), LOOK_SECONDS)
    if done.code == 3:
        seen = done.out.rstrip(", ") or f"there is none by the name {own or 'python3'}"
        raise too_old(connection.name, seen)
    try:
        said = json.loads(done.out)
        return Machine(said["python"], tuple(said["version"]), said["program"], said["there"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotInstalled(
            f"{connection.name} could not be looked at (exit code {done.code}): {_last(done.err)}",
            f"does its login shell start without an error? ssh {shlex.quote(connection.host.host)}",
        ) from error


def _install(connection: SharedConnection, distributions: list[importlib.metadata.Distribution]) -> str:
    """The folder of the client there, as a word of sh."""
    with tempfile.TemporaryFile() as archive:
        name = f"{VERSION}-{_pack(archive, distributions)}"
        archive.seek(0)
        script = _UNPACK.format(home=HOME, days=_STALE_DAYS, name=name)
        done = connection.ask(command(script), INSTALL_SECONDS, archive)
    if done.code != 0:
        raise refused_there(connection, "the client could not be installed there", done.err)
    return f"{HOME}/client/{name}"


def refused_there(connection: SharedConnection, what: str, said: str) -> NotInstalled:
    full = re.search(r"quota exceeded|No space left", said, re.IGNORECASE)
    room = f"free some space there: ssh {connection.host.host}; or let CLUSTERRUN_HOME name a folder"
    remedy = f"{room} with room, in your profile there" if full else f"look there: ssh {connection.host.host}"
    return NotInstalled(f"{what}: {_last(said)}", remedy)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"quota|space left|denied|read-only", line, re.IGNORECASE)]
    return telling[0] if telling else (lines or ["it says nothing"])[-1]


_START = b"""import sys
from clusterrun.cli.main import main
sys.exit(main())
"""


def _pack(target: io.IOBase, distributions: list[importlib.metadata.Distribution]) -> str:
    """Write the client and what it imports as an archive; the digest of its content."""
    digest = hashlib.sha256()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=6) as archive:
        for name, content in sorted(_content(distributions)):
            digest.update(f"{name} {len(content)}\n".encode() + content)
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return digest.hexdigest()[:12]


def _content(distributions: list[importlib.metadata.Distribution]) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _START
    package = os.path.dirname(os.path.abspath(clusterrun.__file__))
    yield from _files(package, "clusterrun")
    for name in _FOLDERS:
        beside = os.path.join(os.path.dirname(package), name)
        if not os.path.isdir(os.path.join(package, name)) and os.path.isdir(beside):
            yield from _files(beside, f"clusterrun/{name}")
    for one in distributions:
        for path in one.files or ():
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


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """What clusterrun needs besides itself, and what that needs, as it is installed here."""
    seen, waiting = {"clusterrun", *_NOT_CARRIED}, list(importlib.metadata.requires("clusterrun") or ())
    while waiting:
        needed = waiting.pop()
        name = re.split(r"[^A-Za-z0-9._-]", needed, maxsplit=1)[0].lower().replace("_", "-")
        if name in seen or "extra ==" in needed:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another version of Python
        waiting += found.requires or ()
        yield found
