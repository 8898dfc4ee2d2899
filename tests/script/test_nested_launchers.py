"""A launcher inside our launcher is found in the command and in the script, and nothing else is."""

from __future__ import annotations

import pytest

from clusterrun.script.nested_launchers import found


@pytest.mark.parametrize(
    "argv",
    [
        ("torchrun", "--nproc_per_node", "2", "train.py"),
        ("/opt/bin/torchrun", "train.py"),
        ("-m", "torch.distributed.run", "train.py"),
        ("python", "-m", "torch.distributed.launch", "train.py"),
        ("accelerate", "launch", "train.py"),
        ("deepspeed", "train.py"),
        ("mpirun", "-n", "4", "./a"),
        ("srun", "python", "train.py"),
    ],
)
def test_a_launcher_as_the_command_is_told(argv: tuple[str, ...]) -> None:
    (told,) = found(argv)
    assert "rank" in told


@pytest.mark.parametrize(
    "argv",
    [
        ("train.py",),
        ("-m", "pkg.train"),
        ("./run.sh",),
        ("accelerate", "config"),
        ("python", "-u", "train.py"),
    ],
)
def test_other_commands_are_not(argv: tuple[str, ...]) -> None:
    assert found(argv) == ()


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)\n", "line 2 calls mp.spawn()"),
        ("torch.multiprocessing.spawn(work)", "line 1 calls torch.multiprocessing.spawn()"),
        ("elastic_launch(config, work)()", "line 1 calls elastic_launch()"),
        ("notebook_launcher(work)", "line 1 calls notebook_launcher()"),
        ("import subprocess\nsubprocess.run(['torchrun', 'x.py'])", "line 2 starts torchrun"),
        ("import os\nos.system('mpirun -n 4 ./a')", "line 2 starts mpirun"),
        ("if torch.cuda.device_count() < 2:\n    sys.exit()\n", "line 1 leaves the script"),
        (
            "if not verify_min_gpu_count(min_gpus=2):\n    print('no')\n    exit()\n",
            "line 1 leaves the script",
        ),
    ],
)
def test_a_launcher_in_a_script_is_told_with_its_line(source: str, word: str) -> None:
    (told,) = found(("train.py",), source)
    assert told.startswith(f"train.py, {word}")


@pytest.mark.parametrize(
    "source",
    [
        "gevent.spawn(work)",
        "pool.spawn(work)",
        "# mp.spawn(work)\nprint('torchrun')",
        "if torch.cuda.device_count() < 2:\n    device = 'cpu'\n",
        "subprocess.run(['git', 'log'])",
        "this is no python (",
        "\0",
        "",
    ],
)
def test_what_only_looks_like_one_is_not(source: str) -> None:
    assert found(("train.py",), source) == ()
