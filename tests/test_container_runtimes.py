"""The table of container runtimes: whole words for each, and no word that a hostile path could make two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun import container_runtimes as table
from clusterrun.container_runtimes import FORWARDED_PREFIX, STANDARD_PATH, TABLE, NodeDevices
from clusterrun.model.container import PREFIXES, RUNTIMES, Container, Mount, mount
from clusterrun.model.document import decode, encode_set
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.orders import Orders

MOUNTS = (Mount("/runs/r", "/runs/r"), Mount("/data sets", "/data", read_only=True))
ALL = NodeDevices(
    nvidia=True, amd=True, infiniband=True, image_environment=True, image_is_folder=True, root=False
)
PODMAN = (
    *("run", "--rm", "--interactive", "--network=host", "--ipc=host", "--pid=host", "--ulimit=host"),
    *("--security-opt=label=disable", "--log-driver=none", "--env-host", "--entrypoint=", "--workdir=/"),
)
PODMAN_MOUNTS = ("--volume=/runs/r:/runs/r", "--volume=/data sets:/data:ro")
BINDS = ("--bind", "/runs/r:/runs/r", "--bind", "/data sets:/data:ro", "--pwd", "/", "/i.sif")
CH_BINDS = ("--bind=/runs/r:/runs/r", "--bind=/data sets:/data", "/image", "--")
WORDS = [
    ("apptainer", "/i.sif", NodeDevices(), ("exec", *BINDS)),
    ("apptainer", "/i.sif", NodeDevices(nvidia=True), ("exec", "--nv", *BINDS)),
    ("apptainer", "/i.sif", NodeDevices(amd=True), ("exec", "--rocm", *BINDS)),
    ("charliecloud", "/image", NodeDevices(nvidia=True), CH_BINDS),
    ("charliecloud", "/image", NodeDevices(image_environment=True), ("--set-env", *CH_BINDS)),
    ("podman", "a/b:1", NodeDevices(root=True), (*PODMAN, *PODMAN_MOUNTS, "a/b:1")),
    (
        "podman",
        "/image",
        ALL,
        (
            *PODMAN,
            *("--userns=keep-id", "--group-add=keep-groups", "--device=nvidia.com/gpu=all"),
            *("--device=/dev/kfd", "--device=/dev/dri", "--device=/dev/infiniband"),
            *PODMAN_MOUNTS,
            *("--rootfs", "/image"),
        ),
    ),
]
HOSTILE = st.text(st.sampled_from("ab '\"$`\\;&|#%*?~!()<>\t-ä\udcff"), min_size=1, max_size=12)


@pytest.mark.parametrize(("runtime", "image", "node", "arguments"), WORDS)
def test_the_arguments_of_a_prefix(
    runtime: str, image: str, node: NodeDevices, arguments: tuple[str, ...]
) -> None:
    assert TABLE[runtime].arguments(Container(image, runtime, MOUNTS), node) == arguments


def test_the_options_for_srun() -> None:
    name = Container("registry.example#team/pytorch:24.01", "pyxis", MOUNTS)
    mounts = "/runs/r:/runs/r,/data sets:/data:ro"
    requested = (("container-image", name.image), ("container-mounts", mounts))
    assert table.srun_options(name) == requested
    assert table.srun_options(Container("/bundle", "slurm")) == (("container", "/bundle"),)
    assert table.srun_options(Container()) == ()
    assert table.srun_options(Container("/i", "apptainer", MOUNTS)) == ()


def test_every_runtime_has_its_row() -> None:
    assert set(TABLE) == set(RUNTIMES)
    assert [name for name in TABLE if TABLE[name].programs] == list(PREFIXES)


@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(sorted(PREFIXES)))
def test_a_hostile_name_is_a_single_argument_and_values_are_not_arguments(
    folder: str, name: str, value: str, runtime: str
) -> None:
    container = Container(f"/{name}", runtime, (Mount(f"/{folder}", f"/{folder}"),))
    environment = {"PATH": "/none", "SECRET": f"secret-{value}"}
    command = ("python3", "-c", "pass")
    argv, inside = table.in_container(container, command, environment, ())
    assert argv[-3:] == command
    assert sum(f"/{folder}:/{folder}" in word for word in argv) == 1
    plain = table.in_container(Container("/x", runtime, (Mount("/y", "/y"),)), command, environment, ())
    assert len(argv) == len(plain[0]), "as many words as for a name without anything in it"
    assert not [word for word in argv if f"secret-{value}" in word]
    assert inside["SECRET"] == inside[f"{FORWARDED_PREFIX}SECRET"] == f"secret-{value}"


@given(st.dictionaries(st.sampled_from(["A", "B", "HOME", "RANK"]), HOSTILE), st.booleans())
def test_carried_files_arrive_whatever_the_image_sets(ours: dict[str, str], is_reported: bool) -> None:
    host = {**ours, "PATH": "/host/bin", "LD_LIBRARY_PATH": "/host/lib", "PYTHONPATH": "/mine"}
    named = ("LD_LIBRARY_PATH",) if is_reported else ()
    outside = table.forwarded_environment("charliecloud", host, named)
    assert outside["PATH"] == STANDARD_PATH
    images = {"A": "image", "PATH": "/image/bin", "LD_LIBRARY_PATH": "/image/lib", "PYTHONPATH": "/image"}
    result = table.restored_environment({**outside, **images})
    expected = {**images, **ours, "PYTHONPATH": "/mine:/image", "USER": outside["USER"]}
    assert result == {**expected, **({"LD_LIBRARY_PATH": "/host/lib"} if is_reported else {})}


def test_apptainer_keeps_the_path_of_the_host_for_its_helpers() -> None:
    assert table.forwarded_environment("apptainer", {"PATH": "/opt/bin"}, ())["PATH"] == "/opt/bin"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/a", Mount("/a", "/a")),
        ("/a:/b", Mount("/a", "/b")),
        ("/a:/b:ro", Mount("/a", "/b", read_only=True)),
        ("/a:/b:rw", Mount("/a", "/b")),
    ],
)
def test_a_mount(message: str, expected: Mount) -> None:
    assert mount(message) == expected


@pytest.mark.parametrize("message", ["", "a", "a:/b", "/a:b", "/a:/b:no", "/a:/b:ro:x", "/a:/b/../c", "/a\0"])
def test_invalid_mounts_are_refused(message: str) -> None:
    with pytest.raises(BadInput):
        mount(message)


def test_folders_for_mounts_are_created_in_images_only(tmp_path: Path) -> None:
    image, file = tmp_path / "image", tmp_path / "file"
    (image / "var").mkdir(parents=True)
    (image / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    file.touch()
    targets = ("/new/folder", "/link/inside", "/tmp/not", "/dev/shm/not")
    mounts = [Mount(str(tmp_path), target) for target in targets]
    table.make_places(Container(str(image), "charliecloud", (*mounts, Mount(str(file), "/var/file"))))
    created = sorted(str(path.relative_to(image)) for path in image.rglob("*"))
    assert created == ["link", "new", "new/folder", "var", "var/file"]
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_image_that_cannot_be_written_names_the_folder_to_create(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ClusterrunError, match="mkdir -p") as caught:
        table.make_places(Container(str(tmp_path), "charliecloud", (Mount("/x", "/x"),)))
    assert caught.value.remedy == f"make it where the image can be written: mkdir -p {tmp_path}/x"


def test_orders_without_a_container_omit_it_and_others_round_trip() -> None:
    plain = Orders("r", "n", 1, 1, 0, 1, ("true",), "/")
    assert "container" not in encode_set(plain)
    container = Container("/i", "podman", MOUNTS)
    whole = Orders("r", "n", 1, 1, 0, 1, ("true",), "/", container=container)
    assert decode(Orders, encode_set(whole)).container == container
