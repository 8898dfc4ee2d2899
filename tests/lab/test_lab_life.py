"""Labs begin and end, also badly, and leave the machine as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.lab.lab import Lab, alive
from clusterrun.lab.namespaces import LabError, first_processes, started_at, wait_for
from clusterrun.lab.place import labs_home, read_state, write_state
from clusterrun.lab.spec import LabSpec, Proctrack
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from tests.lab_fixture import MakeLab, mend

pytestmark = pytest.mark.lab


@pytest.fixture
def own(make_lab: MakeLab) -> Iterator[Lab]:
    """Yield a name for a lab of this test alone, ended after it.

    (``make_lab`` skips where no lab can run.)
    """
    lab = Lab(f"l{os.getpid()}")
    yield lab
    lab.down()


def spec(lab: Lab, nodes: int = 2) -> LabSpec:
    return LabSpec(name=lab.name, nodes=nodes)


def machine(name: str) -> dict[str, object]:
    """Return everything that a lab of that name could leave on the machine."""
    mine = [p for p in Path("/proc").glob("[0-9]*") if f"/{name}" in read(p / "cmdline")]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout.splitlines()
    return {
        "processes": mine,
        "mounts": [line for line in read(Path("/proc/mounts")).splitlines() if name in line],
        "links": sorted(line.split()[1] for line in links),
        "pinned": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "files": (labs_home() / name).exists(),
        "cgroups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob(f"*/clusterrun-lab.{name}")),
    }


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("proctrack", [Proctrack.LINUXPROC, Proctrack.CGROUP])
def test_down_leaves_nothing(own: Lab, proctrack: Proctrack) -> None:
    if proctrack is Proctrack.CGROUP and not os.path.isdir("/sys/fs/cgroup/freezer"):
        pytest.skip("no freezer of cgroup version 1 here")
    before = machine(own.name)
    own.up(replace(spec(own), proctrack=proctrack))
    assert bool(machine(own.name)["cgroups"]) is (proctrack is Proctrack.CGROUP)
    own.exec(["sbatch", "--output=/dev/null", "--wrap", "sleep 100"])
    own.exec(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], host="n0002")
    own.fault("disk-full", "n0001", path="/tmp")
    own.fault("cut", "n0002")
    assert machine(own.name) != before
    assert own.down()
    assert machine(own.name) == before
    assert not own.down()


@pytest.mark.slow
def test_many_ups_and_downs_leave_the_machine_as_it_was(own: Lab) -> None:
    before = machine(own.name)
    for _ in range(8):
        own.up(spec(own, nodes=4))
        own.down()
    assert machine(own.name) == before


def test_up_removes_the_rest_of_a_crash_and_reports_it(own: Lab) -> None:
    own.up(spec(own))
    state = own.state
    os.kill(state.keeper, signal.SIGKILL)
    assert wait_for(lambda: not alive(state), 60)
    messages: list[str] = []
    with pytest.raises(BadInput, match="no lab named"):
        own.exec(["true"])
    Lab(own.name, messages.append).up(spec(own))
    assert messages == [f"what was left of an earlier lab {own.name!r} is cleaned up"]
    assert own.exec(["srun", "-N2", "true"]).code == 0


def test_down_ends_a_lab_with_lost_records(own: Lab) -> None:
    own.up(spec(own))
    own.place.state.write_text("{ torn")
    assert own.down()
    assert first_processes(own.place) == []


def test_down_ends_a_lab_whose_up_was_killed(own: Lab) -> None:
    code = "import sys; from clusterrun.lab.lab import Lab; from clusterrun.lab.spec import LabSpec\n"
    code += "Lab(sys.argv[1]).up(LabSpec(name=sys.argv[1], nodes=60))"
    starting = subprocess.Popen([sys.executable, "-c", code, own.name], stderr=subprocess.DEVNULL)
    assert wait_for(lambda: first_processes(own.place), 60)
    starting.kill()
    starting.wait()
    assert own.down()
    assert wait_for(lambda: machine(own.name)["processes"] == [], 60)


def test_a_lab_that_starts_is_not_disturbed(own: Lab) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        own.up(spec(own))
        state = own.state
        write_state(own.place, replace(state, up=False, owner=other.pid))
        with pytest.raises(BadInput, match=f"is being started by process {other.pid}"):
            own.up(spec(own))
        assert alive(state)
    finally:
        other.kill()
        other.wait()


def test_down_kills_no_process_with_a_reused_id_after_a_reboot(own: Lab) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        own.up(spec(own))
        state = read_state(own.place)
        assert state is not None
        os.kill(state.keeper, signal.SIGKILL)
        write_state(own.place, replace(state, keeper=bystander.pid, boot="another start of the machine"))
        assert own.down()
        time.sleep(0.05)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_simultaneous_labs_are_isolated(own: Lab, lab: Lab) -> None:
    own.up(spec(own))
    assert own.state.layout.gateway != lab.state.layout.gateway
    own.fault("kill", "n0001")
    assert lab.exec(["srun", "-w", "n0001", "hostname"]).out == "n0001\n"
    own.down()
    assert lab.exec(["srun", "-N4", "true"]).code == 0


def test_up_undoes_its_steps_if_it_fails(own: Lab) -> None:
    before = machine(own.name)
    with pytest.raises(Exception, match="slurmctld did not start"):
        own.up(replace(spec(own), settings=(("SelectType", "select/nonesuch"),)))
    assert machine(own.name) == before


def test_a_host_that_died_cannot_be_entered(own: Lab) -> None:
    own.up(spec(own))
    os.kill(own.state.processes["n0002"], signal.SIGKILL)
    with pytest.raises(LabError, match="n0002 has died by itself"):
        # A program that enters while the host dies is killed. Then nothing can enter.
        wait_for(lambda: own.exec(["true"], host="n0002") and False, 60)
    assert own.exec(["hostname"], host="n0001").out == "n0001\n"


def test_a_lab_ends_if_a_program_of_exec_is_frozen(own: Lab) -> None:
    """The program's `nsenter` has stopped itself, and only it can collect its child."""
    before = machine(own.name)
    own.up(spec(own))
    arguments, environment = own.entering("n0002", {}, "/")
    program = subprocess.Popen([*arguments, "sleep", "600"], env=environment)
    try:
        assert wait_for(lambda: any(p.command == "sleep 600" for p in own.processes()), 60)
        own.fault("freeze", "n0002")
        assert wait_for(lambda: proc.find(program.pid).stopped, 60)
        assert own.down()
        assert program.wait(60) != 0
        assert machine(own.name) == before
    finally:
        program.kill()
        program.wait()


def test_a_lab_with_a_dead_controller_does_not_hide_the_others(own: Lab, lab: Lab) -> None:
    own.up(spec(own))
    os.kill(own.state.processes["ctl"], signal.SIGKILL)
    assert wait_for(lambda: started_at(own.state.processes["ctl"]) == 0, 60)
    argv = [sys.executable, "-m", "clusterrun", "lab", "status"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert f"{lab.name}: 4 nodes" in result.stdout and f"{own.name}: 2 nodes" in result.stdout
    os.kill(own.state.processes["login"], signal.SIGKILL)
    assert own.down()


def test_a_lab_is_healed_after_a_failed_test(own: Lab) -> None:
    own.up(spec(own))
    own.exec(["sbatch", "--output=/dev/null", "--wrap", "sleep 600"])
    own.fault("cut", "n0001")
    own.exec(["scontrol", "update", "nodename=n0002", "state=drain", "reason=nobody knows"])
    mend(own, 0.0)  # seconds: it is made anew, since n0002 stays drained
    assert own.wait_idle(60), own.node_states()
    assert (own.faults, own.exec(["squeue", "-h"]).out) == ((), "")
