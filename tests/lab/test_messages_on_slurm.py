"""Messages of a run on real Slurm reach a web server on the login host, sent by the first node of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LOGIN
from tests.lab.test_slurm_runs import Site, on_slurm, until

pytestmark = pytest.mark.lab
__all__ = ["on_slurm"]

SERVER = """
import http.server, sys, threading
class Posts(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("posts", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()
server = http.server.ThreadingHTTPServer(("", 0), Posts)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""
# The first attempt hangs. Rank 1 fails once the file exists. The second attempt succeeds.
HANG = """
import os, sys, time
if os.environ["CLUSTERRUN_ATTEMPT"] == "0":
    while os.environ["RANK"] == "0" or not os.path.exists("fail"):
        time.sleep(0.5)
    raise RuntimeError("shapes differ")
"""


@pytest.fixture
def server(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """Return the address of a web server on the login host that writes what it receives to ``posts``."""
    front, environment = lab.entering(LOGIN, {}, str(tmp_path))
    process = subprocess.Popen(
        [*front, sys.executable, "-c", SERVER],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin and process.stdout
    try:
        yield f"http://{LOGIN}:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(30)


def test_a_hang_a_failure_and_the_end_reach_a_server_on_the_login_host(
    on_slurm: Site, server: str, tmp_path: Path
) -> None:
    (on_slurm.project / "hang.py").write_text(HANG)
    options = ("--nodes", "2", "--preflight", "off", "--max-restarts", "1", "--hang-after", "8s")
    urls = ("--notify", f"{server}/hook?key=s3cret", "--notify", "http://no-such-host.invalid/s3cret")
    answer = on_slurm.submit(*options, *urls, "hang.py")
    posts = tmp_path / "posts"

    def bodies() -> list[dict[str, Any]]:
        lines = posts.read_text().splitlines() if posts.exists() else []
        # A message may overtake another one, which a process of its own sends.
        return sorted(map(json.loads, lines), key=lambda body: body["at"])

    until(lambda: len(bodies()) == 1)
    (on_slurm.project / "fail").touch()
    assert on_slurm.run("wait", answer["run_id"]).code == 0
    until(lambda: len(bodies()) == 3)
    assert [(body["event"], body["state"], body["job_id"]) for body in bodies()] == [
        ("hung", "RUNNING", answer["job_id"]),
        ("failed", "RUNNING", answer["job_id"]),
        ("ended", "COMPLETED", answer["job_id"]),
    ]
    hung, failed, _ = (body["text"].split("\n") for body in bodies())
    assert hung[0] == "hang hangs" and hung[1].startswith("nothing has moved for")
    assert "RuntimeError: shapes differ" in "\n".join(failed)
    command = on_slurm.lab.exec(["scontrol", "show", "job", "-dd", answer["job_id"]]).out
    script = Path(answer["run_dir"], "script.sh").read_text()
    status = on_slurm.run("status", answer["run_id"]).out
    assert "s3cret" not in command + script + status
    assert "the message 'ended' did not reach http://no-such-host.invalid/…" in status
