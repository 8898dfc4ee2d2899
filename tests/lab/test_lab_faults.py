"""Each fault is seen from inside the hosts while it is in force, and gone when it is healed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.lab.namespaces import LabError, wait_for
from clusterrun.lab.site import LabSite
from clusterrun.model.errors import BadInput

pytestmark = pytest.mark.lab
LIMIT = 60.0
"""How long what a fault changes may take to be seen: a busy machine answers late, and is asked again."""

SERVE = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
while True:
    line, _ = server.accept()
    line.sendall(b"x" * int(sys.argv[2]))
    line.close()
"""
CALL = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as line:
    line.settimeout(float(sys.argv[3]))
    count = 0
    while data := line.recv(1 << 16):
        count += len(data)
print(count, time.monotonic() - began)
"""


@contextlib.contextmanager
def serving(lab: Lab, host: str, port: int, size: int = 2) -> Iterator[None]:
    """Serve ``size`` bytes to every caller by TCP on a host."""
    command = f'setsid "$0" -c "$1" {port} {size} >/dev/null 2>&1 & echo $!'
    process = lab.exec(["sh", "-c", command, sys.executable, SERVE], host=host).out.strip()
    listens = ["sh", "-c", f"until grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp; do sleep 0.02; done"]
    assert lab.exec(listens, host=host, timeout=60).code == 0
    try:
        yield
    finally:
        with contextlib.suppress(BadInput):
            lab.exec(["kill", "-9", process], host=host)


def call(lab: Lab, caller: str, callee: str, port: int, seconds: float = 0.5) -> tuple[int, float] | None:
    """Return the bytes received and the seconds; None without an answer within ``seconds``."""
    result = lab.exec([sys.executable, "-c", CALL, callee, str(port), str(seconds)], host=caller)
    if result.code != 0:
        assert "timed out" in result.err, result.err
        return None
    count, took = result.out.split()
    return int(count), float(took)


def swift(answer: tuple[int, float] | None, seconds: float) -> bool:
    return answer is not None and answer[1] < seconds


def reaches(lab: Lab, caller: str, callee: str, port: int) -> bool:
    return call(lab, caller, callee, port) is not None


def sends_nothing(lab: Lab, caller: str, callee: str, port: int) -> bool:
    """Return whether a host sends nothing. A killed host refuses calls for some milliseconds."""
    result = lab.exec([sys.executable, "-c", CALL, callee, str(port), "0.5"], host=caller)
    return result.code != 0 and "timed out" in result.err


RECEIVE = """
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("", 9999))
line.settimeout(0.6)
line.recv(9)
"""
SEND = """
import socket, sys, time
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20):
    line.sendto(b"hi", (sys.argv[1], 9999))
    time.sleep(0.03)
