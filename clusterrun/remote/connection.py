"""The one connection to a cluster that all commands share: OpenSSH's master, checked before each use.

A login may need a password or a one-time password. So nothing but a master ever logs in, from a
terminal: a session that finds the master gone fails instead of opening a connection of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import IO

from clusterrun import atomic_file, system
from clusterrun.config import settings
from clusterrun.config.profiles import HostEntry
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.runs.private_files import alone, private_folder, trust

CHECK_SECONDS = 10.0
BUSY_SECONDS = 5.0
"""How long a session waits for its turn where the server allows one at a time."""
LONGEST_SOCKET = 80
"""Characters: an address of a socket has at most 108 (or 104), and ssh adds 17 while it makes it."""
LOST = 255
"""What ssh ends with when it has no connection."""
_MASTER = (
    "ControlPersist=12h",
    "ServerAliveInterval=30",
    "ServerAliveCountMax=10",
    "ConnectTimeout=60",
    "RemoteCommand=none",
    "RequestTTY=no",
)
"""A link may be away for five minutes; a user's own options come before."""
_SESSION = (
    "ControlMaster=no",
    "BatchMode=yes",
    "ProxyCommand=false",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)


class NotConnected(ClusterrunError):
    """There is no connection, and none could be opened."""


@frozen
class SharedConnection:
    """Where the master of a cluster listens; ``folder`` is ours alone and holds what belongs to it."""

    host: HostEntry
    folder: str
    key: str
    socket: str

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def typed(self) -> str:
        """What opens the connection from a terminal."""
        return f"clusterrun --host {shlex.quote(self.name)}"

    def path(self, suffix: str) -> str:
        return os.path.join(self.folder, f"{self.key}.{suffix}")

    def master_argv(self) -> tuple[str, ...]:
        """What logs in and then stays in the background, for all commands."""
        options = _options((*self.host.options, *_MASTER))
        return ("ssh", "-fN", "-M", "-S", self.socket, *options, "--", self.host.host)

    def control(self, *words: str) -> system.Completed:
        """Ask the master: ``-O check`` and its like. Raises ``ProgramTimeout`` if it does not answer."""
        return system.run(("ssh", "-S", self.socket, *words, "--", self.host.host), CHECK_SECONDS)

    def alive(self) -> bool:
        try:
            return os.path.exists(self.socket) and self.control("-O", "check").code == 0
        except system.ProgramTimeout:
            return False

    def session(self, command: str, log: str, terminal: bool) -> tuple[str, ...]:
        """What runs ``command`` there, over the master or not at all; ssh's own messages go to ``log``."""
        tty = "-t" if terminal else "-T"
        return ("ssh", "-S", self.socket, tty, "-E", log, *_options(_SESSION), "--", self.host.host, command)

    def ask(self, command: str, seconds: float, stdin: str | IO[bytes] = "") -> system.Completed:
        """What ``command`` says there. Raises ``NotConnected``."""
        began = time.monotonic()
        while True:
            with self.log() as log:
                done = system.run(self.session(command, log, False), seconds, stdin)
                if not self.again(done.code, log, began):
                    return done

    def foreground(self, command: str, terminal: bool) -> int:
        """The exit code of ``command`` there, with our own streams. Raises ``NotConnected``."""
        began = time.monotonic()
        while True:
            with self.log() as log:
                code = system.foreground(self.session(command, log, terminal))
                of_ssh = code != LOST or system.text_of(log) or not self.alive()
                if not (of_ssh and self.again(code, log, began)):
                    return code

    def again(self, code: int, log: str, began: float) -> bool:
        """Whether to try again: another session has the only place. Raises ``NotConnected`` in the end."""
        if code != LOST:
            return False
        if REFUSED not in system.text_of(log):
            raise self._failed(log)
        if time.monotonic() - began > BUSY_SECONDS:
            seen = f"{self.name} allows no more sessions at once on one connection (MaxSessions of its sshd)"
            remedy = "end another command that uses it (logs -f, shell, top), then type this again"
            raise NotConnected(seen, remedy)
        time.sleep(0.2)
        return True

    def _failed(self, log: str) -> NotConnected:
        if not self.alive():
            seen = f"the connection to {self.name} was lost; what runs there continues"
            return NotConnected(seen, f"open it again in a terminal, and look: {self.typed} status")
        return NotConnected(*explained(self.name, self.host.host, system.text_of(log)))

    @contextlib.contextmanager
    def log(self) -> Iterator[str]:
        """The path of a new file for ssh's own messages."""
        path = self.path(f"{os.urandom(4).hex()}.log")
        try:
            yield path
        finally:
            atomic_file.remove(path)


