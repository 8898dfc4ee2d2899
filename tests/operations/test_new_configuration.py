"""`init` writes a configuration that clusterrun reads, with a profile for each partition."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterrun.config import profiles
from clusterrun.operations.new_configuration import SiteOffer, configuration_text, site_offer
from clusterrun.slurm.queries import GpuRow, PartitionOffer

CPU = PartitionOffer("cpu", "up", True, "1-00:00:00", 9, 64, 131072, 0)
GPU = PartitionOffer("gpu.a", "up", False, "infinite", 1, 96, 1048576, 8)
OFFER = SiteOffer((CPU, GPU), (GpuRow("n1", "gpu.a", "idle", "h100", 8, 0),), ("lab",), ("cuda/12",), {})


def test_the_only_partition_with_gpus_is_offered() -> None:
    assert OFFER.default_partition == "gpu.a"
    assert SiteOffer((CPU,), (), (), (), {}).default_partition == "cpu"


@pytest.mark.parametrize(
    ("account", "setup"), [("lab", 'module load "cuda"'), ("", ""), ("a\nb", "source é/activate")]
)
def test_the_text_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str, setup: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterrun.toml").write_text(configuration_text(OFFER, "gpu.a", account, setup))
    (configuration,) = profiles.load(str(tmp_path), {"HOME": str(tmp_path)})
    defaults = dict(configuration.defaults.values)
    assert defaults["partition"] == "gpu.a"
    assert defaults.get("account", "") == account
    assert defaults.get("setup", ()) == ((setup,) if setup else ())
    by_name = {name: dict(source.values) for name, source in configuration.profiles}
    assert by_name == {"cpu": {"partition": "cpu"}, "gpu.a": {"partition": "gpu.a", "gpus": "h100:8"}}


@pytest.mark.parametrize(
    ("accepted", "line"),
    [
        (("lab",), ""),
        (("physics", "chem"), 'account = "physics"'),
        ((), "# None of your accounts may use this partition."),
    ],
)
def test_a_profile_names_an_account_that_its_partition_accepts(accepted: tuple[str, ...], line: str) -> None:
    offer = SiteOffer((GPU,), (), ("lab", "physics", "chem"), (), {"gpu.a": accepted})
    profile = configuration_text(offer, "gpu.a", "lab", "").rpartition("[profile")[2]
    assert profile.splitlines()[3:] == ([line] if line else [])


def test_modules_and_partition_accounts_are_read_from_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "sacctmgr": "echo lab; echo physics",
        "scontrol": "echo PartitionName=a AllowAccounts=ALL DenyAccounts=lab Nodes=n1; "
        "echo PartitionName=b AllowGroups=ALL AllowAccounts=physics,x",
        "bash": "printf '%s\\n' /apps: 'cuda/12(default)' gcc/13 anaconda3/ anaconda3/2 py-torch/2 python3",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = SimpleNamespace(slurm=lambda: SimpleNamespace(partitions=lambda: [GPU], gpus=lambda: ()))
    offer = site_offer(cast(Any, context), "me")
    assert offer.modules == ("cuda/12", "anaconda3/2", "py-torch/2", "python3")
    assert (offer.accounts, dict(offer.accepted)) == (
        ("lab", "physics"),
        {"a": ("physics",), "b": ("physics",)},
    )