"""


def pings(lab: Lab, node: str, other: str) -> bool:
    """Return whether datagrams of a host arrive at another. A TCP connection would need both ways."""
    with ThreadPoolExecutor() as pool:
        got = pool.submit(lab.exec, [sys.executable, "-c", RECEIVE], host=other)
        lab.exec([sys.executable, "-c", SEND, other], host=node)
        return got.result().code == 0


@pytest.mark.parametrize(
    ("details", "lost", "delivered"),
    [
        ({}, [("n0002", "n0001"), ("n0001", "n0002")], [("n0001", "n0003")]),
        ({"to": "n0003"}, [("n0002", "n0003")], [("n0003", "n0002"), ("n0002", "n0004")]),
        ({"to": "n0003", "both": True}, [("n0002", "n0003"), ("n0003", "n0002")], [("n0002", "n0004")]),
    ],
)
def test_a_cut_of_n0002_drops_packets_of_these_ways_until_it_is_healed(
    lab: Lab, details: dict[str, str | bool], lost: list[tuple[str, str]], delivered: list[tuple[str, str]]
) -> None:
    lab.fault("cut", "n0002", **details)
    expected = [False] * len(lost) + [True] * len(delivered)
    assert wait_for(lambda: [pings(lab, *way) for way in (*lost, *delivered)] == expected, LIMIT)
    with pytest.raises(BadInput, match="is in force already"):
        lab.fault("cut", "n0002", **details)
    lab.heal()
    assert wait_for(lambda: all(pings(lab, *way) for way in lost), LIMIT)


SERVER, OTHER_PORT = ("n0003", 7101), ("n0003", 7112)


@pytest.mark.parametrize(
    ("kind", "host", "details", "closed", "still_open"),
    [
        (
            "cut",
            "n0002",
            {"to": "n0003", "port": 7101},
            [("n0002", *SERVER)],
            [("n0002", *OTHER_PORT), ("n0001", *SERVER)],
        ),
        (
            "cut",
            "n0003",
            {"port": "7100-7110"},
            [("n0002", *SERVER), ("n0003", "n0001", 7101)],
            [("n0002", *OTHER_PORT), ("n0002", "n0001", 7101)],
        ),
        ("freeze", "n0003", {"process": " 7101 "}, [("n0002", *SERVER)], [("n0002", *OTHER_PORT)]),
    ],
)
def test_a_fault_of_one_port_leaves_other_ports_open(
    lab: Lab,
    kind: str,
    host: str,
    details: dict[str, str | int],
    closed: list[tuple[str, str, int]],
    still_open: list[tuple[str, str, int]],
) -> None:
    with serving(lab, *SERVER), serving(lab, *OTHER_PORT), serving(lab, "n0001", 7101):
        lab.fault(kind, host, **details)
        expected = [False] * len(closed) + [True] * len(still_open)
        assert wait_for(lambda: [reaches(lab, *way) for way in (*closed, *still_open)] == expected, LIMIT)
        lab.heal()
        assert wait_for(lambda: all(reaches(lab, *way) for way in closed), LIMIT)


COUNT = """
import socket, sys
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("", 9998))
line.settimeout(0.5)
count = 0
try:
    while True:
        line.recv(9)
        count += 1
except TimeoutError:
    print(count)
"""
SEND_MANY = """
import socket, sys
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(1000):
    line.sendto(b"hi", (sys.argv[1], 9998))
