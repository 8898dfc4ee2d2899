"""The laws of what differs between gloo and NCCL, by argument values: no GPU is needed to hold them."""

from __future__ import annotations

import os
import time

import pytest
import torch

from clusterrun.preflight.torch_worker.backend import OnCpu, OnGpu, OutOfTime, set_variables, variables


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_interface_is_set_for_both_libraries_where_the_user_set_none(backend) -> None:
    result = variables(backend, "eth1", {})
    assert (result["GLOO_SOCKET_IFNAME"], result["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")


def test_a_setting_of_the_user_stays() -> None:
    assert variables("gloo", "eth1", {"GLOO_SOCKET_IFNAME": "ib0"}) == {"NCCL_SOCKET_IFNAME": "=eth1"}
    assert "NCCL_SOCKET_IFNAME" not in variables("nccl", "eth1", {"NCCL_SOCKET_IFNAME": "^lo"})


def test_gloos_interface_is_not_set_without_a_choice() -> None:
    assert variables("gloo", "", {}) == {}


def test_nccl_tells_its_network_on_stdout_and_no_wait_of_its_own_blocks() -> None:
    assert variables("nccl", "", {}) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": "",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
        "NCCL_BLOCKING_WAIT": "",
    }


def test_libraries_see_set_and_unset_variables(monkeypatch) -> None:
    import ctypes

    monkeypatch.setenv("CLUSTERRUN_TEST_GONE", "here")
    observed = ctypes.CDLL(None).getenv
    observed.restype = ctypes.c_char_p
    set_variables({"CLUSTERRUN_TEST_NEW": "there", "CLUSTERRUN_TEST_GONE": ""})
    try:
        assert (observed(b"CLUSTERRUN_TEST_NEW"), observed(b"CLUSTERRUN_TEST_GONE")) == (b"there", None)
    finally:
        os.unsetenv("CLUSTERRUN_TEST_NEW")


def test_the_fastest_counts_on_shared_cores_and_the_median_on_gpus() -> None:
    seconds = [1.0, 2.0, 9.0]
    assert (OnCpu.usual(seconds), OnGpu.usual(seconds)) == (1.0, 2.0)


class Event:
    """An event that is complete after a number of queries."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_a_gpu_that_does_not_finish_is_waited_for_until_its_time_with_a_fake_event(monkeypatch) -> None:
    device = OnGpu.__new__(OnGpu)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(looks=3))
    device.settle(time.monotonic() + 100)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(looks=10**9))
    with pytest.raises(OutOfTime):
        device.settle(time.monotonic() + 0.01)


def test_a_step_is_timed_by_the_gpus_clock_with_a_fake_event(monkeypatch) -> None:
    gpu = {"milliseconds": 0.0}

    class TimedEvent(Event):
        def __init__(self, enable_timing: bool = False) -> None:
            super().__init__(looks=3)

        def record(self) -> None:
            self.at = gpu["milliseconds"]

        def elapsed_time(self, last: TimedEvent) -> float:
            return last.at - self.at

    def step() -> None:
        gpu["milliseconds"] += 0.25
        time.sleep(0.005)  # the host is slower

    monkeypatch.setattr(torch.cuda, "Event", TimedEvent)
    device = OnGpu.__new__(OnGpu)
    assert device.timed(step, time.monotonic() + 100) == pytest.approx(0.00025)


def test_a_rank_uses_the_gpu_of_its_number_with_a_fake_torch(monkeypatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert OnGpu(1).torch_device == torch.device("cuda", 1)
    assert taken == [1]
    with pytest.raises(RuntimeError, match="local rank 2 has no GPU: torch sees 2"):
        OnGpu(2)
