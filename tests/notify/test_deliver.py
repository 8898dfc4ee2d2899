"""Messages reach real servers on this machine; what is not delivered costs a sentence without a secret."""

from __future__ import annotations

import email
import email.policy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.frozen import replace
from clusterrun.notify import deliver, notify_address
from clusterrun.notify.deliver import deliver_all
from clusterrun.notify.event_message import ENDED, event_document, message_of
from clusterrun.script.pack import agent_program
from tests.notify.test_event_message import FAILED_RUN

HOSTILE = "<!channel> & @everyone \udcff é"
DOCUMENT = event_document(ENDED, replace(FAILED_RUN, reason=HOSTILE), "train", "47", "/runs/r-1", 3760.0)
TEXT = message_of(DOCUMENT).text
BARE = {"PATH": "/nonexistent"}


def test_a_web_server_receives_the_event_and_its_text(web: Any) -> None:
    port = web.server_port
    assert deliver_all([f"http://ada:s3cret@127.0.0.1:{port}/hook?key=x"], DOCUMENT, BARE) == []
    ((path, kind, body),) = web.seen
    assert (path, kind, body["text"]) == ("/hook?key=x", "application/json", TEXT)
    assert {name: body[name] for name in ("event", "run_id", "state", "exit_code")} == {
        "event": "ended",
        "run_id": "r-1",
        "state": "FAILED",
        "exit_code": 1,
    }
    assert body["reason"] == HOSTILE.replace("\udcff", "?")
    assert web.headers[0]["Authorization"] == "Basic YWRhOnMzY3JldA=="