def connect(host: HostEntry, environ: Mapping[str, str], terminal: bool) -> SharedConnection:
    """The connection to ``host`` that is there, or from a ``terminal`` a new one. Raises ``NotConnected``."""
    ours = _place(host, environ)
    if ours.alive():
        return ours
    if theirs := _users_master(ours):
        return theirs
    if not terminal:
        seen = f"there is no connection to {ours.name}, and no terminal to type a password in"
        once = f"open it once in a terminal, for all commands: {ours.typed}"
        raise NotConnected(seen, f"{once}\nwhich is: {shlex.join(ours.master_argv())}")
    _open(ours)
    return ours


def _open(ours: SharedConnection) -> None:
    seen = f"another command is about to open the connection to {ours.name}"
    busy = NotConnected(seen, "finish the login there, then type this again")
    with alone(ours.path("lock"), lambda _: busy):
        if ours.alive():
            return
        atomic_file.remove(ours.socket)  # of a master that is gone, or answers no more
        with ours.log() as log:
            argv = ours.master_argv()
            code = system.foreground((*argv[:1], "-E", log, *argv[1:]))
            if code != 0 or not ours.alive():
                raise NotConnected(*explained(ours.name, ours.host.host, system.text_of(log)))


def _place(host: HostEntry, environ: Mapping[str, str]) -> SharedConnection:
    folder = os.path.join(settings.home(environ), "ssh")
    private_folder(folder)
    key = _digest(os.uname().nodename, host.host, *host.options)
    socket = os.path.join(folder, key)
    if len(socket) <= LONGEST_SOCKET:
        return SharedConnection(host, folder, key, socket)
    short = f"/tmp/clusterrun-{os.geteuid()}"
    private_folder(short)
    trust(short, links=False)
    return SharedConnection(host, folder, key, os.path.join(short, _digest(folder, key)))


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _users_master(ours: SharedConnection) -> SharedConnection | None:
    """The master of the user's own ssh_config (ControlPath), where one is open."""
    asked = ("ssh", "-G", *_options(ours.host.options), "--", ours.host.host)
    for line in system.run(asked, CHECK_SECONDS).out.splitlines():
        word, _, path = line.partition(" ")
        if word == "controlpath" and path != "none":
            found = SharedConnection(ours.host, ours.folder, ours.key, path)
            return found if found.alive() else None
    return None


def _options(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-o", option))


REFUSED = "Session open refused by peer"
"""What a server with MaxSessions says to one session more."""


def explained(name: str, target: str, said: str) -> tuple[str, str]:
    """What was seen and what to do, where ssh ``said`` this of ``target`` (called ``name``)."""
    if changed := re.search(r"[Hh]ost key for (\S+) has changed", said):
        return _other_key(name, changed[1], said)
    for pattern, seen, remedy in _KNOWN:
        if re.search(pattern, said):
            return seen.format(name=name, target=target), remedy.format(name=name, target=shlex.quote(target))
    lines = ["it gives no reason", *(line.strip() for line in said.splitlines() if line.strip())]
    return f"ssh gives no connection to {name}: {lines[-1]}", _TRY.format(target=shlex.quote(target))


_TRY = "what ssh says by itself: ssh {target}"
_KNOWN = (
    (
        r"Could not resolve hostname|Name or service not known",
        "{name} is not in ssh_config, and no machine goes by the name {target}",
        'put it into ~/.ssh/config (Host {name}, HostName …, User …), or host = "…" below [host.{name}]; '
        "then try: ssh {target}",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "the host key of {name} was not accepted",
        "compare it with what the cluster publishes, and accept it once: ssh {target}",
    ),
    (r"Permission denied|Too many authentication failures", "{name} refused the login", _TRY),
    (
        r"(?:Connection|Operation) timed out|Connection refused|No route to host|Network is unreachable",
        "{name} cannot be reached: no machine answers to ssh at {target}",
        "is the network (VPN) there? " + _TRY,
    ),
    (
        r"administratively prohibited|forwarding (?:is )?disabled|port forwarding failed",
        "{name} forwards no ports",
        "its sshd has AllowTcpForwarding off, or the port here is in use: --local PORT takes another one",
    ),
)


def _other_key(name: str, known_as: str, said: str) -> tuple[str, str]:
    offending = re.search(r"Offending \S+ key in (.+):\d+", said)
    file = f" -f {shlex.quote(offending[1])}" if offending else ""
    return (
        f"the host key of {name} is not the one known: it was set up anew, or somebody stands in between",
        "ask its administrators or look at what they publish; if the new key is right: "
        f"ssh-keygen{file} -R {shlex.quote(known_as)}",
    )
