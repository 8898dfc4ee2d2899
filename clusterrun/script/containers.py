"""The container of a run as it is planned: runtime, mounts, and what can be seen of the image here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from clusterrun import container_runtimes, system
from clusterrun.container_runtimes import TABLE
from clusterrun.model.container import PYTHON, RUNTIMES, Container, Mount, mount
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.spec import Cluster, JobSpec

LEAST_PYTHON = (3, 9)
QUESTION = """import sys
sys.path = [place for place in sys.path if place]
import importlib.util
print(*sys.version_info[:2], importlib.util.find_spec("torch") is not None)"""
ANSWER_SECONDS = 30.0
HELP_SECONDS = 5.0
_NO_PROGRAM = re.compile(r"can't execve|not found in \$PATH|executable file .*not found|no such file", re.I)

Run = Callable[..., system.Completed]


def runtimes_here(environ: Mapping[str, str], slurm: bool, run: Run = system.run) -> tuple[str, ...]:
    """The runtimes that this machine has, in the order in which one is taken."""
    path = environ.get("PATH", os.defpath)
    found = [name for name in RUNTIMES if container_runtimes.program_of(name, path)]
    with suppress(system.ProgramMissing, system.ProgramTimeout, PermissionError):
        if slurm and "--container-image" in run(("srun", "--help"), HELP_SECONDS).out:
            return ("pyxis", *found)
    return tuple(found)


def container_of(spec: JobSpec, cluster: Cluster, here: Sequence[str], run_dir: str) -> Container:
    """The container of the run, with its own mounts; ``here`` are the runtimes of this machine."""
    if not spec.container:
        return Container()
    image = _whole(spec.container, spec.cwd)
    form = container_runtimes.form(image, os.path.isdir(image))
    runtime = spec.container_runtime or next((name for name in here if form in TABLE[name].forms), "")
    if not runtime:
        seen = f"no container runtime for the {form} {image!r} was found here"
        have = f"({', '.join(here) or 'none of any kind'} is here)"
        remedy = f"name what the nodes have: --container-runtime {'|'.join(RUNTIMES)}"
        raise BadInput(f"{seen} {have}", remedy)
    if TABLE[runtime].forms and form not in TABLE[runtime].forms:
        known = ", ".join(TABLE[runtime].forms)
        remedy = f"it starts these: {known}" + (f"; write docker://{image}" if runtime == "apptainer" else "")
        raise BadInput(f"{runtime} starts no image like {image!r}, which is a {form}", remedy)
    if cluster is Cluster.LOCAL and not TABLE[runtime].programs:
        seen = f"the container runtime {runtime} is an option of srun, and the run stays on this machine"
        raise BadInput(seen, "submit to Slurm, or name another one: --container-runtime")
    own = tuple(mount(said) for said in spec.mount)
    if own and not TABLE[runtime].mounts:
        raise BadInput("--mount with Slurm's own containers", "write it into the bundle's config.json")
    needed = [] if runtime == "slurm" else list(dict.fromkeys((run_dir, spec.cwd)))
    outermost = [path for path in needed if not any(path.startswith(top.rstrip("/") + "/") for top in needed)]
    there = {one.target for one in own}
    mounts = (*(Mount(path, path) for path in outermost if path not in there), *own)
    _check_mounts(runtime, mounts)
    return Container(image, runtime, mounts)


def _whole(image: str, cwd: str) -> str:
    """An image that is a file or a folder, by its whole path; a name of another kind as it is."""
    expanded = os.path.expanduser(image) if image.startswith("~") else image
    path = os.path.normpath(os.path.join(cwd, expanded))
    return path if expanded.startswith(("/", "./", "../")) or os.path.exists(path) else image


def _check_mounts(runtime: str, mounts: Sequence[Mount]) -> None:
    for one in mounts:
        for path in (one.source, one.target):
            wrong = next((character for character in path if character in TABLE[runtime].refused), "")
            if wrong or not path.isprintable():
                why = f"{runtime} takes no {wrong or 'control character'!r} there"
                remedy = "use a path without it (a symbolic link will do)"
                raise BadInput(f"{path!r} cannot be mounted: {why}", remedy)
        if one.read_only and not TABLE[runtime].read_only:
            seen = f"--mount {one.source}:{one.target}:ro: {runtime} mounts nothing read-only"
            raise BadInput(seen, "leave :ro out")


def description(container: Container) -> str:
    runtime = TABLE[container.runtime]
    how = "one container per node" if runtime.programs else "an option of srun, the agent runs inside"
    places = [dict.fromkeys((one.source, one.target)) for one in container.mounts]
    said = f"container {container.image}, started by {container.runtime} ({how})"
    return said + (f"; mounted: {' '.join(map(':'.join, places))}" if places else "")


def check_image(
    spec: JobSpec, orders: Orders, torch: bool, environ: Mapping[str, str], run: Run
) -> tuple[str, ...]:
    """Notices about an image; ``torch``: ranks import it. A name is looked up on the nodes, not here."""
    image = orders.container.image
    sources = [mount(said).source for said in spec.mount]
    away = [path for path in sources if not os.path.exists(path)]
    absent = [f"--mount {path}: not on this machine: is it on the nodes?" for path in away]
    if image.startswith("/") and not os.path.exists(image):
        if os.path.exists(os.path.dirname(image)):
            raise BadInput(f"there is no image {image!r}", "give the path of a file or a folder")
        absent.append(f"the image {image!r} is not on this machine: is it on the nodes?")
    elif image.startswith("/") and orders.container.is_prefix:
        absent += _tried(orders, torch, environ, run)
    return tuple(absent)


def _tried(orders: Orders, torch: bool, environ: Mapping[str, str], run: Run) -> list[str]:
    """Ask the image's Python, without mounts: a folder for one may have to be made in the image first."""
    container, python = orders.container, orders.interpreter.path or PYTHON
    question = (python, "-c", QUESTION)
    argv, environment = container_runtimes.in_container(replace(container, mounts=()), question, environ, ())
    try:
        done = run(argv, ANSWER_SECONDS, env=environment)
    except (system.ProgramMissing, PermissionError):
        return [f"{container.runtime} is not on this machine: it must be on the nodes"]
    except system.ProgramTimeout as error:
        return [f"the image {container.image!r} could not be tried: {error.seen}"]
    version, has_torch = answered(done)
    if not version:
        return _not_answered(container, python, done)
    if version < LEAST_PYTHON:
        seen = f"{python!r} in the image {container.image!r} is Python {version[0]}.{version[1]}"
        raise BadInput(seen, "ranks need Python 3.9 or newer: name another one in the image with --python")
    if torch and not has_torch:
        return [f"{python!r} in the image {container.image!r} has no torch, and the script imports it"]
    return []


def answered(done: system.Completed) -> tuple[tuple[int, ...], bool]:
    """The version of a Python that was asked the ``QUESTION`` (empty: it is none); whether it has torch."""
    found = re.fullmatch(r"(\d+) (\d+) (True|False)", done.out.strip())
    return ((int(found[1]), int(found[2])), found[3] == "True") if found else ((), False)


def _not_answered(container: Container, python: str, done: system.Completed) -> list[str]:
    said = done.err.strip()[-300:]
    mounted = tuple(one.target.rstrip("/") + "/" for one in container.mounts)
    if python.startswith("/") and python.startswith(mounted):
        return []  # it comes with a mount
    if _NO_PROGRAM.search(said):
        remedy = "its ranks are started by a Python of 3.9 or newer: name the image's with --python"
        raise BadInput(f"the image {container.image!r} has no {python!r}: {said}", remedy)
    return [f"the image {container.image!r} could not be tried here: {said or 'it said nothing'}"]
