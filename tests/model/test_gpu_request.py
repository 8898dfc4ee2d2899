"""GPUs as people ask for them."""

from __future__ import annotations

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.gpu_request import as_text, from_gres, read


@pytest.mark.parametrize(
    "text, count, kind",
    [
        ("8", 8, ""),
        (" 8 ", 8, ""),
        ("h100:8", 8, "h100"),
        ("a100_3g.20gb:2", 2, "a100_3g.20gb"),
        ("1g.10gb:7", 7, "1g.10gb"),
        ("0", 0, ""),
        ("h100:0", 0, ""),
    ],
)
def test_a_number_or_a_type_and_a_number(text: str, count: int, kind: str) -> None:
    assert read(text) == (count, kind)
    assert as_text(count, kind) == (text.strip() if count else "")


@pytest.mark.parametrize(
    "text", ["", "h100", "8:h100", "-1", "1.5", "h100:", ":8", "a b:1", "h100:8,x:1", "h\n:1"]
)
def test_a_wrong_number_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a number of GPUs"):
        read(text)


@pytest.mark.parametrize(
    "gres, gpus", [("gpu", "1"), ("gpu:8", "8"), ("gpu:h100:8", "h100:8"), ("gpu:h100", "h100:1")]
)
def test_gres_is_read_as_sbatch_does(gres: str, gpus: str) -> None:
    assert from_gres(gres) == gpus


@pytest.mark.parametrize(
    "gres, remedy",
    [
        ("nvme:1", "give --sbatch gres=nvme:1"),
        ("gpu:8,lscratch:100", "give --gpus 8 --sbatch gres=lscratch:100"),
        ("gpu:a100:2,gpu:h100:4", "give --gpus 6 --sbatch gres=gpu:a100:2,gpu:h100:4"),
    ],
)
def test_a_gres_with_other_resources_is_refused_with_the_line_to_type(gres: str, remedy: str) -> None:
    with pytest.raises(BadInput) as refused:
        from_gres(gres)
    assert refused.value.remedy == remedy
