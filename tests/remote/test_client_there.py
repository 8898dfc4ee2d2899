"""The clusterrun on the cluster: its choice, the copy of ours, and the message if neither is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from clusterrun.model.contract import VERSION
from clusterrun.model.errors import BadInput
from clusterrun.remote.client_install import Machine, compatible, refused_there, suited

MAJOR, MINOR, LAST = (int(one) for one in VERSION.split("."))
NEEDS = {"click": ">=3.10", "jinja2": ">=3.7", "submitit": ""}
BASE = os.path.realpath(sys.executable)
"""The base interpreter of the tests' virtual environment."""


@pytest.mark.parametrize(
    ("version", "is_used"),
    [
        (VERSION, True),
        (f"{MAJOR}.{MINOR}.{LAST + 11}", True),
        (f"{MAJOR}.{MINOR + 1}.0", False),
        (f"{MAJOR + 1}.{MINOR}.{LAST}", False),
        (f"{MAJOR}.{MINOR}", False),
        (f"{MAJOR}.{MINOR}.{LAST}rc1", False),
        ("", False),
    ],
)
def test_a_client_of_the_same_version_but_for_a_higher_last_number_is_used(version, is_used) -> None:
    assert compatible(version) is is_used


def test_libraries_for_a_newer_python_are_not_sent_if_the_cluster_has_its_own() -> None:
    remote = {"click": "8.1.7", "jinja2": "", "submitit": ""}
    assert suited(Machine("/usr/bin/python3", (3, 9), "", remote), NEEDS, "c") == ["jinja2", "submitit"]
    assert suited(Machine("/usr/bin/python3", (3, 10), "", remote), NEEDS, "c") == list(NEEDS)
    with pytest.raises(BadInput, match=r"Python 3\.9, too old for click") as result:
        suited(Machine("/usr/bin/python3", (3, 9), "", {}), NEEDS, "c")
    assert 'below [host.c]: python = "' in result.value.remedy


@pytest.mark.parametrize(
    "message", ["tar: a: Cannot write: No space left on device", "mkdir: Disk quota exceeded"]
)
def test_a_full_disk_of_the_cluster_is_reported(message, far) -> None:
    class Connection:
        host = type("Host", (), {"host": "login1"})

    result = refused_there(Connection(), "the code could not be written there", f"{message}\ntar: exiting\n")
    assert message in result.seen
    assert "free some space there: ssh login1" in result.remedy


def has_clusterrun(python: str) -> bool:
    return subprocess.run((python, "-c", "import clusterrun"), cwd="/", capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def bare(make_far):
    """Make a cluster whose Python lacks clusterrun."""
    if os.path.abspath(sys.executable) == BASE or has_clusterrun(BASE):
        pytest.skip("the tests run in no virtual environment, or clusterrun is installed outside of it too")
    far = make_far()
    far.configure(f'[host.cluster]\npython = "{BASE}"\n')
    far.open()
    return far


def test_the_client_is_copied_once_and_again_after_its_removal(bare) -> None:
    first = bare.there("status")
    assert (first.returncode, "no runs yet" in first.stderr) == (0, True), first.stderr
    (folder,) = (bare.home / "client").iterdir()
    assert folder.name.startswith(f"{VERSION}-")
    created = folder.stat().st_ctime_ns
    assert bare.there("status").returncode == 0
    assert folder.stat().st_ctime_ns == created
    shutil.rmtree(folder)
    ended = bare.there("status")
    assert (ended.returncode, "type it again" in ended.stderr) == (97, True), ended.stderr
    assert bare.there("status").returncode == 0


def test_the_requirements_of_the_client_are_copied_with_it(bare) -> None:
    """A run of its own, a page, and the texts that come with the package."""
    result = bare.there("submit", "--no-snapshot", "--wait", "--preflight", "quick", "true")
    assert result.returncode == 0, result.stderr
    assert bare.there("status", result.stdout.strip()).returncode == 0
    assert bare.there("report", "--html", "page.html").returncode == 0
    assert (bare.folder / "laptop" / "page.html").stat().st_size
    assert "From your own machine" in bare.there("help", "remote").stdout


def test_a_too_old_python_is_reported_with_the_setting_to_write(make_far) -> None:
    far = make_far()
    old = far.folder / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.6.8 && exit 0\nexit 1\n')
    old.chmod(0o755)
    far.configure(f'[host.cluster]\npython = "{old}"\n')
    far.open()
    result = far.there("status")
    assert result.returncode == 2
    assert f"{old} is Python 3.6.8" in result.stderr
    assert 'python = "/path/to/python3"' in result.stderr
