"""A real sshd on this machine, with a laptop and a cluster that are two homes; skipped without sshd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT = 90.0
"""Seconds for a process to do something, on a machine that does other work too."""
WINDOW = (31, 101)
"""Rows and columns of a terminal here."""
CLUSTERRUN = (sys.executable, "-m", "clusterrun")


def sshd_program() -> str:
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_until(condition, seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@dataclass
class Far:
    """A cluster called ``cluster`` behind an sshd, and a laptop beside it."""

    folder: Path
    port: int = 0
    options: Sequence[str] = ()
    # A command that runs the rest of its arguments on the login host: the laptop's programs and sshd.
    front: Sequence[str] = ()
    # More variables of a session on the cluster.
    variables: dict[str, str] = field(default_factory=dict)
    server: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("laptop", "cluster", "bin"):
            (self.folder / name).mkdir(mode=0o700)
        for name, owner in (("host", "key"), ("laptop", "id")):
            arguments = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / f"{name}.{owner}")
            subprocess.run(arguments, check=True, timeout=LIMIT)
        self.port = free_port()
        self.write_config()
        wrapper = self.folder / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)
        self.configure(f'[host.cluster]\npython = "{sys.executable}"\n')
        self.environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder / "laptop"),
            "TERM": "xterm",
        }

    def write_config(self, *more: str) -> None:
        lines = (
            "Host cluster",
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"IdentityFile {self.folder}/laptop.id",
        )
        options = (f"UserKnownHostsFile {self.folder}/known_hosts", "IdentitiesOnly yes", *more)
        (self.folder / "ssh_config").write_text("\n".join((*lines, *options)) + "\n")

    def configure(self, text: str) -> None:
        """Write the configuration file of the laptop."""
        path = self.folder / "laptop" / ".config" / "clusterrun" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def home(self) -> Path:
        """Return CLUSTERRUN_HOME of the cluster."""
        return self.folder / "cluster" / ".clusterrun"

    @property
    def there_set(self) -> dict[str, str]:
        own = {"HOME": f"{self.folder}/cluster", "CLUSTERRUN_HOME": str(self.home)}
        return {**own, "CLUSTERRUN_PREFLIGHT": "off", "CLUSTERRUN_CLUSTER": "local", **self.variables}

    @property
    def logins(self) -> int:
        """Return the number of attempts to log in."""
        return (self.folder / "sshd.log").read_text().count("Connection from ")

    def start(self) -> None:
        settings = (
            *self.options,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder}/host.key",
            f"AuthorizedKeysFile {self.folder}/laptop.id.pub",
            "PidFile none",
            "PermitRootLogin yes",
            "StrictModes no",
            "UsePAM no",
            "LogLevel VERBOSE",
            "SetEnv " + " ".join(f"{name}={value}" for name, value in self.there_set.items()),
        )
        (self.folder / "sshd_config").write_text("\n".join(settings) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        arguments = (
            *self.front,
            sshd_program(),
            "-D",
            "-f",
            self.folder / "sshd_config",
            "-E",
            self.folder / "sshd.log",
        )
        self.server = subprocess.Popen(arguments)
        wait_until(self._listens)
        with (self.folder / "known_hosts").open("w") as file:
            file.write(f"[127.0.0.1]:{self.port} {(self.folder / 'host.key.pub').read_text()}")

    def _listens(self) -> bool:
        log = self.folder / "sshd.log"
        message = log.read_text() if log.exists() else ""
        assert self.server and self.server.poll() is None, message
        return "Server listening on" in message

    def masters(self) -> list[int]:
        """Return the processes of ssh that hold a connection of this laptop open."""
        results = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                text = path.read_text(errors="replace")
                if "\0-fN\0" in text and str(self.folder) in text:
                    results.append(int(path.parent.name))
        return results

    def sessions(self) -> list[int]:
        """Return the processes of sshd that serve this port's connections."""
        assert self.server
        results = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(path.read_text().rpartition(")")[2].split()[1]) == self.server.pid:
                    results.append(int(path.parent.name))
        return results

    def run(
        self, *arguments: str, stdin: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run clusterrun with ``words`` on the laptop, without a terminal."""
        return subprocess.run(
            (*self.front, *CLUSTERRUN, *arguments),
            env={**self.environment, **variables},
            cwd=cwd or self.folder / "laptop",
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            start_new_session=True,
        )

    def there(self, *arguments: str, **named) -> subprocess.CompletedProcess[str]:
        return self.run("--host", "cluster", *arguments, **named)

    @contextlib.contextmanager
    def started(
        self, *arguments: str, cwd: Path | None = None, variables: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a command on the laptop in a process group of its own. Yield its process."""
        process = subprocess.Popen(
            (*self.front, *CLUSTERRUN, "--host", "cluster", *arguments),
            env={**self.environment, **(variables or {})},
            cwd=cwd or self.folder / "laptop",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def terminal(
        self, *arguments: str, answers: Sequence[tuple[str, str]] = (), **variables: str
    ) -> tuple[int, str]:
        """Run clusterrun with ``words`` on a terminal of the laptop. Return its exit code and the screen.

        ``answers``: texts to type, one after the other, when the screen matches.
        """
        argv = (*self.front, *CLUSTERRUN, *arguments)
        return on_terminal(argv, {**self.environment, **variables}, str(self.folder / "laptop"), answers)

    def open(self) -> None:
        code, observed = self.terminal("--host", "cluster")
        assert code == 0, observed

    def end(self) -> None:
        for process in self.masters():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self.server:
            for process in self.sessions():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.server.kill()
            self.server.wait()


def on_terminal(
    argv: Sequence[str], environment: dict[str, str], cwd: str, answers: Sequence[tuple[str, str]] = ()
) -> tuple[int, str]:
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", *WINDOW, 0, 0))
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), environment)
    observed, waiting, from_here = "", list(answers), 0
    end = time.monotonic() + LIMIT
    try:
        while True:
            assert time.monotonic() < end, observed
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            observed += data.decode(errors="replace")
            if waiting and (result := re.compile(waiting[0][0]).search(observed, from_here)):
                from_here = result.end()
                os.write(terminal, waiting.pop(0)[1].encode())
    finally:
        os.close(terminal)
        with contextlib.suppress(ProcessLookupError):
            if time.monotonic() >= end:
                os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), observed


@pytest.fixture(scope="module")
def make_far(tmp_path_factory):
    """Return ``make_far("MaxSessions 1", …)``: it starts an sshd with these settings for the file's tests."""
    if not sshd_program() or not shutil.which("ssh"):
        pytest.skip("no sshd here: as root on Debian or Ubuntu, apt-get install openssh-server")
    created = []

    def make(*options: str, **named) -> Far:
        far = Far(tmp_path_factory.mktemp("far"), options=options, **named)
        created.append(far)
        far.start()
        return far

    yield make
    for far in created:
        far.end()


@pytest.fixture(scope="module")
def far(make_far) -> Far:
    """Return the cluster that the tests of a file share, with an open connection."""
    result = make_far()
    result.open()
    return result
