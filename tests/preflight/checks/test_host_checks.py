"""Shared memory, memory, processors, limits, folders, versions: alone and against the others."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.checks import (
    cpus,
    folders,
    host_memory,
    loopback,
    resource_limits,
    shared_memory,
    versions,
)
from tests.preflight.checks.values import ASKED, FAIL, PASS, WARN, asked, blamed, nodes, verdicts

GIB, MIB = 2**30, 2**20


def room(**changes: object) -> dict[str, object]:
    return {"path": "/p", "size": 100 * GIB, "free": 50 * GIB, "files": 10**6, **changes}


def test_a_limit_of_the_user_for_files_blames_no_folder(tmp_path: Path) -> None:
    code = (
        "import json, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        "from clusterrun.preflight.checks import folders; print(json.dumps(folders.written({!r})))"
    )
    # Python would write cut bytecode files under such a limit, and later programs could not read them.
    argv = [sys.executable, "-B", "-c", code.format(str(tmp_path))]
    result = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    reading = json.loads(result.stdout)
    assert "error" not in reading and reading["same"] is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("most", "expected"), [(1024, WARN), (1 << 30, None), (None, None)])
def test_a_small_limit_for_files_is_a_warning(most: int | None, expected: Grade | None) -> None:
    reading = {"file_size": {"soft": most}}
    assert blamed(resource_limits, {"n1": reading}) == ({"n1": expected} if expected else {})


def test_a_node_that_cannot_connect_to_itself_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {"n1": loopback.probe(ASKED)}

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr("socket.create_connection", refuse)
    readings["n2"] = loopback.probe(ASKED)
    assert blamed(loopback, readings) == {"n2": FAIL}


@pytest.mark.parametrize(
    ("function", "number", "remedy"),
    [
        ("bind", errno.EADDRINUSE, "every local port is in use"),
        ("connect", errno.EADDRNOTAVAIL, "every local port is in use"),
        ("bind", errno.EADDRNOTAVAIL, "ip link set lo up"),
    ],
)
def test_the_loopbacks_remedy_depends_on_whether_a_port_was_free(
    monkeypatch: pytest.MonkeyPatch, function: str, number: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, function, fail)
    ((_, result),) = loopback.judge(ASKED, {"n1": loopback.probe(ASKED)})
    assert result.remedy.startswith(remedy)


def test_shared_memory_is_judged_by_the_ranks_that_share_it() -> None:
    large, container = {"size": 64 * GIB, "free": 63 * GIB}, {"size": 64 * MIB, "free": 64 * MIB}
    full = {"size": 64 * GIB, "free": 200 * MIB}
    assert verdicts(shared_memory, {"n1": large, "n2": container, "n3": full}) == [
        ("n2", WARN, "/dev/shm has 64 MiB free of 64, and the ranks need 512 MiB"),
        ("n3", WARN, "/dev/shm has 200 MiB free of 65536, and the ranks need 512 MiB"),
    ]
    assert verdicts(shared_memory, {"n2": container}, asked(ranks=1)) == []
    assert blamed(shared_memory, {"n1": large}, asked(limits=(("shm_per_rank", 10_000),))) == {"n1": WARN}


def test_shared_memory_that_cannot_be_written_to_is_unfit() -> None:
    reading = {"size": 64 * GIB, "free": 64 * GIB}
    readings = {"n1": {**reading, "writable": 0}, "n2": {**reading, "writable": 1}, "n3": reading}
    assert blamed(shared_memory, readings) == {"n1": FAIL}


def test_full_shared_memory_is_unfit_even_for_one_rank() -> None:
    assert verdicts(shared_memory, {"n1": {"size": 64 * GIB, "free": 0}}, asked(ranks=1)) == [
        ("n1", FAIL, "/dev/shm has 0 MiB free of 65536, and the ranks need 64 MiB")
    ]


def test_a_node_with_less_memory_than_most_or_with_strangers_in_it_is_named() -> None:
    usual = {"size": 1024 * GIB, "free": 1000 * GIB}
    assert verdicts(host_memory, nodes(3, usual, bad={"size": 960 * GIB, "free": 940 * GIB})) == [
        ("bad", WARN, "960.0 GiB of memory, 1024.0 GiB on most nodes")
    ]
    assert verdicts(host_memory, nodes(3, usual, bad={"size": 1024 * GIB, "free": 100 * GIB})) == [
        ("bad", WARN, "100.0 GiB of 1024.0 GiB memory free, 1000.0 GiB on most nodes")
    ]


def test_memory_that_is_in_use_everywhere_is_how_these_machines_are() -> None:
    assert verdicts(host_memory, nodes(4, {"size": 64 * GIB, "free": 20 * GIB})) == []
    assert (
        verdicts(
            host_memory,
            {"n1": {"size": 64 * GIB, "free": 60 * GIB}, "n2": {"size": 32 * GIB, "free": 30 * GIB}},
        )
        == []
    )


def test_fewer_processors_than_ranks_are_named_where_others_have_enough() -> None:
    assert verdicts(cpus, nodes(2, {"usable": 64}, bad={"usable": 1})) == [
        ("bad", WARN, "1 processors for 8 ranks, 64 on other nodes")
    ]
    assert verdicts(cpus, nodes(3, {"usable": 2})) == []


def test_process_limits_are_compared_with_the_ranks_needs() -> None:
    free = {
        "memlock": {"soft": None, "hard": None},
        "open_files": {"hard": 65536},
        "processes": {"soft": None},
    }
    locked = {**free, "memlock": {"soft": 65536, "hard": 65536}}
    assert verdicts(resource_limits, {"n1": {**free, "rdma": True}, "n2": {**locked, "rdma": False}}) == []
    assert verdicts(
        resource_limits,
        {
            "n1": {**locked, "rdma": True},
            "n2": {**free, "open_files": {"hard": 1024}},
            "n3": {**free, "processes": {"soft": 100}},
            "n4": {**free, "memlock": {"soft": 8 * GIB}, "rdma": True},
        },
    ) == [
        ("n1", FAIL, "a rank may lock 6.1e-05 GiB of memory; RDMA needs 16 GiB or more"),
        ("n2", WARN, "a rank may have 1024 files open, and needs 4096"),
        ("n3", WARN, "the user may have 100 processes, and 8 ranks need 512"),
        ("n4", WARN, "a rank may lock 8 GiB of memory; RDMA needs 16 GiB or more"),
    ]


def test_locked_memory_matters_only_to_ranks_with_gpus_on_several_nodes() -> None:
    locked = {"memlock": {"soft": 65536}, "rdma": True}
    assert verdicts(resource_limits, {"n1": locked, "n2": locked}, asked(gpus=0)) == []
    assert verdicts(resource_limits, {"n1": locked}) == []
    assert blamed(resource_limits, {"n1": locked, "n2": locked}) == {"n1": FAIL, "n2": FAIL}


@pytest.mark.parametrize(
    ("error", "step", "message"),
    [
        ("EROFS", "make a file in", "cannot make a file in the run directory /p: why (EROFS)"),
        ("ENOSPC", "write to", "cannot write to the run directory /p: why (ENOSPC)"),
        ("ESTALE", "read from", "cannot read from the run directory /p: why (ESTALE)"),
    ],
)
def test_a_run_directory_that_cannot_be_used_is_unfit_and_the_error_has_its_name(
    error, step, message
) -> None:
    ill = {"path": "/p", "step": step, "error": error, "why": "why"}
    ((node, finding),) = folders.RUN_DIRECTORY.judge(ASKED, nodes(2, room(same=True), bad=ill))
    assert (node, finding.verdict, finding.message) == ("bad", FAIL, message)
    assert finding.remedy


def test_data_that_returns_changed_is_unfit() -> None:
    assert verdicts(folders.RUN_DIRECTORY, {"n1": room(same=False)}) == [
        ("n1", FAIL, "data written to the run directory /p was different when read back")
    ]


@pytest.mark.parametrize(
    ("check", "verdict", "what"),
    [
        (folders.RUN_DIRECTORY, WARN, "the run directory"),
        (folders.TEMPORARY, WARN, "the temporary directory"),
        (folders.HOME, WARN, "the home directory"),
        (folders.WORKING_DIRECTORY, PASS, "the working directory"),
    ],
)
def test_little_space_and_few_files_are_reported(check, verdict, what) -> None:
    assert verdicts(check, {"n1": room(free=0.5 * GIB), "n2": room(files=9), "n3": room(files=None)}) == [
        ("n1", verdict, f"{what} /p has 0.5 GiB free of 100.0 GiB; limit 1 GiB"),
        ("n2", verdict, f"{what} /p has room for 9 more files; limit 10000"),
    ]


def test_a_home_that_no_node_has_is_the_sites_habit() -> None:
    absent = {"path": "/home/alice", "step": "look at", "error": "ENOENT", "why": "No such file or directory"}
    assert verdicts(folders.HOME, nodes(3, absent)) == []
    assert verdicts(folders.HOME, nodes(3, room(), bad=absent)) == [
        ("bad", FAIL, "cannot look at the home directory /home/alice: No such file or directory (ENOENT)")
    ]
    assert verdicts(folders.HOME, nodes(3, None)) == []


def test_the_folder_is_written_to_and_restored(tmp_path: Path) -> None:
    result = folders.written(str(tmp_path))
    assert (result["path"], result["same"], set(result)) == (
        str(tmp_path),
        True,
        {"path", "same", "size", "free", "files"},
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("inside", "error"), [("absent", "ENOENT"), ("file", "ENOTDIR"), ("file/below", "ENOTDIR")]
)
def test_a_folder_that_is_none_is_named_by_its_error(tmp_path: Path, inside: str, error: str) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / inside)
    assert folders.written(path) == {
        "path": path,
        "step": "make a file in",
        "error": error,
        "why": os.strerror(getattr(errno, error)),
    }


def test_a_pretended_full_disk_leaves_no_file_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert folders.written(str(tmp_path)) == {
        "path": str(tmp_path),
        "step": "write to",
        "error": "ENOSPC",
        "why": "No space left on device",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_node_of_another_architecture_is_a_warning_and_another_kernel_a_note() -> None:
    usual = {
        "clusterrun": "0.1.0",
        "machine": "x86_64",
        "kernel": "6.1.0",
        "libc": "glibc 2.36",
        "python": "3.11.7",
    }
    other = {**usual, "machine": "aarch64", "kernel": "6.8.0"}
    assert verdicts(versions, nodes(3, usual, bad=other)) == [
        ("bad", WARN, "the processor's architecture is aarch64; it is x86_64 on 3 of 4 nodes"),
        ("bad", PASS, "the kernel is 6.8.0; it is 6.1.0 on 3 of 4 nodes"),
    ]


@pytest.mark.parametrize(
    ("files", "groups", "processors"),
    [
        ({"a/b/cpu.max": "8000 100000\n", "cpu.max": "max 100000\n"}, "0::/a/b\n", 0.08),
        ({"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 2.0),
        (
            {"cpu/j/cpu.cfs_quota_us": "50000\n", "cpu/j/cpu.cfs_period_us": "100000\n"},
            "3:cpu,cpuacct:/j\n",
            0.5,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "1:cpu:/\n0::/\n", None),
        ({}, "2:cpuset:/x\n", None),
    ],
)
def test_the_processors_that_cgroups_allow_are_read_of_both_versions(
    tmp_path, files, groups, processors
) -> None:
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    (tmp_path / "cgroup").write_text(groups)
    assert cpus.quota(str(tmp_path / "cgroup"), str(tmp_path / "tree")) == processors


def test_a_node_with_a_lower_cgroup_limit_than_the_others_is_named() -> None:
    usual = {"usable": 64, "quota": None, "load": 0.1}
    held = {**usual, "quota": 0.08}
    assert blamed(cpus, nodes(3, usual, bad=held)) == {"bad": WARN}
    assert verdicts(cpus, nodes(3, held)) == []
    assert verdicts(cpus, nodes(3, usual, bad={**usual, "quota": 8.0}), asked(ranks=8)) == []


@pytest.mark.parametrize(
    ("usual", "odd", "count", "message"),
    [
        (0.1, 1.9, 3, True),
        (0.5, 1.6, 3, True),
        (0.1, 1.1, 3, False),
        (8.0, 9.0, 5, False),
        (0.1, 5.0, 1, False),
    ],
)
def test_a_node_that_others_keep_busy_is_named_where_most_are_not(usual, odd, count, message) -> None:
    readings = nodes(count, {"usable": 8, "load": usual}, bad={"usable": 8, "load": odd})
    assert blamed(cpus, readings) == ({"bad": WARN} if message else {})


def test_a_node_that_hands_out_few_ports_is_unfit() -> None:
    few = {"ports": {"first": 40000, "last": 40005}}
    usual = {"ports": {"first": 32768, "last": 60999}}
    assert verdicts(resource_limits, {"n1": few, "n2": usual, "n3": {"ports": None}}, asked(ranks=1)) == [
        ("n1", FAIL, "the kernel hands out 6 TCP ports, 40000 to 40005; each rank needs 32 or more")
    ]
    assert blamed(resource_limits, {"n2": usual}, asked(ranks=512)) == {}


def test_a_node_with_tiny_tcp_buffers_is_unfit() -> None:
    readings = {
        "n1": {"buffers": {"receive": 4096, "send": 4194304}},
        "n2": {"buffers": {"receive": 6291456}},
    }
    ((node, grade, message),) = verdicts(resource_limits, readings, asked(ranks=1))
    assert (node, grade, "receive at most 4096 bytes" in message) == ("n1", FAIL, True)


def test_this_machines_limits_are_read() -> None:
    assert cpus.probe(ASKED).keys() == {"usable", "quota", "load"}
    assert resource_limits.probe(ASKED)["ports"]["last"] > 1024
    assert resource_limits.probe(ASKED)["buffers"].keys() == {"receive", "send"}
