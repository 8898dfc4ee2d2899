"""Samples of a node: what is counted, what a line says, and GPUs that do not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterrun.model.document import decode
from clusterrun.model.frozen import replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import GpuUse, NodeUse, RankUse, UsageMean, merged
from clusterrun.monitor.external_tools import gpu_of_row, nvidia_smi
from clusterrun.monitor.gpu_reader import GpuWatch, visible_to
from clusterrun.monitor.nvml import Gpus
from clusterrun.monitor.sampling import COARSE_SECONDS, FINE_SECONDS, Sampling, count, ranks_between
from clusterrun.proc import below
from clusterrun.runs.usage_files import newest, summary

GPU = GpuUse(0, 50.0, 1024.0, 4096.0, 300.0, 60.0)


def use(at: float = 10.0, seconds: float = 10.0, cores: float = 1.0, **more: object) -> NodeUse:
    return NodeUse("n0001", at, seconds, cores, 16, 100, 200, 5.0, 6.0, **more)  # type: ignore[arg-type]


def lines(path: str) -> list[NodeUse]:
    return [decode(NodeUse, json.loads(line)) for line in Path(path).read_text().splitlines()]


class NoGpus:
    """A driver is not what these tests are about."""

    reason = ""

    def look(self) -> tuple[GpuUse, ...]:
        return ()


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    return AttemptPaths(str(tmp_path))


def test_samples_are_merged_to_time_means_and_the_highest_memory() -> None:
    first = use(cores=1.0, seconds=10.0, ranks=(RankUse(0, 1.0, 10),), gpus=(GPU,))
    busy = GpuUse(0, 100.0, 512.0, 4096.0, -1.0, 80.0)
    second = use(
        at=40.0, cores=4.0, seconds=30.0, ranks=(RankUse(0, 2.0, 30), RankUse(1, 1.0, 5)), gpus=(busy,)
    )
    assert merged([first, second]) == use(
        at=40.0,
        seconds=40.0,
        cores=3.25,
        ranks=(RankUse(0, 1.75, 30), RankUse(1, 1.0, 5)),
        gpus=(GpuUse(0, 87.5, 1024.0, 4096.0, 300.0, 75.0),),
    )


def test_a_process_and_its_children_are_counted_together() -> None:
    burn = "while True:\n    pass"
    both = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {burn!r}])\n{burn}"
    process = subprocess.Popen([sys.executable, "-c", both], start_new_session=True)
    try:
        before, until = count(time.monotonic(), {3: process.pid}), time.monotonic() + 60
        while not below(process.pid) or used(process.pid) < used(below(process.pid)[0]) + 0.1:
            assert time.monotonic() < until
        (rank,) = ranks_between(before, count(time.monotonic(), {3: process.pid}))
        assert (rank.rank, rank.cores > 0, rank.memory > 5_000_000) == (3, True, True)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def used(pid: int) -> float:
    """Return the CPU seconds of ``pid`` and its descendants."""
    return count(0.0, {0: pid}).ranks[0][1]


def test_an_ended_rank_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert count(1.0, {0: process.pid}).ranks == ()


def test_a_sample_is_written_each_period_and_after_an_hour_each_minute(attempt: AttemptPaths) -> None:
    sampling = Sampling(10.0, "n0001", 0, NoGpus())  # type: ignore[arg-type]
    sampling.started(0.0, attempt, {0: os.getpid()})
    times = []
    while (at := sampling.wakes_at()) is not None and at < FINE_SECONDS + 10 * COARSE_SECONDS:
        sampling.run(at)
        times.append(at)
    retained = lines(attempt.samples(0))
    assert (times[:3], len(retained), retained[-1].seconds) == ([2.0, 12.0, 22.0], 370, 60.0)
    assert not Path(attempt.now(0)).exists()


def test_the_newest_sample_is_written_to_its_own_file_while_a_user_looks(attempt: AttemptPaths) -> None:
    sampling = Sampling(10.0, "n0001", 0, NoGpus())  # type: ignore[arg-type]
    now = time.monotonic()
    sampling.started(now, attempt, {0: os.getpid()})
    sampling.run(now + 2)
    assert sampling.asked({"sample": {"every": 1, "seconds": 30}}) == ['{"sampling": true}']
    times = []
    while (at := sampling.wakes_at()) is not None and at < now + 5:
        sampling.run(at)
        times.append(round(at - now, 1))
    assert len(times) >= 4, times
    assert len(lines(attempt.now(0))) == 1
    assert oct(os.stat(attempt.now(0)).st_mode & 0o777) == "0o600"
    assert len(lines(attempt.samples(0))) == 1  # the light ones stay as rare as they were


@pytest.mark.parametrize(
    "wish", [{}, {"sample": {}}, {"sample": {"every": "x", "seconds": 1}}, {"sample": 3}]
)
def test_a_wish_that_is_none_changes_nothing(attempt: AttemptPaths, wish: dict[str, object]) -> None:
    sampling = Sampling(10.0, "n0001", 0, NoGpus())  # type: ignore[arg-type]
    sampling.started(0.0, attempt, {})
    assert (sampling.asked(wish), sampling.wakes_at()) == ([], 2.0)


def test_a_deleted_folder_only_loses_samples(tmp_path: Path) -> None:
    sampling = Sampling(10.0, "n0001", 0, NoGpus())  # type: ignore[arg-type]
    sampling.started(0.0, AttemptPaths(str(tmp_path / "gone")), {})
    sampling.asked({"sample": {"every": 1, "seconds": 30}})
    assert sampling.run(2.0) == []


# --- GPUs ---


def test_a_row_of_nvidia_smi_is_read_and_unsupported_values_are_unknown() -> None:
    assert [
        gpu_of_row("0, 31, 1024, 81559, 301.25, 44, GPU-1a"),
        gpu_of_row("7, [N/A], 0, 81559, [Not Supported], 44, GPU-2b"),
        gpu_of_row("Unable to determine the device handle for GPU0000:0A:00.0: Unknown Error"),
    ] == [
        GpuUse(0, 31.0, 1024.0 * 2**20, 81559.0 * 2**20, 301.25, 44.0, "GPU-1a"),
        GpuUse(7, -1.0, 0.0, 81559.0 * 2**20, -1.0, 44.0, "GPU-2b"),
        None,
    ]


def test_there_are_no_gpus_without_the_program(tmp_path: Path) -> None:
    assert nvidia_smi(str(tmp_path)) == ()


def test_a_driver_that_hangs_is_given_up_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.monitor.gpu_reader.LATE_SECONDS", 0.2)
    watch = GpuWatch("", None, lambda path: lambda: time.sleep(600) or ())
    assert watch.look() == ()
    assert watch.reason == "the GPUs' driver gave no answer within 0.2 s"
    assert watch.look() == ()  # at once: it is not asked again yet


def test_a_driver_that_crashes_costs_its_own_process_only() -> None:
    watch = GpuWatch("", None, lambda path: lambda: os._exit(9))
    assert (watch.look(), "has ended" in watch.reason) == ((), True)


@pytest.mark.parametrize(
    "devices, observed",
    [
        (None, [0, 1]),
        ("1", [1]),
        ("0,1", [0, 1]),
        ("GPU-2b40-55", [1]),
        ("GPU-2b", [1]),
        ("MIG-77aa", [0, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_only_the_gpus_of_the_job_are_looked_at(devices: str | None, observed: list[int]) -> None:
    both = (replace(GPU, uuid="GPU-1a30-44"), GpuUse(1, 1.0, 1.0, 1.0, 1.0, 1.0, "GPU-2b40-55"))
    watch = GpuWatch("", visible_to(devices), lambda path: lambda: both)
    try:
        assert ([gpu.index for gpu in watch.look()], watch.reason) == (observed, "")
    finally:
        watch.close()


def test_a_missing_library_is_reported() -> None:
    with pytest.raises(OSError, match="cannot be loaded"):
        Gpus("libno-such-thing.so")


FAKE = """
#include <string.h>
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, utilization *u)
{ u->gpu = 31; u->memory = 7; return d == (void *)2 ? 3 : 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { m->total = 80; m->used = 61; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *w) { *w = 301250; return 0; }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *t) { *t = 44; return s; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *w) { *w = 700000; return d == (void *)2; }
int nvmlDeviceGetUUID(void *d, char *u, unsigned n) { strncpy(u, "GPU-1a", n); return d == (void *)2; }
"""


def test_a_made_up_library_with_the_real_names_is_read_value_by_value(tmp_path: Path) -> None:
    source, library = tmp_path / "fake.c", tmp_path / "libfake.so"
    source.write_text(FAKE)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no C compiler makes the stand-in library")
    assert Gpus(str(library)).look() == (
        GpuUse(0, 31.0, 61.0, 80.0, 301.25, 44.0, "GPU-1a", 7.0, 700.0),
        GpuUse(1, -1.0, 61.0, 80.0, 301.25, 44.0),
    )


@pytest.mark.parametrize(
    ("busy", "memory_busy", "watts", "works"),
    [
        (100.0, 40.0, 450.0, True),
        (100.0, 0.0, 150.0, False),  # a collective waits for another rank
        (100.0, 0.0, 650.0, True),  # it computes without reading memory
        (0.0, 0.0, 70.0, False),
        (-1.0, -1.0, 300.0, None),
        (50.0, -1.0, 300.0, None),
    ],
)
def test_a_gpu_works_if_it_reads_memory_or_needs_power(busy, memory_busy, watts, works) -> None:
    gpu = GpuUse(0, busy, 1.0, 2.0, watts, 50.0, "", memory_busy, 700.0)
    assert gpu.works is works


ACTIVITY = Path(__file__).parents[1] / "recorded" / "gpu-activity" / "h100.json"


@pytest.mark.parametrize(
    ("state", "works"),
    [("idle", False), ("spin", False), ("gemm8192", True), ("copy", True), ("graph", True)],
)
def test_a_recorded_h100_works_unless_it_is_idle_or_its_kernel_waits(state, works) -> None:
    """``spin`` is a kernel that waits, as that of a collective does. ``graph`` replays a training step."""
    for busy, memory_busy, watts, limit in json.loads(ACTIVITY.read_text())["states"][state]:
        assert GpuUse(0, busy, 1.0, 2.0, watts, 50.0, "", memory_busy, limit).works is works


# --- the context ---


def test_the_newest_complete_line_of_each_node_is_read(attempt: AttemptPaths) -> None:
    whole = [json.dumps(_plain(use(at=at))) for at in (1.0, 2.0)]
    Path(attempt.samples(0)).write_text("\n".join(whole) + '\n{"node": "n0')
    Path(attempt.now(0)).write_text(json.dumps(_plain(use(at=9.0))) + "\n")
    Path(attempt.samples(2)).write_text("garbage\n" + whole[0] + "\n" + "more\n")
    assert [entry.at for entry in newest(attempt, 4)] == [9.0, 1.0]


def _plain(use: NodeUse) -> object:
    from clusterrun.model.document import encode

    return encode(use)


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        ([], ""),
        ([use()], ""),
        ([use(whole=UsageMean(60.0, 7.96, -1.0))], "8.0 cores of each node's 16"),
        (
            [use(whole=UsageMean(60.0, 8.0, 20.0), gpus=(GPU,)), use(whole=UsageMean(60.0, 4.0, 42.0))],
            "GPUs 31 % busy on average, their memory 25 % full at most, 6.0 cores of each node's 16",
        ),
    ],
)
def test_the_usage_of_a_run_is_one_sentence(uses: list[NodeUse], message: str) -> None:
    assert summary(uses) == message
