"""`check --selftest-gpu`, typed on a machine with fake GPUs, and on one without any."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest

from tests.cli.conftest import ROOT, CommandLine

FAKE = ROOT / "tests" / "preflight" / "torch_worker" / "pretended"
SMI = """#!/bin/sh
gpu() { echo "<gpu><product_name>NVIDIA Fake</product_name><serial>1650</serial></gpu>"; }
case "$1" in
-L) echo "GPU 0: NVIDIA Fake (UUID: GPU-1)"; echo "GPU 1: NVIDIA Fake (UUID: GPU-2)";;
-q) echo "<nvidia_smi_log><driver_version>570.1</driver_version>$(gpu)$(gpu)</nvidia_smi_log>";;
esac
"""


@pytest.fixture
def with_fake_gpus(clusterrun: CommandLine) -> CommandLine:
    program = clusterrun.folder.parent / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SMI)
    program.chmod(0o755)
    path = f"{clusterrun.environment['PYTHONPATH']}:{FAKE}"
    observed = {**clusterrun.environment, "PYTHONPATH": path, "PRETENDED_GPUS": "2", "USER": "ada"}
    return replace(clusterrun, environment=observed)


def test_the_selftest_passes_on_fake_gpus_and_its_file_has_the_same_results(
    with_fake_gpus: CommandLine,
) -> None:
    result = with_fake_gpus("check", "--selftest-gpu", "--selftest-file", "s.json", "--anonymous", limit=400)
    assert (result.code, result.out.splitlines()[0]) == (
        0,
        "PASS: all is as expected (1 nodes with 2 GPUs each)",
    ), result.out + result.err
    assert "it was named: rank 1 on local-0 never came to all_reduce" in result.out
    path = with_fake_gpus.folder / "s.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    document = json.loads(text)
    assert (document["check"]["backend"], document["devices"]["names"]) == ("nccl", ["NVIDIA Pretended"] * 2)
    assert "570.1" in document["devices"]["listing"]["nvidia-smi"]
    assert [word for word in ("local-0", "1650", with_fake_gpus.environment["HOME"]) if word in text] == []
    read = with_fake_gpus("check", "--read", "s.json")
    assert (read.code, read.out.replace("node0", "local-0")) == (0, result.out)


def test_the_selftest_without_gpus_reports_that_with_a_remedy(clusterrun: CommandLine) -> None:
    result = clusterrun("check", "--selftest-gpu")
    assert result.code == 2
    assert "the self-test needs some GPUs on a node, and this machine has none" in result.err
    assert "clusterrun check --selftest-gpu --gpus 8 --partition NAME" in result.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_a_file_that_is_none_of_a_selftest_is_refused(clusterrun: CommandLine, text: str) -> None:
    (clusterrun.folder / "f.json").write_text(text)
    result = clusterrun("check", "--read", "f.json")
    assert (result.code, "f.json" in result.err) == (2, True)


def test_its_document_is_a_file_and_no_json_on_stdout(clusterrun: CommandLine) -> None:
    result = clusterrun("check", "--selftest-gpu", "--json")
    assert (result.code, result.out, "--selftest-file FILE says where" in result.err) == (2, "", True)


def test_the_file_of_a_real_h100_is_read(clusterrun: CommandLine) -> None:
    """Recorded on 26 November 2026: one rank has nobody to exchange with and nobody to wait for."""
    recording = ROOT / "tests" / "recorded" / "selftest-gpu" / "one-h100.json"
    result = clusterrun("check", "--read", str(recording))
    lines = [line.partition(":")[0].split() for line in result.out.splitlines()]
    parts = ["devices", "driver", "check", "sums", "bandwidth", "training", "hang"]
    assert (result.code, lines) == (0, [["PASS"], *(["ok", part] for part in parts)])
