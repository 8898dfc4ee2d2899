"""Fixtures: a web server and a mail server on this machine that record what they receive."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

# A path that begins with one of these gets this answer.
ANSWERS = {"/refused": 403, "/moved": 302, "/broken": 500}


class Posts(BaseHTTPRequestHandler):
    """Records path, type and JSON of every post. ``/silent`` gets no answer until the server ends."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/silent"):
            self.server.over.wait(60)  # type: ignore[attr-defined]
            return
        self.server.seen.append((self.path, self.headers["Content-Type"], json.loads(body)))  # type: ignore[attr-defined]
        self.server.headers.append(dict(self.headers))  # type: ignore[attr-defined]
        code = next((code for path, code in ANSWERS.items() if self.path.startswith(path)), 200)
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://elsewhere.example.org/?key=s3cret")
        self.end_headers()
        self.wfile.write(b"no_service\n" if code != 200 else b"ok")

    def log_message(self, *_: object) -> None:
        pass


class Mails(socketserver.StreamRequestHandler):
    """As much of SMTP as a mail takes. A receiver called ``nobody`` is refused."""

    def handle(self) -> None:
        self.say("220 ready")
        while line := self.rfile.readline().strip():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.say("354 go on")
                data = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.seen.append(data)  # type: ignore[attr-defined]
            if word == b"RCPT" and b"nobody" in line:
                self.say("550 no such user")
            else:
                self.say("221 bye" if word == b"QUIT" else "250 ok")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextlib.contextmanager
def serving(server: Any) -> Iterator[Any]:
    server.seen, server.headers, server.daemon_threads = [], [], True
    server.over = threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(30)


@pytest.fixture
def web() -> Iterator[Any]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Posts)) as server:
        yield server


@pytest.fixture
def smtp() -> Iterator[Any]:
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mails)) as server:
        yield server
