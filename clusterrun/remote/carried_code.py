"""Send a snapshot of the local code to the cluster."""

from __future__ import annotations

import hashlib
import os
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from typing import IO

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.remote.client_install import refused_there
from clusterrun.remote.connection import SharedConnection
from clusterrun.remote.login_shell import HOME, command
from clusterrun.runs.code_snapshot import CARRIED_NOTE, Snapshot, look, note

SEND_SECONDS = 3600.0
# A run has its own copy. The sent snapshot is kept only for the next submission of the same code.
_STALE_DAYS = 7
_UNPACK = """umask 077; c={home}/sent; mkdir -p "$c" && cd "$c" || exit 4
[ -d {name} ] && {{ touch {name}; exit 0; }}
find . -mindepth 1 -maxdepth 1 -mtime +{days} -exec rm -rf {{}} +
n=.new-{name}-$$; mkdir "$n" && tar -xzf - -o -C "$n" || {{ rm -rf "$n"; exit 4; }}
if [ -d {name} ]; then rm -rf "$n"; else mv "$n" {name}; fi"""


def send(connection: SharedConnection, cwd: str, include: Iterable[str], say: Callable[[str], None]) -> str:
    """Send the code and return the remote folder for ``cwd``, as a word of sh. Raise ``ClusterrunError``."""
    snapshot = look(cwd, include)
    if snapshot.links:
        message = f"{', '.join(snapshot.links)} is too large to be sent"
        raise BadInput(
            message, "copy it to the cluster by hand, and let the script name it by its path there"
        )
    with tempfile.TemporaryFile() as archive:
        name = packed(snapshot, archive)
        archive.seek(0)
        script = _UNPACK.format(home=HOME, name=name, days=_STALE_DAYS)
        answer = connection.ask(command(script), SEND_SECONDS, archive)
    if answer.code != 0:
        raise refused_there(connection, "the code could not be written there", answer.err)
    for line in replace(snapshot, environments=(), outside=()).lines():
        say(line)
    broken = ", ".join(link for link, _ in snapshot.outside)
    if broken:
        say(f"these links lead to nothing on {connection.name}, since their targets are not sent: {broken}")
    say(f"the snapshot is sent to {connection.name}")
    return f"{HOME}/sent/{name}/{shlex.quote(os.path.relpath(cwd, snapshot.root))}"


def packed(snapshot: Snapshot, target: IO[bytes]) -> str:
    """Write the files as an archive, with a note of their commit. Return a name derived from the content."""
    digest = hashlib.sha256()

    def named(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = member.mode & 0o700 | 0o600
        about = f"{member.name}\0{member.mode}\0{member.linkname}\0{member.size}\0"
        digest.update(about.encode("utf-8", "surrogateescape"))
        return member

    with (
        tempfile.NamedTemporaryFile() as written,
        tarfile.open(fileobj=target, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in snapshot.files:
            path = os.path.join(snapshot.root, name)
            archive.add(path, name, recursive=False, filter=named)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    while portion := file.read(1 << 20):
                        digest.update(portion)
        content = note(snapshot).encode("utf-8", "surrogateescape")
        written.write(content)
        written.flush()
        digest.update(content)
        archive.add(written.name, CARRIED_NOTE, filter=named)
    return digest.hexdigest()[:16]
