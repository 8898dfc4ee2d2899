"""A missing requirement of a lab is named, with the command that installs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.lab import needs, roots
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.spec import LabSpec, Proctrack
from clusterrun.model.contract import LAB_HOME_VARIABLE
from clusterrun.model.errors import BadInput
from tests import slurm_versions


def refused(spec: LabSpec) -> LabError:
    with pytest.raises(LabError) as caught:
        needs.check(spec)
    return caught.value


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = needs.program
    monkeypatch.setattr(needs, "program", lambda name: None if name in ("slurmd", "munged") else remote(name))
    error = refused(LabSpec())
    assert "no slurmd, munged" in error.seen
    assert "clusterrun lab install    (Debian, Ubuntu: apt-get install slurmd munge)" in error.remedy


def test_accounting_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = needs.program
    monkeypatch.setattr(needs, "program", lambda name: None if name == "mariadbd" else remote(name))
    error = refused(LabSpec(accounting=True))
    assert "no mariadbd" in error.seen
    assert "clusterrun lab install --accounting" in error.remedy


def test_another_slurm_needs_none_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("slurmctld", "slurmd", "sbatch", "munged")
    remote = needs.program
    monkeypatch.setattr(needs, "program", lambda name: None if name in absent else remote(name))
    assert [what for what, _ in needs._missing(LabSpec(slurm="24.11")) if "slurm" in what] == []


@pytest.mark.parametrize(("own", "fits"), [("0::/user.slice\n", True), ("9:name=systemd:/\n0::/\n", False)])
def test_cgroups_of_version_2_suffice_if_version_1_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, fits: bool
) -> None:
    monkeypatch.setattr(needs, "CGROUPS", tmp_path)
    monkeypatch.setattr(needs, "FREEZER", tmp_path / "freezer")
    monkeypatch.setattr(needs, "OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(own)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    lacks = [
        remedy for what, remedy in needs._kernel(LabSpec(proctrack=Proctrack.CGROUP)) if "cgroup" in what
    ]
    assert lacks == ([] if fits else ["take --proctrack linuxproc or pgid here"])


def test_more_nodes_than_memory_are_refused_with_the_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "_missing", lambda spec: iter(()))
    monkeypatch.setattr(needs.proc, "memory", lambda: (4000 << 20, 2000 << 20))
    with pytest.raises(BadInput) as caught:
        needs.check(LabSpec(nodes=1000))
    assert caught.value.seen == "--nodes 1000 would take about 4.4 GiB of memory; 2.0 GiB are free"
    assert caught.value.remedy == "up to --nodes 427 would fit"


def test_a_folder_too_deep_for_sockets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAB_HOME_VARIABLE, "/tmp/" + "deep/" * 12)
    assert "too long a path for sockets" in refused(LabSpec()).seen


@pytest.mark.skipif(
    os.geteuid() != 0 or needs.program("apt-get") is None, reason="packages take root and apt"
)
def test_install_names_the_packages_of_each_option() -> None:
    plain, everything = needs.install_commands(False, False)[1], needs.install_commands(True, True)[1]
    assert {"slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "libfaketime"} <= set(plain)
    assert set(everything) - set(plain) == {"slurmdbd", "mariadb-server", "debootstrap"}


def test_install_without_apt_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs.shutil, "which", lambda *_, **__: None)
    with pytest.raises(LabError, match="knows Debian's and Ubuntu's packages only"):
        needs.install_commands(False, False)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [("24.11", "clusterrun lab root make trixie"), ("19.05", "fetchable are 20.11, 22.05, 24.11, 26.05")],
)
def test_a_missing_release_is_named_with_its_suite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, remedy: str
) -> None:
    monkeypatch.setenv(roots.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(roots, "program", lambda name: None)
    with pytest.raises(BadInput) as caught:
        roots.choose_root(version)
    assert (caught.value.seen, caught.value.remedy) == (f"there is no Slurm {version} here", remedy)


def test_fetched_releases_are_recognized_by_their_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(roots.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(roots, "program", lambda name: None)
    for suite, version in {"old": "20.11.4", "new": "24.11.5"}.items():
        (tmp_path / suite).mkdir()
        (tmp_path / suite / roots.VERSION_FILE).write_text(version + "\n")
    (tmp_path / "old" / roots.GRAFT).mkdir()
    assert roots.choose_root("24.11") == roots.RootChoice("24.11.5", root=str(tmp_path / "new"))
    assert roots.choose_root("20.11.4") == roots.RootChoice(
        "20.11.4", graft=str(tmp_path / "old" / roots.GRAFT)
    )


def test_the_tests_of_all_releases_fetch_missing_ones_and_name_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(roots.HOME_VARIABLE, str(tmp_path))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / roots.VERSION_FILE).write_text("24.11.5\n")

    def fetched(suite: str, folder: Path, mirror: str) -> None:
        raise LabError(f"debootstrap {suite} failed", f"no such suite at {mirror!r}")

    monkeypatch.setattr(roots, "_debootstrap", fetched)
    monkeypatch.setattr(roots, "program", lambda name: name)
    assert [line.splitlines()[0] for line in slurm_versions.fetch(["here", "sid"])] == [
        "Debian sid (Slurm 26.05): debootstrap sid failed"
    ]
