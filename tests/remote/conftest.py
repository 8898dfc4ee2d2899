"""A run that prints a number every tenth of a second, on the cluster behind the sshd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.sshd_fixture import Far, wait_until

TICKS = """import sys, time
for number in range(100_000):
    print("tick", number, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def project(far: Far):
    """Make a project on the laptop: a commit, and a change after it."""
    folder = far.folder / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "ticks.py").write_text(TICKS)
    (folder / "sub" / "it's.py").write_text("print('committed')\n")
    git = ("git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@localhost")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *arguments), check=True, timeout=60)
    (folder / "sub" / "it's.py").write_text("import sys; print('changed', sys.argv[1:])\n")
    return folder


@pytest.fixture(scope="module")
def live(far: Far, project) -> Iterator[str]:
    """Yield the id of a lasting run that trains."""
    result = far.there("submit", "--name", "ticks", "ticks.py", cwd=project)
    assert result.returncode == 0, result.stderr
    wait_until(lambda: '"phase": "training"' in far.there("status", "--json", result.stdout.strip()).stdout)
    yield result.stdout.strip()
    far.there("cancel", result.stdout.strip())
    far.there("wait", result.stdout.strip())
