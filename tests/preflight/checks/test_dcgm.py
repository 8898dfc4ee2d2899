"""The output of dcgmi health, in the form of NVIDIA's documentation, and the findings."""

from __future__ import annotations

import pytest

from clusterrun.preflight.checks import dcgm
from tests.preflight.checks.values import WARN, verdicts

# docs.nvidia.com, DCGM user guide, Health and Diagnostics.
ILL = """
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Warning                                                  |
| GPU                       |                                                          |
| -> 0                      | Warning                                                  |
|    -> Errors              |                                                          |
|       -> PCIe system      | Warning                                                  |
|                           | Detected more than 8 PCIe replays per minute for GPU 0   |
|                           | : 13 Reconnect PCIe card. Run system side PCIe           |
+---------------------------+----------------------------------------------------------+
"""
HEALTHY = """
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Healthy                                                  |
+---------------------------+----------------------------------------------------------+
"""
UNWATCHED = "Error: Health watches not enabled. Please enable watches.\n"


@pytest.mark.parametrize("printed", [HEALTHY, UNWATCHED, "", "Error: unable to establish a connection\n"])
def test_healthy_or_unwatched_gpus_are_passed_over_in_silence(printed) -> None:
    assert dcgm.problems(printed) == []


def test_a_problem_is_a_warning_with_its_gpu_and_system() -> None:
    message = "GPU 0, PCIe system: Detected more than 8 PCIe replays per minute for GPU 0"
    assert dcgm.problems(ILL) == [message]
    assert verdicts(dcgm, {"n1": {"problems": dcgm.problems(ILL)}}) == [("n1", WARN, message)]
