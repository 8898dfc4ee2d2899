"""A launcher or a batch script as COMMAND is refused with the line to type; one in a script is warned of."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec
from clusterrun.script.nested_launchers import check_command, in_python


def spec(folder: Path, *command: str, **wish: Any) -> JobSpec:
    return JobSpec(command, cwd=str(folder), **wish)


def refusal(asked: JobSpec, on_slurm: bool = True, verb: str = "submit") -> tuple[str, str]:
    """Return the message of a refusal and the offered line."""
    with pytest.raises(BadInput) as caught:
        check_command(asked, on_slurm, verb)
    (line,) = re.findall(rf"clusterrun (?:{verb}|sweep) .*", caught.value.remedy)
    return caught.value.seen, line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("torchrun --nnodes=2 --nproc_per_node 4 train.py --lr 1", "--nodes 2 --gpus 4 train.py --lr 1"),
        ("torchrun --standalone --nproc-per-node=4 -m pkg.train -x", "--gpus 4 -m pkg.train -x"),
        (
            "/opt/bin/torchrun --max-restarts 3 --nproc_per_node 2 t.py",
            "--gpus 2 --python /opt/bin/python --max-restarts 3 t.py",
        ),
        ("-m torch.distributed.run --nproc_per_node 2 train.py", "--gpus 2 train.py"),
        ("python -u -m torch.distributed.launch --nproc_per_node 2 train.py", "--gpus 2 train.py"),
        ("srun train.py", "train.py"),
        ("srun -N2 -n 8 python3 -u train.py --lr 1", "--nodes 2 --ranks-per-node 4 train.py --lr 1"),
        ("srun -N 2 --gres=gpu:a100:4 --ntasks-per-node=4 python -m pkg.t", "--nodes 2 --gpus 4 -m pkg.t"),
        ("srun --nodes=2 torchrun --nproc_per_node 8 train.py --n 3", "--nodes 2 --gpus 8 train.py --n 3"),
        ("srun --partition debug ./prog --nodes 9", "--partition debug ./prog --nodes 9"),
        ("mpirun -np 4 ./prog -x", "--ranks-per-node 4 ./prog -x"),
        ("mpiexec -n 4 --map-by node python train.py", "--ranks-per-node 4 train.py"),
        ("accelerate launch --num_machines 2 --num_processes 8 train.py", "--nodes 2 --gpus 4 train.py"),
        (
            "accelerate launch --cpu --num_processes 2 train.py",
            "--ranks-per-node 2 --env ACCELERATE_USE_CPU=true train.py",
        ),
        ("deepspeed --num_gpus 2 train.py --deepspeed c.json", "--gpus 2 train.py --deepspeed c.json"),
        ("env A=1 torchrun --nproc_per_node 2 train.py", "--gpus 2 --env A=1 train.py"),
        ("srun -N2 bash -c torchrun\\ --nproc_per_node\\ 4\\ t.py\\ -x", "--nodes 2 --gpus 4 t.py -x"),
        ("uv run torchrun --nproc_per_node 2 train.py", "--gpus 2 uv run python train.py"),
        ("timeout 60 torchrun --nproc_per_node 2 t.py", "--gpus 2 timeout 60 python t.py"),
        ("nice -n 10 torchrun --nproc_per_node 2 -m p.t", "--gpus 2 nice -n 10 python -m p.t"),
        (
            "srun -N 2 numactl -l torchrun --nproc_per_node 2 t.py",
            "--nodes 2 --gpus 2 numactl -l python t.py",
        ),
        (
            "apptainer exec --nv a.sif torchrun --nproc_per_node 2 t.py",
            "--gpus 2 apptainer exec --nv a.sif python t.py",
        ),
        (
            "srun -N2 -n4 --cpu-bind=cores --export=ALL,A=1 t.py",
            "--nodes 2 --ranks-per-node 2 --env A=1 t.py",
        ),
        (
            "srun -N2 --container-image=i --container-mounts=/a:/a,/b -n2 ./p",
            "--nodes 2 --container i --mount /a:/a --mount /b ./p",
        ),
        (
            "accelerate launch --num_processes 2 --mixed_precision bf16 t.py",
            "--gpus 2 --env ACCELERATE_MIXED_PRECISION=bf16 t.py",
        ),
    ],
)
def test_a_launcher_as_the_command_is_refused_with_the_line_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    observed, offered = refusal(spec(tmp_path, *shlex.split(typed)))
    assert "as COMMAND" in observed
    assert offered == f"clusterrun submit {line}"


@pytest.mark.parametrize(
    ("typed", "omitted"),
    [
        ("accelerate launch --num_processes 2 --config_file c.yaml train.py", "--config_file c.yaml"),
        ("srun -n 2 --bcast=/tmp/x python -X dev train.py", "--bcast=/tmp/x"),
        (
            "mpirun -np 4 --bind-to core -x PATH python train.py",
            "--bind-to core; a program that calls MPI (mpi4py, Horovod) sees one process, and trains alone "
            "in each rank: let it read RANK, or keep sbatch for it",
        ),
        ("numactl -l torchrun --nproc_per_node 2 train.py", ""),
        ("torchrun --nproc_per_node 2 --log_dir logs --tee 3 -m pkg.train -x", ""),
        ("torchrun --nnodes=2 --rdzv_backend c10d --rdzv-endpoint=$HOST:1 --nproc_per_node 4 train.py", ""),
        ("python -u -m torch.distributed.run --nproc_per_node 2 --master_port 29501 train.py", ""),
        ("env A=1 srun -N2 -n4 -l train.py", ""),
    ],
)
def test_the_offered_lines_gaps_are_named(tmp_path: Path, typed: str, omitted: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_command(spec(tmp_path, *shlex.split(typed)), True)
    lines = [line for line in caught.value.remedy.split("\n") if line.startswith("not in that line: ")]
    assert lines == ([f"not in that line: {omitted}"] if omitted else [])


def test_a_launcher_decides_how_many_ranks_gpus_0_means(tmp_path: Path) -> None:
    command = spec(tmp_path, "torchrun", "--nproc_per_node", "2", "t.py", ranks_per_node=1)
    assert refusal(command)[1] == "clusterrun submit --ranks-per-node 2 t.py"


def test_options_before_a_launcher_stay_and_have_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = {"nodes": 4, "gpus": 8, "partition": "a b", "environment": (("A", "1"),)}
    requested = spec(tmp_path, "torchrun", "--nnodes", "2", "--nproc_per_node", "4", "train.py", **typed)
    assert refusal(requested, verb="run")[1] == (
        "clusterrun run --nodes 4 --gpus 8 --partition 'a b' --env A=1 train.py"
    )


@pytest.mark.parametrize(
    ("typed", "wish", "on_slurm"),
    [
        ("torchrun --nnodes $NNODES train.py", {"nodes": 2, "per_node": True}, True),
        ("bash -c torchrun", {"nodes": 2, "per_node": True}, True),
        ("mpirun -n 4 ./prog", {"per_node": True}, True),
        ("srun --overlap hostname", {}, True),
        ("srun hostname", {}, False),
        ("accelerate config", {"nodes": 2}, True),
        ("train.py torchrun", {"nodes": 2}, True),
        ("python3 train.py --launcher torchrun", {"nodes": 2}, True),
        ("echo torchrun", {"nodes": 2}, True),
        ("./prog -x srun", {"nodes": 2}, True),
        ("-m pkg.train", {"nodes": 2}, True),
    ],
)
def test_other_commands_and_allowed_launchers_pass(
    tmp_path: Path, typed: str, wish: dict[str, Any], on_slurm: bool
) -> None:
    assert check_command(spec(tmp_path, *typed.split(), **wish), on_slurm) == ()


@pytest.mark.parametrize(
    ("typed", "wish", "line"),
    [
        ("torchrun train.py", {}, "train.py"),
        ("torchrun --nproc_per_node=1 train.py", {"gpus": 1}, "--gpus 1 train.py"),
        ("accelerate launch train.py -x", {"gpus": 1}, "--gpus 1 train.py -x"),
    ],
)
def test_a_launcher_of_one_process_per_rank_is_allowed_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, wish: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (warning,) = check_command(spec(tmp_path, *typed.split(), **wish), True)
    assert f"is not needed: clusterrun submit {line} starts the same" in warning


BATCH = r"""#!/bin/bash
#SBATCH -J big -N 2
#SBATCH --gres=gpu:a100:4   # four
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task 32
#SBATCH -t 1-00:00:00
#SBATCH --mail-type=END
#SBATCH -o logs/%x.out
#SBATCH --array=0-3
#SBATCH --requeue
module load cuda
#SBATCH --nodes=9
srun torchrun \
  --nnodes $SLURM_NNODES --nproc_per_node 4 \
  train.py --lr $LR "$@" > log.txt 2>&1
