"""`--notify` and `--on-event` as the documents show them, with servers on this machine."""

from __future__ import annotations

import email
import email.policy
import json
import re
import shlex
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, CommandLine

PAGE = (ROOT / "docs/notifications.md").read_text(encoding="utf-8")
LINES = re.findall(r"^    (clusterrun submit --notify .*)$", PAGE, re.MULTILINE)
SLACK, WEBHOOK, MAIL = LINES
HOSTILE_NAME = "train $(touch pwned) <!channel>"


def until(observed: list[Any], count: int) -> list[Any]:
    """Return what a server received: a run has ended before its last message is sent."""
    end = time.monotonic() + 60
    while len(observed) < count and time.monotonic() < end:
        time.sleep(0.05)
    return observed


def of_the_page(line: str, url: str) -> list[str]:
    """Return the arguments of a line of the page, with another address and without its script."""
    words = shlex.split(line)[1:-1]
    words[words.index("--notify") + 1] = url
    return words


def test_a_run_sends_its_failures_and_its_end_and_keeps_the_address_secret(
    clusterrun: CommandLine, web: Any
) -> None:
    url = f"http://127.0.0.1:{web.server_port}/hook?key=s3cret"
    arguments = ("--ranks-per-node", "2", "--max-restarts", "1", "--name", HOSTILE_NAME, "train.py", "fail")
    result = clusterrun(*of_the_page(WEBHOOK, url), "--json", "--wait", *arguments)
    assert result.code == 1, result
    posts = until(web.seen, 2)
    assert [path for path, _, _ in posts] == ["/hook?key=s3cret"] * 2
    failed, ended = (body for _, _, body in posts)
    assert (failed["event"], failed["failure"]["rank"], failed["state"]) == ("failed", 1, "RUNNING")
    assert (ended["event"], ended["state"], ended["exit_code"]) == ("ended", "FAILED", 7)
    first, *_, last = ended["text"].split("\n")
    run_id = json.loads(result.out)["run_id"]
    assert (first, last) == (f"{HOSTILE_NAME} has ended: FAILED", f"next: clusterrun diagnose {run_id}")
    assert not (clusterrun.folder / "pwned").exists()
    run_dir = Path(json.loads(result.out)["run_dir"])
    holders = {path.name for path in run_dir.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()}
    assert holders == {"orders.json"}
    assert stat.S_IMODE((run_dir / "orders.json").stat().st_mode) == 0o600
    for arguments in (("status", run_id), ("status", "--json", run_id), ("report", run_id)):
        answer = clusterrun(*arguments)
        assert "s3cret" not in answer.out + answer.err
    assert f"--notify 'http://127.0.0.1:{web.server_port}/…'" in clusterrun("status", run_id).out


def test_a_run_sends_a_mail_when_it_has_ended(clusterrun: CommandLine, smtp: Any) -> None:
    server = f"127.0.0.1:{smtp.server_address[1]}"
    result = clusterrun(*of_the_page(MAIL, f"mailto:ada@example.org?smtp={server}"), "--wait", "train.py")
    assert result.code == 0, result
    (data,) = until(smtp.seen, 1)
    mail = email.message_from_bytes(data, policy=email.policy.default)
    assert mail["Subject"] == "[clusterrun] train has ended: COMPLETED"
    assert mail.get_content().rstrip().split("\n")[-1].startswith("next: clusterrun status ")


def test_a_message_that_is_not_delivered_costs_a_line_in_the_status(clusterrun: CommandLine) -> None:
    result = clusterrun(*of_the_page(WEBHOOK, "http://127.0.0.1:1/s3cret"), "--wait", "train.py")
    assert result.code == 0, result
    line = "the message 'ended' did not reach http://127.0.0.1:1/…: Connection refused"
    end = time.monotonic() + 60
    while line not in (answer := clusterrun("status", "last").out) and time.monotonic() < end:
        time.sleep(0.05)
    assert f"warning    {line}" in answer and "COMPLETED" in answer


def test_wait_sends_the_message_from_this_machine(clusterrun: CommandLine, web: Any) -> None:
    url = f"http://127.0.0.1:{web.server_port}/hook"
    assert clusterrun("submit", "--wait", "--ranks-per-node", "2", "train.py", "fail").code == 1
    assert clusterrun("wait", "last", "--notify", url).code == 1
    ((_, _, body),) = web.seen
    assert (body["event"], body["state"], body["failure"]["rank"]) == ("ended", "FAILED", 1)
    answer = clusterrun("wait", "last", "--notify", "http://127.0.0.1:1/x")
    assert (answer.code, "did not reach http://127.0.0.1:1/…" in answer.err) == (1, True)


@pytest.mark.parametrize("verb", ["submit", "sweep", "wait"])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.org/s3cret", "has no package apprise"),
        ("slack://s3cret", "has no form that clusterrun sends to"),
        ("https://:80/s3cret", "names no host"),
        ("hooks.slack.com/services/s3cret", "is no address"),
        ("mailto:ada", "is no mail address"),
    ],
)
def test_an_unknown_address_is_refused_before_anything_happens(
    clusterrun: CommandLine, verb: str, url: str, problem: str
) -> None:
    words = {"submit": ("train.py",), "sweep": ("--set", "a=1,2", "train.py", "{a}"), "wait": ()}[verb]
    result = clusterrun(verb, "--notify", url, *words)
    assert (result.code, problem in result.err, "slack://" in result.err) == (2, True, True), result
    assert "s3cret" not in result.err
    assert not list(Path(clusterrun.environment["CLUSTERRUN_HOME"]).glob("runs/*"))


def test_addresses_of_the_configuration_are_used_and_shown_without_their_secret(
    clusterrun: CommandLine,
) -> None:
    page = "".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    folder = Path(clusterrun.environment["HOME"], ".config/clusterrun")
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(page)
    shown = clusterrun("config", "show", "--profile", "watched").out
    assert "mailto:ada@example.org, slack://…" in shown and "T0001" not in shown
    result = clusterrun("submit", "--dry-run", "--json", "--profile", "watched", "train.py")
    assert json.loads(result.out)["survival"]["notify"] == ["mailto:ada@example.org", "slack://…"]
    assert "T0001" not in result.out + result.err


def test_a_program_gets_every_event(clusterrun: CommandLine) -> None:
    (line,) = re.findall(r"^    (clusterrun submit --on-event .*)$", PAGE, re.MULTILINE)
    arguments = ("--wait", "--ranks-per-node", "2", "--max-restarts", "1", "train.py", "fail")
    result = clusterrun(*shlex.split(line)[1:-1], *arguments)
    assert result.code == 1, result
    file = Path(clusterrun.environment["HOME"], "events.jsonl")
    end = time.monotonic() + 60
    while file.read_text().count("\n") < 5 and time.monotonic() < end:
        time.sleep(0.05)
    events = [json.loads(text)["event"] for text in file.read_text().splitlines()]
    assert events == ["started", "failed", "restarted", "failed", "ended"]
