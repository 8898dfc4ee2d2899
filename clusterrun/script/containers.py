"""Plan the container of a run: runtime, mounts, and checks of the image on this machine."""

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
    """Return the runtimes of this machine, in order of preference."""
    path = environ.get("PATH", os.defpath)
    runtimes = [name for name in RUNTIMES if container_runtimes.program_of(name, path)]
    with suppress(system.ProgramMissing, system.ProgramTimeout, PermissionError):
        if slurm and "--container-image" in run(("srun", "--help"), HELP_SECONDS).out:
            return ("pyxis", *runtimes)
    return tuple(runtimes)


def container_of(spec: JobSpec, cluster: Cluster, runtimes: Sequence[str], run_dir: str) -> Container:
    """Return the container of the run, with clusterrun's own mounts.

    ``runtimes`` are those of this machine.
    """
    if not spec.container:
        return Container()
    image = os.path.expanduser(spec.container) if spec.container.startswith("~") else spec.container
    path = os.path.normpath(os.path.join(spec.cwd, image))
    if image.startswith(("/", "./", "../")) or os.path.exists(path):
        image = path
    form = container_runtimes.form(image, os.path.isdir(image))
    runtime = spec.container_runtime or next((name for name in runtimes if form in TABLE[name].forms), "")
    if not runtime:
        problem = f"no container runtime for the {form} {image!r} was found here"
        available = f"({', '.join(runtimes) or 'none of any kind'} is here)"
        remedy = f"name what the nodes have: --container-runtime {'|'.join(RUNTIMES)}"
        raise BadInput(f"{problem} {available}", remedy)
    if TABLE[runtime].forms and form not in TABLE[runtime].forms:
        forms = ", ".join(TABLE[runtime].forms)
        remedy = f"use an image of one of these forms: {forms}"
        if runtime == "apptainer":
            remedy += f"; write docker://{image}"
        raise BadInput(f"{runtime} starts no image like {image!r}, which is a {form}", remedy)
    if cluster is Cluster.LOCAL and not TABLE[runtime].programs:
        problem = f"the container runtime {runtime} is an option of srun, and the run stays on this machine"
        raise BadInput(problem, "submit to Slurm, or name another one: --container-runtime")
    user_mounts = tuple(mount(text) for text in spec.mount)
    if user_mounts and not TABLE[runtime].mounts:
        raise BadInput("--mount with Slurm's own containers", "write it into the bundle's config.json")
    needed = [] if runtime == "slurm" else list(dict.fromkeys((run_dir, spec.cwd)))
    outermost = [path for path in needed if not any(path.startswith(top.rstrip("/") + "/") for top in needed)]
    targets = {own_mount.target for own_mount in user_mounts}
    mounts = (*(Mount(path, path) for path in outermost if path not in targets), *user_mounts)
    for bind in mounts:
        for path in (bind.source, bind.target):
            wrong = next((character for character in path if character in TABLE[runtime].refused), "")
            if wrong or not path.isprintable():
                why = f"{runtime} takes no {wrong or 'control character'!r} there"
                remedy = "use a path without it (a symbolic link will do)"
                raise BadInput(f"{path!r} cannot be mounted: {why}", remedy)
        if bind.read_only and not TABLE[runtime].read_only:
            problem = f"--mount {bind.source}:{bind.target}:ro: {runtime} mounts nothing read-only"
            raise BadInput(problem, "leave :ro out")
    return Container(image, runtime, mounts)


def description(container: Container) -> str:
    runtime = TABLE[container.runtime]
    how = "one container per node" if runtime.programs else "an option of srun, the agent runs inside"
    places = [dict.fromkeys((bind.source, bind.target)) for bind in container.mounts]
    text = f"container {container.image}, started by {container.runtime} ({how})"
    return text + (f"; mounted: {' '.join(map(':'.join, places))}" if places else "")


def check_image(
    spec: JobSpec, orders: Orders, torch: bool, environ: Mapping[str, str], run: Run
) -> tuple[str, ...]:
    """Return notices about an image.

    ``torch``: ranks import it. Image names are resolved on the nodes only.
    """
    image = orders.container.image
    sources = [mount(text).source for text in spec.mount]
    missing = [path for path in sources if not os.path.exists(path)]
    absent = [f"--mount {path}: not on this machine: is it on the nodes?" for path in missing]
    if image.startswith("/") and not os.path.exists(image):
        if os.path.exists(os.path.dirname(image)):
            raise BadInput(f"there is no image {image!r}", "give the path of a file or a folder")
        absent.append(f"the image {image!r} is not on this machine: is it on the nodes?")
    elif image.startswith("/") and orders.container.is_prefix:
        absent += _tried(orders, torch, environ, run)
    return tuple(absent)


def _tried(orders: Orders, torch: bool, environ: Mapping[str, str], run: Run) -> list[str]:
    """Run the image's Python, without mounts, because the image may lack their target folders."""
    container, python = orders.container, orders.interpreter.path or PYTHON
    question = (python, "-c", QUESTION)
    argv, environment = container_runtimes.in_container(replace(container, mounts=()), question, environ, ())
    try:
        completed = run(argv, ANSWER_SECONDS, env=environment)
    except (system.ProgramMissing, PermissionError):
        return [f"{container.runtime} is not on this machine: it must be on the nodes"]
    except system.ProgramTimeout as error:
        return [f"the image {container.image!r} could not be run: {error.seen}"]
    version, has_torch = answered(completed)
    if not version:
        message = completed.err.strip()[-300:]
        mounted = tuple(bind.target.rstrip("/") + "/" for bind in container.mounts)
        if python.startswith("/") and python.startswith(mounted):
            return []  # a mount provides it
        if _NO_PROGRAM.search(message):
            remedy = "its ranks are started by a Python of 3.9 or newer: name the image's with --python"
            raise BadInput(f"the image {container.image!r} has no {python!r}: {message}", remedy)
        message = message or "it printed nothing"
        return [f"the image {container.image!r} could not be run on this machine: {message}"]
    if version < LEAST_PYTHON:
        problem = f"{python!r} in the image {container.image!r} is Python {version[0]}.{version[1]}"
        raise BadInput(problem, "ranks need Python 3.9 or newer: name another one in the image with --python")
    if torch and not has_torch:
        return [f"{python!r} in the image {container.image!r} has no torch, and the script imports it"]
    return []


def answered(completed: system.Completed) -> tuple[tuple[int, ...], bool]:
    """Return the version that a Python printed for ``QUESTION`` (empty if none), and whether it has torch."""
    match = re.fullmatch(r"(\d+) (\d+) (True|False)", completed.out.strip())
    return ((int(match[1]), int(match[2])), match[3] == "True") if match else ((), False)