@pytest.mark.parametrize("url", ["slack://T0/B0/s3cret", "https://hooks.slack.com/services/T0/B0/s3cret"])
def test_slack_gets_a_text_that_calls_nobody(web: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    port = web.server_port
    monkeypatch.setattr(notify_address, "_SLACK_HOOK", f"http://127.0.0.1:{port}/services/")
    url = url.replace("https://hooks.slack.com", f"http://127.0.0.1:{port}")
    assert deliver_all([url], DOCUMENT, BARE) == []
    escaped = TEXT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert web.seen == [("/services/T0/B0/s3cret", "application/json", {"text": escaped})]


def test_discord_gets_a_text_that_calls_nobody(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "_DISCORD", ("127.0.0.1",))
    assert deliver_all([f"http://127.0.0.1:{web.server_port}/api"], DOCUMENT, BARE) == []
    assert web.seen[0][2] == {"content": TEXT, "allowed_mentions": {"parse": []}}


def test_a_mail_has_the_text_and_no_header_that_a_rank_has_written(smtp: Any) -> None:
    server = f"127.0.0.1:{smtp.server_address[1]}"
    hostile = {**DOCUMENT, "name": "train\r\nBcc: eve@example.org é"}
    urls = [f"mailto:ada@example.org,bob@example.org?smtp={server}&from=slurm@example.org"]
    assert deliver_all(urls, hostile, BARE) == []
    (data,) = smtp.seen
    mail = email.message_from_bytes(data, policy=email.policy.default)
    assert (mail["To"], mail["From"], mail["Bcc"]) == (
        "ada@example.org, bob@example.org",
        "slurm@example.org",
        None,
    )
    assert mail["Subject"] == "[clusterrun] train Bcc: eve@example.org é has ended: FAILED"
    assert "next: clusterrun diagnose r-1" in mail.get_content()


def test_the_mail_server_is_the_sites_if_the_address_names_none(smtp: Any) -> None:
    environment = {**BARE, deliver.SMTP_VARIABLE: f"127.0.0.1:{smtp.server_address[1]}"}
    assert deliver_all(["mailto:ada@example.org"], DOCUMENT, environment) == []
    assert email.message_from_bytes(smtp.seen[0])["From"] == "ada@example.org"


def test_sendmail_gets_the_mail_where_no_server_is_named(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert deliver_all(["mailto:ada@example.org"], DOCUMENT, environment) == []
    assert (tmp_path / "arguments").read_text() == "-t -oi\n"
    assert email.message_from_bytes((tmp_path / "mail").read_bytes())["To"] == "ada@example.org"
    program.write_text("#!/bin/sh\necho no route >&2\nexit 75\n")
    (sentence,) = deliver_all(["mailto:ada@example.org"], DOCUMENT, environment)
    assert sentence.endswith(f"{program} exited with code 75: no route")


def test_each_failure_is_a_sentence_and_the_other_addresses_are_served(web: Any, smtp: Any) -> None:
    base = f"http://127.0.0.1:{web.server_port}"
    server = f"127.0.0.1:{smtp.server_address[1]}"
    urls = [
        f"{base}/refused?key=s3cret",
        f"{base}/moved?key=s3cret",
        f"{base}/silent?key=s3cret",
        "http://127.0.0.1:1/s3cret",
        "http://no-such-host.invalid/s3cret",
        f"mailto:nobody@example.org?smtp={server}",
        "from-another-version",
        f"{base}/good?key=s3cret",
    ]
    sentences = deliver_all(urls, DOCUMENT, BARE, seconds=3.0)
    reasons = [sentence.partition("did not reach ")[2] for sentence in sentences[1:]]
    short = f"{base}/…: "
    assert reasons[:4] == [
        f"{short}the server answered 403 (no_service)",
        f"{short}the server answered 302 (it has moved to elsewhere.example.org)",
        f"{short}no answer within 3 s",
        "http://127.0.0.1:1/…: Connection refused",
    ]
    assert reasons[4].startswith("http://no-such-host.invalid/…: ")
    assert reasons[5].endswith(": the mail server refused nobody@example.org: 550 no such user")
    assert sentences[0] == "the message 'ended' was not sent: --notify 'from…' is no address"
    assert len(sentences) == 7 and "s3cret" not in "".join(sentences)
    assert [path for path, _, _ in web.seen if path.startswith("/good")] == ["/good?key=s3cret"]


def test_other_addresses_use_apprise(tmp_path: Path) -> None:
    """apprise is a stand-in here: the module that the sending Python imports."""
    (tmp_path / "apprise.py").write_text(
        "import sys\n"
        "class Apprise:\n"
        "    def add(self, url): self.url = url; return not url.startswith('unknown')\n"
        "    def notify(self, title, body): print(self.url, title, len(body)); return 'bad' not in self.url\n"
    )
    code = (
        "import json, sys; from clusterrun.notify.deliver import deliver_all\n"
        "urls, document = json.load(sys.stdin)\n"
        "print(deliver_all(urls, document, {}))"
    )
    urls = ["discord://1/s3cret", "discord://bad/s3cret", "unknown://s3cret"]
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([urls, DOCUMENT]),
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    sent = [line for line in result.stdout.splitlines() if line.startswith("discord://1/s3cret train has")]
    assert len(sent) == 1
    assert eval(result.stdout.splitlines()[-1]) == [
        "the message 'ended' did not reach discord://…: apprise could not send it",
        "the message 'ended' did not reach unknown://…: apprise does not understand the address",
    ]


def test_the_program_for_nodes_sends_its_standard_input(web: Any, tmp_path: Path) -> None:
    base = f"http://127.0.0.1:{web.server_port}"
    program = agent_program(str(tmp_path))
    parcel = {"urls": [f"{base}/x", f"{base}/broken?s3cret"], "seconds": 20.0, "event": DOCUMENT}
    result = subprocess.run(
        [sys.executable, "-I", program, "notify"],
        input=json.dumps(parcel),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    line = f"the message 'ended' did not reach {base}/…: the server answered 500 (no_service)\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, line, "")
    assert sorted(path for path, _, _ in web.seen) == ["/broken?s3cret", "/x"]