"""


@pytest.mark.parametrize(
    "typed",
    [
        "job.sbatch",
        "./job.sbatch",
        "bash job.sbatch",
        "env A=1 nohup bash job.sbatch",
        "sh -x ./job.sbatch",
        "/bin/bash -o pipefail job.sbatch",
    ],
)
def test_a_batch_script_as_the_command_is_refused_with_an_equivalent_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text(BATCH)
    for wish in ({}, {"per_node": True}):
        observed, line = refusal(spec(tmp_path, *typed.split(), **wish))
        assert "is a batch script" in observed
        assert line == (
            "clusterrun sweep --nodes 2 --gpus a100:4 --cpus-per-rank 8 --name big --time 1-00:00:00 "
            "--requeue --sbatch mail-type=END --set 'task=range(0,4)' --env 'SLURM_ARRAY_TASK_ID={task}' "
            "--env SLURM_ARRAY_TASK_MIN=0 --env SLURM_ARRAY_TASK_MAX=3 --env SLURM_ARRAY_TASK_COUNT=4 "
            "--env SLURM_ARRAY_TASK_STEP=1 "
            "--setup 'module load cuda' bash -c 'exec python train.py --lr $LR'"
        )


def test_the_refusal_of_a_batch_script_names_another_meaning_of_the_line(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:2\npython -m torch.distributed.launch --nproc_per_node 2 t.py\n"
    )
    with pytest.raises(BadInput, match=r"with another meaning: .*LOCAL_RANK"):
        check_command(spec(tmp_path, "./job.sh"), on_slurm=True)
    (tmp_path / "job.sh").write_text('#!/bin/bash\n#SBATCH -N 2\nT=("python t.py")\neval "${T[$I]}"\n')
    with pytest.raises(BadInput, match="which program trains"):
        check_command(spec(tmp_path, "./job.sh"), on_slurm=True)


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ('bash -c "${ARGS[$SLURM_PROCID]}"', False),
        ("./step --rank=${RANK:-0}", False),
        ("./step", True),
        ("srun ./step $SLURM_PROCID", True),
    ],
)
def test_a_script_with_options_of_sbatch_that_reads_its_rank_is_run_by_the_ranks(
    tmp_path: Path, line: str, is_refused: bool
) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N 2\n{line}\n")
    spec = JobSpec(("bash", "job.sh"), cwd=str(tmp_path), ranks_per_node=2)
    if not is_refused:
        (notice,) = check_command(spec, on_slurm=True)
        assert "job.sh" in notice and "each rank runs it" in notice
        return
    with pytest.raises(BadInput, match="is a batch script"):
        check_command(spec, on_slurm=True)


def test_a_batch_script_for_another_scheduler_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.pbs").write_text("#!/bin/bash\n#PBS -l nodes=2:ppn=4\nsrun python t.py\n")
    _, line = refusal(spec(tmp_path, "./job.pbs"))
    assert line == "clusterrun submit t.py"
    (tmp_path / "run.sh").write_text("#!/bin/bash\n#$HOME is set\npython t.py\n")
    assert not check_command(spec(tmp_path, "./run.sh"), on_slurm=True)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("#SBATCH -n4\npython3 -u t.py -x", "--cpus-per-rank 4 t.py -x"),
        ("#SBATCH -n4\nsrun python3 -u t.py -x", "--ranks-per-node 4 t.py -x"),
        ("#SBATCH --nodes=2 --ntasks=8 --gpus=8\nsrun python t.py", "--nodes 2 --gpus 4 t.py"),
        ("#SBATCH -N 1\n#SBATCH -c 4\n./prog", "--cpus-per-rank 4 ./prog"),
        ("#SBATCH --nodes=2-4\nsrun --mpi=pmix ./prog", "--nodes 2-4 --srun mpi=pmix ./prog"),
        ("# a comment\n\n#SBATCH --exclusive\nsrun python -m pkg.t", "--sbatch exclusive -m pkg.t"),
    ],
)
def test_directives_become_options_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{lines}\n")
    assert refusal(spec(tmp_path, "sbatch", "job.sh"))[1] == f"clusterrun submit {line}"
    assert refusal(spec(tmp_path, "job.sh"))[1] == f"clusterrun submit {line}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--wrap", "python t.py 'a b'"], "t.py 'a b'"),
        (
            ["-N2", "--wrap=srun torchrun --nproc_per_node 2 t.py", "-J", "x"],
            "--nodes 2 --gpus 2 --name x t.py",
        ),
    ],
)
def test_the_text_of_wrap_is_converted(tmp_path: Path, arguments: list[str], line: str) -> None:
    assert refusal(spec(tmp_path, "sbatch", *arguments))[1] == f"clusterrun submit {line}"


def test_options_of_a_launcher_are_in_the_line_without_the_parser_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "clusterrun.script.conversion", None)
    (tmp_path / "job.sh").write_text(
        "#!/bin/sh\n#SBATCH -N 2\nA=1 srun -p q torchrun --nproc_per_node 2 t.py\n"
    )
    line = refusal(spec(tmp_path, "job.sh"))[1]
    assert line == "clusterrun submit --nodes 2 --gpus 2 --partition q --env A=1 t.py"


def test_sbatch_is_refused_without_slurm_too(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -N 2\npython t.py\n")
    assert refusal(spec(tmp_path, "sbatch", "job.sh"), on_slurm=False)[1] == "clusterrun submit t.py"


def test_options_of_sbatch_override_those_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -N 2 # two\nsrun python t.py\n")
    line = refusal(spec(tmp_path, "sbatch", "--requeue", "-N", "3", "--time=5", "job.sh"))[1]
    assert line == "clusterrun submit --nodes 3 --requeue --time 5 t.py"


def test_a_batch_script_behind_its_own_shell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("#!/bin/tcsh\n#SBATCH -N 2\nsrun python t.py\n")
    with pytest.raises(BadInput):
        check_command(spec(tmp_path, "tcsh", "-f", "job"), True)


def test_a_directive_that_clusterrun_refuses_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(BATCH.replace("--array=0-3", "--uid=7"))
    with pytest.raises(BadInput) as caught:
        check_command(spec(tmp_path, "job.sh"), True)
    assert "not in that line: --uid=7 (line 9: the run directory" in caught.value.remedy
    assert "or queue it as it is: sbatch job.sh" in caught.value.remedy


@pytest.mark.parametrize("change", [("\n", "\r\n"), ("#!", "# "), ("--array=0-3", "--uid=7 (mine)")])
def test_sbatch_is_not_advised_for_a_script_that_it_refuses(tmp_path: Path, change: tuple[str, str]) -> None:
    (tmp_path / "job.sh").write_bytes(BATCH.replace(*change).encode())
    with pytest.raises(BadInput) as caught:
        check_command(spec(tmp_path, "job.sh"), True)
    assert "sbatch refuses" in caught.value.remedy and "as it is: sbatch" not in caught.value.remedy


@pytest.mark.parametrize(
    ("lines", "wish", "phrase"),
    [
        ("torchrun --nproc_per_node=2 w.py", {"nodes": 2}, "line 2 starts torchrun"),
        ("echo a\nif true; then OMP=1 torchrun w.py; fi", {"nodes": 2}, "line 3 starts torchrun"),
        ("cd x && exec accelerate launch w.py", {"nodes": 2}, "line 2 starts accelerate"),
        ("srun \\\n hostname", {}, "line 2 calls srun inside the job of this run"),
        (
            "python -m torch.distributed.run w.py",
            {"gpus": 2},
            "line 2 starts python -m torch.distributed.run",
        ),
        ("sbatch --parsable other.sh $1", {}, "line 2 queues another job: clusterrun convert other.sh"),
        ("torchrun w.py", {}, ""),
        ("torchrun w.py", {"nodes": 2, "per_node": True}, ""),
        ("# torchrun w.py\necho 'use torchrun'\npip install torchrun", {"nodes": 2}, ""),
        ("srun --overlap hostname", {}, ""),
        ("echo 'an open\nquote'", {"nodes": 2}, ""),
    ],
)
@pytest.mark.parametrize("start", ["./run.sh", "bash run.sh"])
def test_a_launcher_in_a_shell_script_is_warned_of(
    tmp_path: Path, lines: str, wish: dict[str, Any], phrase: str, start: str
) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{lines}\n")
    warnings = check_command(spec(tmp_path, *start.split(), **wish), True)
    assert [phrase in warning for warning in warnings] == ([True] if phrase else [])


def test_a_warning_has_the_line_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in (("-c",), ("-l", "-c"), ("-lc",)):
        requested = spec(tmp_path, "bash", *options, "torchrun --nproc_per_node 2 w.py", nodes=2)
        (warning,) = check_command(requested, True)
        assert warning.endswith(": instead clusterrun submit --nodes 2 --gpus 2 w.py")


def test_a_launcher_in_a_variable_or_in_a_recipe_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(
        'ARGS="--nproc_per_node=2"\nexport A=1\nL="torchrun $ARGS"\nL+=" t.py"\n$L ${A} --x $B "$@"\n'
    )
    (tmp_path / "Makefile").write_text(
        "LAUNCH ?= torchrun --nproc_per_node=2\nall: data train\n\ntrain: data ; @:\n"
        "\t@$(LAUNCH) t.py --lr $$LR\ndata:\n\tcurl x\ntest:\n\tpytest\n"
    )
    (tmp_path / "justfile").write_text(
        "launch := 'torchrun --nproc_per_node=2'\n\ndata:\n  curl x\n"
        'train lr="0.1" *args: data\n  @{{ launch }} t.py --lr {{lr}}\n'
    )
    instead = "instead clusterrun submit --gpus 2"
    for command, where in (
        (("bash", "run.sh", "7"), "run.sh, line 5 starts torchrun"),
        (("bash", "run.sh", "7"), rf"{instead} --setup 'export A=1' bash -c 'exec python t.py 1 --x \$B 7'"),
        (("make",), f"Makefile, line 5 starts torchrun.*{instead} t.py --lr"),
        (("gmake", "-j", "2", "train"), "Makefile, line 5 starts torchrun"),
        (("timeout", "1h", "just", "train", "0.2"), f"justfile, line 6 starts torchrun.*{instead} t.py --lr"),
    ):
        (warning,) = check_command(spec(tmp_path, *command, gpus=2), True)
        assert re.search(where, warning)
    assert check_command(spec(tmp_path, "make", "test", gpus=2), True) == ()
    assert check_command(spec(tmp_path, "just", "data", gpus=2), True) == ()


def test_a_binary_program_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "prog").write_bytes(b"\x7fELF\0\n#SBATCH -N 2\ntorchrun w.py\n")
    assert check_command(spec(tmp_path, "./prog", nodes=2), True) == ()


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)\n", "line 2 calls mp.spawn()"),
        ("torch.multiprocessing.spawn(work)", "line 1 calls torch.multiprocessing.spawn()"),
        ("elastic_launch(config, work)()", "line 1 calls elastic_launch()"),
        ("notebook_launcher(work)", "line 1 calls notebook_launcher()"),
        ("if torch.cuda.device_count() < 2:\n    sys.exit()\n", "line 1 leaves the script"),
        (
            "if not verify_min_gpu_count(min_gpus=2):\n    print('no')\n    exit()\n",
            "line 1 leaves the script",
        ),
    ],
)
def test_a_launcher_in_a_script_is_reported_with_its_line(source: str, word: str) -> None:
    (sentence,) = in_python("train.py", source)
    assert sentence.startswith(f"train.py, {word}")


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
def test_a_word_that_resembles_a_launcher_is_none(source: str) -> None:
    assert [*in_python("train.py", source)] == []


@pytest.mark.parametrize(
    ("lines", "phrase"),
    [
        ("import subprocess\nsubprocess.run(['torchrun', 'x.py'])", "line 2 starts torchrun"),
        ("import os\nos.system('mpirun -n 4 ./a')", "line 2 starts mpirun"),
        ("import subprocess\nsubprocess.run(['srun', 'x.py'], check=True)", "line 2 calls srun inside"),
        ("import subprocess as sp\nsp.Popen(args=('srun', 'x.py'))", "line 2 calls srun inside"),
        (
            "from subprocess import check_call\ncheck_call(f'srun -n {n} x.py', shell=True)",
            "line 2 calls srun",
        ),
        ("import subprocess\nsubprocess.run('A=1 srun -n %d x' % n, shell=True)", "line 2 calls srun"),
        ("import subprocess\nsubprocess.run(['bash', '-c', 'cd x; srun x.py'])", "line 2 calls srun"),
        ("import os\nos.system('srun -n {} x'.format(n))", "line 2 calls srun"),
        ("import subprocess, shlex\nsubprocess.run(shlex.split('srun x.py'))", "line 2 calls srun"),
        ("import os\nos.execvp('srun', ['srun', 'x.py'])", "line 2 calls srun"),
        ("import os\nos.execlp('torchrun', 'torchrun', 'x.py')", "line 2 starts torchrun"),
        ("import asyncio\nasyncio.create_subprocess_exec('srun', 'x.py')", "line 2 calls srun"),
        (
            "import subprocess\nc = ['srun']\nc += ['-n', '2']\nsubprocess.run(c + ['x.py'])",
            "line 4 calls srun",
        ),
        (
            "import subprocess\ndef sh(*a, **b): pass\ndef run(c):\n  subprocess.run(c)\nrun(['srun', 'x'])",
            "line 5",
        ),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'torch.distributed.run', 'x.py'])",
            "line 2 starts python -m torch.distributed.run",
        ),
    ],
)
@pytest.mark.parametrize("start", ["job.py", "python3 -u job.py", "./job"])
def test_a_launcher_that_a_python_script_starts_is_warned_of(
    tmp_path: Path, lines: str, phrase: str, start: str
) -> None:
    for name in ("job.py", "job"):
        (tmp_path / name).write_text(f"#!/usr/bin/env python3\n{lines}\n")
    warnings = check_command(spec(tmp_path, *start.split(), nodes=2), True)
    number = int(phrase.split()[1]) + 1
    (warning,) = warnings
    assert warning.startswith(f"{start.split()[-1]}, line {number}{phrase.removeprefix('line ')[1:]}")


@pytest.mark.parametrize(
    ("lines", "wish", "on_slurm"),
    [
        ("import subprocess\nsubprocess.run(['srun', '--overlap', 'hostname'])", {"nodes": 2}, True),
        ("import subprocess\nsubprocess.run(['srun', 'hostname'])", {}, False),
        ("import subprocess\nsubprocess.run(['torchrun', 'x.py'])", {"nodes": 2, "per_node": True}, True),
        ("import subprocess\nsubprocess.run(['accelerate', 'config'])", {"nodes": 2}, True),
        ("import subprocess\nsubprocess.run(['echo', 'srun'])\nprint(['srun', 'x'])", {"nodes": 2}, True),
        ("import subprocess\nsubprocess.run(program)\nsubprocess.run()", {"nodes": 2}, True),
    ],
)
def test_processes_that_a_python_script_may_start_are_not_warned_of(
    tmp_path: Path, lines: str, wish: dict[str, Any], on_slurm: bool
) -> None:
    (tmp_path / "job.py").write_text(f"{lines}\n")
    assert check_command(spec(tmp_path, "job.py", **wish), on_slurm) == ()


def test_an_unknown_part_of_a_command_leaves_the_line_out(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import subprocess\nsubprocess.run(['srun', 'x.py', *rest])\n")
    (warning,) = check_command(spec(tmp_path, "job.py"), True)
    assert warning.endswith("whose nodes are in use")


PYTHON_BATCH = """#!/usr/bin/env python3
#SBATCH --nodes=2 --time=1:00:00
#SBATCH --mail-type=END --array=0-3
import subprocess
{call}
"""


@pytest.mark.parametrize(
    ("call", "typed", "wish", "line", "warnings"),
    [
        ("", "job.py --lr 1", {}, "--time 1:00:00 --sbatch mail-type=END job.py --lr 1", 0),
        ("", "./job", {}, "--time 1:00:00 --sbatch mail-type=END ./job", 0),
        ("", "python3 job.py", {}, "--time 1:00:00 --sbatch mail-type=END job.py", 0),
        (
            "subprocess.run(['srun', 'python', 'train.py'])",
            "job.py",
            {"gpus": 2},
            "--gpus 2 --nodes 2 --time 1:00:00 --sbatch mail-type=END train.py",
            1,
        ),
        (
            "subprocess.run(['torchrun', 'x.py'])",
            "job.py",
            {"per_node": True},
            "--per-node --time 1:00:00 --sbatch mail-type=END job.py",
            0,
        ),
    ],
)
def test_a_python_script_with_directives_runs_with_one_notice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    typed: str,
    wish: dict[str, Any],
    line: str,
    warnings: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("job.py", "job"):
        (tmp_path / name).write_text(PYTHON_BATCH.format(call=call))
    notice, *others = check_command(spec(tmp_path, *typed.split(), **wish), True)
    assert "does not read the batch options" in notice
    assert f": instead clusterrun submit {line}; not in that line: --array" in notice
    assert len(others) == warnings


def test_a_refused_batch_script_names_the_files_that_its_output_does_not_go_to(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -o slurm.out\npython main.py >> std.log 2>> err.log\n"
    (tmp_path / "job.sbatch").write_text(text)
    with pytest.raises(BadInput) as caught:
        check_command(spec(tmp_path, "job.sbatch"), True)
    assert "in place of --output=slurm.out, >> std.log, 2>> err.log" in caught.value.remedy


PYTHON_BATCH_ALONE = """#!/usr/bin/env python
#SBATCH -t 2 --comment=24:00:00 -N 1 --ntasks-per-node=2 --export=ALL,A=1
#SBATCH --output=job.out --error=job.err
#SBATCH --signal=B:USR1@60 --requeue
"""


def test_a_python_batch_script_runs_once_as_with_sbatch_and_the_offered_line_gets_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(PYTHON_BATCH_ALONE)
    (notice,) = check_command(spec(tmp_path, "job.py"), True)
    assert "--ranks-per-node" not in notice and "in place of --output=job.out, --error=job.err" in notice
    entries = ("comment=24:00:00", "signal=B:USR1@60")
    typed = {"sbatch": entries, "time": 120, "requeue": True, "environment": (("A", "1"),)}
    assert check_command(spec(tmp_path, "job.py", **typed, cpus_per_rank=2), True) == ()
    (notice,) = check_command(spec(tmp_path, "job.py", **{**typed, "time": 0}, cpus_per_rank=2), True)
    assert notice.count("comment=24:00:00") == 1


@pytest.mark.parametrize(
    ("wish", "is_reported"), [({"nodes": 2}, True), ({}, False), ({"nodes": 2, "per_node": True}, False)]
)
def test_a_starter_of_ranks_is_reported_if_every_rank_calls_it(
    tmp_path: Path, wish: dict[str, Any], is_reported: bool
) -> None:
    (tmp_path / "train.py").write_text("import torch.multiprocessing as mp\nmp.spawn(print)\n")
    assert bool(check_command(spec(tmp_path, "train.py", **wish), True)) == is_reported


def test_a_python_script_that_asks_for_gpus_is_refused_until_a_size_is_typed(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("#!/usr/bin/env python3\n#SBATCH --gres=gpu:2\nimport torch\n")
    observed, offered = refusal(spec(tmp_path, "fit.py"))
    assert "is a batch script" in observed and "--gpus 2" in offered
    check_command(spec(tmp_path, "fit.py", gpus=4), True)


def test_a_launcher_of_one_process_says_that_its_gpu_is_not_asked_for(tmp_path: Path) -> None:
    (warning,) = check_command(spec(tmp_path, "torchrun", "--nproc_per_node=1", "train.py"), True)
    assert "--gpus 1 train.py" in warning and "the same" not in warning
