"""The text of slurm.conf for each kind of site."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.lab import conf
from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import LabSpec, Layout, Preempt, Proctrack

PLACE = LabPlace(Path("/run/clusterrun-lab/lab"))


def lines(version: str = "22.05.8", **options: object) -> dict[str, str]:
    spec = LabSpec(**options)  # type: ignore[arg-type]
    text = conf.slurm_conf(spec, Layout(spec.nodes, 0), PLACE, version)
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("PartitionName"))


def test_a_setting_of_the_user_wins() -> None:
    assert lines(settings=(("KillWait", "30"), ("Epilog", "/x")))["KillWait"] == "30"


def test_a_lab_without_gpus_does_not_speak_of_them() -> None:
    result = lines(gpus=0)
    assert ("GresTypes" in result, "Gres" in result["NodeName"]) == (False, False)
    assert conf.gres_conf(LabSpec(gpus=0), PLACE) == ""


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"proctrack": Proctrack.PGID}, "ProctrackType", "proctrack/pgid"),
        ({"preempt": Preempt.CANCEL}, "PreemptMode", "CANCEL"),
        ({"accounting": True}, "AccountingStorageType", "accounting_storage/slurmdbd"),
        ({"nodes": 1250}, "SlurmdTimeout", "120"),
        ({"nodes": 4}, "SlurmdTimeout", "10"),
    ],
)
def test_options_become_lines(options: dict, key: str, value: str) -> None:
    assert lines(**options)[key] == value


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ("20.11.4", None),
        ("22.05.8", "cgroup/v1"),
        ("23.11.10", "cgroup/v1"),
        ("24.05.1", "disabled"),
        ("24.11.5", "disabled"),
        ("26.05.5", "disabled"),
    ],
)
def test_releases_differ_in_how_cgroups_are_declined(version: str, plugin: str | None) -> None:
    text = conf.cgroup_conf(LabSpec(), version, unified=False)
    result = dict(line.split("=") for line in text.splitlines())
    assert result.get("CgroupPlugin") == plugin
