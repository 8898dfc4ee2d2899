"""`init` writes a configuration that clusterrun reads, with a profile for each partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.config import profiles
from clusterrun.operations.new_configuration import SiteOffer, configuration_text
from clusterrun.slurm.queries import GpuRow, PartitionOffer

CPU = PartitionOffer("cpu", "up", True, "1-00:00:00", 9, 64, 131072, 0)
GPU = PartitionOffer("gpu.a", "up", False, "infinite", 1, 96, 1048576, 8)
OFFER = SiteOffer((CPU, GPU), (GpuRow("n1", "gpu.a", "idle", "h100", 8, 0),), ("lab",), ("cuda/12",))


def test_the_only_partition_with_gpus_is_offered() -> None:
    assert OFFER.default_partition == "gpu.a"
    assert SiteOffer((CPU,), (), (), ()).default_partition == "cpu"


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
