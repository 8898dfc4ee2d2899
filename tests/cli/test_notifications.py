"""The commands for `--on-event` as the documents show them, against servers on this machine."""

from __future__ import annotations

import email
import email.policy
import json
import re
import shlex
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, CommandLine

PAGE = (ROOT / "docs/notifications.md").read_text(encoding="utf-8")
LINES = re.findall(r"```sh\n(clusterrun submit --on-event .*)\n```", PAGE)
(MAIL,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WEBHOOK, SLACK, SLACK_WITH_JQ, BY_MAIL = LINES
HOSTILE = 'rank 0 said "$(touch pwned)" `touch pwned` \' <!channel> & \\n\nBcc: eve@example.org é €'
EVENT = {
    "event": "failed",
    "run_id": "20261120-074500-k3f9-train",
    "name": "train\nBcc: eve@example.org",
    "job_id": "4711",
    "attempt": 0,
    "state": "RUNNING",
    "reason": HOSTILE,
    "nodes": ["n0001"],
    "failure": None,
    "run_dir": "/home/ada/.clusterrun/runs/20261120-074500-k3f9-train",
    "at": 1800000000.0,
}


class Posts(BaseHTTPRequestHandler):
    """Keeps what was posted, with its path and kind."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Content-Type"], json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mails(socketserver.StreamRequestHandler):
    """As much of SMTP as it takes to be given a mail."""

    def handle(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline().strip():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.say("354 go on")
                data = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.seen.append(data)  # type: ignore[attr-defined]
            self.say("221 bye" if word == b"QUIT" else "250 ok")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


def serving(server: Any) -> Iterator[Any]:
    server.seen, server.daemon_threads = [], True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(30)


@pytest.fixture
def web() -> Iterator[Any]:
    yield from serving(ThreadingHTTPServer(("127.0.0.1", 0), Posts))


@pytest.fixture
def smtp() -> Iterator[Any]:
    yield from serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mails))


@pytest.fixture
def home(clusterrun: CommandLine, web: Any, smtp: Any) -> CommandLine:
    """A user who has the files that the page tells of."""
    folder = Path(clusterrun.environment["HOME"], ".config/clusterrun")
    folder.mkdir(parents=True)
    for name in ("webhook", "slack"):
        (folder / name).write_text(f'url = "http://127.0.0.1:{web.server_port}/{name}?key=x"\n')
    (folder / "mail.py").write_text(MAIL)
    for path in folder.iterdir():
        path.chmod(0o600)
    clusterrun.environment["SMTP_SERVER"] = f"127.0.0.1:{smtp.server_address[1]}"
    return clusterrun


def needs(line: str) -> None:
    for program in ("curl", "jq"):
        if f"{program} " in line and shutil.which(program) is None:
            pytest.skip(f"this machine has no {program}")


def told(home: CommandLine, line: str) -> None:
    """Run the shell line of ``line`` as the coordinator does, with a hostile event."""
    needs(line)
    command = shlex.split(line)[3]
    result = subprocess.run(
        ["/bin/sh", "-c", command],
        input=json.dumps(EVENT).encode() + b"\n",
        cwd=home.folder,
        env=home.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert not (home.folder / "pwned").exists()


def test_a_webhook_gets_the_event_as_it_is(home: CommandLine, web: Any) -> None:
    told(home, WEBHOOK)
    assert web.seen == [("/webhook?key=x", "application/json", EVENT)]


@pytest.mark.parametrize("line", [SLACK, SLACK_WITH_JQ], ids=["python", "jq"])
def test_slack_gets_a_text_that_calls_nobody(home: CommandLine, web: Any, line: str) -> None:
    told(home, line)
    output = HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = f"{EVENT['name']} failed: RUNNING, attempt 0. {output}"
    assert web.seen == [("/slack?key=x", "application/json", {"text": text})]


def test_a_mail_has_no_header_that_a_rank_has_written(home: CommandLine, smtp: Any) -> None:
    told(home, BY_MAIL)
    (data,) = smtp.seen
    message = email.message_from_bytes(data, policy=email.policy.default)
    assert (message["To"], message["Bcc"]) == ("ada@example.org", None)
    assert message["Subject"] == "train Bcc: eve@example.org failed: RUNNING"
    assert json.loads(message.get_content()) == EVENT


def until(observed: list[Any], count: int) -> list[Any]:
    """What a server was given: a run has ended before its last event is told."""
    end = time.monotonic() + 60
    while len(observed) < count and time.monotonic() < end:
        time.sleep(0.05)
    return observed


def test_a_run_tells_all_that_happens_to_it(home: CommandLine, web: Any) -> None:
    needs(WEBHOOK)
    arguments = ("--wait", "--ranks-per-node", "2", "--max-restarts", "1", "train.py", "fail")
    result = home(*shlex.split(WEBHOOK)[1:-1], *arguments)
    assert result.code == 1, result
    bodies = [body for _, _, body in until(web.seen, 5)]
    assert [body["event"] for body in bodies] == ["started", "failed", "restarted", "failed", "ended"]
    assert bodies[-1]["state"] == "FAILED" and bodies[1]["failure"]["rank"] == 1


def test_a_run_sends_a_mail_when_it_has_ended(home: CommandLine, smtp: Any) -> None:
    result = home(*shlex.split(BY_MAIL)[1:-1], "--wait", "train.py")
    assert result.code == 0, result
    (data,) = until(smtp.seen, 1)
    assert email.message_from_bytes(data)["Subject"] == "train ended: COMPLETED"
