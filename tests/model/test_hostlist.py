"""The laws of host lists, the real ``scontrol`` as witness where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold


@pytest.mark.parametrize(
    "text, names",
    [
        ("", ()),
        ("login1", ("login1",)),
        ("n[1-3,5]", ("n1", "n2", "n3", "n5")),
        ("n[3,1],n3", ("n3", "n1", "n3")),
        ("gpu[008-011]", ("gpu008", "gpu009", "gpu010", "gpu011")),
        ("n[001-2]", ("n001", "n002")),
        ("a[01-02]-ib,b", ("a01-ib", "a02-ib", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-2]x[3-4]y", ("n1x3y", "n1x4y", "n2x3y", "n2x4y")),
        (",a,,b,", ("a", "b")),
    ],
)
def test_a_host_list_expands_in_order_with_duplicates_and_leading_zeros(
    text: str, names: tuple[str, ...]
) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1", "n]", "n[]", "n[3-1]", "n[1-a]", "n[[1]]", "n[0-99999999]", "n[0-300]x[0-300]"]
)
def test_a_wrong_or_too_long_host_list_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a host list"):
        expand(text)


def test_neighbours_that_differ_in_their_last_number_fold_into_one_bracket() -> None:
    assert fold(("n08", "n09", "n10", "n12", "login", "a1-ib", "a2-ib")) == "n[08-10,12],login,a1-ib,a2-ib"


NAMES = st.from_regex(r"[a-z]{1,3}([0-9]{1,4}){0,2}(-ib|\.site\.example|-r[0-9]{1,2}x?)?", fullmatch=True)


@given(st.lists(NAMES, max_size=12))
def test_folding_and_expanding_gives_the_same_names_back(names: list[str]) -> None:
    assert expand(fold(names)) == tuple(names)


BRACKETS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 4), st.integers(0, 3)).map(
        lambda it: str(it[0]).zfill(it[2]) + (f"-{it[0] + it[1]}" if it[1] else "")
    ),
    min_size=1,
    max_size=3,
).map(lambda items: f"[{','.join(items)}]")
PARTS = st.lists(
    st.tuples(st.from_regex(r"[a-z]{1,2}", fullmatch=True), BRACKETS), min_size=1, max_size=2
).map(lambda pieces: "".join(prefix + bracket for prefix, bracket in pieces))


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("scontrol"):
        pytest.skip("Slurm's programs are not installed")
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=a\nPartitionName=p Nodes=a\n")
    return path


def scontrols(text: str, slurm_conf: Path) -> tuple[str, ...]:
    result = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={**os.environ, "SLURM_CONF": str(slurm_conf)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return tuple(result.stdout.split())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lists=st.lists(PARTS, min_size=1, max_size=3))
def test_scontrol_expands_every_list_to_the_same_names(slurm_conf: Path, lists: list[str]) -> None:
    text = ",".join(lists)
    assert expand(text) == scontrols(text, slurm_conf)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=1, max_size=6))
def test_scontrol_reads_every_folded_list(slurm_conf: Path, names: list[str]) -> None:
    assert scontrols(fold(names), slurm_conf) == tuple(names)
