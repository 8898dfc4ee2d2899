"""The stand-ins print what the real programs print, for GPUs that a file describes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from clusterrun.lab.standins import dmesg, nvidia_smi


def smi(folder: Path, *arguments: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-I", "-S", nvidia_smi.__file__, str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr == ""
    return result.returncode, result.stdout


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    (tmp_path / "gpu.json").write_text(json.dumps({"count": 2}))
    return tmp_path


def host(folder: Path, **facts: object) -> None:
    own = folder / "hosts" / os.uname().nodename
    own.mkdir(parents=True)
    (own / "gpu.json").write_text(json.dumps({"count": 2, **facts}))


def test_a_query_answers_in_the_requested_order_with_units_and_heads(gpus: Path) -> None:
    fields = "--query-gpu=memory.total,index,clocks.sm,temperature.gpu,clocks_throttle_reasons.hw_slowdown"
    assert smi(gpus, fields, "--format=csv") == (
        0,
        "memory.total [MiB], index, clocks.current.sm [MHz], temperature.gpu, "
        "clocks_throttle_reasons.hw_slowdown\n"
        "81559 MiB, 0, 345 MHz, 31, Not Active\n"
        "81559 MiB, 1, 345 MHz, 31, Not Active\n",
    )


def test_heads_and_units_can_be_left_out(gpus: Path) -> None:
    arguments = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits", "-i", "1")
    assert smi(gpus, *arguments) == (0, "NVIDIA H100 80GB HBM3, 81559\n")


def test_the_list_names_every_gpu_with_a_lasting_id(gpus: Path) -> None:
    code, out = smi(gpus, "-L")
    assert (code, out) == smi(gpus, "-L")
    assert [line.split(" (UUID: GPU-")[0] for line in out.splitlines()] == [
        "GPU 0: NVIDIA H100 80GB HBM3",
        "GPU 1: NVIDIA H100 80GB HBM3",
    ]


def test_remapped_rows_have_a_query_of_their_own(gpus: Path) -> None:
    requested = "--query-remapped-rows=gpu_bus_id,remapped_rows.pending"
    assert smi(gpus, requested, "--format=csv,noheader") == (0, "00000000:1B:00.0, 0\n00000000:29:00.0, 0\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--query-gpu=nonesuch", "--format=csv"), 2, 'Field "nonesuch" is not a valid field to query.'),
        (("--query-gpu=name",), 2, '"--format=" switch is missing.'),
        (("-i", "7"), 6, "No devices were found"),
        (("--make-coffee",), 2, "Invalid combination of input arguments"),
    ],
)
def test_wrong_arguments_of_nvidia_smi_are_reported(
    gpus: Path, arguments: tuple, code: int, message: str
) -> None:
    result = smi(gpus, *arguments)
    assert (result[0], message in result[1]) == (code, True)


@pytest.mark.parametrize(
    ("ill", "code", "message"),
    [
        ({"count": 0}, 6, "No devices were found"),
        ({"lost": [1]}, 15, "GPU1: 0000:29:00.0: GPU is lost."),
        ({"driver": True}, 9, "couldn't communicate with the NVIDIA driver"),
    ],
)
def test_a_faulty_host_answers_as_a_faulty_driver_does(
    gpus: Path, ill: dict, code: int, message: str
) -> None:
    host(gpus, **ill)
    for arguments in ((), ("-L",), ("-q", "-x"), ("--query-gpu=index", "--format=csv")):
        result = smi(gpus, *arguments)
        assert (result[0], message in result[1]) == (code, True)


def test_the_complete_document_is_printed_as_xml(gpus: Path) -> None:
    ill = {"remapped_rows.pending": 1, "ecc.errors.uncorrected.volatile.total": 5}
    host(gpus, each={"1": ill})
    code, out = smi(gpus, "-q", "-x")
    results = [
        (
            gpu.attrib["id"],
            gpu.findtext("pci/pci_gpu_link_info/link_widths/current_link_width"),
            gpu.findtext("fb_memory_usage/total"),
            gpu.findtext("remapped_rows/remapped_row_pending"),
            gpu.findtext("ecc_errors/volatile/dram_uncorrectable"),
        )
        for gpu in ElementTree.fromstring(out).iter("gpu")
    ]
    assert (code, results) == (
        0,
        [
            ("00000000:1B:00.0", "16x", "81559 MiB", "No", "0"),
            ("00000000:29:00.0", "16x", "81559 MiB", "Yes", "5"),
        ],
    )


def test_the_table_shows_every_gpu(gpus: Path) -> None:
    code, out = smi(gpus)
    assert (code, out.count("NVIDIA H100 80GB HBM3"), out.count("MiB /")) == (0, 2, 2)
    assert {len(line) for line in out.splitlines()[1:]} == {91}


def test_the_kernel_log_can_be_read_with_every_kind_of_time(tmp_path: Path) -> None:
    own = tmp_path / "hosts" / os.uname().nodename
    own.mkdir(parents=True)
    at = 1_700_000_000.5
    (own / "kernel.log").write_text(f"{at} NVRM: Xid\n")

    def said(*words: str) -> str:
        argv = [sys.executable, "-I", "-S", dmesg.__file__, str(tmp_path), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"TZ": "UTC"}).stdout

    since_boot = at - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
    assert said("-T") == "[Tue Nov 14 22:13:20 2023] NVRM: Xid\n"
    assert said("--time-format=iso") == "2023-11-14T22:13:20,500000+00:00 NVRM: Xid\n"
    assert abs(float(said().split("]")[0].strip("[ ")) - since_boot) < 1