"""


def arrived(lab: Lab, node: str, other: str) -> int:
    """Return how many of a thousand datagrams arrive."""
    with ThreadPoolExecutor() as pool:
        got = pool.submit(lab.exec, [sys.executable, "-c", COUNT], host=other)
        bound = ["sh", "-c", "until grep -q ':270E ' /proc/net/udp; do sleep 0.01; done"]
        assert lab.exec(bound, host=other, timeout=60).code == 0
        lab.exec([sys.executable, "-c", SEND_MANY, other], host=node)
        return int(got.result().out)


def test_a_lossy_host_loses_a_share_of_its_sent_packets_only(lab: Lab) -> None:
    lab.fault("lose", "n0002", share=30)
    lab.fault("lose", "n0003", to="n0004", share=50)
    assert wait_for(lambda: 600 < arrived(lab, "n0002", "n0001") < 800, LIMIT)
    assert wait_for(lambda: arrived(lab, "n0001", "n0002") == 1000, LIMIT)
    assert wait_for(lambda: 400 < arrived(lab, "n0003", "n0004") < 600, LIMIT)
    assert wait_for(lambda: arrived(lab, "n0003", "n0001") == 1000, LIMIT)
    lab.heal()
    assert wait_for(lambda: arrived(lab, "n0002", "n0001") == 1000, LIMIT)


def test_behind_a_firewall_a_host_begins_no_connection_and_answers_those_of_others(lab: Lab) -> None:
    with serving(lab, "n0002", 7004), serving(lab, "n0001", 7004), serving(lab, "n0003", 7004):
        lab.fault("firewall", "n0002", to="n0001")
        ways = (("n0002", "n0001"), ("n0002", "n0003"), ("n0001", "n0002"))
        assert wait_for(lambda: [reaches(lab, *way, 7004) for way in ways] == [False, True, True], LIMIT)
        lab.heal()
        lab.fault("firewall", "n0002")
        assert wait_for(lambda: [reaches(lab, *way, 7004) for way in ways] == [False, False, True], LIMIT)
        assert wait_for(lambda: pings(lab, "n0002", "n0003"), LIMIT)
        lab.heal()
        assert wait_for(lambda: [reaches(lab, *way, 7004) for way in ways] == [True, True, True], LIMIT)


def test_a_flapping_host_is_cut_off_again_and_again_until_it_is_healed(lab: Lab) -> None:
    with serving(lab, "n0002", 7005):
        lab.fault("flap", "n0002", down=2, every=4)
        for _ in range(2):
            assert wait_for(lambda: not reaches(lab, "n0001", "n0002", 7005), LIMIT)
            assert wait_for(lambda: reaches(lab, "n0001", "n0002", 7005), LIMIT)
        lab.heal()
        assert wait_for(lambda: reaches(lab, "n0001", "n0002", 7005), LIMIT)
    assert not [entry for entry in lab.processes() if "ip rule add" in entry.command]


def test_a_slow_link_slows_that_pair_both_ways_and_nobody_else(lab: Lab) -> None:
    size = 1_000_000
    pairs = (("n0001", "n0003"), ("n0003", "n0001"), ("n0002", "n0003"), ("n0001", "n0002"))
    with (
        serving(lab, "n0003", 7021, size),
        serving(lab, "n0001", 7021, size),
        serving(lab, "n0002", 7021, size),
    ):
        lab.fault("slow-link", "n0001", to="n0003", rate="2mbit")
        lab.fault("slow-link", "n0004", to="n0003", rate="2mbit")
        slow = [call(lab, *pair, 7021, 60) for pair in pairs[:2]]
        assert all(
            wait_for(lambda pair=pair: swift(call(lab, *pair, 7021, 60), 3.0), LIMIT) for pair in pairs[2:]
        )
        lab.heal("n0001")
        slow += [call(lab, "n0004", "n0003", 7021, 60)]
        assert all(
            wait_for(lambda pair=pair: swift(call(lab, *pair, 7021, 60), 3.0), LIMIT) for pair in pairs
        )
        lab.heal()
    assert [answer and (answer[0], answer[1] > 3) for answer in slow] == [(size, True)] * 3


def test_a_slow_link_is_refused_beside_a_slow_host_and_the_other_way_round(lab: Lab) -> None:
    lab.fault("slow", "n0003", rate="50mbit")
    with pytest.raises(BadInput, match="is in force"):
        lab.fault("slow-link", "n0001", to="n0003", rate="5mbit")
    lab.heal()
    lab.fault("slow-link", "n0001", to="n0003", rate="5mbit")
    with pytest.raises(BadInput, match="is in force"):
        lab.fault("slow", "n0003", rate="50mbit")
    lab.heal()


def test_a_link_of_a_host_that_lost_its_power_is_healed_too(lab: Lab) -> None:
    lab.fault("slow-link", "n0001", to="n0003", rate="5mbit")
    lab.fault("kill", "n0003")
    assert [f.kind for f in lab.heal()] == ["kill", "slow-link"]
    with serving(lab, "n0003", 7022, 2_000_000):
        assert wait_for(lambda: swift(call(lab, "n0001", "n0003", 7022, 30), 3.0), LIMIT)  # 3.2 s at 5 mbit
    assert lab.wait_idle(90)


def test_a_host_with_an_old_cable_is_switched_on_again(lab: Lab) -> None:
    """A cable of an interrupted healing remains. Later healings failed because it existed."""
    lab.fault("kill", "n0003")
    site = LabSite(lab.place, lab.state)
    cable = site.host("n0003").link

    def left_behind() -> bool:
        with contextlib.suppress(LabError):  # that of the host itself goes a moment after it
            site.router("ip", "link", "add", cable, "type", "veth", "peer", "name", "other-end")
            return True
        return False

    assert wait_for(left_behind, LIMIT)
    assert [fault.kind for fault in lab.heal()] == ["kill"]
    assert (lab.faults, lab.wait_idle(90)) == ((), True)


def test_a_slow_host_gets_and_sends_at_the_rate_named(lab: Lab) -> None:
    size = 4_000_000
    with serving(lab, "n0003", 7005, size), serving(lab, "n0001", 7005, size):
        lab.fault("slow", "n0003", rate="20mbit")
        sent, got = call(lab, "n0001", "n0003", 7005, 30), call(lab, "n0003", "n0001", 7005, 30)
        lab.heal()
        assert wait_for(lambda: swift(call(lab, "n0001", "n0003", 7005, 30), 1.2), LIMIT)
    assert sent and got
    assert [sent[0], got[0]] == [size] * 2
    # 1.6 s at that rate; a busy machine may make it longer, never shorter.
    assert (sent[1] > 1.2, got[1] > 1.2) == (True, True)


def test_a_frozen_host_accepts_connections_silently_and_continues_after_thaw(lab: Lab) -> None:
    with serving(lab, "n0004", 7006):
        lab.fault("freeze", "n0004")
        assert wait_for(lambda: not reaches(lab, "n0001", "n0004", 7006), LIMIT)
        states = {p.name: stat_of(p.process) for p in lab.processes() if p.host == "n0004"}
        assert set(states.values()) == {"T"}
        with pytest.raises(BadInput, match="is frozen"):
            lab.exec(["true"], host="n0004")
        lab.heal("n0004")
        assert wait_for(lambda: reaches(lab, "n0001", "n0004", 7006), LIMIT)


def test_a_program_of_exec_continues_when_its_host_is_thawed(lab: Lab) -> None:
    arguments, environment = lab.entering("n0004", {}, "/")
    script = "read line; echo got $line"
    program = subprocess.Popen(
        [*arguments, "sh", "-c", script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert wait_for(lambda: any(script in p.command for p in lab.processes()), LIMIT)
        lab.fault("freeze", "n0004")
        assert wait_for(lambda: stat_of(program.pid) == "T", LIMIT)
        lab.heal("n0004")
        assert program.communicate("word\n", timeout=LIMIT)[0] == "got word\n"
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()
        lab.heal()


def stat_of(process: int) -> str:
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_killed_host_loses_every_process_and_boots_again(lab: Lab) -> None:
    with serving(lab, "n0003", 7009):
        lab.fault("kill", "n0003")
    assert [p for p in lab.processes() if p.host == "n0003"] == []
    assert wait_for(lambda: sends_nothing(lab, "n0001", "n0003", 7009), LIMIT)
    with pytest.raises(BadInput, match="switched off"):
        lab.exec(["true"], host="n0003")
    lab.heal("n0003")
    assert lab.wait_idle(90)
    assert lab.exec(["srun", "-w", "n0003", "hostname"]).out == "n0003\n"


@pytest.mark.slow
def test_a_node_that_lost_power_is_called_down_by_slurm(lab: Lab) -> None:
    lab.fault("kill", "n0002")
    assert state_becomes(lab, "n0002", ("down", "down*"), 120)
    lab.heal()
    assert lab.wait_idle(90)


def state_becomes(lab: Lab, node: str, expected: tuple[str, ...], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if lab.exec(["sinfo", "-h", "-n", node, "-o", "%T"]).out.strip() in expected:
            return True
        time.sleep(0.1)
    return False


def test_a_single_process_can_be_killed_and_slurmd_is_started_again(lab: Lab) -> None:
    lab.fault("kill", "n0002", process="slurmd")
    assert "slurmd" not in {p.name for p in lab.processes() if p.host == "n0002"}
    lab.heal()
    assert lab.exec(["srun", "-w", "n0002", "hostname"]).out == "n0002\n"


def test_a_drained_node_gets_no_job_until_resumed(lab: Lab) -> None:
    lab.fault("drain", "n0001", reason="bad cable")
    assert lab.exec(["sinfo", "-h", "-n", "n0001", "-o", "%T %E"]).out.strip() == "drained bad cable"
    lab.heal()
    assert lab.wait_idle(90)


def test_a_stopped_controller_answers_nobody_until_started(lab: Lab) -> None:
    lab.fault("controller")
    result = lab.exec(["scontrol", "ping"])
    assert "DOWN" in result.out
    lab.heal()
    assert "UP" in lab.exec(["scontrol", "ping"]).out
    assert lab.wait_idle(90)


def test_a_wrong_line_in_the_hosts_file_affects_that_host_only(lab: Lab) -> None:
    right = lab.exec(["getent", "hosts", "n0002"]).out.split()[0]
    lab.fault("name", "n0001", name="n0002", address="10.9.9.9")
    lab.fault("name", "n0001", name="n0003", address="10.9.9.8")
    requested = [
        lab.exec(["getent", "hosts", name], host=host).out.split()[0]
        for host in ("n0001", "n0004")
        for name in ("n0002", "n0003")
    ]
    assert requested[:2] == ["10.9.9.9", "10.9.9.8"] and requested[2] == right
    lab.heal()
    assert lab.exec(["getent", "hosts", "n0002"], host="n0001").out.split()[0] == right


def test_a_wrong_name_without_a_host_misleads_all(lab: Lab) -> None:
    lab.fault("name", name="n0002", address="10.9.9.9")
    assert {lab.exec(["getent", "hosts", "n0002"], host=h).out.split()[0] for h in lab.nodes} == {"10.9.9.9"}
    lab.heal()
    assert "10.9.9.9" not in lab.exec(["getent", "hosts", "n0002"], host="n0003").out


def test_a_wrong_clock_affects_jobs_of_that_node_only(lab: Lab) -> None:
    lab.fault("clock", "n0003", offset="-1h")
    assert lab.wait_idle(90)
    result = lab.exec(["srun", "-N4", "sh", "-c", "echo $(hostname) $(date +%s)"])
    ages = {host: time.time() - int(at) for host, at in (line.split() for line in result.out.splitlines())}
    assert {host: round(age / 60) for host, age in ages.items()} == {
        "n0001": 0,
        "n0002": 0,
        "n0003": 60,
        "n0004": 0,
    }
    python = [sys.executable, "-c", "import time; print(time.time())"]
    assert 3500 < time.time() - float(lab.exec(python, host="n0003").out) < 3700
    lab.heal()
    assert lab.wait_idle(90)
    assert abs(time.time() - float(lab.exec(python, host="n0003").out)) < 60


def test_a_full_disk_keeps_its_files_and_refuses_new_ones(lab: Lab, tmp_path) -> None:
    (tmp_path / "old").write_text("kept")
    lab.fault("disk-full", "n0001", path=str(tmp_path))
    write = ["sh", "-c", "cat old; head -c 100000 /dev/zero >new"]
    local, remote = (lab.exec(write, host=host, cwd=tmp_path) for host in ("n0001", "n0002"))
    assert (local.out, "No space left on device" in local.err) == ("kept", True)
    assert (remote.out, remote.err, remote.code) == ("kept", "", 0)
    lab.heal()
    assert lab.exec(write, host="n0001", cwd=tmp_path).code == 0


def test_a_full_shared_memory_belongs_to_one_host(lab: Lab) -> None:
    lab.fault("disk-full", "n0001", path="/dev/shm")
    write = ["sh", "-c", "head -c 2000000 /dev/zero >/dev/shm/new; rm -f /dev/shm/new"]
    errors = [lab.exec(["srun", "-w", host, *write]).err for host in ("n0001", "n0002")]
    assert ["No space left on device" in error for error in errors] == [True, False]
    lab.heal()
    assert lab.exec(write, host="n0001").err == ""


def test_a_read_only_folder_is_read_only_on_that_host_also_for_its_jobs(lab: Lab, tmp_path) -> None:
    (tmp_path / "old").write_text("kept")
    lab.fault("read-only", "n0003", path=str(tmp_path))
    write = ["sh", "-c", f"cat {tmp_path}/old; echo x >{tmp_path}/new"]
    local, remote = (lab.exec(["srun", "-w", host, *write]) for host in ("n0003", "n0002"))
    assert (local.out, "Read-only file system" in local.err, remote.out, remote.err) == (
        "kept",
        True,
        "kept",
        "",
    )
    lab.heal()
    assert lab.exec(write, host="n0003").err == ""


def smi(lab: Lab, host: str, *arguments: str) -> tuple[int, str]:
    result = lab.exec(["nvidia-smi", *arguments], host=host)
    return result.code, result.out


def test_a_missing_gpu_is_missing_from_every_list(lab: Lab) -> None:
    lab.fault("gpu", "n0001", count=7)
    assert len(smi(lab, "n0001", "-L")[1].splitlines()) == 7
    assert len(smi(lab, "n0002", "-L")[1].splitlines()) == 8
    lab.heal()
    assert len(smi(lab, "n0001", "-L")[1].splitlines()) == 8


def test_a_hanging_driver_never_answers(lab: Lab) -> None:
    lab.fault("gpu", "n0001", hang=True)
    assert lab.exec(["timeout", "0.5", "nvidia-smi"], host="n0001").code == 124
    lab.heal()
    assert smi(lab, "n0001")[0] == 0


def test_an_xid_is_in_the_kernel_log_and_a_lost_gpu_in_nvidia_smi(lab: Lab) -> None:
    lab.fault("gpu", "n0001", xid=79, index=3)
    assert "NVRM: Xid (PCI:0000:4e:00): 79, " in lab.exec(["dmesg"], host="n0001").out
    code, out = smi(lab, "n0001", "--query-gpu=index", "--format=csv")
    assert (code, "GPU is lost" in out) == (15, True)
    assert lab.exec(["dmesg"], host="n0002").out == ""
    kernel = {host: lab.exec(["cat", "/dev/kmsg"], host=host).out for host in ("n0001", "n0002")}
    assert ("NVRM: Xid (PCI:0000:4e:00): 79" in kernel["n0001"], kernel["n0002"]) == (True, "")
    lab.heal()
    assert (lab.exec(["dmesg"], host="n0001").out, smi(lab, "n0001")[0]) == ("", 0)


def test_ecc_and_other_counters_show_on_the_gpu_named(lab: Lab) -> None:
    lab.fault("gpu", "n0001", ecc=5, index=2)
    lab.fault("gpu", "n0001", remap=1, throttle=True, index=4)
    fields = "ecc.errors.uncorrected.volatile.total,remapped_rows.pending,clocks_event_reasons.hw_slowdown"
    code, out = smi(lab, "n0001", f"--query-gpu=index,{fields}", "--format=csv,noheader")
    assert (code, out.splitlines()[2], out.splitlines()[4]) == (0, "2, 5, 0, Not Active", "4, 0, 1, Active")
    lab.heal()
    code, out = smi(lab, "n0001", f"--query-gpu=index,{fields}", "--format=csv,noheader")
    assert out.splitlines() == [f"{index}, 0, 0, Not Active" for index in range(8)]


def test_active_faults_are_listed_and_can_be_healed_separately(lab: Lab) -> None:
    lab.fault("cut", "n0001", to="n0002")
    lab.fault("drain", "n0003")
    assert [(f.kind, f.host) for f in lab.faults] == [("cut", "n0001"), ("drain", "n0003")]
    assert [(f.kind, f.host) for f in lab.heal("n0003")] == [("drain", "n0003")]
    assert [f.kind for f in lab.faults] == ["cut"]
    assert [f.kind for f in lab.heal(kind="cut")] == ["cut"]
    assert lab.faults == ()


@pytest.mark.parametrize(
    ("kind", "host", "details", "message"),
    [
        ("cut", "n0009", {}, "has no host 'n0009'"),
        ("cut", "n0001", {"to": "n0009"}, "has no host 'n0009'"),
        ("cut", "n0001", {"to": "n0002", "port": 99999}, "is not a port"),
        ("cut", "n0001", {"port": "7-5"}, "is not a port"),
        ("cut", "n0001", {"port": "7-8-9"}, "is not a port"),
        ("lose", "n0002", {"share": "0"}, "is not a share"),
        ("lose", "n0002", {"share": "100"}, "is not a share"),
        ("flap", "n0002", {"down": "4", "every": "4"}, "--every"),
        ("slow", "n0001", {"rate": "fast"}, "is not a rate"),
        ("slow-link", "n0001", {"to": "n0002", "rate": "fast"}, "is not a rate"),
        ("slow-link", "n0001", {"to": "n0001", "rate": "5mbit"}, "has no link to itself"),
        ("slow-link", "n0001", {"to": "n0009", "rate": "5mbit"}, "has no host 'n0009'"),
        ("read-only", "n0001", {"path": "/nonesuch"}, "is not a folder"),
        ("melt", "n0001", {}, "there is no fault 'melt'"),
        ("drain", "login", {}, "is not a node"),
        ("kill", "ctl", {}, "is not a node"),
        ("freeze", "n0001", {"process": "nonesuch"}, "no process 'nonesuch' runs on n0001"),
        ("gpu", "n0001", {}, "say what is wrong"),
        ("gpu", "n0001", {"ecc": 1, "index": 8}, "has no GPU 8"),
        ("clock", "n0001", {"offset": "later"}, "is not a duration"),
        ("name", "n0001", {"name": "n0002", "address": "n0003"}, "is not an IPv4 address"),
        ("disk-full", "n0001", {"path": "/nonesuch"}, "is not a folder"),
    ],
)
def test_a_fault_that_cannot_be_meant_is_refused(lab: Lab, kind, host, details, message) -> None:
    with pytest.raises(BadInput, match=message):
        lab.fault(kind, host, **details)
    assert lab.faults == ()
