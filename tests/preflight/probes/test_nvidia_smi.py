"""nvidia-smi's output is read for all ages of drivers. The documents were written in its form."""

from __future__ import annotations

import os
import pwd
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.preflight.probes import nvidia_smi
from clusterrun.preflight.probes.process_context import owner
from tests.preflight.checks.values import RECORDED


def test_a_made_up_document_of_driver_550_is_parsed_completely() -> None:
    assert nvidia_smi.gpus((RECORDED / "made-up-driver-550-h100.xml").read_text()) == {
        "driver": "550.54.15",
        "cuda": "12.4",
        "gpus": [
            {
                "name": "NVIDIA H100 80GB HBM3",
                "uuid": "GPU-11111111-1111-1111-1111-111111111111",
                "mig": "Disabled",
                "ecc": "Enabled",
                "rows_pending": "Yes",
                "rows_failed": "No",
                "sram_exceeded": "No",
                "reset": "No",
                "fabric": "Completed",
                "fabric_status": "Success",
                "memory": 81559.0,
                "used": 40960.0,
                "minor": 0.0,
                "width": 8.0,
                "width_most": 16.0,
                "generation_most": 5.0,
                "temperature": 89.0,
                "watts_most": 700.0,
                "watts": 610.55,
                "clock_now": 345.0,
                "persistence": "Enabled",
                "recovered": False,
                "bus": "00000000:1b:00.0",
                "instances": 0,
                "idle": False,
                "slowed": ["hw_slowdown", "hw_thermal_slowdown"],
                "uncorrected": 3.0,
                "corrected": 7.0,
                "processes": [
                    {"pid": 4194300.0, "kind": "C", "command": "/home/bob/venv/bin/python", "used": 40400.0}
                ],
            },
            {
                "name": "NVIDIA H100 80GB HBM3",
                "uuid": "GPU-22222222-2222-2222-2222-222222222222",
                "mig": "Enabled",
                "recovery": "Reset",
                "recovered": False,
                "bus": "00000000:29:00.0",
                "instances": 2,
                "idle": False,
                "slowed": [],
                "uncorrected": 0.0,
                "corrected": 0.0,
                "processes": [],
            },
        ],
    }


def test_a_made_up_document_of_driver_470_has_the_same_values_in_other_tags() -> None:
    assert nvidia_smi.gpus((RECORDED / "made-up-driver-470-v100.xml").read_text()) == {
        "driver": "470.103.01",
        "cuda": "11.4",
        "gpus": [
            {
                "name": "Tesla V100-PCIE-32GB",
                "uuid": "GPU-33333333-3333-3333-3333-333333333333",
                "pages_pending": "Yes",
                "memory": 32510.0,
                "used": 0.0,
                "width": 16.0,
                "width_most": 16.0,
                "generation_most": 3.0,
                "temperature": 35.0,
                "watts_most": 250.0,
                "watts": 26.05,
                "recovered": False,
                "bus": "00000000:d8:00.0",
                "instances": 0,
                "idle": True,
                "slowed": ["hw_power_brake_slowdown"],
                "uncorrected": 1.0,
                "corrected": 2.0,
                "processes": [],
            }
        ],
    }


@pytest.mark.parametrize(
    "message",
    [
        "",
        "No devices were found",
        "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.",
        "<nvidia_smi_log><gpu>",
    ],
)
def test_other_content_than_a_document_is_refused(message) -> None:
    with pytest.raises(ValueError, match="no XML"):
        nvidia_smi.gpus(message)


def test_a_process_has_an_owner_where_its_number_is_ours_and_its_program_the_same() -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    with open("/proc/self/cmdline", "rb") as file:
        program = os.fsdecode(file.read().split(b"\0")[0])
    assert (
        owner(os.getpid(), program),
        owner(os.getpid(), "/usr/bin/another"),
        owner(0, sys.executable),
    ) == (me, "", "")


@given(st.text())
def test_a_text_value_is_no_error(value) -> None:
    inside = "".join(sign for sign in value if sign.isalnum() or sign in " .")
    document = f"<nvidia_smi_log><gpu><uuid>{inside}</uuid><fb_memory_usage><total>{inside}</total>"
    assert len(nvidia_smi.gpus(document + "</fb_memory_usage></gpu></nvidia_smi_log>")["gpus"]) == 1
