"""The part of the kernel's tree of cgroups that a host of a lab has. A plain folder replaces the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.lab import cgroups, conf
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.place import LabPlace
from clusterrun.lab.spec import LabSpec, Proctrack


def tree(monkeypatch: pytest.MonkeyPatch, folder: Path, freezer: bool) -> LabPlace:
    monkeypatch.setattr(cgroups, "CGROUPS", folder)
    monkeypatch.setattr(cgroups, "FREEZER", folder / "freezer")
    if freezer:
        (folder / "freezer").mkdir()
    return LabPlace(folder / "labs" / "one")


def test_a_host_has_its_own_freezer_in_version_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tree(monkeypatch, tmp_path, freezer=True)
    own = tmp_path / "freezer/clusterrun-lab.one/n1"
    assert cgroups.binds(place, "n1") == [(str(own), str(tmp_path / "freezer"))] and own.is_dir()
    (own / "slurm/job_1").mkdir(parents=True)
    cgroups.remove(place, ["n1"])
    assert list((tmp_path / "freezer").iterdir()) == []


def test_slurmd_names_its_part_in_version_2_and_labs_share_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tree(monkeypatch, tmp_path, freezer=False)
    assert cgroups.binds(place, "n1") == []
    scope = tmp_path / "system.slice/n1_slurmstepd.scope"
    (scope / "job_1").mkdir(parents=True)
    (scope / "cgroup.procs").write_text("7\n")  # a kernel removes no group that has processes
    with pytest.raises(LabError, match="is in use, by another lab"):
        cgroups.binds(place, "n1")
    (scope / "cgroup.procs").unlink()
    cgroups.remove(place, ["n1"])
    assert not scope.exists() and scope.parent.is_dir()


def test_version_2_is_used_without_systemd() -> None:
    text = conf.cgroup_conf(LabSpec(proctrack=Proctrack.CGROUP), "22.05.8", unified=True)
    assert text.splitlines()[:2] == ["CgroupPlugin=cgroup/v2", "IgnoreSystemd=yes"]
