"""The laws of planning a container: its runtime, its mounts, what is refused before anything is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun import system
from clusterrun.model.container import Container, Mount
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Interpreter
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.script import checks
from clusterrun.script.containers import check_image, container_of, description, runtimes_here
from clusterrun.script.plan import MachineFacts, Plan, plan

RUN_DIR = "/home/ada/.clusterrun/runs/r"
HERE = ("pyxis", "apptainer", "charliecloud", "podman")
SITE = MachineFacts(slurm=True, python="/opt/venv/bin/python", why_python="ours", runtimes=HERE)
SPEC = JobSpec(("train.py",), cwd="/home/ada/project", cluster=Cluster.SLURM, container="/images/a.sif")


def planned(**more: Any) -> Plan:
    return plan(replace(SPEC, **more), "r", "f00d", RUN_DIR, SITE)


@pytest.mark.parametrize(
    ("image", "here", "runtime"),
    [
        ("/images/a.sif", HERE, "apptainer"),
        ("docker://ubuntu", HERE, "apptainer"),
        ("/images/a.sqsh", HERE, "pyxis"),
        ("/images/a.sqsh", HERE[1:], "apptainer"),
        ("/images/a.sqsh", ("charliecloud",), "charliecloud"),
        ("registry.example#team/pytorch:24.01-py3", HERE, "pyxis"),
        ("pytorch/pytorch:latest", ("apptainer", "podman"), "podman"),
        ("/images/folder", HERE, "apptainer"),
        ("/images/folder", ("charliecloud", "podman"), "charliecloud"),
    ],
)
def test_a_runtime_is_chosen_by_the_image_and_the_installed_programs(
    image: str, here: tuple[str, ...], runtime: str
) -> None:
    spec = replace(SPEC, container=image)
    assert container_of(spec, Cluster.SLURM, here, RUN_DIR).runtime == runtime


@pytest.mark.parametrize(
    ("more", "observed"),
    [
        ({"container": "a/b:1", "container_runtime": "apptainer"}, "apptainer starts no image like 'a/b:1'"),
        ({"container": "/i", "container_runtime": "slurm", "mount": ("/d",)}, "--mount with Slurm's own"),
        (
            {"container": "/i", "container_runtime": "charliecloud", "mount": ("/d:/d:ro",)},
            "mounts nothing read-only",
        ),
        ({"cwd": "/home/a,b"}, "apptainer takes no ',' there"),
        ({"cwd": "/home/a:b"}, "apptainer takes no ':' there"),
        ({"cwd": "/home/a\nb"}, "cannot be mounted"),
        ({"container": "x.sqsh", "container_runtime": "podman"}, "podman starts no image like"),
    ],
)
def test_impossible_container_options_are_refused(more: dict[str, Any], observed: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned(**more)
    assert observed in caught.value.seen


@pytest.mark.parametrize(
    "more", [{"mount": ("/d",)}, {"container_runtime": "podman"}, {"container": "-x"}, {"container": "/i\n"}]
)
def test_a_spec_that_cannot_be_meant(more: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        JobSpec(("train.py",), cwd="/", **more)


def test_a_runtime_must_be_named_if_none_is_installed() -> None:
    with pytest.raises(BadInput) as caught:
        container_of(SPEC, Cluster.SLURM, (), RUN_DIR)
    assert caught.value.remedy.startswith("name what the nodes have: --container-runtime pyxis|")


def test_an_option_of_srun_needs_slurm() -> None:
    spec = replace(SPEC, container="a/b", container_runtime="pyxis")
    with pytest.raises(BadInput, match="is an option of srun"):
        container_of(spec, Cluster.LOCAL, (), RUN_DIR)


def test_the_run_the_working_directory_and_requested_folders_are_mounted() -> None:
    container = planned(mount=("/data:/in:ro",)).orders.container
    assert container.mounts == (
        Mount(RUN_DIR, RUN_DIR),
        Mount("/home/ada/project", "/home/ada/project"),
        Mount("/data", "/in", read_only=True),
    )
    copied = planned(cwd=f"{RUN_DIR}/snapshot/p").orders.container.mounts
    assert copied == (Mount(RUN_DIR, RUN_DIR),), "a snapshot lies in the run directory"
    assert planned(cwd="/home/ada").orders.container.mounts == (Mount("/home/ada", "/home/ada"),)


def test_a_prefix_leaves_the_agents_outside_and_the_ranks_have_the_images_python() -> None:
    created = planned()
    assert created.orders.command == ("python3", "-u", "train.py")
    assert created.orders.interpreter == Interpreter("python3", "the image's")
    assert created.orders.preflight.python == "python3"
    assert created.orders.launch[-6:-4] == ("/opt/venv/bin/python", "-I")
    assert "exec /opt/venv/bin/python -I -S" in created.script
    assert created.spec.python == "/opt/venv/bin/python", "what later commands start beside the run"
    named = planned(python="/opt/conda/bin/python", setup=("module load x",))
    assert named.orders.command[0] == "/opt/conda/bin/python"
    assert not named.orders.interpreter.by_setup


def test_an_option_of_srun_starts_the_agents_inside() -> None:
    created = planned(container="a/b#c", container_runtime="pyxis", mount=("/data",))
    launch = created.orders.launch
    assert "--container-image=a/b#c" in launch
    own = f"{RUN_DIR}:{RUN_DIR},/home/ada/project:/home/ada/project,/data:/data"
    assert f"--container-mounts={own}" in launch
    assert launch[-6:] == ("python3", "-I", "-S", f"{RUN_DIR}/agent.pyz", "agent", RUN_DIR)
    assert "exec /opt/venv/bin/python -I -S" in created.script, "the coordinator stays on the host"
    bundle = planned(container="/bundle", container_runtime="slurm")
    assert "--container=/bundle" in bundle.orders.launch


def test_a_dry_run_shows_the_containers_start() -> None:
    message = description(planned(mount=("/data:/in",)).orders.container)
    assert message == (
        "container /images/a.sif, started by apptainer (one container per node);"
        f" mounted: {RUN_DIR} /home/ada/project /data:/in"
    )


def test_pyxis_is_detected_by_the_help_of_srun(tmp_path: Path) -> None:
    def run(argv: tuple[str, ...], timeout: float) -> system.Completed:
        return system.Completed(argv, 0, "  --container-image=[USER@][REGISTRY#]IMAGE", "", 0.0)

    (tmp_path / "ch-run").touch(mode=0o755)
    (tmp_path / "podman").touch(mode=0o644)
    environ = {"PATH": f"/none:{tmp_path}"}
    assert runtimes_here(environ, True, run) == ("pyxis", "charliecloud")  # type: ignore[arg-type]
    assert runtimes_here(environ, False, run) == ("charliecloud",)  # type: ignore[arg-type]


# --- an image that is here ---


def checked(image: Path, out: str = "", err: str = "", code: int = 0, torch: bool = False) -> tuple[str, ...]:
    container = Container(str(image), "charliecloud", (Mount("/home", "/home"),))
    spec = replace(SPEC, container=str(image), container_runtime="charliecloud")
    orders = replace(planned().orders, container=container)
    requested: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], timeout: float, env: object) -> system.Completed:
        requested.append(argv)
        return system.Completed(argv, code, out, err, 0.0)

    result = check_image(spec, orders, torch, {"PATH": "/none"}, run)
    assert [argv[:4] for argv in requested] in ([], [("ch-run", str(image), "--", "python3")])
    return result


def test_an_image_with_all_that_is_needed_is_passed_over(tmp_path: Path) -> None:
    assert checked(tmp_path, "3 9 True\n", torch=True) == ()
    assert checked(tmp_path, "3 12 False\n") == ()


def test_an_image_without_torch_is_reported_if_the_script_imports_it(tmp_path: Path) -> None:
    (message,) = checked(tmp_path, "3 12 False\n", torch=True)
    assert message == f"'python3' in the image '{tmp_path}' has no torch, and the script imports it"


@pytest.mark.parametrize(
    ("out", "err", "observed"),
    [
        ("3 8 True", "", "is Python 3.8"),
        (
            "",
            "ch-run[7]: error: can't execve(2): python3: No such file or directory (ch_core.c:410 2)",
            "has no",
        ),
        ("", 'FATAL:   "python3": executable file not found in $PATH', "has no 'python3'"),
    ],
)
def test_an_image_that_cannot_start_ranks_is_refused(
    tmp_path: Path, out: str, err: str, observed: str
) -> None:
    with pytest.raises(BadInput) as caught:
        checked(tmp_path, out, err, 1)
    assert observed in caught.value.seen
    assert "--python" in caught.value.remedy


def test_an_image_that_could_not_be_tried_gets_a_notice(tmp_path: Path) -> None:
    (message,) = checked(tmp_path, "", "no user namespaces here", 1)
    assert message == f"the image '{tmp_path}' could not be run on this machine: no user namespaces here"


def test_a_missing_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no image"):
        checked(tmp_path / "none.sif")
    (message,) = checked(tmp_path / "no" / "folder" / "none.sif")
    assert message.endswith("is not on this machine: is it on the nodes?")


def test_the_hosts_python_is_not_asked_for_a_containers_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    created = planned(cwd=str(tmp_path), container="a/b", container_runtime="podman", mount=("/not/here",))

    def run(*_: object, **__: object) -> system.Completed:
        raise AssertionError("nothing can be asked")

    message = checks.check(created, run)
    assert message == ("--mount /not/here: not on this machine: is it on the nodes?",)
