"""The control port, live on the lab's network: strangers may do what they like, the run does not notice."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.hostile.conftest import Person, lines_of, logs

pytestmark = pytest.mark.lab
STRANGER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stranger.py")))
TRAINS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


@pytest.fixture
def crowd() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(6)


def strange(lab: Lab, host: str, *arguments: str) -> str:
    result = lab.exec([*STRANGER, *arguments], host=host, timeout=120)
    assert result.code == 0, result.err
    return result.out


def test_a_run_starts_and_trains_while_strangers_attack_its_port(
    user: Person, crowd: ThreadPoolExecutor
) -> None:
    """A process attacks from a node of the run during its start, another from elsewhere during training."""
    lab = user.lab
    assert lab
    (user.folder / "x.py").write_text(TRAINS)
    lab.fault("freeze", "n0002", process="slurmd")  # so that it joins under attack
    run = user.submits("--nodes", "2", "--nodelist", "n0001,n0002", "x.py")
    port = strange(lab, "n0001", "find").strip()
    address = lab.exec(["hostname", "-I"], host="n0001").out.split()[0]
    messages: Future[str] = crowd.submit(strange, lab, "n0001", "overhear", port, "4")
    first = crowd.submit(strange, lab, "n0002", "attack", address, port, "12")
    lab.heal("n0002")
    user.up(run, 2)
    assert not first.done(), "it joined only after the attack"
    overheard = [line for line in messages.result().splitlines()[1:] if len(line) > 400]
    assert overheard, "the agents' handshakes were not overheard"
    second = crowd.submit(strange, lab, "n0004", "attack", address, port, "3", *overheard[:5])
    counts = [json.loads(first.result()), json.loads(second.result())]
    assert min(count["connections"] for count in counts) > 50
    memory = coordinators_memory(lab)
    (user.folder / "go").touch()
    assert user.reaches(run, "COMPLETED")["exit_code"] == 0
    assert [path.read_text() for path in logs(run)] == ["up\n"] * 2
    assert lines_of(run / "job.out") < 12 and memory < 40_000


def coordinators_memory(lab: Lab) -> int:
    """Return the KiB of the coordinating process and of its supervisor."""
    both = [p for p in lab.processes() if "\0coordinate" in p.command or " coordinate " in p.command]
    status = [Path(f"/proc/{process.process}/status").read_text() for process in both]
    assert len(both) == 2, both
    return max(int(arguments.split("VmRSS:")[1].split()[0]) for arguments in status)
