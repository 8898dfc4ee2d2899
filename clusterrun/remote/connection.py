"""The one connection to a cluster that all commands share: OpenSSH's master, checked before each use.

A login may need a password or a one-time password. Therefore only a master logs in, from a terminal. A
session without a master fails. It does not open its own connection.
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
# A session waits this long for its turn if the server allows one session at a time.
BUSY_SECONDS = 5.0
# Characters. The address of a socket has at most 108 (or 104), and ssh adds 17 while it creates the socket.
LONGEST_SOCKET = 80
# Exit code of ssh without a connection.
LOST = 255
# A link may be down for five minutes. The user's own options come first.
_MASTER = (
    *("ControlPersist=12h", "ServerAliveInterval=30", "ServerAliveCountMax=10"),
    *("ConnectTimeout=60", "RemoteCommand=none", "RequestTTY=no"),
)
_SESSION = (
    *("ControlMaster=no", "BatchMode=yes", "ProxyCommand=false", "RemoteCommand=none"),
    *("ClearAllForwardings=yes", "LogLevel=ERROR"),
)


class NotConnected(ClusterrunError):
    """No connection exists, and none could be opened."""


@frozen
class SharedConnection:
    """The connection to a cluster through an ssh master."""

    host: HostEntry
    folder: str  # private to the user; holds the files of the connection
    key: str  # prefix of the names of these files
    socket: str  # where the master listens

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def typed(self) -> str:
        """Return the command that opens the connection from a terminal."""
        return f"clusterrun --host {shlex.quote(self.name)}"

    def path(self, suffix: str) -> str:
        return os.path.join(self.folder, f"{self.key}.{suffix}")

    def master_argv(self) -> tuple[str, ...]:
        """Return the command that logs in and then stays in the background, for all commands."""
        options = _options((*self.host.options, *_MASTER))
        return ("ssh", "-fN", "-M", "-S", self.socket, *options, "--", self.host.host)

    def control(self, *options: str) -> system.Completed:
        """Send a control command (``-O check``) to the master. Raise ``ProgramTimeout`` without an answer."""
        return system.run(("ssh", "-S", self.socket, *options, "--", self.host.host), CHECK_SECONDS)

    def alive(self) -> bool:
        try:
            return os.path.exists(self.socket) and self.control("-O", "check").code == 0
        except system.ProgramTimeout:
            return False

    def session(self, command: str, log: str, terminal: bool) -> tuple[str, ...]:
        """Return the ssh command for a remote ``command``, only over the master. ssh writes to ``log``."""
        tty = "-t" if terminal else "-T"
        return ("ssh", "-S", self.socket, tty, "-E", log, *_options(_SESSION), "--", self.host.host, command)

    def ask(self, command: str, seconds: float, stdin: str | IO[bytes] = "") -> system.Completed:
        """Run a remote ``command`` and return its result. Raise ``NotConnected`` without a connection."""
        began = time.monotonic()
        while True:
            with self.log() as log:
                answer = system.run(self.session(command, log, False), seconds, stdin)
                if not self.again(answer.code, log, began):
                    return answer

    def foreground(self, command: str, terminal: bool) -> int:
        """Run a remote ``command`` with this process's streams.

        Return its exit code, or raise ``NotConnected``.
        """
        began = time.monotonic()
        while True:
            with self.log() as log:
                code = system.foreground(self.session(command, log, terminal))
                of_ssh = code != LOST or system.text_of(log) or not self.alive()
                if not (of_ssh and self.again(code, log, began)):
                    return code

    def again(self, code: int, log: str, began: float) -> bool:
        """Return whether to retry because another session has the only slot.

        Raise ``NotConnected`` at last.
        """
        if code != LOST:
            return False
        if REFUSED not in system.text_of(log):
            raise self._failed(log)
        if time.monotonic() - began > BUSY_SECONDS:
            message = (
                f"{self.name} allows no more sessions at once on one connection (MaxSessions of its sshd)"
            )
            remedy = "end another command that uses it (logs -f, shell, top), then type this again"
            raise NotConnected(message, remedy)
        time.sleep(0.2)
        return True

    def _failed(self, log: str) -> NotConnected:
        if not self.alive():
            message = f"the connection to {self.name} was lost; what runs there continues"
            return NotConnected(message, f"open it again in a terminal, and look: {self.typed} status")
        return NotConnected(*explained(self.name, self.host.host, system.text_of(log)))

    @contextlib.contextmanager
    def log(self) -> Iterator[str]:
        """Yield the path of a new file for ssh's own messages, and remove it at the end."""
        path = self.path(f"{os.urandom(4).hex()}.log")
        try:
            yield path
        finally:
            atomic_file.remove(path)


def connect(host: HostEntry, environ: Mapping[str, str], terminal: bool) -> SharedConnection:
    """Return the open connection to ``host``, or a new one if there is a ``terminal``.

    Raise ``NotConnected`` if there is none and none can be opened.
    """
    own_connection = _place(host, environ)
    if own_connection.alive():
        return own_connection
    if theirs := _users_master(own_connection):
        return theirs
    if not terminal:
        message = f"there is no connection to {own_connection.name}, and no terminal to type a password in"
        once = f"open it once in a terminal, for all commands: {own_connection.typed}"
        raise NotConnected(message, f"{once}\nwhich is: {shlex.join(own_connection.master_argv())}")
    _open(own_connection)
    return own_connection


def _open(ours: SharedConnection) -> None:
    message = f"another command is about to open the connection to {ours.name}"
    busy = NotConnected(message, "finish the login there, then type this again")
    with alone(ours.path("lock"), lambda _: busy):
        if ours.alive():
            return
        atomic_file.remove(ours.socket)  # of a master that has ended, or does not answer
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


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _users_master(ours: SharedConnection) -> SharedConnection | None:
    """Return the connection over the user's own master (ControlPath in ssh_config), if it is open."""
    argv = ("ssh", "-G", *_options(ours.host.options), "--", ours.host.host)
    for line in system.run(argv, CHECK_SECONDS).out.splitlines():
        word, _, path = line.partition(" ")
        if word == "controlpath" and path != "none":
            connection = SharedConnection(ours.host, ours.folder, ours.key, path)
            return connection if connection.alive() else None
    return None


def _options(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-o", option))


# Answer of a server to a session beyond its MaxSessions.
REFUSED = "Session open refused by peer"


def explained(name: str, target: str, errors: str) -> tuple[str, str]:
    """Return message and remedy for the ``errors`` that ssh printed about ``target`` (called ``name``)."""
    if changed := re.search(r"[Hh]ost key for (\S+) has changed", errors):
        offending = re.search(r"Offending \S+ key in (.+):\d+", errors)
        file = f" -f {shlex.quote(offending[1])}" if offending else ""
        return (
            f"the host key of {name} is not the one known: it was set up anew, or somebody stands in between",
            "ask its administrators or look at what they publish; if the new key is right: "
            f"ssh-keygen{file} -R {shlex.quote(changed[1])}",
        )
    for pattern, message, remedy in _KNOWN:
        if re.search(pattern, errors):
            return message.format(name=name, target=target), remedy.format(
                name=name, target=shlex.quote(target)
            )
    lines = ["it gives no reason", *(line.strip() for line in errors.splitlines() if line.strip())]
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
