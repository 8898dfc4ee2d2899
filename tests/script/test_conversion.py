"""Each part of a batch script is translated, kept as a setup line, or named with the reason."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.script import quoting
from clusterrun.script.batch_scripts import Conversion, PartOutcome
from clusterrun.script.conversion import convert
from clusterrun.script.sbatch_lines import read_directives
from clusterrun.script.script_reading import LOGIN
from clusterrun.script.shell_source import ShellSource

SCRIPTS = sorted((Path(__file__).parents[1] / "recorded/batch-scripts").glob("*.sbatch"))


# COMMAND, if a setup line expands its words.
EVALUATED = """bash -c 'eval "set -- $ARGUMENTS"\nexec python "$@"'"""


def converted(lines: str, **files: str) -> Conversion:
    return convert(f"#!/bin/bash\n{lines}\n", lambda path: files.get(path.replace(".", "_"), ""))


def typed(conversion: Conversion) -> str:
    return " ".join(conversion.words()).removeprefix("clusterrun ")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_directive_and_statement_of_a_recorded_script_is_accounted_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = {part.line for part in convert(text).parts}
    directives = {directive.line for directive in read_directives(text)}
    statements = {statement.line for statement in ShellSource(text).statements}
    assert directives | statements <= lines


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_statement_of_a_recorded_script_has_one_outcome_and_its_setup_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    conversion = convert(text)
    in_line = "\n".join(value for _, value in conversion.options)
    for statement in ShellSource(text).statements:
        own = [
            part for part in conversion.parts if (part.line, part.text) == (statement.line, statement.text)
        ]
        assert len({part.outcome for part in own} - {PartOutcome.OPTION}) < 2
        is_setup = any(part.outcome is PartOutcome.SETUP for part in own)
        # The line has the values of Slurm's counts of tasks.
        assert not is_setup or statement.text in in_line or "$SLURM_" in statement.text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_untranslated_or_unneeded_line_has_a_reason(path: Path) -> None:
    parts = convert(path.read_text(encoding="utf-8")).parts
    silent = [part for part in parts if part.outcome in (PartOutcome.NEEDLESS, PartOutcome.UNTRANSLATED)]
    assert all(part.reason for part in silent)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("#SBATCH -N2 --gpus-per-node=4\nsrun torchrun --nproc_per_node 4 t.py", "--nodes 2 --gpus 4 t.py"),
        ("#SBATCH -N2 -D src\nsrun python t.py", "--nodes 2 --setup 'cd src' t.py"),
        ("module load cuda\nA=1\nsrun python t.py $A", "--setup 'module load cuda' t.py 1"),
        ("ARGS='--lr 1 --x'\nsrun python t.py $ARGS", "t.py --lr 1 --x"),
        ('ARGS=(--lr "a b")\nsrun python t.py "${ARGS[@]}"', "t.py --lr 'a b'"),
        ("srun python t.py --id $SLURM_JOB_ID", "bash -c 'exec python t.py --id $SLURM_JOB_ID'"),
        ("V=$(date)\nsrun python t.py $V", "--setup 'export V=$(date)' bash -c 'exec python t.py $V'"),
        ("srun python t.py *.txt", "bash -c 'exec python t.py *.txt'"),
        ("srun -n2 python t.py '<a>' --x", "--ranks-per-node 2 t.py '<a>' --x"),
        ("X=1\nsrun python t.py <(echo $X)", "--setup 'export X=1' bash -c 'exec python t.py <(echo $X)'"),
        ("export X='$HOME'\nsrun python t.py '$HOME'", """--setup 'export X='"'"'$HOME'"'"'' t.py '$HOME'"""),
        ("FOO=1 srun python t.py", "--env FOO=1 t.py"),
        ("#SBATCH -N4\nN=$((SLURM_NNODES * 8))\nsrun -n $N python t.py", "--nodes 4 --ranks-per-node 8 t.py"),
        (
            "#SBATCH -N2 --gres=gpu:4\nN=$((SLURM_GPUS_ON_NODE / 2))\n"
            "srun torchrun --nnodes 2 --nproc_per_node $N t.py",
            "--nodes 2 --ranks-per-node 2 --sbatch gres=gpu:4 t.py",
        ),
        ("#SBATCH -N4 --ntasks-per-node=2\nsrun -N 3 python t.py", "--nodes 3 --ranks-per-node 2 t.py"),
        (
            "export LOCAL_RANK=$SLURM_LOCALID\nsrun -n2 python t.py $LOCAL_RANK",
            "--ranks-per-node 2 --setup 'export LOCAL_RANK=$SLURM_LOCALID' "
            '--setup \'ARGUMENTS="$(printf "%q " t.py $LOCAL_RANK)" && export ARGUMENTS\' ' + EVALUATED,
        ),
        ("#SBATCH -N4\nN=$((SLURM_NNODES))\nN=$((N - 1))\nsrun -N $N python t.py", "--nodes 3 t.py"),
        (
            "#SBATCH -N4 --gres=gpu:2\nsrun -N 2 torchrun --nnodes 2 --nproc_per_node 2 t.py",
            "--nodes 2 --gpus 2 t.py",
        ),
        (
            "export S\nfor S in 1 2; do\n    python t.py\ndone",
            "--setup 'export S' bash -c 'export S\nfor S in 1 2; do\n    python t.py\ndone'",
        ),
        ("python prepare.py\nsrun python t.py", "--setup 'python prepare.py || :' t.py"),
        ("set -ex\npython prepare.py\nsrun python t.py", "--setup 'python prepare.py' t.py"),
        (". ~/.bashrc\nsource a\nsrun python t.py", "--setup '. ~/.bashrc || :' --setup 'source a' t.py"),
        (
            "#SBATCH -N2\nsrun --ntasks-per-node=1 cp d /tmp\nsrun python t.py",
            "--nodes 2 --setup 'srun --ntasks-per-node=1 cp d /tmp || :' t.py",
        ),
        (
            "#SBATCH -N2\n#SBATCH --ntasks-per-node=1\nsrun ./stage a\nsrun python t.py",
            "--nodes 2 --setup 'srun ./stage a || :' t.py",
        ),
        ("cd src && srun python t.py", "--setup 'cd src' t.py"),
        ("srun --container-image=docker://a/b:1 python t.py", "--container a/b:1 t.py"),
        ("#SBATCH --container-image=docker://a/b:1\nsrun python t.py", "--container a/b:1 t.py"),
        ("srun python3 t.py $SLURM_JOB_ID", "bash -c 'exec python3 t.py $SLURM_JOB_ID'"),
        ("srun python3 t.py", "t.py"),
        ("A=(1 2)\nf() { srun python t.py $1 $2; }\nf ${A[1]} x", "t.py 2 x"),
        ("P=$(which python)\nsrun $P t.py", "t.py"),
        ('srun "$(command -v torchrun)" --nproc_per_node 2 t.py', "--gpus 2 t.py"),
        ("mpiexec -n 2 -genv A 1 python t.py", "--ranks-per-node 2 --env A=1 t.py"),
        (
            "#SBATCH --gres=gpu:4\ndeepspeed --include localhost:0,2 t.py",
            "--ranks-per-node 2 --sbatch gres=gpu:4 --env CUDA_VISIBLE_DEVICES=0,2 t.py",
        ),
        (
            "#SBATCH -N2\nH=h.$USER\nfor n in a b; do echo $n; done > $H\nmpirun -np 4 --hostfile $H ./t",
            "--nodes 2 --ranks-per-node 2 ./t",
        ),
        (
            "A=$(f)\nsrun python - --x <<E\nprint($A)\nE",
            "--setup 'export A=$(f)' bash -c 'exec python - --x <<E\nprint($A)\nE'",
        ),
        (
            "#SBATCH -N2\nmapfile -t H < <(scontrol show hostnames)\nfor i in ${!H[@]}; do\n"
            " srun -N1 -w ${H[$i]} torchrun --nnodes 2 --nproc_per_node 2 --node_rank $i t.py &\ndone\nwait",
            "--nodes 2 --gpus 2 t.py",
        ),
        (
            '#SBATCH -N2\nfor n in $(h); do\n ssh $n "torchrun --nnodes 2 --nproc_per_node 2 --node_rank $i '
            "t.py '$SLURM_JOB_ID x'\" &\ndone\nwait",
            '--nodes 2 --gpus 2 bash -c \'eval "exec python t.py \\"$SLURM_JOB_ID x\\""\'',
        ),
        ("#SBATCH --image=i --of_plugin", "--sbatch image=i --sbatch of_plugin COMMAND"),
        ("#SBATCH --no-container-entrypoint\npython t.py", "--srun no-container-entrypoint t.py"),
        (
            "srun --container-image=i --container-name=c python t.py",
            "--container i --srun container-name=c t.py",
        ),
        ("f() { torchrun --nproc_per_node 2 t.py $1; }\nexport -f f\nsrun bash -c 'f 1'", "--gpus 2 t.py 1"),
        ("srun python t.py < in.txt > out.txt 2>&1", "--input in.txt t.py"),
        ("./prog < in.$SLURM_JOB_ID", "bash -c 'exec ./prog < \"in.$SLURM_JOB_ID\"'"),
        ("#SBATCH --gres=gpu:2\npython t.py", "--gpus 2 --per-node t.py"),
        ("#SBATCH --gres=gpu:1\npython t.py", "--gpus 1 t.py"),
        ("#SBATCH --gres=gpu:2 --ntasks-per-node=2\nsrun python t.py", "--gpus 2 t.py"),
        ("#SBATCH --gres=gpu:2 --ntasks-per-node=1\nsrun python t.py", "--gpus 2 --per-node t.py"),
        ("srun --container-image=i --container-mounts=$PWD:/w ./p", '--container i --mount "$PWD:/w" ./p'),
        ("srun --comment='a $x' python t.py", "--srun 'comment=a $x' t.py"),
        ('srun --comment="$USER \\$x" python t.py', '--srun "comment=$USER \\$x" t.py'),
        ("#SBATCH --comment=$x --account=$A\nsrun python t.py", "--account '$A' --sbatch 'comment=$x' t.py"),
        ("srun --export=ALL,A='v $x' python t.py", "--env 'A=v $x' t.py"),
        ("A='$x' B=$USER srun python t.py", "--env 'A=$x' --setup 'export B=\"$USER\"' t.py"),
        ("srun --chdir='/d $x' python t.py", """--setup 'cd '"'"'/d $x'"'"'' t.py"""),
        ("deepspeed --num_gpus 2 t.py --deepspeed d.json", "--gpus 2 t.py --deepspeed d.json"),
        (
            "srun bash -c 'source e.sh; torchrun --nproc_per_node 2 t.py'",
            "--gpus 2 --setup 'source e.sh' t.py",
        ),
        ('L="torchrun --nproc_per_node 2"\nsrun bash -c "$L t.py"', "--gpus 2 t.py"),
        ("bash -c 'srun --ntasks-per-node=4 python t.py'", "--ranks-per-node 4 t.py"),
        ("f() {\n torchrun --nproc_per_node 2 t.py\n}\nA=1 f", "--gpus 2 --env A=1 t.py"),
        ('L="torchrun --nproc_per_node 2 --nnodes $((SLURM_NNODES * 1))"\nsrun $L t.py', "--gpus 2 t.py"),
        (
            "accelerate launch --config_file a.yaml t.py",
            "--per-node bash -c 'exec accelerate launch --config_file a.yaml --num_machines $NNODES "
            "--num_processes $((NNODES * NPROC_PER_NODE)) --machine_rank $NODE_RANK "
            "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT t.py'",
        ),
        (
            "uv run accelerate launch --config_file a.yaml t.py",
            "--per-node bash -c 'exec uv run accelerate launch --config_file a.yaml --num_machines $NNODES "
            "--num_processes $((NNODES * NPROC_PER_NODE)) --machine_rank $NODE_RANK "
            "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT t.py'",
        ),
        ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python t.py &\nwait", "--requeue t.py"),
        ("trap 'sbatch $0' USR1\nsrun python t.py &\nwait", "--requeue t.py"),
        (
            'h() {\n kill $P\n wait $P\n sbatch "$0"\n}\ntrap h USR1\nsrun python t.py &\nP=$!\nwait $P',
            "--requeue t.py",
        ),
        (
            "set -a\n. ./e\nX=1\nset +a\nY=1\nsrun python t.py",
            "--setup 'set -a || :' --setup '. ./e' --setup X=1 --setup 'set +a || :' t.py",
        ),
        (
            "#SBATCH --signal=B:USR1@300\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python t.py",
            "--sbatch signal=B:USR1@300 --requeue t.py",
        ),
        (
            "m=$(f)\ns=$(g)\npython t.py r/$SLURM_JOB_ID/$m-$s",
            "--setup 'export m=$(f)' --setup 'export s=$(g)' "
            "bash -c 'exec python t.py r/$SLURM_JOB_ID/$m-$s'",
        ),
        (
            "srun --chdir=/tmp -c 2 -t 5 python $PWD/t.py",
            "--cpus-per-rank 2 --time 5 --setup 'cd /tmp' bash -c 'exec python $SLURM_SUBMIT_DIR/t.py'",
        ),
        (
            'srun python t.py "$(hostname)" --s=$RANDOM',
            '--setup \'ARGUMENTS="$(printf "%q " t.py "$(hostname)" --s=$RANDOM)" && export ARGUMENTS\' '
            f"{EVALUATED}",
        ),
        ("srun bash -c 'python t.py $(hostname)'", "bash -c 'python t.py $(hostname)'"),
        ("srun --input=in.txt python t.py < in.txt", "--input in.txt t.py"),
        ("python - <<E\n1\nE\nsrun python t.py", "--setup '{ python - <<E\n1\nE\n} || :' t.py"),
        ("f -l 1 > log &\nP=$!\nsrun python t.py\nkill $P", "--setup 'f -l 1 > log &' t.py"),
        (
            "for h in $(f); do echo $h; done > hosts\nsrun python t.py",
            "--setup 'for h in $(f); do echo $h; done > hosts || :' t.py",
        ),
        (
            "N=$(f)\nsrun python t.py $((N - 1))",
            "--setup 'export N=$(f)' bash -c 'exec python t.py $((N - 1))'",
        ),
        ("N=0\nsrun python t.py $((N - 1))", "t.py -1"),
        ("srun /e/bin/python -u t.py", "--python /e/bin/python t.py"),
        ("P=~/e/bin/python\nsrun $P t.py", "--setup 'export P=~/e/bin/python' bash -c 'exec $P t.py'"),
        ("D=~/d\nsrun python t.py $D/x", "--setup 'export D=~/d' bash -c 'exec python t.py $D/x'"),
        ("srun python3.11 -m a.b", "--python python3.11 -m a.b"),
        ("srun $E/bin/python t.py", "bash -c 'exec $E/bin/python t.py'"),
        ("/e/bin/torchrun --nproc_per_node 2 t.py", "--gpus 2 --python /e/bin/python t.py"),
        (
            "srun -n2 apptainer exec i /e/bin/python t.py",
            "--ranks-per-node 2 apptainer exec i /e/bin/python t.py",
        ),
        ("env -u A B=1 srun -n2 python t.py", "--ranks-per-node 2 --env B=1 --setup 'unset A' t.py"),
        ("srun python t.py $SLURM_JOB_NAME", "--name SCRIPT bash -c 'exec python t.py $SLURM_JOB_NAME'"),
    ],
)
def test_a_script_becomes_a_line(lines: str, line: str) -> None:
    assert typed(converted(lines)) == f"submit {line}"


def test_a_shell_script_that_srun_starts_is_the_command_if_nothing_trains() -> None:
    script = convert("#!/bin/bash\nsrun ./steps.sh 3\n", lambda path: "#!/bin/bash\necho $1\n")
    assert (script.command, script.untranslated) == (("./steps.sh", "3"), ())


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (
            "#SBATCH -a 0-3%2\npython t.py $SLURM_ARRAY_TASK_ID",
            "--set 'task=range(0,4)' --at-most 2 --env 'SLURM_ARRAY_TASK_ID={task}' "
            "--env SLURM_ARRAY_TASK_MIN=0 --env SLURM_ARRAY_TASK_MAX=3 --env SLURM_ARRAY_TASK_COUNT=4 "
            "--env SLURM_ARRAY_TASK_STEP=1 t.py '{task}'",
        ),
        (
            "#SBATCH -a 1,4-8:4\npython t.py $SLURM_ARRAY_TASK_ID",
            "--set task=1,4,8 --env 'SLURM_ARRAY_TASK_ID={task}' "
            "--env SLURM_ARRAY_TASK_MIN=1 --env SLURM_ARRAY_TASK_MAX=8 --env SLURM_ARRAY_TASK_COUNT=3 "
            "--env SLURM_ARRAY_TASK_STEP=1 t.py '{task}'",
        ),
        ("for lr in 0.1 1; do python t.py $lr; done", "--set lr=0.1,1 --at-most 1 t.py '{lr}'"),
        ("for i in {1..3}; do srun python t.py $i; done", "--set i=1,2,3 --at-most 1 t.py '{i}'"),
        ("for i in 1 2; do srun python t.py $i & done\nwait", "--set i=1,2 t.py '{i}'"),
        ("for i in 1 2; do python t.py $i & done\nwait\npython join.py", "--set i=1,2 t.py '{i}'"),
        (
            "#SBATCH --gres=gpu:a100:2\nfor i in 0 1; do CUDA_VISIBLE_DEVICES=$i python t.py $i & done\nwait",
            "--gpus a100:1 --set i=0,1 t.py '{i}'",
        ),
        (
            "#SBATCH -n4 --gpus-per-task=1\nfor i in 1 2; do srun --exclusive -n1 python t.py $i & done",
            "--gpus 1 --set i=1,2 t.py '{i}'",
        ),
        (
            "#SBATCH -n4 --gres=gpu:4\nfor i in 1 2; do srun -n1 --gpus-per-task=2 python t.py $i & done",
            "--gpus 2 --set i=1,2 --per-node t.py '{i}'",
        ),
        ("A=(x y)\nfor i in ${!A[@]}; do\n python t.py $i\ndone", "--set i=0,1 --at-most 1 t.py '{i}'"),
    ],
)
def test_an_array_or_a_loop_becomes_a_sweep(lines: str, line: str) -> None:
    assert typed(converted(lines)) == f"sweep {line}"


def test_a_login_shell_reads_its_profiles() -> None:
    conversion = convert("#!/bin/bash -l\n#SBATCH -N2\nsrun python t.py\n")
    assert ("setup", LOGIN) in conversion.options and conversion.parts[0].line == 1
    assert not dict(convert("#!/usr/bin/env bash\nsrun python t.py\n").options)


def test_an_option_that_keeps_local_rank_out_of_the_arguments_is_understood() -> None:
    launch = "python -m torch.distributed.launch {} --nproc_per_node 2 t.py"
    remarks = [
        [part.reason for part in converted(launch.format(option)).parts] for option in ("", "--use_env")
    ]
    assert any("--local-rank" in reason for reason in remarks[0])
    assert not any("--local-rank" in reason for reason in remarks[1])
    assert "--local_rank" in reasons_of("deepspeed --num_gpus 2 t.py", 2)
    assert "--local_rank" not in reasons_of("deepspeed --num_gpus 2 --no_local_rank t.py", 2)


@pytest.mark.parametrize(
    "line", ["time srun ./t", "/usr/bin/time -v torchrun --nproc_per_node 2 t.py", "time python t.py"]
)
def test_time_in_front_of_the_command_is_named(line: str) -> None:
    assert "how long the run took" in reasons_of(line, 2)


def test_setup_lines_of_an_array_see_the_index_of_the_script() -> None:
    lines = "#SBATCH -a 1-9:2\nC=$(sed -n ${SLURM_ARRAY_TASK_ID}p l)\npython t.py $C"
    assert typed(converted(lines)) == (
        "sweep --set 'task=range(1,10,2)' --env SLURM_ARRAY_TASK_MIN=1 --env SLURM_ARRAY_TASK_MAX=9 "
        "--env SLURM_ARRAY_TASK_COUNT=5 --env SLURM_ARRAY_TASK_STEP=2 "
        "--setup 'export SLURM_ARRAY_TASK_ID={task}' "
        "--setup 'export C=$(sed -n ${SLURM_ARRAY_TASK_ID}p l)' bash -c 'exec python t.py $C'"
    )


def test_a_script_that_the_command_starts_is_read_too() -> None:
    conversion = converted("srun -N2 bash run.sh", run_sh="export A=1\ntorchrun --nproc_per_node 4 t.py -x\n")
    assert typed(conversion) == "submit --nodes 2 --gpus 4 --setup 'export A=1' t.py -x"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("#SBATCH --uid=7\nsrun python t.py", "#SBATCH --uid=7"),
        ("#SBATCH --array=$N\nsrun python t.py", "#SBATCH --array=$N"),
        ("if a; then R=$(f); fi\ntorchrun $R $MAIN -x", "$R"),
        ("if [ $X ]; then srun python t.py; fi", "if [ $X ]; then srun python t.py; fi"),
        ("CUDA_VISIBLE_DEVICES=0 python a.py &\npython t.py &\nwait", "CUDA_VISIBLE_DEVICES=0 python a.py"),
        ("./a &\n./b &\nwait", "./a"),
        ("srun -n1 python s.py &\nuntil f; do sleep 1; done\nsrun -n2 python t.py", "until f"),
        ("for n in $(f); do\n A=$n srun -N1 -w $n torchrun --nnodes 2 t.py &\ndone", "for n in"),
        ("for n in $(f); do\n srun -N1 -w $n torchrun --nnodes 2 t.py $n &\ndone", "for n in"),
        ("cd $(dirname $0)\nsrun python t.py", "$0"),
        ("D=$(scontrol show job $SLURM_JOB_ID | grep Command=)\nsrun python $D/t.py", "scontrol show job"),
        ("#SBATCH --tres-per-task=cpu=2,gres/gpu:1\nsrun python t.py", "#SBATCH --tres-per-task"),
        ("deepspeed --include a:0@b:0 t.py", "--include a:0@b:0"),
        ("#PBS -l nodes=2:ppn=4\nmpirun python t.py", "#PBS -l nodes=2:ppn=4"),
        ("#BSUB  -W 10\nsrun python t.py", "#BSUB -W 10"),
        ("#$ -t 1-4\npython t.py", "#$ -t 1-4"),
        ("srun --bcast=x python t.py", "--bcast=x"),
        ("yes | srun python t.py", "yes"),
        ("#SBATCH -N 1-2 --gpus=8\nsrun python t.py", "#SBATCH --gpus=8"),
        ("srun --bcast=x bash -c 'torchrun --nproc 2 t.py'", "--bcast=x"),
        ("torchrun --nproc_per_node 2 t.py <<E\n1\nE", "<<E"),
        ("(flock -n 9 || exit 1; torchrun --nproc_per_node 2 t.py) 9>l", "flock -n 9 || exit 1"),
        ("for A in 1 2; do srun --export=ALL,B=$A python t.py && break; done", "B"),
        ("if ! srun -n2 python t.py; then python report.py; fi", "python report.py"),
        ("python t.py\nR=$?\n[ $R = 3 ] && R=0\nexit $R", "[ $R = 3 ] && R=0"),
        ("sbatch next.sh\nsrun python t.py", "sbatch next.sh"),
        ("trap 'touch x' USR1\nsrun python t.py", "trap 'touch x' USR1"),
        ("trap 'sbatch $0 2' USR1\nsrun python t.py", "sbatch $0 2"),
        ("h() {\n sbatch next.sh\n}\ntrap h USR1\nsrun python t.py", "sbatch next.sh"),
        ("h() {\n scancel $B\n scontrol requeue $A\n}\ntrap h USR1\nsrun python t.py", "scancel $B"),
        ("if [ -f a ]; then srun python a.py; else srun python b.py; fi | tee log", "srun python a.py"),
        ("if ! srun python t.py; then ./tidy; fi < in", "if !"),
        ("cat l | while read x; do srun python t.py $x; done", "cat l"),
        ("for i in 1 2; do srun python t.py $i; done < grid", "for i"),
        ("[ -d data ] || ./fetch && srun python t.py", "./fetch"),
        ("srun python t.py\nR=$(./evaluate)", "R="),
        ("#SBATCH --container=bundle\nsrun python t.py", "#SBATCH --container"),
        ('set -- python t.py\nexec "$@"', "exec"),
        ("#SBATCH --nodes=${N:-1}\nsrun python t.py", "#SBATCH --nodes"),
        ('source a.env\nsrun --container-image="$IMAGE" python t.py', "$IMAGE"),
    ],
)
def test_an_untranslatable_line_is_named(lines: str, text: str) -> None:
    assert [part.text for part in converted(lines).untranslated if part.text.startswith(text)]


def test_a_signal_that_a_handler_passes_on_reaches_the_ranks() -> None:
    handler = (
        "h() {\n scancel --signal=USR1 $SLURM_JOB_ID.0 || true\n wait $P || true\n scontrol requeue $A\n}"
    )
    conversion = converted(
        f"#SBATCH --signal=B:USR1@60\n{handler}\ntrap h USR1\nsrun python t.py &\nP=$!\nwait $P"
    )
    assert ("sbatch", "signal=B:USR1@60") in conversion.options
    assert not conversion.untranslated


def test_a_directive_behind_the_first_command_is_named() -> None:
    parts = converted("#SBATCH -N2\nA=1\n#SBATCH -t 5\nsrun python t.py").parts
    assert [(part.line, part.outcome) for part in parts if "-t" in part.text] == [(4, PartOutcome.NEEDLESS)]


def test_a_script_of_another_language_is_the_command() -> None:
    text = "#!/home/josh/env/bin/python\n#SBATCH --gres=gpu:2 --uid=7\nx = 1\n"
    conversion = convert(text, path="job.py")
    assert typed(conversion) == "submit --gpus 2 --per-node /home/josh/env/bin/python job.py"
    assert [part.text for part in conversion.untranslated] == ["#SBATCH --uid=7"]
    assert typed(convert("#!/usr/bin/env -S perl -w\nprint 1;\n")) == "submit perl SCRIPT"


@pytest.mark.parametrize(
    "lines",
    [
        "#SBATCH --distribution=cyclic\nsrun python t.py",
        "#SBATCH --gpu-bind=single:1\nsrun python t.py",
        "#SBATCH -n2\nsrun --cpu-bind=map_cpu:0,1 python t.py",
        "srun --cpu-bind=verbose,cores python t.py",
        "#SBATCH -n2 --gpus-per-task=1\nsrun python t.py",
        "srun --export=NONE python t.py",
        "srun --gres=nvme:1 python t.py",
        "srun --kill-on-bad-exit=0 python t.py",
        "export SLURM_CPU_BIND=cores\nsrun python t.py",
        "[ $A ] && sbatch $0\nsrun python t.py",
        "rm -r out\ntorchrun --nproc_per_node 2 a.py\ntorchrun --nproc_per_node 2 t.py",
        "f() { CUDA_VISIBLE_DEVICES=$1 python t.py $1 & }\nf 0\nf 1\nwait",
        "for i in 1 2 3; do\n python t.py $i && break\ndone",
        "for i in 1 2 3; do\n [ -f out/$i ] && continue\n srun python t.py $i\ndone",
        "L=0\nfor i in 1 2 3; do\n srun python t.py $i --load $L\n L=$i\ndone",
        "if [ -f done ]; then exit 0; fi\nsrun python t.py",
        "bash prepare.sh\nsrun python t.py",
        "W=$SLURM_CPUS_ON_NODE\nsrun python t.py $W",
        "#SBATCH --gpus=2\nexport CUDA_VISIBLE_DEVICES=$(f)\ntorchrun --nproc_per_node 2 t.py",
        "torchrun --nnodes 1:2 --nproc_per_node 1 t.py",
        "#SBATCH --requeue\nsrun python t.py",
        "#SBATCH -n4\nsrun python t.py",
        "set -- a b\npython t.py $1",
        'f() { srun python t.py "$@"; }\nf $(echo 1 2)',
        "#SBATCH -N1 --ntasks-per-node=2\nmpirun -np 4 python t.py",
        "python t.py --at $MASTER_ADDR",
        "torchrun --nproc_per_node 2 t.py --n $SLURM_NTASKS",
        "#SBATCH -n4 -c2\nsrun torchrun --nproc_per_node 2 t.py",
        "#SBATCH -c2\nsrun torchrun --nproc_per_node 2 t.py",
        "#SBATCH --gpus=2\nsrun torchrun --nproc_per_node 2 t.py",
        "srun ./absent.sh",
        "F=$(find_it)\nbash $F",
        "for n in 1 2; do\n srun -n $n ./solve\ndone",
        "#SBATCH -N1 -c4 --gpus=4\nsrun torchrun --nnodes=4 --nproc_per_node=4 t.py",
        "#SBATCH -n5 --gpus-per-task=1 -c1\nsrun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1 t.py",
        "python t.py $SLURM_ARRAY_TASK_ID",
        "#SBATCH -c1 --gres=gpu:2\nsrun torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE t.py",
    ],
)
def test_what_the_line_would_do_otherwise_is_named(lines: str) -> None:
    parts = converted(lines, prepare_sh="echo $SLURM_NTASKS > tasks").parts
    assert any(part.reason and part.outcome is not PartOutcome.NEEDLESS for part in parts)


@pytest.mark.parametrize(
    "line", ["cd a && python t.py &> log", "cd a && python t.py | tee log", "python t.py > log"]
)
def test_the_file_of_the_output_is_named(line: str) -> None:
    assert any("log" in part.text and part.reason for part in converted(line).parts)


@pytest.mark.parametrize(
    "lines",
    [
        "set -e\nfor i in 1; do false; echo on; done\npython t.py",
        "set -e\nX=$(false)\necho on > /dev/stdout\npython t.py $X",
        "set -eo pipefail\nX=$(false | true)\necho on > /dev/stdout\npython t.py $X",
        "set -e\nf() { false; echo on; }\nf a\npython t.py",
        "set -e\nfor c in a b; do\n mkdir /proc/x\n python t.py $c\ndone",
        "set -e\nf() { mkdir /proc/x; python t.py; }\nf",
        "trap 'echo failed\nexit 1' ERR\nmkdir /proc/x\npython t.py",
    ],
)
def test_an_error_before_the_command_ends_the_run_of_a_script_with_errexit(lines: str) -> None:
    setup = [value for name, value in converted(lines).options if name == "setup"]
    code = 'setup_failed() { exit "$1"; }\n' + quoting.checked(setup)
    completed = subprocess.run(["bash", "-c", code], capture_output=True, check=False, text=True)
    assert (completed.returncode, completed.stdout) == (1, "")


def test_a_first_line_that_sbatch_refuses_is_named() -> None:
    assert any(part.line == 1 and part.reason for part in convert("\n#!/bin/bash\npython t.py\n").parts)


@pytest.mark.parametrize(
    ("lines", "program", "named"),
    [
        (
            "module load x\npython p.py\nsrun python a.py\nsrun -n2 python b.py\npython c.py",
            "b.py",
            {3, 4, 6},
        ),
        ("srun -n1 python a.py 1 &\nsrun -n1 python a.py 2 &\nwait", "1", {3}),
        ("python t.py 1\npython t.py 2", "2", {2}),
        ("python train.py\npython evaluate.py", "train.py", {3}),
        ("python train.py\nif [ -f best ]; then python evaluate.py; fi", "train.py", {3}),
        ("bash a.sh | tee a.log &\nbash b.sh | tee b.log &\nwait", "b.sh", {2}),
        ("srun python a.py &\nwait\nsrun python b.py", "a.py", {4}),
    ],
)
def test_a_program_that_is_not_the_command_is_named(lines: str, program: str, named: set[int]) -> None:
    conversion = converted(lines)
    parts = (*conversion.untranslated, *conversion.changed)
    assert conversion.command[-1] == program
    assert named <= {part.line for part in parts if part.outcome is not PartOutcome.OPTION}


@pytest.mark.parametrize(
    "lines", ["for i in 1 2; do python t.py $i '{i}'; done", "#SBATCH -a 0-1\nsrun t.py {task}"]
)
def test_a_text_that_a_sweep_would_replace_is_named(lines: str) -> None:
    assert any(part.text in ("{i}", "{task}") for part in converted(lines).untranslated)


def test_a_directive_that_a_later_one_replaces_is_named() -> None:
    parts = converted("#SBATCH --gres=gpu:1 --gres=shard:5\n#SBATCH --mail-type=END\npython t.py").parts
    assert [part.text for part in parts if "replaces" in part.reason] == ["#SBATCH --gres=gpu:1"]


def test_an_option_of_pbs_is_needless_with_ignore_pbs() -> None:
    assert not converted("#PBS -N x\n#SBATCH --ignore-pbs\nsrun python t.py").untranslated


def test_a_loop_over_values_with_a_dollar_sign_sweeps_these_values() -> None:
    assert "--set 'v=a$x,b'" in typed(converted("for v in 'a$x' b; do srun python t.py \"$v\"; done"))


def test_a_directive_that_exports_all_variables_is_needless() -> None:
    assert not converted("#SBATCH --export=all\nsrun python t.py").untranslated


@pytest.mark.parametrize("gpus", ["", "--gres=gpu:2", "--gpus=4", "--gpus-per-task=1"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("srun python t.py", lambda nodes, tasks: nodes * tasks),
        ("python t.py", lambda nodes, tasks: 1),
        ("torchrun --nproc_per_node 2 t.py", lambda nodes, tasks: 2),
        ("accelerate launch --num_processes 2 t.py", lambda nodes, tasks: 2),
        ("srun --ntasks-per-node=2 python t.py", lambda nodes, tasks: nodes * 2),
        ("srun -N1 -n2 python t.py", lambda nodes, tasks: 2),
    ],
)
def test_the_line_starts_as_many_ranks_as_the_script(
    gpus: str, nodes: int, tasks: int, launcher: str, ranks: Callable[[int, int], int]
) -> None:
    options = dict(converted(f"#SBATCH -N{nodes} --ntasks-per-node={tasks} {gpus}\n{launcher}").options)
    per_node = 1 if "per-node" in options else int(options.get("gpus") or options.get("ranks-per-node", "1"))
    assert int(options.get("nodes", "1")) * per_node == ranks(nodes, tasks)


@pytest.mark.parametrize(
    "loop",
    [
        "for i in 1 2; do srun python t.py $i && break; done",
        "N=1\nfor i in 1 2; do\n srun python t.py $i $N\n N=$i\ndone",
        "for i in 1 2; do\n ((k++))\n srun python t.py $i $k\ndone",
    ],
)
def test_runs_that_depend_on_the_run_before_are_no_sweep(loop: str) -> None:
    conversion = converted(loop)
    assert conversion.verb == "submit" and conversion.untranslated


@pytest.mark.parametrize(
    ("lines", "setup", "code"),
    [
        ("A=${A:-1}\nif [ $A ]; then python a.py; else python b.py; fi", ["export A=${A:-1}"], ""),
        ("for f in *.yaml; do python t.py $f; done > log", [], ""),
        ("cat l | while read x; do python t.py $x; done", [], ""),
        ("python t.py || python t.py --again", [], ""),
        ("yes | python t.py", [], ""),
        ("[ -d data ] || ./fetch && python t.py", [], ""),
        ("rm -rf out\nfor i in 1 2; do python t.py $i; done", ["rm -rf out || :"], ""),
        (
            "set -e\nfit() { python t.py $1; }\nfor i in $(seq 3 9); do fit $i || break; done",
            [],
            "set -e\nfit() { python t.py $1; }\nfor i in $(seq 3 9); do fit $i || break; done",
        ),
    ],
)
def test_a_statement_that_cannot_be_taken_apart_is_kept_if_it_starts_one_process(
    lines: str, setup: list[str], code: str
) -> None:
    conversion = converted(f"#SBATCH --gres=gpu:2\n{lines}")
    assert conversion.command == ("bash", "-c", code or lines.rpartition("\n")[2])
    options = conversion.options
    assert ("per-node", "") in options and [value for name, value in options if name == "setup"] == setup
    assert not conversion.untranslated


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("#SBATCH --gres=gpu:2080_ti:1\npython t.py", "--gpus 2080_ti:1 t.py"),
        ("#SBATCH --gpus-per-node=3090:2\nsrun -n2 python t.py", "--gpus 3090:2 t.py"),
        ("python t.py $X/*.b", "bash -c 'exec python t.py $X/*.b'"),
        ("python t.py 2>&1 --a 1 > log --b", "t.py --a 1 --b"),
        (
            "SLURM_LOG=a\nmkdir $SLURM_LOG\n./t",
            "--setup SLURM_LOG=a --setup 'mkdir $SLURM_LOG || :' ./t",
        ),
        (
            'if [ "$A" = env ]; then\n python show.py\n exit\nfi\npython t.py',
            """--setup '{ if [ "$A" = env ]; then
 python show.py
 exit
fi
} || :' t.py""",
        ),
        ("#SBATCH -N2 -n1\nsrun python t.py", "--nodes 1 t.py"),
        ("export SLURM_OWN=1\npython t.py", "--setup 'export SLURM_OWN=1' t.py"),
        ("D=a\n./call x > $D/x.bam 2> log", "--setup 'export D=a' bash -c 'exec ./call x > $D/x.bam'"),
        (
            "PATH=/x:$PATH\nTMPDIR=/y\npython t.py $TMPDIR",
            "--setup 'PATH=/x:$PATH' --setup TMPDIR=/y t.py /y",
        ),
        ("id=$(sbatch a)\nmkdir out$id\nsrun python t.py", "t.py"),
        ("for f in *.y; do\n mkdir $f\n srun python t.py $f\ndone", "COMMAND"),
        ("show() { echo hi; }\nshow", "--setup 'show() { echo hi; }' --setup 'show || :' COMMAND"),
    ],
)
def test_what_the_line_has_means_the_same_as_in_the_script(lines: str, line: str) -> None:
    assert typed(converted(lines)) == f"submit {line}"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("#SBATCH --time=\npython t.py", "no value"),
        ("#SBATCH --container-image=i\npip install x\nsrun python t.py", "on the host"),
        ("#SBATCH -N2 -n1\nsrun python t.py", "node to each task"),
        ("#SBATCH -N4\n./run_all", "starts processes on the others"),
        ("#SBATCH -N2 --gres=gpu:4\nsrun torchrun --nproc_per_node 4 t.py", "world of its own"),
        ("#SBATCH --exclusive\nsrun -n8 python t.py", "no GPUs"),
        ("#SBATCH -p gpu-a100\nsrun -n3 python t.py", "no GPUs"),
        ("#SBATCH -p rtx4060\nP=/x/python\n$P t.py", "no GPUs"),
        ("unset SLURM_NTASKS\npython t.py", "env -u NAME"),
        ("#SBTACH --time=1\npython t.py", "reads #SBATCH alone"),
        ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython t.py", "queues the run again"),
        ("srun --exclude $(hostname) python t.py", "write its value"),
        ("#\nif [ 1; then\npython t.py", "bash -n"),
        ("./a x > x.bam\n./a y > y.bam", "once"),
        ("srun -n4 ./solve", "calls MPI"),
        ("srun -n4 python -m mpi4py t.py", "calls MPI"),
        ("srun --gres=gpumem:20G python t.py", "this option of srun"),
        ("srun --mem-per-gpu=6G python t.py", "of the step alone"),
        ("srun --of-plugin=1 python t.py", "--srun NAME=VALUE"),
        ("#SBATCH -n2 -c8\nsrun -c4 python t.py", "asks for 16 CPUs"),
        ("python t.py", "chooses a Python"),
        ("torchrun --nnodes 2 --nproc_per_node 2 t.py", "without srun"),
        ("#SBATCH --of_plugin=1\nsrun python t.py", "unless a plugin"),
        ("srun --container-image=i --container-workdir=$PWD python t.py", "let COMMAND change to it"),
        ("$L python t.py", "if it is a launcher"),
        ("python t.py\nexit 3", "always fails"),
        ("if f; then exec python a.py; fi\npython t.py", "takes the place"),
        ("rm -rf out\nfor i in 1 2; do srun -n2 python t.py $i; done", "repeats it"),
        ("python t.py\n[ -s out ] || exit 1", "after the ranks"),
        ("python t.py \\ \n --x", "a blank is behind the backslash"),
        ("python t.py --a 1 \\  # larger\n --x", "a blank is behind the backslash"),
        ("accelerate launch --num_processes 2 t.py", "default_config.yaml"),
    ],
)
def test_another_meaning_of_a_part_is_named(lines: str, text: str) -> None:
    parts = converted(lines).parts
    assert any(text in part.reason for part in parts if part.outcome is not PartOutcome.NEEDLESS)


# Conditions whose values are known, in a job of two nodes with two GPUs each. The last word is that of a
# branch that runs.
CONDITIONS = (
    "N=$((SLURM_NNODES - 1))\nif (( N > 1 )); then P=a; else P=b; fi",
    'A=false\nif [ "$A" = true ]; then P=a; else P=b; fi',
    "if [[ -n ${SLURM_GPUS_ON_NODE:-} ]]; then N=$SLURM_GPUS_ON_NODE; else N=1; fi\n"
    'if [ "$N" -gt 1 ]; then P=a; else P=b; fi',
    "if (( SLURM_NNODES > 1 && 1 < 2 )); then P=a; elif true; then P=b; fi",
    "P=b\n[ -z $SLURM_JOB_ID ] || P=a",
    'case "${1:-fit}" in t*) P=a ;; fit|x) P=b ;; *) P=c ;; esac',
    'A=x1\nif [[ ! $A == x* || "$A" != x1 ]]; then P=a; else P=b; fi',
    'P=b\nif [ "$1" = test ]; then P=a; fi',
    "if [ $# -ge 1 ]; then P=a; else P=b; fi",
    "A=false\nif $A; then P=a; else P=b; fi",
    'A=\nif [ "$A" ]; then P=a; else P=b; fi',
    "P=b\nfor i in 1 2; do if [ $i = 2 ]; then P=a; fi; done",
    "f() { if [ $# = 1 ]; then P=a; else P=b; fi; }\nf x",
    "A=1\nread A <<< 2\nif [ $A = 2 ]; then P=a; else P=b; fi",
)


@pytest.mark.parametrize("lines", CONDITIONS)
def test_the_branch_is_the_one_that_the_shell_runs(lines: str) -> None:
    conversion = converted(f"#SBATCH -N2 --ntasks-per-node=2 --gres=gpu:2\n{lines}\nsrun python $P.py")
    setup = [line for name, line in conversion.options if name == "setup"]
    job = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_ID": "7"}
    of_line = conversion.command[-1].rpartition(" ")[2] if setup else shlex.quote(conversion.command[0])
    printed = [
        subprocess.run(
            ["bash", "-c", f"{code}\necho {word}"], capture_output=True, text=True, env=job, timeout=60
        ).stdout
        for code, word in ((lines, "$P.py"), (quoting.checked(setup), of_line))
    ]
    assert printed[0] == printed[1]


def test_a_branch_that_does_not_run_is_named() -> None:
    parts = converted("A=1\nif [ $A = 2 ]; then\n python a.py\nelse\n python t.py\nfi").parts
    assert [part.line for part in parts if "does not run" in part.reason] == [4]
    parts = converted('if [ "$1" = a ]; then\n python a.py\nelse\n python t.py\nfi').parts
    assert [part.line for part in parts if part.outcome is PartOutcome.UNTRANSLATED] == [3]


def test_options_of_the_first_line_are_those_of_set() -> None:
    options = convert("#!/bin/bash -eu\n./prepare\nsrun python t.py\n").options
    assert options == (("setup", "./prepare"),)


def test_a_value_for_a_statement_behind_the_command_is_named_with_it() -> None:
    parts = converted("python t.py\nR=$(wc -l < log)\nS=$?\necho $R $S > rates").untranslated
    assert [part.line for part in parts] == [3, 5]


@pytest.mark.parametrize("line", ["env A=1 ./prepare", "X=$(python prepare.py)", "X=$(./prepare)"])
def test_a_program_in_front_of_the_command_runs_also_if_nothing_reads_its_output(line: str) -> None:
    assert any(line in value for name, value in converted(f"{line}\nsrun python t.py").options)


@pytest.mark.parametrize(
    ("lines", "cpus"),
    [
        ("#SBATCH -c14 --gres=gpu:8\ntorchrun --nproc_per_node 8 t.py", 14),
        ("#SBATCH -c10 --gpus-per-node=4 -N2\nsrun torchrun --nnodes 2 --nproc_per_node 4 t.py", 10),
        ("#SBATCH -c1 --gres=gpu:2\ndeepspeed t.py", 1),
        ("#SBATCH -n3 -c2 --gres=gpu:2\npython t.py", 6),
        ("#SBATCH -n4 -N2 -c3\nsrun python t.py", 6),
    ],
)
def test_the_line_asks_for_as_many_cpus_of_a_node_as_the_script(lines: str, cpus: int) -> None:
    options = converted(lines).options
    ranks = dict(options).get("gpus") or dict(options).get("ranks-per-node", "1")
    passed = [value.partition("=")[2] for name, value in options if value.startswith("cpus-per-task=")]
    assert int((passed or [int(ranks) * int(dict(options).get("cpus-per-rank", "1"))])[0]) == cpus


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("#SBATCH --gres=gpu:2 --mem-per-cpu=1G\ntorchrun --nproc_per_node 2 t.py", "1 CPUs"),
        ("#SBATCH --mem=9G\nsrun --mem=5G python t.py", "--mem 5G"),
        ("#SBATCH --gres=gpu:8 -c8\nG=${G:-8}\nsrun torchrun --nproc_per_node=$G t.py", "rank for each GPU"),
        ("#SBATCH --gres=gpu:2 -c8\ntorchrun --nproc_per_node=2 t.py", "OMP_NUM_THREADS is 4"),
        ("#SBATCH --gres=shard:1\npython t.py", "ranks see none"),
    ],
)
def test_a_size_that_the_line_changes_is_named(lines: str, text: str) -> None:
    assert any(text in f"{part.text} {part.reason}" for part in converted(lines).parts if part.reason)


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [("torchrun t.py", 1), ("srun --ntasks-per-node=1 torchrun --nproc_per_node=$G t.py", 4)],
)
def test_a_launcher_in_a_step_decides_the_number_of_ranks(launcher: str, ranks: int) -> None:
    options = dict(converted(f"#SBATCH --gres=gpu:4\nG=$(f)\n{launcher}").options)
    assert int(options.get("gpus", "1")) == ranks


def test_without_a_command_the_line_keeps_all_variables() -> None:
    assert typed(converted('A=1\nset -- $A\n"$@"')) == "submit --setup 'export A=1' COMMAND"


@pytest.mark.parametrize("line", ["srun --mpi=pmix ./solver", "mpirun -np 4 python t.py"])
def test_a_program_that_may_call_mpi_is_named(line: str) -> None:
    assert any("calls MPI" in part.reason for part in converted(line).parts)


def test_a_step_before_the_training_that_gets_fewer_tasks_is_named() -> None:
    lines = "#SBATCH -N2 --ntasks-per-node=2\nsrun{} hostname | sort > nodes\nsrun python t.py"
    reasons = [converted(lines.format(size)).parts[2].reason for size in ("", " -n2", " -n $N")]
    assert reasons[0] and reasons[1:] == ["", ""]


def test_a_loop_that_repeats_a_failed_run_and_a_cluster_of_ray_are_named() -> None:
    parts = converted("for i in 1 2; do srun python t.py && break; done").untranslated
    assert any("--max-restarts" in part.reason for part in parts)
    with pytest.raises(BadInput) as caught:
        converted("srun -n1 ray start --head --block &\nsleep 9\npython t.py")
    assert "cluster of Ray (line 2)" in str(caught.value)


def test_a_script_of_a_shell_that_is_not_read_is_refused_with_its_options() -> None:
    with pytest.raises(BadInput) as caught:
        convert("#!/bin/tcsh\n#SBATCH -N2 -t 5\nsrun python t.py\n")
    assert "clusterrun submit --nodes 2 --time 5 COMMAND" in caught.value.remedy
    with pytest.raises(BadInput):
        convert("\x7fELF\0")
    with pytest.raises(BadInput):
        convert("#!/bin/zsh\nARGS='--lr 1'\nsrun python t.py $ARGS\n")


def test_the_line_is_one_shell_command() -> None:
    line = typed(converted("export A='x\ny'\nsrun python t.py \"a'b\""))
    assert shlex.split(line)[-3:] == ["export A='x\ny'", "t.py", "a'b"]


def test_the_example_of_the_page_becomes_the_line_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/coming-over.md").read_text(encoding="utf-8")
    script = page.split("```bash\n")[1].split("```")[0]
    (line,) = (row.strip() for row in page.split("\n") if row.startswith("    clusterrun submit --nodes 2"))
    assert " ".join(convert(script).words()) == line


@pytest.mark.parametrize("launcher", ["srun python", "accelerate launch"])
def test_the_rows_of_the_page_equal_converts_output(launcher: str) -> None:
    page = (Path(__file__).parents[2] / "docs/coming-over.md").read_text(encoding="utf-8")
    (row,) = (row for row in page.split("\n") if row.startswith(f"| `{launcher}"))
    before, after = row.split("`")[1::2]
    directives = "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4\n" if launcher == "srun python" else ""
    assert " ".join(converted(directives + before).words()) == after


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("#SBATCH --gres=gpu:4\nN=$(nproc)\ntorchrun --nproc-per-node=$N t.py", "--gpus 4 t.py"),
        ('A=$(hostname)\nL="torchrun --nnodes $((B * C)) --rdzv_endpoint $A:1"\nsrun $L t.py', "t.py"),
        ("S=`pwd`/t.py\ntorchrun $S -x", "--setup 'export S=`pwd`/t.py' bash -c 'exec python $S -x'"),
        (
            "N=$(f)\nX=$((N * 8))\nsrun python t.py $X",
            "--setup 'N=$(f) || :' --setup 'export X=$((N * 8))' bash -c 'exec python t.py $X'",
        ),
        ("C='python t.py'\neval $C", "t.py"),
        ('C="python t.py \\$A"\nexport A=1\neval $C', "--setup 'export A=1' bash -c 'exec python t.py $A'"),
        ("docker build -t deepspeed -f f .", "docker build -t deepspeed -f f ."),
        (
            "#SBATCH -N2 --gres=gpu:4\nsrun docker pull i\nsrun docker run i torchrun --nproc 4 t.py",
            "--nodes 2 --gpus 4 --per-node --setup 'srun docker pull i || :' "
            "docker run i torchrun --nproc 4 t.py",
        ),
        (
            "read -r -d '' c <<E\ncd /x \\\n&& A=1 python t.py\nE\nsrun -n2 bash -c \"${c}\"",
            "--ranks-per-node 2 bash -c 'cd /x && A=1 python t.py'",
        ),
        (
            '#SBATCH -N2\nfor n in $(f); do ssh -q $n "cd /x; torchrun --nproc 2 --node_rank=$i t.py" & done',
            "--nodes 2 --gpus 2 --setup 'cd /x' t.py",
        ),
        (
            "#SBATCH -N2\nsrun enroot import i\nsrun enroot start c ./p\nsrun enroot remove c",
            "--nodes 2 --setup 'srun enroot import i || :' enroot start c ./p",
        ),
        (
            'D=/x\nsrun -n2 bash -c "mkdir $D && tar -C $D -xf d"\nsrun -n2 python t.py',
            "--ranks-per-node 2 --setup D=/x "
            "--setup 'srun -n2 bash -c \"mkdir $D && tar -C $D -xf d\" || :' t.py",
        ),
        (
            "mapfile -t H < <(f)\nsrun python t.py ${#H[@]}",
            "--setup 'mapfile -t H < <(f) || :' "
            f'--setup \'ARGUMENTS="$(printf "%q " t.py ${{#H[@]}})" && export ARGUMENTS\' {EVALUATED}',
        ),
        (
            "#SBATCH -N2\nsrun --ntasks-per-node=1 --gpus-per-node=4 -c 24 bash l.sh",
            "--nodes 2 --gpus 4 --cpus-per-rank 6 --per-node bash l.sh",
        ),
        ("srun python t.py </dev/null", "t.py"),
        ("srun --export=ALL,MASTER_PORT=1,A=2 python t.py", "--env A=2 t.py"),
        (
            "#SBATCH -n2 -c4\nexport OMP_NUM_THREADS=$(( SLURM_CPUS_PER_TASK / 2 ))\n"
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nW=3\n"
            "srun python t.py --w=$((SLURM_CPUS_PER_TASK - W))",
            "--ranks-per-node 2 --cpus-per-rank 4 --setup 'export OMP_NUM_THREADS=$(( 4 / 2 ))' t.py --w=1",
        ),
        ("ulimit -n 9\nsrun python t.py", "--setup 'ulimit -n 9 || :' t.py"),
        ("O=$(cat <<E\n-x 1\nE\n)\nsrun python t.py $O", "t.py -x 1"),
        (
            "if [ a ]; then R='--standalone'; else R=$(date); fi\nSCRIPT=$(g)\ntorchrun $R $SCRIPT -x",
            "--setup 'export SCRIPT=$(g)' bash -c 'exec python $SCRIPT -x'",
        ),
        ("printenv | sort\nsrun python t.py", "t.py"),
        ("srun - python t.py", "- python t.py"),
        ("#SBATCH --ntasks-per-node=8\npython t.py", "--cpus-per-rank 8 t.py"),
        ("#SBATCH --gres=gpu:4\ntorchrun --nnodes=1:2 --nproc_per_node=4 t.py", "--gpus 4 t.py"),
        ("#SBATCH --gpus=2\ntorchrun --nproc_per_node 1 t.py", "--sbatch gpus=2 t.py"),
        (
            'X=$(f)\nif [ $? = 0 ]; then\n eval "$X"\nfi\npython t.py',
            """--setup '{ X=$(f)\nif [ $? = 0 ]; then\n eval "$X"\nfi\n} || :' t.py""",
        ),
        (
            "grep x log\nA=$?\npython t.py $A",
            "--setup '{ grep x log\nA=$?\n} || :' --setup 'export A' bash -c 'exec python t.py $A'",
        ),
        ("X=$(f)\nexport X\npython t.py", "--setup 'X=$(f) || :' --setup 'export X' t.py"),
        (
            "#SBATCH -n2 -c4\nexport OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}\nsrun python t.py",
            "--ranks-per-node 2 --cpus-per-rank 4 --setup 'export OMP_NUM_THREADS=4' t.py",
        ),
        (
            "./info > f\nsrun /usr/bin/env A=1 python t.py",
            "--setup './info > f || :' /usr/bin/env A=1 python t.py",
        ),
        ('A="\n  $X \\\n  $Y"\npython t.py $A', "bash -c 'exec python t.py $X $Y'"),
        (
            "time env -u A $(which torchrun) --nproc_per_node 2 t.py || R=$?",
            "--gpus 2 --setup 'unset A' t.py",
        ),
        ("nvidia-smi -L\nnvidia-smi -pm 1\npython t.py", "--setup 'nvidia-smi -pm 1 || :' t.py"),
        ("cd $PWD\npython t.py", "t.py"),
        (
            "N=3\nfor ((i=0;i<N;i++)); do python t.py $i; done",
            "--setup 'export N=3' bash -c 'for ((i=0;i<N;i++)); do python t.py $i; done'",
        ),
        (
            "A=1\nlet B=A+1\nsrun python t.py $B",
            "--setup A=1 --setup 'let B=A+1 || :' --setup 'export B' bash -c 'exec python t.py $B'",
        ),
        (
            "A=1\n[[ A -gt 1 ]] && export C=1\npython t.py",
            "--setup A=1 --setup '[[ A -gt 1 ]] && export C=1 || :' t.py",
        ),
        (
            "exec {FD}>log\nsrun python t.py {name} {a,b}",
            "--setup 'exec {FD}>log || :' "
            '--setup \'ARGUMENTS="$(printf "%q " t.py {name} {a,b})" && export ARGUMENTS\' ' + EVALUATED,
        ),
        ("nvidia-smi dmon -f log &\npython t.py", "--setup 'nvidia-smi dmon -f log &' t.py"),
        ("set -e\n[ -f a ] && rm a || true\npython t.py", "--setup '[ -f a ] && rm a || true' t.py"),
        (
            "srun --container-image=i --container-workdir=/w python t.py -x",
            "--container i bash -c 'cd /w && exec python t.py -x'",
        ),
        (
            "#SBATCH --container-image=i --container-workdir=/w\nsrun python t.py $SLURM_JOB_ID",
            "--container i bash -c 'cd /w && exec python t.py $SLURM_JOB_ID'",
        ),
        (
            "H=h.$SLURM_JOB_ID\nsrun hostname > $H\ncat $H\ntrap 'rm $H' EXIT\n"
            "deepspeed --hostfile $H --num_gpus 2 t.py\nrm $H",
            "--gpus 2 t.py",
        ),
        (
            "#SBATCH --gres=gpu:8\nsrun -N1 -n 2 python t.py",
            "--ranks-per-node 2 --sbatch gres=gpu:8 t.py",
        ),
        (
            "#SBATCH -n2 --gres=gpu:a:1\nsrun python t.py",
            "--ranks-per-node 2 --sbatch gres=gpu:a:1 t.py",
        ),
        (
            'C="$(conda shell.bash hook)"\neval "$C"\npython t.py',
            """--setup 'C="$(conda shell.bash hook)" || :' --setup 'eval "$C" || :' t.py""",
        ),
    ],
)
def test_idioms_of_public_scripts_become_a_line(lines: str, line: str) -> None:
    assert typed(converted(lines)) == f"submit {line}"


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ('go() {\n srun python t.py "$@"\n}\ngo -x "a b"', "submit t.py -x 'a b'"),
        ('go() {\n local o=$1\n srun python t.py $o "${@:2}"\n}\ngo 1 2', "submit t.py 1 2"),
        (
            "go() {\n mkdir $1\n srun python t.py\n}\ngo d",
            "submit --setup 'set -- d' --setup 'mkdir $1 || :' t.py",
        ),
        ("{\n export A=1\n python t.py\n} > log", "submit --setup 'export A=1' t.py"),
        ("(cd src && srun python t.py)", "submit --setup 'cd src' t.py"),
        ("A=1\nA+=' 2'\nA=\"$A 3\"\nsrun python t.py $A", "submit t.py 1 2 3"),
        ("O=''\nO+=' -x'\nC=\"torchrun --nproc_per_node 2 t.py ${O}\"\neval ${C}", "submit --gpus 2 t.py -x"),
        ('A=1\nB=2\nsrun python t.py "$A ${B} ${A}"', "submit t.py '1 2 1'"),
        ("A=(1 # one\n 2)\nsrun python t.py ${A[@]}", "submit t.py 1 2"),
        ("A=${1:-x}\nsrun python t.py $A", "submit t.py x"),
        (
            "#SBATCH -n4 -N2 -c3\nsrun python t.py $SLURM_NTASKS $SLURM_CPUS_PER_TASK",
            "submit --nodes 2 --ranks-per-node 2 --cpus-per-rank 3 t.py 4 3",
        ),
        (
            '#SBATCH --gres=gpu:2 --ntasks-per-node=1\nC=$(echo torchrun t.py)\nsrun sh -c "$C"',
            "submit --gpus 2 --per-node --setup 'export C=$(echo torchrun t.py)' "
            "bash -c 'export -n C\nexec sh -c \"$C\"'",
        ),
        (
            "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=2\n"
            "srun bash -c 'export H=/tmp/$SLURM_NODEID; torchrun --nproc_per_node 2 t.py'",
            "submit --nodes 2 --gpus 2 --per-node "
            "bash -c 'export H=/tmp/$SLURM_NODEID; torchrun --nproc_per_node 2 t.py'",
        ),
        (
            "A=$(f)\nsrun -n2 python - <<E\nprint('$A')\nE",
            "submit --ranks-per-node 2 --setup 'export A=$(f)' "
            "bash -c 'exec python -c \"print('\"'\"'$A'\"'\"')\"'",
        ),
        (
            "srun -n2 bash <<'E'\ncd x\npython t.py $A\nE",
            "submit --ranks-per-node 2 bash -c 'cd x\npython t.py $A'",
        ),
        (
            "echo $A | awk 1 > hosts\nprintf x | sort\nprintf x | load\nsrun python t.py",
            "submit --setup 'echo $A | awk 1 > hosts || :' --setup 'printf x | load || :' t.py",
        ),
        (
            "#SBATCH --gres=gpu:2\nR=$(f)\n$R t.py |& ts",
            "submit --gpus 2 --per-node --setup 'export R=$(f)' bash -c 'exec $R t.py'",
        ),
        (
            "#SBATCH --container-image=i\n#SBATCH --container-mounts /a:/a,/b\nsrun ./p",
            "submit --container i --mount /a:/a --mount /b ./p",
        ),
        (
            "#SBATCH -n4\nexport T=$SLURM_NTASKS\nsrun python t.py",
            "submit --ranks-per-node 4 --setup 'export T=4' t.py",
        ),
        ("#SBATCH --export=ALL,A=1\nsrun python t.py", "submit --env A=1 t.py"),
        (
            "srun -N1 -n1 python prepare.py\nsrun python t.py",
            "submit --setup 'srun -N1 -n1 python prepare.py || :' t.py",
        ),
        ("srun --chdir=src python t.py", "submit --setup 'cd src' t.py"),
        (
            "#SBATCH --gres=nvme:1,gpu:a100:2\nsrun -n2 python t.py",
            "submit --gpus a100:2 --sbatch gres=nvme:1 t.py",
        ),
        (
            "#SBATCH -c4\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\ntorchrun --nproc_per_node 2 t.py",
            "submit --gpus 2 --cpus-per-rank 2 --setup 'export OMP_NUM_THREADS=4' t.py",
        ),
        (
            "seq 3 > in.txt\nsrun python t.py < in.txt",
            "submit --setup 'seq 3 > in.txt || :' bash -c 'exec python t.py < in.txt'",
        ),
        (
            "source conf.sh\npython t.py $A",
            "submit --setup 'source conf.sh' --setup 'export A' bash -c 'exec python t.py $A'",
        ),
        (
            "#SBATCH -N2 --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc_per_node 2 t.py",
            "submit --gpus 2 --env CUDA_VISIBLE_DEVICES=0,1 t.py",
        ),
        (
            "#SBATCH -n4 --ntasks-per-node=2 --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES=0\nsrun python t.py",
            "submit --nodes 2 --gpus 2 t.py",
        ),
        ("srun -n1 --gpus=1 python t.py", "submit --gpus 1 t.py"),
        (
            "( cd sub && export A=1 B=2 && srun python t.py )",
            "submit --setup 'cd sub' --setup 'export A=1 B=2' t.py",
        ),
        (
            'srun bash -lc "module load x; torchrun --nproc_per_node 2 t.py"',
            f"submit --gpus 2 --setup {shlex.quote(LOGIN)} --setup 'module load x' t.py",
        ),
        (
            "srun python t.py --first $SLURM_PROCID",
            'submit --setup \'ARGUMENTS="$(printf "%q " t.py --first $SLURM_PROCID)" && export ARGUMENTS\' '
            f"{EVALUATED}",
        ),
        (
            "accelerate launch --num_processes 2 --dynamo_backend no t.py",
            "submit --gpus 2 --env ACCELERATE_DYNAMO_BACKEND=NO t.py",
        ),
        (
            "for a in 1 2; do for b in x y; do python t.py $a $b; done; done",
            "sweep --set a=1,2 --set b=x,y --at-most 1 t.py '{a}' '{b}'",
        ),
        (
            "for a in 1 2; do\n o=out/$a\n mkdir $o\n python t.py $o\ndone",
            "sweep --set a=1,2 --at-most 1 --setup 'export a={a}' --setup 'o=out/$a' --setup "
            "'mkdir $o || :' t.py 'out/{a}'",
        ),
        (
            "for i in 0 1; do srun torchrun --nnodes 2 --node_rank $i --nproc_per_node 2 t.py & done\nwait",
            "submit --nodes 2 --gpus 2 t.py",
        ),
        (
            'if [ $X ]; then A=1; else A=2; fi\nC="python t.py $A"\n$C',
            "submit --setup 'if [ $X ]; then A=1; else A=2; fi || :' --setup 'export A' "
            "bash -c 'exec python t.py $A'",
        ),
    ],
)
def test_blocks_functions_and_values_are_followed(lines: str, line: str) -> None:
    assert typed(converted(lines)) == line


def test_functions_of_a_file_that_the_script_sources_are_followed() -> None:
    conversion = converted(
        "source lib.sh\nrun torchrun --nproc_per_node 2 t.py -x", lib_sh='run() { srun "$@"; }'
    )
    assert typed(conversion) == "submit --gpus 2 --setup 'source lib.sh' t.py -x"


def test_arguments_of_a_script_that_the_command_starts_are_followed() -> None:
    script = "C=$1\nshift\nexport A=$C\nmkdir $1\ntorchrun --nproc_per_node 2 t.py --config $C $@\n"
    conversion = converted("srun bash run.sh base.yaml -x", run_sh=script)
    setup = [line for name, line in conversion.options if name == "setup"]
    assert conversion.command == ("t.py", "--config", "base.yaml", "-x")
    assert setup == ["set -- base.yaml -x", "C=$1", "shift", "export A=$C", "mkdir $1 || :"]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("srun python t.py $1", 2),
        ("while [ $# -gt 0 ]; do\n case $1 in a) A=$2;; esac\n shift\ndone\nsrun python t.py", 2),
        (': "${I:=x}"\nsrun --container-image $I python t.py', 3),
        ("A=$(f)\nsrun $A -l torchrun --nproc_per_node 2 t.py", 3),
        ("#SBATCH --export=NONE\nsrun python t.py", 2),
        ("C=$(pick)\n$C\nsrun python t.py", 3),
        ("until srun python t.py; do sleep 1; done", 2),
        ("id=$(sbatch --parsable a.sbatch)\nsrun python t.py", 2),
        ("while read -r lr; do srun python t.py $lr; done < grid.txt", 2),
        ("#SBATCH -N 2 --ntasks-per-node=2\nsrun -N1 -n2 python t.py", 2),
        ("#SBATCH -N 2 -n 3\nsrun python t.py", 2),
        ("echo A=1 >> ~/.deepspeed_env\ndeepspeed --num_gpus 2 t.py", 2),
        ("h() {\n touch x\n scontrol requeue $SLURM_JOB_ID\n}\ntrap h USR1\nsrun python t.py &\nwait", 3),
        ("for f in *.yaml; do srun python t.py $f; done", 2),
        ("python t.py\nr=$?\n[ $r -eq 0 ] || python t.py --again", 4),
        ("python t.py &\nwait $!\npython merge.py", 4),
        ("srun -n4 python t.py || srun -n4 python t.py --again", 2),
        ("srun -n4 python a.py && srun -n4 python t.py", 2),
        ("python t.py\nr=$?\npython report.py $r", 4),
        ("N=$(nvidia-smi -L | wc -l)\nsrun --ntasks-per-node=1 torchrun --nproc_per_node=$N t.py", 3),
        ("if a; then\n srun python t.py\nfi", 2),
        ("[[ -e x ]] && srun python t.py", 2),
        ("srun python t.py\necho done > DONE", 3),
        ("timeout 9 srun python t.py\nif [ $? -eq 124 ]; then\n scontrol requeue $A\nfi", 3),
        ("#SBATCH -N2\nsrun -N1 -n1 accelerate launch --num_processes 2 t.py", 2),
    ],
)
def test_effects_that_only_a_run_shows_are_named(lines: str, line: int) -> None:
    assert {part.line for part in converted(lines).untranslated} == {line}


@pytest.mark.parametrize(
    "lines",
    [
        "#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 2\nsrun python t.py",
        "srun python ps.py : python t.py",
        "srun --multi-prog roles.conf",
    ],
)
def test_a_job_of_several_programs_has_no_line(lines: str) -> None:
    with pytest.raises(BadInput, match="several programs as one job"):
        converted(lines)


def test_a_loop_over_nodes_is_the_launcher_of_every_node() -> None:
    loop = "for ((i = 0; i < 2; i++)); do\n srun -n1 -w ${nodes[$i]} torchrun --nproc_per_node 2 t.py &\ndone"
    conversion = converted(f"#SBATCH -N 2\nnodes=($(scontrol show hostnames))\n{loop}\nwait")
    assert (typed(conversion), conversion.untranslated) == ("submit --nodes 2 --gpus 2 t.py", ())


def test_a_block_keeps_the_line_numbers_of_the_file() -> None:
    conversion = converted("f() {\n local a=$1\n python t.py $a\n}\nfor s in 1 2; do\n f $s\ndone")
    assert [(part.line, part.outcome) for part in conversion.parts if part.text.startswith("local")] == [
        (3, PartOutcome.NEEDLESS)
    ]


def test_functions_that_call_themselves_and_each_other_end() -> None:
    calls = "; ".join(f"f{number}" for number in range(4))
    functions = "\n".join(f"f{number}() {{ {calls}; }}" for number in range(4))
    assert converted(f"{functions}\nf0\nsrun python t.py").command == ("t.py",)


def test_broken_shell_code_is_named_and_not_used() -> None:
    conversion = converted("echo 'an open quote\nsrun python t.py")
    assert not [name for name, _ in conversion.options if name == "setup"]
    assert conversion.untranslated


@pytest.mark.parametrize(
    ("lines", "arguments", "line"),
    [
        ('srun python t.py "$1" --lr $2', ("a b", "3"), "submit t.py 'a b' --lr 3"),
        ('srun python t.py "$@"', ("--name", "a b"), "submit t.py --name 'a b'"),
        ('NAME=${1:-x}\nsrun python t.py "$NAME"', (), "submit t.py x"),
        ('NAME=${1:-x}\nsrun python t.py "$NAME"', ("my run",), "submit t.py 'my run'"),
        ('C=${1:?usage: [c]}\nshift\nsrun python t.py "$C" "$@"', ("c", "a b"), "submit t.py c 'a b'"),
        (
            "srun python t.py $#",
            ("3",),
            "submit --setup 'set -- 3' --setup 'ARGUMENTS=\"$(printf \"%q \" t.py $#)\" && export ARGUMENTS' "
            f"{EVALUATED}",
        ),
        ('ALL="${@:2}"\nsrun python t.py $ALL', ("a", "b", "c"), "submit t.py b c"),
        ('ALL="$@"\nsrun python t.py $ALL', (), "submit t.py"),
        ("srun bash run.sh $1", ("3",), "submit t.py --x 3"),
        (
            'shift\nfor s in 1 2; do\n python t.py $s "$@"\ndone',
            ("a", "b"),
            "sweep --time 5 --set s=1,2 --at-most 1 t.py '{s}' b",
        ),
    ],
)  # fmt: skip
def test_arguments_of_the_batch_script_are_in_the_line(
    lines: str, arguments: tuple[str, ...], line: str
) -> None:
    def read_file(path: str) -> str:
        return 'torchrun t.py --x "$1"\n' if path == "run.sh" else ""

    conversion = convert(f"#!/bin/bash\n#SBATCH -t 5\n{lines}\n", read_file, arguments)
    assert typed(conversion) == line.replace("submit ", "submit --time 5 ")
    assert not conversion.untranslated


def test_a_trap_for_the_end_of_the_shell_is_no_trap_of_a_signal_alone() -> None:
    traps = "trap cleanup EXIT\ntrap 'kill $P 2>/dev/null' EXIT\ntrap stop EXIT TERM"
    parts = converted(f"#SBATCH -t 5\n{traps}\nsrun python t.py").untranslated
    assert ["the script's own shell runs it" in part.reason for part in parts] == [True, True, True]


@pytest.mark.parametrize(
    "lines",
    [
        'while [[ $# -gt 0 ]]; do\n  A+=("$1"); shift\ndone\nsrun python t.py "${A[@]}"',
        "declare -A A\nwhile IFS== read -r k v; do A[$k]=$v; done < <(echo a=1; echo b='2 3')\n"
        'python t.py "${A[b]}" ${A[a]}',
        'case $1 in x) A=(-n "a b") ;; *) A=() ;; esac\nsrun python t.py "${A[@]}"',
        "printf -v A '%02d' 7\nIFS=, read -r B C <<< 'x,y z'\nlet D=3*2\n(( E = D + 1 ))\n"
        'python t.py $A "$B" "$C" $D $E',
        'f() {\n local A="$1"\n srun python t.py $A\n}\nf "a$(echo b)"',
        'function f {\n echo "$1"\n}\nexport -f f\nA=$(f 1)\nsrun python t.py "$A"',
        '[ -e /no/file ] && source /no/file\nA=$(echo 1)\npython t.py "$A"',
        'read -ra A <<< "1 2"\nV=$(echo 3)\nB=$V srun python t.py "${A[1]}" "$B"',
        ': "${A:=a b}"\nsrun python t.py "$A" $A',
        "f() { A=1; }\nf\nsrun python t.py $A",
        "A=$(echo 1 2)\nsrun bash -c 'python t.py x '$HOME' \"y  z\"'",
        "A=$(echo a)\nsrun sh -c 'export B=2; exec python t.py '$A' $B'",
        'A=("a  b")\n[ -e /no/file ] || A+=(\'*\')\nf() { srun python t.py "${A[@]}" "$@"; }\nf "$2" last',
        'A=$(echo "a  b")\nsrun python t.py ${A:+--a "$A"} ${B:-none} "${A/a/c}" ${#A}',
        "code=$(echo 7)\ntrue\nsrun python t.py $code",
        "A=$(echo)\npython t.py $A",
        "source /dev/stdin <<< 'A=5'\nsrun python t.py $A",
        "export A='$HOME'\nsrun python t.py \"$A\" '$HOME' \\$HOME",
        "cd /\nsrun python t.py $PWD",
        "shift || true\nsrun python t.py $@",
        "eval 'A=1'\nexport B=\"$(echo $A)\"\npython t.py $A $B",
        'f() {\n C=$1; shift\n srun python t.py "$C" "$@"\n}\nf "$1" --opt "${OPT:-a  w}"',
        "export MASTER_ADDR=a1\nA=$(echo b)\nsrun python t.py tcp://$MASTER_ADDR:${A%x} 'it $A'",
        '[ $# -gt 1 ] && shift\nsrun python t.py "$@" "$1"',
        'if [ "$1" = x ]; then shift; fi\nA=$(echo "$*")\nsrun python t.py "$A" "${@:-none}"',
        "A=(--x 'a b')\nsrun python t.py ${A[@]}",
        "A='/et[c]'\nsrun python t.py $A \"$A\"",
        "A=$(seq 3)\nB=x\nfor i in $A; do B+=$i; done\nsrun python t.py $B",
        "A=(p $(echo q) 'r  s')\npython t.py $A[1]",
        'srun python t.py --all "$*" -- "$@"',
        "declare -A A=([x]='--l 2')\nK=x\nB=(${A[$K]})\nsrun python t.py \"${B[@]}\"",
        'eval "srun python t.py $A x"',
        "A=$(echo 1)\nA=5 srun python t.py $A x",
        'mapfile -t A < <(printf "a b\\nc")\nfor (( i=0; i<${#A[@]}; i++ )); do python t.py ${A[$i]}; done',
        'declare -A A=([x]=1 ["y z"]=2)\nfor i in "${!A[@]}"; do python t.py "$i" "${A[$i]}"; done',
        'A=(--x "1  2")\nrm -f none\nfor i in a b; do python t.py "${A[@]}" $i; done',
    ],
)
def test_the_command_gets_the_arguments_that_the_script_gives(lines: str, tmp_path: Path) -> None:
    programs = {"srun": 'exec "$@"', "python": "shift; printf '%s|' \"$@\""}
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    conversion = convert(f"#!/bin/bash\n#SBATCH -t 5\n{lines}\n", arguments=("x", "y z"))
    assert not conversion.untranslated
    setup = [line for name, line in conversion.options if name == "setup"]
    python = ("python",) if conversion.command[0] == "t.py" else ()
    line = "\n".join((quoting.checked(setup), shlex.join((*python, *conversion.command))))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = [
        subprocess.run(
            ["bash", "-c", code, "bash", "x", "y z"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=60,
        ).stdout
        for code in (lines, line)
    ]
    assert printed[0] == printed[1] and "|" in printed[0]


@pytest.mark.parametrize(
    ("array", "least", "most", "step", "count"),
    [("1-3", 1, 3, 1, 3), ("0-8:4%2", 0, 8, 4, 3), ("7,2", 2, 7, 1, 2)],
)
def test_the_bounds_of_an_array_are_those_of_the_batch_script(
    array: str, least: int, most: int, step: int, count: int
) -> None:
    bounds = {"MIN": least, "MAX": most, "STEP": step, "COUNT": count}
    words = " ".join(f"$SLURM_ARRAY_TASK_{name}" for name in bounds)
    text = f"#!/bin/bash\n#SBATCH --array={array}\nsrun python t.py {words}\n"
    conversion = convert(text)
    assert conversion.command == ("t.py", *map(str, bounds.values()))
    environment = dict(value.split("=") for name, value in conversion.options if name == "env")
    expected = {f"SLURM_ARRAY_TASK_{name}": str(bound) for name, bound in bounds.items()}
    assert environment == {"SLURM_ARRAY_TASK_ID": "{task}", **expected}


@pytest.mark.parametrize(
    "lines",
    [
        "module load cuda\npython prepare.py",
        "#SBATCH -a 0-1\npython -m fit run",
        "#\nif f; then python -m fit run; fi",
    ],
)
def test_a_program_that_becomes_a_setup_line_is_named(lines: str) -> None:
    conversion = converted(f"{lines}\npython t.py")
    assert {part.line for part in conversion.parts if "once" in part.reason} == {3}


@pytest.mark.parametrize(
    "options", ["-K", "--kill-on-bad-exit", "--quit-on-interrupt", "--compress", "-E -X -I", "--bcast"]
)
def test_an_option_of_srun_without_a_value_takes_no_word_of_the_command(options: str) -> None:
    conversion = converted(f"#SBATCH -N 2 --gres=gpu:4\nsrun {options} torchrun --nproc_per_node 4 train.py")
    words = typed(conversion).replace(" --srun compress", "")
    assert words == "submit --nodes 2 --gpus 4 train.py"


@pytest.mark.parametrize(("nodes", "is_kept"), [("n[1,3]", True), ("$CLUSTERRUN_FIT_NODELIST", False)])
def test_the_nodes_that_srun_names_are_those_of_the_run(nodes: str, is_kept: bool) -> None:
    conversion = converted(f"#SBATCH -N 2 --gres=gpu:4\nsrun -w {nodes} python train.py")
    assert dict(conversion.options).get("nodelist") == (nodes if is_kept else None)
    assert not any(part.outcome is PartOutcome.UNTRANSLATED for part in conversion.parts)


def test_the_address_that_a_step_of_srun_finds_for_torchrun_is_not_needed() -> None:
    address = "head=${nodes[0]}\nip=$(srun -N1 -n1 -w $head hostname --ip-address)"
    launch = "srun torchrun --nnodes 2 --nproc_per_node 4 --rdzv_endpoint $ip:29500 train.py"
    conversion = converted(f"#SBATCH -N 2\nnodes=($(scontrol show hostnames))\n{address}\n{launch}")
    assert typed(conversion) == "submit --nodes 2 --gpus 4 train.py"
    prepared = converted(f"ip=$(srun -N1 -n1 ./prepare)\n{launch}")
    assert "srun -N1 -n1 ./prepare" in typed(prepared)


@pytest.mark.parametrize(
    ("lines", "python"),
    [
        ("cd /data/x\nenvs/a/bin/python fit.py", "/data/x/envs/a/bin/python"),
        ("cd $SLURM_SUBMIT_DIR\n../a/bin/python fit.py", "../a/bin/python"),
        ("cd sub\ncd b\na/bin/python fit.py", "sub/b/a/bin/python"),
    ],
)
def test_a_relative_interpreter_is_that_of_the_folder_to_which_the_script_has_changed(
    lines: str, python: str
) -> None:
    assert dict(converted(lines).options)["python"] == python


def test_an_interpreter_in_a_folder_that_only_the_script_knows_is_named() -> None:
    conversion = converted("cd $(pick)\na/bin/python fit.py")
    assert any("a/bin/python" in part.text for part in conversion.untranslated)


def test_a_trap_behind_the_command_is_no_run_after_it() -> None:
    trap = "trap 'kill -USR1 $P' USR1"
    conversion = converted(f"python fit.py &\nP=$!\n{trap}\nwait $P")
    assert ["reaches the ranks" in part.reason for part in conversion.untranslated] == [True]


@pytest.mark.parametrize(
    ("handler", "offset"),
    [
        ("stop() {\n  echo a\n  touch x/stop\n}\ntrap stop USR2", 2),
        ("\n\n\ntrap 'touch x/stop; exit' USR2", 0),
    ],
)
def test_the_commands_of_a_signals_handler_are_named(handler: str, offset: int) -> None:
    conversion = converted(f"{handler}\nsrun python fit.py &\nwait")
    named = [part for part in conversion.untranslated if "the handler of a signal runs it" in part.reason]
    line = min(part.line for part in conversion.parts if part.text.startswith(("stop", "trap")))
    assert [(part.text, part.line) for part in named] == [("touch x/stop", line + offset)]


def test_a_handler_that_only_passes_a_signal_on_needs_no_advice() -> None:
    conversion = converted("trap 'echo a; kill -USR1 $P; wait' USR1\nsrun python fit.py &\nP=$!\nwait $P")
    assert len(conversion.untranslated) == 1


def test_exec_of_an_interpreter_in_a_variable_is_the_command() -> None:
    conversion = converted('exec "${PYTHON:-python3}" fit.py --a 1')
    assert "fit.py" in " ".join(conversion.command + tuple(value for _, value in conversion.options))


def test_a_shell_that_setup_lines_do_not_run_in_is_named() -> None:
    conversion = convert("#!/bin/ksh\nsource ~/.kshrc\npython fit.py\n", lambda path: "")
    assert any("run in bash" in part.reason for part in conversion.parts)


def setup_of(lines: str, **files: str) -> list[str]:
    conversion = converted(lines, **files)
    return [value for name, value in conversion.options if name == "setup"]


def test_a_variable_of_the_script_alone_is_no_variable_of_ranks() -> None:
    assert setup_of("D=/x\nmkdir $D\npython t.py") == ["D=/x", "mkdir $D || :"]


def test_set_u_ends_the_run_if_a_variable_is_unset() -> None:
    lines = "set -eu\nsource env\nA=1\nmkdir $W/$A\necho '$no' ${M:-}\npython t.py $A $V"
    setup = setup_of(lines)
    assert setup[0] == "set -u" and setup[setup.index(": $V") + 1] == "set +u"
    assert "set -u" not in setup_of(lines.replace("$W", "w").replace("$V", "v"))


def test_a_variable_that_a_file_may_set_is_unset_only_if_it_does_not() -> None:
    lines = setup_of("set -u\nsource env\nstart_all\npython t.py $V")
    assert lines.index(": $V") > lines.index("start_all || :") > lines.index("source env")


def test_a_variable_that_slurm_does_not_set_ends_a_script_with_set_u() -> None:
    named = [part.text for part in converted("set -u\npython t.py $SLURM_CPUS_PER_TASK").untranslated]
    assert "$SLURM_CPUS_PER_TASK" in named
    lines = "#SBATCH -c2\nset -u\npython t.py $SLURM_CPUS_PER_TASK"
    assert not any("set -u" in part.reason for part in converted(lines).untranslated)


def test_the_variables_of_a_single_rank_are_named() -> None:
    def is_named(lines: str) -> bool:
        return any("WORLD_SIZE" in part.reason for part in converted(lines).parts)

    assert is_named("#SBATCH --gpus 1\npython t.py")
    assert not is_named("#SBATCH --gres=gpu:2\npython t.py")
    assert not is_named("#SBATCH -n2\nsrun python t.py")
    assert not is_named("torchrun --nproc_per_node 1 t.py")


@pytest.mark.parametrize("line", ["mylaunch -n 4 python t.py", "aprun ./a.out", "/x/start python -m pkg"])
def test_an_unknown_launcher_is_named(line: str) -> None:
    assert any("does not know it" in part.reason for part in converted(line).parts)


@pytest.mark.parametrize("line", ["xvfb-run python t.py", "uv run python t.py", "./prog", "python t.py"])
def test_a_program_that_starts_one_process_is_no_unknown_launcher(line: str) -> None:
    assert not any("does not know it" in part.reason for part in converted(line).parts)


def test_a_value_that_a_file_may_change_is_named_or_not_used() -> None:
    lines = "A=1\nsource conf.sh\nif [ $A = 1 ]; then python a.py; else python b.py; fi"
    assert any("if it changes A" in part.reason for part in converted(lines).parts)
    assert "b.py" in typed(converted(lines, conf_sh="A=2\n"))


def test_a_number_of_tasks_that_no_directive_gives_is_named() -> None:
    assert "-n '$SLURM_NTASKS'" in [
        part.text for part in converted("srun -n $SLURM_NTASKS python t.py").untranslated
    ]


def test_the_cpus_of_a_step_are_those_of_its_variable() -> None:
    assert (
        typed(converted("export SRUN_CPUS_PER_TASK=4\nsrun python t.py")) == "submit --cpus-per-rank 4 t.py"
    )


@pytest.mark.parametrize(
    ("directives", "sizes"),
    [
        ("--gres=gpu:0", {}),
        ("--gpus 2 --ntasks-per-gpu=1", {"gpus": "2"}),
        ("--gpus 4 --gpus-per-task=2", {"ranks-per-node": "2", "sbatch": "gpus=4"}),
    ],
)
def test_tasks_of_gpus_are_counted(directives: str, sizes: dict[str, str]) -> None:
    options = converted(f"#SBATCH {directives}\nsrun python t.py").options
    assert {name: value for name, value in options if name != "cpus-per-rank"}.items() >= sizes.items()
    assert "gpus" in sizes or "gpus" not in dict(options)


def test_gpus_of_tasks_without_a_number_of_tasks_are_named() -> None:
    parts = converted("#SBATCH --gpus-per-node=8 --gpus-per-task=1\nsrun python t.py").parts
    assert any("no line gives the number of tasks" in part.reason for part in parts)


def test_hosts_of_horovod_are_nodes() -> None:
    assert typed(converted("#SBATCH -N2 --gres=gpu:2\nhorovodrun -np 4 -H a:2,b:2 python t.py")) == (
        "submit --nodes 2 --gpus 2 t.py"
    )


def test_the_else_branch_of_a_condition_on_arguments_is_named_with_them() -> None:
    assert converted('if [ "$1" = x ]; then\n python a.py\nelse\n python b.py\nfi').untranslated


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("#SBATCH --nodelist=n1,n2\npython t.py", "submit --nodelist n1 t.py"),
        ("#SBATCH --nodelist=n[1-2]\nsrun python t.py", "submit --nodes 2 --nodelist 'n[1-2]' t.py"),
        (
            "#SBATCH -n4 --nodelist=n1,n2\nsrun python t.py",
            "submit --nodes 2 --ranks-per-node 2 --nodelist n1,n2 t.py",
        ),
        ("#SBATCH --nodelist=./hosts\npython t.py", "submit --nodelist ./hosts t.py"),
        ("#SBATCH -n1 --ntasks-per-node=4 --gres=gpu:4\nsrun python t.py", "submit --gpus 4 --per-node t.py"),
        ("#SBATCH -J a_$1\npython t.py", "submit --name 'a_$1' t.py"),
        ("python t.py \\\n", "submit t.py"),
    ],
)
def test_numbers_and_names_are_those_that_sbatch_reads(lines: str, line: str) -> None:
    conversion = converted(lines)
    assert typed(conversion) == line
    assert not conversion.untranslated


def test_ranks_that_share_a_gpu_are_named() -> None:
    parts = converted("#SBATCH --gpus 2 --ntasks-per-gpu=2\nsrun python t.py").parts
    assert any("LOCAL_RANK // 2" in part.reason for part in parts)


def test_what_follows_the_command_and_looks_like_its_option_is_named_so() -> None:
    (part,) = converted("python t.py\n--lr 1").untranslated
    assert "backslash" in part.reason


def test_a_last_line_that_only_leaves_an_environment_is_not_needed() -> None:
    assert not converted("python t.py\nconda deactivate\nmodule unload cuda").untranslated
    named = converted("python t.py\ncd out\ntar cf a b").untranslated
    assert [part.line for part in named] == [3, 4]


def test_a_shell_script_sees_no_variable_that_the_script_does_not_export() -> None:
    assert converted("A=$(f)\nbash run.sh $A").command[-1] == "export -n A\nexec bash run.sh $A"
    assert converted("export A=$(f)\nbash run.sh $A").command[-1] == "exec bash run.sh $A"


def test_a_variable_in_front_of_the_command_is_not_in_its_words() -> None:
    assert '"$@"' in converted("A=$(f)\nA=2 python t.py $A").command[-1]


@pytest.mark.parametrize("lines", ["A=x\nB=A\nexport C=${!B}", "export A B\nA=x", "export A=1\nA=x"])
def test_a_value_that_no_line_reads_by_its_name_is_kept(lines: str) -> None:
    assert "A=x" in setup_of(f"{lines}\npython t.py")


def test_an_option_of_the_shell_is_kept() -> None:
    assert setup_of("shopt -s nullglob\npython t.py") == ["shopt -s nullglob || :"]


def test_a_word_of_a_function_that_may_become_several_is_named() -> None:
    lines = "A=$(f)\ngo() {\n python t.py $1 $2\n}\n"
    assert converted(f"{lines}go $A").untranslated
    assert not converted(f'{lines}go "$A"').untranslated


def test_set_u_counts_in_a_group() -> None:
    assert ": $A" in setup_of("set -u\n(cd sub; python t.py $A)")


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("A=$'a\\tb'\npython t.py \"$A\"", "submit t.py 'a\tb'"),
        (
            'cd sub\nA=$PWD\ncd ..\nC=(python t.py "$A")\n"${C[@]}"',
            "submit --setup 'cd sub' --setup 'export A=$PWD' --setup 'cd ..' "
            "bash -c 'exec python t.py \"$A\"'",
        ),
        (
            'A=2\neval "A=8"\npython t.py $A',
            "submit --setup 'export A=2' --setup 'eval \"A=8\" || :' bash -c 'exec python t.py $A'",
        ),
        (
            "export A=1\nunset A\nread A < l\npython t.py $A",
            "submit --setup 'export A=1' --setup 'unset A || :' --setup 'read A < l || :' --setup 'export A' "
            "bash -c 'exec python t.py $A'",
        ),
        (
            "A=1\nB=$((A++))\npython t.py $A",
            "submit --setup 'export A=1' --setup 'export B=$((A++))' bash -c 'exec python t.py $A'",
        ),
        (
            "A=1\n: $((A <<= 2))\npython t.py $A",
            "submit --setup 'export A=1' --setup ': $((A <<= 2)) || :' bash -c 'exec python t.py $A'",
        ),
        (
            "declare -i A=1+2\nA=2*2\npython t.py $A",
            "submit --setup 'declare -i A=1+2' --setup 'export A=2*2' bash -c 'exec python t.py $A'",
        ),
    ],
)
def test_values_are_those_of_their_place(lines: str, line: str) -> None:
    assert typed(converted(lines)) == line


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("module load x\njupyter nbconvert --execute a.ipynb", "jupyter nbconvert --execute a.ipynb"),
        ("make all\n./prog", "--setup 'make all || :' ./prog"),
        (
            "wandb offline\nconda run -n e wandb agent x",
            "--setup 'wandb offline || :' conda run -n e wandb agent x",
        ),
        ("echo a\nhostname", "COMMAND"),
    ],
)
def test_the_only_program_of_a_script_is_its_command(lines: str, line: str) -> None:
    assert typed(converted(lines)).removeprefix("submit ").removeprefix("--setup 'module load x' ") == line


@pytest.mark.parametrize("word", ["${A:+--a $A}", "${A:-$B}", "${A:-${B:-$C}}", "'$A'", r"'a '\''$A'\'' b'"])
def test_a_word_that_an_unset_variable_leaves_empty_does_not_end_the_run(word: str) -> None:
    assert not [line for line in setup_of(f"set -u\npython t.py {word}") if line.startswith(": ")]


def test_directives_behind_an_indented_comment_are_read_as_sbatch_does() -> None:
    lines = "#SBATCH --gpus=2\n   # two are enough\n\n\t# really\n#SBATCH --mem=8G\npython t.py"
    assert "--mem 8G" in typed(converted(lines))


@pytest.mark.parametrize("limit", ["UNLIMITED", "infinite", "0", "0-00:00:00"])
def test_a_time_without_limit_is_passed_on(limit: str) -> None:
    assert f"--sbatch time={limit}" in typed(converted(f"#SBATCH --time={limit}\nsrun python t.py"))


@pytest.mark.parametrize("word", ["${1:-'/data/a b'}", '"${1:-/data/a b}"'])
def test_the_default_of_an_argument_is_in_the_line_without_its_quotes(word: str) -> None:
    assert converted(f'D={word}\npython t.py --data "$D" --n 1').command[-3:] == ("/data/a b", "--n", "1")


@pytest.mark.parametrize(
    "lines",
    [
        "source steps.sh\nrun_suite a",
        "serve &\nwait",
        "first a\nsecond b",
        "read -r A < f",
        "ulimit -n 9",
        "work &\nfor n in $(nodes); do ssh $n client & done\nwait",
    ],
)
def test_what_may_be_a_function_a_server_or_a_builtin_is_not_the_command(lines: str) -> None:
    conversion = converted(lines)
    assert not conversion.command


def test_a_server_in_the_background_is_no_command_and_its_client_runs_beside_nothing() -> None:
    conversion = converted("srun -n1 python serve.py &\nsleep 9\npython ask.py\nsleep 9")
    assert conversion.command == ("ask.py",)
    assert [part.line for part in conversion.untranslated] == [2]


def test_a_statement_beside_a_command_in_the_background_is_not_said_to_run_after_it() -> None:
    def reason(lines: str) -> str:
        return next(part.reason for part in converted(lines).untranslated if "./look" in part.text)

    beside = reason("srun python train.py &\n./look\nwait")
    assert beside != reason("srun python train.py &\nwait\n./look") == reason("srun python train.py\n./look")
    assert beside == reason("srun python train.py\n./look &")


@pytest.mark.parametrize(
    "line",
    ["module load openmpi/4.1", "conda activate horovod", "export MPICH_MAX_THREAD_SAFETY=multiple"],
)
def test_a_program_that_may_call_mpi_is_named_by_its_environment(line: str) -> None:
    parts = converted(f"#SBATCH -n4\n{line}\nsrun python train.py").parts
    assert any("MPI" in part.reason for part in parts)


def test_an_export_of_a_name_in_a_variable_may_fail() -> None:
    assert setup_of("W=$(f)\nexport $W\npython t.py $W")[1].endswith("|| :")


def test_the_only_program_of_a_list_is_the_command() -> None:
    assert converted("A=1 bash work.sh && echo done").command == ("bash", "work.sh")


def test_a_command_that_eval_reads_from_a_variable_is_named() -> None:
    conversion = converted("C=($(f))\neval ${C[$I]}")
    assert not conversion.command and [part.line for part in conversion.untranslated] == [3]


def test_an_argument_of_awk_is_no_argument_of_the_script() -> None:
    lines = "if f | awk '{print $1}' | grep -q x; then echo \"No 'x' found.\"; fi\npython t.py"
    assert not converted(lines).untranslated


def test_programs_in_the_background_of_a_loop_are_waited_for() -> None:
    lines = 'for a in 1 2; do python c.py & P+=($!); done\nfor p in "${P[@]}"; do wait $p; done'
    assert converted(lines).command[-1].endswith("\nwait")


def test_a_home_folder_in_a_loop_is_expanded() -> None:
    assert "exec python t.py ~/cfg/$m" in converted("for m in a b; do python t.py ~/cfg/$m; done").command


def test_a_file_that_exec_opens_is_no_program() -> None:
    assert converted('exec {FD}>"$W/.lock"\npython t.py').command == ("t.py",)


def test_a_file_with_two_variables_in_its_name_is_no_argument() -> None:
    assert converted("python t.py --x 1 > $D/$T.out").command == ("t.py", "--x", "1")


def test_a_variable_of_ranks_is_kept_with_per_node() -> None:
    lines = "export WORLD_SIZE=$((SLURM_NNODES * 4))"
    assert setup_of(f"#SBATCH --gres=gpu:4\n{lines}\npython t.py") == [lines]
    assert not setup_of(f"#SBATCH --gres=gpu:4\n{lines}\nsrun -n4 python t.py")


def test_an_option_that_a_variable_of_the_script_gives_is_named_in_a_loop_too() -> None:
    lines = 'I=${I:-x.sif}\nfor f in a b; do srun --container-image="$I" python t.py $f; done'
    assert [part.text for part in converted(lines).untranslated] == ["$I"]


def test_a_file_of_an_argument_that_is_the_work_is_named() -> None:
    conversion = converted("module load x\nsource $1")
    assert not conversion.command and 3 in {part.line for part in conversion.untranslated}


@pytest.mark.parametrize(("errexit", "count"), [("", 1), ("set -e\n", 0)])
def test_a_setup_line_that_is_stricter_than_the_script_is_named_once(errexit: str, count: int) -> None:
    parts = converted(f"{errexit}module load a\nmodule load b\npython t.py").parts
    assert len([part for part in parts if part.outcome is PartOutcome.SETUP and part.reason]) == count


def test_values_that_the_shell_splits_are_no_sweep() -> None:
    assert not dict(converted('for S in "t.py --a 1" "t.py --a 2"; do python $S; done').options).get("set")
    assert dict(converted('for S in "a b" c; do python t.py "$S"; done').options)["set"] == "S=a b,c"


def test_the_exit_code_of_a_loop_is_that_of_the_run() -> None:
    lines = "rc=0\nfor m in $(ls); do python $m || rc=1; done\nexit $rc"
    assert converted(lines).command[-1].endswith("\nexit $rc")


def test_a_script_without_a_launcher_and_with_an_open_command_starts_one_process() -> None:
    conversion = converted('#SBATCH --ntasks=4 --gres=gpu:1\neval "${E[$I]}"\nconda deactivate')
    assert dict(conversion.options) == {"gpus": "1", "cpus-per-rank": "4"}
    assert {part.line for part in conversion.untranslated} == {3, 4}


def test_the_number_of_a_server_that_is_not_in_the_line_is_not_used() -> None:
    lines = "srun -n1 python serve.py &\nP=$!\nkill -0 $P || exit 1\npython ask.py"
    conversion = converted(lines)
    assert conversion.command == ("ask.py",) and not setup_of(lines)
    assert {part.line for part in conversion.untranslated} == {2, 3, 4}


def test_programs_of_one_group_are_no_runs_of_their_own() -> None:
    conversion = converted("python t.py --rank=1 &\npython t.py --rank=0\nwait")
    assert {part.line for part in conversion.untranslated} == {2}


def test_a_setup_line_that_may_fail_is_not_said_to_end_the_run() -> None:
    assert not any("the script goes on" in p.reason for p in converted("source ~/.bashrc\npython t.py").parts)


def test_the_removal_of_a_container_is_not_the_command() -> None:
    lines = "enroot start --rw $N micromamba run -n e bash --login -c 'cd /x && python train.py'\n"
    assert converted(f"{lines}enroot remove -f $N").command[-1] != "$N"


def test_a_step_of_fewer_gpus_keeps_their_type() -> None:
    lines = "#SBATCH --gres=gpu:a100:4\n#SBATCH --ntasks=4\nsrun --ntasks=1 --gres=gpu:a100:1 python t.py"
    assert "--gpus a100:1 " in typed(converted(lines))


def test_a_sequence_in_backticks_is_read_and_another_command_is_no_value() -> None:
    loop = "for i in `{}`; do python t.py --n $i; done"
    assert "--set i=1,2,3 " in typed(converted(loop.format("seq 3")))
    assert "--set" not in typed(converted(loop.format("cat list")))


def test_arguments_that_a_branch_sets_are_named() -> None:
    lines = 'if [ $# = 0 ]; then set -- --lr 1; fi\npython t.py "$@"'
    parts = [part for part in converted(lines).untranslated if "it sets the arguments" in part.reason]
    assert [part.line for part in parts] == [2]


def reasons_of(lines: str, line: int) -> str:
    return "\n".join(part.reason for part in converted(lines).parts if part.line == line)


@pytest.mark.parametrize(
    "first",
    [
        "bash a.sh",
        "./prepare",
        "./build && ls",
        "O=$(python a.py | tail -1)",
        "fetch data",
        "f() { ./a; }\nf",
    ],
)
def test_a_program_in_a_setup_line_is_named(first: str) -> None:
    lines = f"{first}\npython t.py"
    assert any("runs once, before the ranks" in part.reason for part in converted(lines).parts)


@pytest.mark.parametrize(
    "first", ["free -h", "mkdir -p a", "f() { export A=1; }\nf", "srun -n2 hostname > nodes"]
)
def test_a_tool_in_a_setup_line_is_not_named(first: str) -> None:
    lines = f"{first}\npython t.py"
    assert not any("runs once" in part.reason for part in converted(lines).parts)


def test_a_shell_script_that_trains_by_its_name_is_the_command() -> None:
    conversion = converted("python manifest.py\nexec bash launch_finetune.sh a")
    assert conversion.command == ("bash", "launch_finetune.sh", "a")


def test_what_follows_a_branch_of_the_arguments_is_not_put_before_the_command() -> None:
    lines = "m=$1\ncase $m in a) srun python a.py;; b) srun python b.py;; esac\nmv results done"
    assert not setup_of(f"{lines}\n")[1:]
    assert "behind it" in reasons_of(lines, 4)


def test_a_branch_with_a_handler_that_always_runs_is_in_the_line() -> None:
    branch = "f() { exit 0; }\ntrap f USR1\nsrun python t.py"
    lines = f"if [[ -n ${{SLURM_JOB_ID:-}} ]]; then\n{branch}\nelse python t.py\nfi"
    assert converted(lines).command == ("t.py",)
    assert {part.line for part in converted(lines).untranslated} <= {4}


def test_a_launcher_of_a_rank_for_each_visible_gpu_gets_no_others() -> None:
    lines = "#SBATCH --gres=gpu:a100:8\nexport CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc_per_node=gpu t.py"
    options = dict(converted(lines).options)
    assert options["gpus"] == "a100:2" and "env" not in options


def test_gpus_of_tasks_that_each_start_a_launcher_are_asked_for() -> None:
    lines = "#SBATCH --ntasks=2 --gpus-per-task=3\nsrun torchrun --nproc_per_node=1 t.py"
    assert ("sbatch", "gpus-per-node=6") in converted(lines).options


def test_an_index_of_an_array_that_the_script_sets_is_seen_by_the_command() -> None:
    lines = (
        "[ $SLURM_ARRAY_TASK_ID ] || SLURM_ARRAY_TASK_ID=1\nif ls; then python t.py $SLURM_ARRAY_TASK_ID; fi"
    )
    assert "export SLURM_ARRAY_TASK_ID" in setup_of(lines)
    assert not any("no #SBATCH line sets it" in part.reason for part in converted(lines).parts)


def test_a_variable_that_an_option_reads_is_not_said_to_be_unread() -> None:
    lines = "I=${I:-x.sqsh}\nsrun --container-image=$I python t.py"
    assert "nothing" not in reasons_of(lines, 2) and "write its value" in reasons_of(lines, 3)


def test_shell_code_that_bash_does_not_run_has_no_command() -> None:
    assert not converted(
        "if a\nthen\n  if b\n  then\n    ls\nf() {\n  ls\n}\nsrun python t.py &\nwait"
    ).command


def test_an_unread_file_that_may_be_the_work_is_named() -> None:
    assert "starts the program" in reasons_of("source all.sh", 2)


def test_a_path_of_the_script_behind_a_variable_of_slurm_is_not_named() -> None:
    assert not converted("cd ${SLURM_SUBMIT_DIR:-$(dirname $0)}\npython t.py").untranslated


def test_torchrun_in_the_container_of_the_command_is_not_said_to_run_in_each_rank() -> None:
    lines = "#SBATCH --gres=gpu:4\nsingularity exec i.sif bash -c 'torchrun --nproc_per_node=4 t.py'"
    assert not converted(lines).untranslated


def test_a_file_that_tee_writes_for_a_later_line_is_written() -> None:
    conversion = converted("python t.py | tee out.log\ngrep AP out.log > ap")
    assert conversion.command == ("bash", "-c", "set -o pipefail\npython t.py | tee out.log")
    assert converted("python t.py | tee out.log\necho out.log").command == ("t.py",)


def test_a_whole_loop_has_the_functions_of_the_files_that_the_script_sources() -> None:
    loop = "while read d; do conda activate $d; python t.py; done < list"
    assert converted(f"source conda.sh\n{loop}").command[2].startswith("source conda.sh\n")


def test_a_line_before_set_e_that_ends_the_run_is_named() -> None:
    lines = "{}module load a\n{}python t.py"
    assert "the run ends" in reasons_of(lines.format("", "set -e\n"), 2)
    assert "the run ends" not in reasons_of(lines.format("set -e\n", ""), 3)


def test_a_variable_for_one_program_is_not_set_for_later_ones() -> None:
    lines = 'PY=$CONDA_PREFIX/bin/python\nA=1 $PY -c "import x"\nexport A="$HOME:$A"\n$PY -m t'
    assert 'export A="$HOME:$A"' in setup_of(lines)


def test_a_line_that_cannot_fail_is_not_said_to_end_the_run() -> None:
    assert not reasons_of("module load a || true\npython t.py", 2)


def test_an_escaped_variable_is_left_to_the_shell_of_a_rank() -> None:
    conversion = converted('#SBATCH -n 4\nA=$(date)\nsrun bash -c "W=\\$SLURM_NTASKS python t.py $A"')
    assert r"\$SLURM_NTASKS" in typed(conversion) and r"\4" not in typed(conversion)


def test_submit_checks_the_nodes_in_the_place_of_the_script() -> None:
    check = 'set -euo pipefail\neval "$(clusterrun check --export)" || exit 3'
    lines = f"{check}\nsrun --nodelist=$CLUSTERRUN_FIT_NODELIST python t.py"
    assert setup_of(lines) == [] and "submit checks" in reasons_of(lines, 3)


def test_a_command_with_arguments_of_the_script_is_in_the_line_without_them() -> None:
    conversion = converted('A="${@}"\nsrun torchrun --nproc_per_node 2 t.py ${1:-x} "$@"')
    assert conversion.command == ("t.py", "x") and not conversion.untranslated
    named = [part for part in conversion.parts if "no arguments" in part.reason]
    assert [(part.line, part.text) for part in named] == [(2, 'A="${@}"'), (3, "$@")]
    assert converted('srun torchrun --nproc_per_node 2 t.py $1 "$@"').untranslated


def test_the_runs_of_a_sweep_are_one_array_as_in_the_script() -> None:
    lines = "#SBATCH --array=0-3\nset -u\npython t.py --to $SLURM_ARRAY_JOB_ID/$X"
    assert all(part.text != "$SLURM_ARRAY_JOB_ID" for part in converted(lines).parts)
    assert not any("ends the script" in part.reason for part in converted(lines).parts)


def test_a_variable_with_a_whole_command_line_is_the_command() -> None:
    lines = 'python check.py\ncmd=({} t.py)\n[ $X ] && cmd+=(--x $X)\n"${{cmd[@]}}"'
    assert converted(lines.format("accelerate launch")).command[-1].endswith('exec "$@"')
    assert "known only when" in reasons_of(lines.format("accelerate launch"), 5)
    assert converted(lines.format("srun python")).command == ("check.py",)


def test_set_e_is_for_what_follows_it() -> None:
    lines = "{}python check.py\n{}python train.py"
    assert setup_of(lines.format("", "set -e -x\n")) == ["python check.py || :"]
    assert setup_of(lines.format("set -e\n", "set +e\n")) == ["python check.py"]
    assert setup_of(lines.format("set -e\nset +e\n", "")) == ["python check.py || :"]


def test_a_folder_of_one_job_that_the_runs_of_a_loop_share_is_named() -> None:
    assert "each run is a job" in reasons_of("for d in a b; do python t.py $d --to $SLURM_JOB_ID; done", 2)


def test_the_way_back_to_the_folder_of_submit_is_in_the_line() -> None:
    lines = "{}cd $SLURM_SUBMIT_DIR\npython t.py"
    assert setup_of(lines.format("cd /x\n"))[-1].startswith("cd $SLURM_SUBMIT_DIR")
    assert not setup_of(lines.format(""))


def test_a_script_that_prints_versions_starts_no_program() -> None:
    assert not converted("python --version\nexport CMD='torchrun t.py'").command


def test_an_open_command_runs_once_beside_several_gpus() -> None:
    assert ("per-node", "") in converted("#SBATCH --gres=gpu:8\nserve a &").options


def test_a_function_that_the_ranks_run_sees_the_values_of_ranks() -> None:
    lines = "f() { python t.py $SLURM_PROCID; }\nexport -f f\nsrun -n2 bash -c 'f x'"
    assert "SLURM_PROCID" not in reasons_of(lines, 2)


def test_the_list_of_nodes_of_a_launcher_is_not_needed_behind_the_command() -> None:
    lines = "H=hosts\ncat $H\ndeepspeed --hostfile $H --num_gpus 2 t.py\nrm $H"
    assert not converted(lines).untranslated


def test_a_value_that_a_text_changes_before_it_is_read_is_named() -> None:
    lines = 'srun bash -c "{}torchrun --nproc_per_node 2 t.py $A"'
    assert [part.text for part in converted(lines.format("read A; ")).untranslated] == ["$A"]
    assert not converted(lines.format("")).untranslated


def test_the_folder_in_a_text_is_that_of_the_shell_around_it() -> None:
    lines = 'srun bash -c "cd /x; torchrun --nproc_per_node 2 $PWD/t.py \\$PWD"'
    code = """bash -c 'eval "exec python $SLURM_SUBMIT_DIR/t.py \\$PWD"'"""
    assert typed(converted(lines)) == f"submit --gpus 2 --setup 'cd /x' {code}"


def test_arguments_that_a_script_lacks_are_an_empty_word_in_quotes() -> None:
    assert converted('A="$*"\npython t.py --a "$A" --b "$*" $*').command == ("t.py", "--a", "", "--b", "")
    assert "" not in converted('set -- x\npython t.py "$*"').command


@pytest.mark.parametrize("gpus", [1, 2])
def test_tasks_that_each_have_a_gpu_of_their_own_are_named(gpus: int) -> None:
    conversion = converted(f"#SBATCH --gpus={gpus} --ntasks-per-gpu=1\nsrun python t.py")
    assert any("LOCAL_RANK" in part.reason for part in conversion.changed) == (gpus > 1)


def test_the_argument_that_a_command_reads_is_named() -> None:
    assert any(part.text == "$1" for part in converted("python t.py ${1:-x}").changed)


def test_a_function_that_starts_an_open_program_is_named() -> None:
    lines = 'f() { "$TOOL" exec i.sif bash -c "$*"; }\nf prep\neval "$X"'
    assert "runs once" in reasons_of(lines, 3)


def test_a_program_whose_result_is_read_is_named_in_setup() -> None:
    assert "runs once" in reasons_of("prepare\nRC=$?\npython train.py", 2)


def test_an_element_of_an_array_is_not_exported() -> None:
    lines = 'F[0]="--lr 1"\nif a; then python t.py ${F[0]}; else python t.py; fi'
    assert not any(line.startswith("export F[") for line in setup_of(lines))
    assert converted(lines).command[2].startswith('eval "$ARRAYS"')


def test_a_setup_line_that_ends_the_script_with_a_result_is_named() -> None:
    lines = 'if [ $M = prepare ]; then ./prepare; rc=$?; exit "$rc"; fi\npython t.py'
    assert "the run counts as failed" in reasons_of(lines, 2)


def started_by(conversion: Conversion) -> list[str]:
    """Run the setup lines and COMMAND in bash, and return what they print. python prints its arguments."""
    setup = [value for name, value in conversion.options if name == "setup"]
    is_shell = conversion.command[:1] == ("bash",)
    line = shlex.join(conversion.command if is_shell else ("python", *conversion.command))
    # ``exec`` would find the program, and not the function.
    code = "\n".join(
        ['python() { printf "[%s]" "$@"; }', "export -f python", *setup, line.replace("exec ", "")]
    )
    result = subprocess.run(
        ["bash", "-c", code],
        env={"PATH": os.defpath, "OUT": "/x"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.stdout.splitlines()


@pytest.mark.parametrize("folder", ["/x", "$OUT"])
def test_a_function_that_runs_its_arguments_behind_a_shift_starts_the_program(folder: str) -> None:
    stage = 'stage() { local name=$1; shift; if "$@"; then echo "$name OK"; else echo "$name bad"; fi; }'
    conversion = converted(f"{stage}\nstage train python train.py --out {folder}")
    assert started_by(conversion) == ["[train.py][--out][/x]train OK"]


@pytest.mark.parametrize("word", ["", " $(echo b)"])
def test_an_argument_of_the_script_is_expanded_only_once(word: str) -> None:
    script = f'#!/bin/bash\npython t.py{word} "$@"\n'
    conversion = convert(script, arguments=('a "$(echo c)"', "$d"))
    assert started_by(conversion) == [f'[t.py]{"[b]" if word else ""}[a "$(echo c)"][$d]']


def test_accelerate_that_starts_the_ranks_keeps_the_options_that_it_would_override() -> None:
    line = "srun accelerate launch --use_deepspeed --mixed_precision fp16 --num_machines 2 train.py"
    assert "--mixed_precision fp16" in converted(f"#SBATCH -N2 --gres=gpu:4\n{line}").command[-1]


def test_a_variable_of_the_job_in_an_option_is_named() -> None:
    conversion = converted("srun --container-image=i --container-mounts=/j/$SLURM_JOB_ID:/job python t.py")
    assert [part.text for part in conversion.untranslated] == ["/j/$SLURM_JOB_ID:/job"]


def test_an_open_number_of_ranks_with_gpus_is_a_number_of_gpus() -> None:
    parts = converted("N=$(f)\nsrun -n $N --gpus-per-task=1 python t.py").untranslated
    assert any("--gpus N" in part.reason for part in parts)


def test_a_loop_of_groups_in_the_background_waits_for_them() -> None:
    loop = 'for i in $(seq "$RUNS"); do (cd "run_$i"; python train.py) > "out_$i" & done'
    assert converted(f"{loop}\nwait\n").command[-1] == f"{loop}\nwait"


def test_words_that_the_scripts_shell_expands_do_not_hide_that_python_is_a_rank() -> None:
    array = 'A=()\n[ -n "$S" ] && A+=(--seed "$S")\nuv run python -m train'
    plain, expanded = (
        [part.reason for part in converted(f"{array} {word}").changed if "RANK=0" in part.reason]
        for word in ("x", '"${A[@]}"')
    )
    assert plain == expanded != []


def test_an_option_of_the_step_is_named_as_one_of_srun() -> None:
    parts = converted("srun --accel-bind=gn torchrun --other=1 t.py").untranslated
    of_torchrun = {part.text: "of torchrun" in part.reason for part in parts}
    assert of_torchrun == {"--accel-bind=gn": False, "--other=1": True}


def test_a_node_with_other_jobs_of_the_user_gives_no_cpus_that_nothing_asks_for() -> None:
    lines = "#SBATCH --gres=gpu:4\n{}srun torchrun --nproc_per_node=4 t.py"

    def advises(option: str) -> bool:
        return any("--cpus-per-rank" in part.reason for part in converted(lines.format(option)).changed)

    assert advises("#SBATCH --exclusive=user\n") and not advises("#SBATCH --exclusive\n")


def test_a_launcher_that_says_one_node_has_all_its_ranks_on_each_node_of_the_step() -> None:
    launch = "accelerate launch --num_processes 4 --num_machines 1 t.py"
    conversion = converted(f"#SBATCH -N2\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=1\nsrun {launch}")
    assert typed(conversion) == "submit --nodes 2 --gpus 4 t.py"
    assert any("a world of its own" in part.reason for part in conversion.changed)


@pytest.mark.parametrize("line", ["wandb agent x", "uv run fit", 'A=(python t.py)\nA+=($1)\n"${A[@]}"'])
def test_the_rank_of_a_lone_program_is_mentioned_whatever_starts_it(line: str) -> None:
    assert any("RANK=0" in part.reason for part in converted(line).changed)


@pytest.mark.parametrize("index", ["${A[I]}", "${A[I+1]}", "${A[@]:I:1}"])
def test_an_index_without_a_dollar_sign_is_read(index: str) -> None:
    setup = setup_of(f"#SBATCH -a 0-1\nA=(a b c)\nI=$((SLURM_ARRAY_TASK_ID % 2))\nX={index}\npython t.py $X")
    assert any("I=$((" in line for line in setup)


def test_a_tool_with_the_path_of_the_system_is_no_command() -> None:
    assert converted("/bin/hostname\nexport A=1\nfairseq-train data").command == ("fairseq-train", "data")


def test_several_assignments_on_one_line_are_set_before_the_command() -> None:
    lines = 'P=$(date) D=$(hostname)\npython t.py "$P" "$D"'
    assert setup_of(lines) == ["P=$(date) D=$(hostname) || :", "export D P"]
    assert ("env", "A=1") in converted("A=1 B=2 \\\npython t.py").options


@pytest.mark.parametrize("test", ['[a="b"]', "[[$A == 1 ]]"])
def test_a_test_without_a_blank_is_the_name_of_a_program(test: str) -> None:
    conversion = converted(f"A=1\nif {test}; then\npython a.py\nelse\npython b.py\nfi")
    assert "a.py" in conversion.command[2] and "b.py" in conversion.command[2]
    code = "A=1; if \\" + test + " 2>&-; then echo a; else echo b; fi"
    assert subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout == "b\n"


def test_a_script_that_runs_only_if_it_is_not_sourced_is_read() -> None:
    for test in ('[[ "${BASH_SOURCE[0]}" == "$0" ]]', '[ "$0" = "$BASH_SOURCE" ]'):
        conversion = converted(f"main() {{ python t.py; }}\nif {test}; then\nmain\nfi")
        assert conversion.command == ("t.py",) and not conversion.untranslated


def test_a_script_without_a_folder_is_found_on_path_unless_srun_starts_it() -> None:
    assert converted("prep.py -x").command == ("bash", "-c", "exec prep.py -x")
    assert converted("prep.py $A").command == ("bash", "-c", "exec prep.py $A")
    for line in ("./prep.py", "srun prep.py", "python prep.py"):
        assert converted(line).command[-1].endswith("prep.py") and len(converted(line).command) == 1


def test_a_launcher_in_a_variable_has_the_elements_of_an_array() -> None:
    lines = '#SBATCH --gpus=2\nA=(--nnodes 1 --nproc_per_node 2)\nrun="torchrun ${A[@]} t.py"\nsrun $run'
    assert converted(lines).command == ("t.py",) and not converted(lines).untranslated


def test_set_u_ends_the_run_if_the_script_reads_a_variable_before_it_sets_it() -> None:
    for value in ("/x:$P", "${P:-$W/x}"):
        assert setup_of(f"set -u\nexport P={value}\npython t.py")[0] == "set -u"
    assert "set -u" not in setup_of("set -u\nexport P=/x${P:+:$P}\npython t.py")
    assert "set -u" not in setup_of("echo $W\nset -u\npython t.py")
    option = "while getopts d o; do case $o in d) X=1;; esac; done"
    assert ": $X" in setup_of(f"set -u\n{option}\npython t.py $X")


def test_a_backslash_in_a_directive_is_no_part_of_its_value() -> None:
    lines = (
        "#SBATCH --chdir=/a \\\n#SBATCH --comment=\"issue \\#12\" --mail-user=a\\ b --wckey='a\\\\b' # c\n"
    )
    values = [directive.value for directive in read_directives(lines)]
    assert values == ["/a", "issue #12", "a b", "a\\b"]


@pytest.mark.parametrize("end", ["exit 0", "exit $?", "exec srun python b.py"])
def test_nothing_behind_the_end_of_the_script_is_in_the_line(end: str) -> None:
    first = "srun python a.py\n" if end.startswith("exit") else ""
    conversion = converted(f"{first}{end}\nD=1\nsrun python train.py")
    assert conversion.command in (("a.py",), ("b.py",)) and not conversion.untranslated
    named = [part.text for part in conversion.parts if "the script ends before it" in part.reason]
    assert named == ["D=1", "srun python train.py"]


def test_a_branch_that_the_arguments_select_may_end_the_script() -> None:
    lines = "#!/bin/bash\ncase $1 in a) srun python a.py;; *) echo no; exit 2;; esac\nsrun python b.py\n"
    assert convert(lines, arguments=("a",)).command and not convert(lines, arguments=("x",)).command
    assert converted("if [ $# -lt 1 ]; then exit 1; fi\nsrun python t.py").command == ("t.py",)


def test_a_command_for_the_failure_of_another_one_is_not_chosen() -> None:
    conversion = converted("srun python a.py && exit 0\nsrun python b.py")
    assert conversion.command == ("a.py",)
    assert "only if the ranks fail" in reasons_of("srun python a.py && exit 0\nsrun python b.py", 3)
    condition = '[ -n "$D" ] && { srun python d.py; exit 0; }\nsrun python t.py'
    assert converted(condition).command == ("t.py",) and "--after" not in reasons_of(condition, 2)


def test_a_loop_that_starts_unknown_programs_in_the_background_waits_for_them() -> None:
    loop = "for g in 0 1; do\n  G=$g agent --count 5 &\ndone"
    assert converted(f"{loop}\nwait").command == ("bash", "-c", f"{loop}\nwait")
    assert converted(loop).command == ("bash", "-c", loop)


def test_ibrun_starts_a_process_for_each_task_of_the_job() -> None:
    lines = "#SBATCH -N 2 -n 6\nibrun{} python3 t.py"
    for option in ("", " -n 6", " -np 6"):
        assert typed(converted(lines.format(option))) == "submit --nodes 2 --ranks-per-node 3 t.py"


def test_a_value_that_the_shell_changes_is_not_known() -> None:
    lines = "SECONDS=0\nsrun python t.py\n(( SECONDS > 600 )) && ./slow"
    assert [part.line for part in converted(lines).untranslated] == [4]


def test_the_program_name_of_awk_is_not_the_path_of_the_script() -> None:
    assert [part.text for part in converted("srun python t.py | awk '{print $0}'").untranslated] != ["$0"]
    assert "$0" in [part.text for part in converted('srun python t.py --at "$0"').untranslated]


def test_a_list_that_sets_a_variable_of_the_launcher_is_not_needed() -> None:
    lines = "i=0\n[ $i -eq 0 ] && M=$H\ntorchrun --nproc_per_node 2 --master_addr $M t.py"
    assert setup_of(lines) == []


def test_a_variable_without_which_the_script_ends_is_required_in_the_line() -> None:
    assert setup_of("A=${A:?give A}\npython t.py") == ["A=${A:?give A}"]


def test_the_name_of_a_variable_in_an_option_of_accelerate_stays() -> None:
    option = "--gradient_accumulation_steps $N"
    lines = f"#SBATCH --gpus=2\nN=$(f)\naccelerate launch --config_file c.yaml {option} t.py"
    assert f"{option} " in converted(lines).command[2]


def test_a_default_number_of_nodes_is_no_range() -> None:
    conversion = converted("srun torchrun --nnodes=${SLURM_NNODES:-1} --nproc_per_node 2 t.py")
    assert not any("fixed" in part.reason for part in conversion.parts)


def test_a_redirection_without_a_file_is_code_that_bash_cannot_read() -> None:
    (part,) = converted("srun python t.py <CONFIG>\necho done").untranslated
    assert part.line == 2
    assert not converted("srun python t.py > \\\n log\ncat <<A > f\n>\nA").untranslated[1:]


def test_words_that_a_script_splits_at_its_own_separator_are_split_by_its_shell() -> None:
    conversion = converted("A=1,2 B=3\nIFS=,\npython t.py $A $B")
    setup = [value for name, value in conversion.options if name == "setup"]
    assert setup[:2] == ["A=1,2 B=3 || :", "IFS=,"]
    assert setup[2].startswith("ARGUMENTS=") and " $A 3)" in setup[2]
    assert "t.py 3" in typed(converted("B=3\nIFS=,\npython t.py $B"))


def test_the_shell_of_a_text_reads_the_values_of_variables_in_it_as_code() -> None:
    lines = 'A="--x \'a b\' $(cat n)"\nsrun bash -c "torchrun --nproc_per_node 2 t.py $A --n \\$SLURM_NODEID"'
    assert converted(lines).command[2] == 'eval "exec python t.py $A --n \\$SLURM_NODEID"'


def test_a_variable_at_the_beginning_of_a_continued_line_of_a_text_has_its_value() -> None:
    lines = 'A="--a"\nB="--b"\nC=" \\\n  $A \\\n  $B \\\n"\nsrun python t.py $C'
    assert typed(converted(lines)) == "submit t.py --a --b"


def test_the_tasks_on_each_node_are_the_most_beside_a_total() -> None:
    conversion = converted("#SBATCH -N2\nsrun -n 8 --ntasks-per-node=8 python t.py")
    assert (typed(conversion), conversion.untranslated) == ("submit --nodes 2 --ranks-per-node 4 t.py", ())


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("#SBATCH -N4\nN=$(wc -l < n)\nsrun -N $N python t.py", "-N '$N'"),
        ("seq 4 | xargs -n1 srun python t.py", "seq 4 | xargs -n1 srun python t.py"),
        ("mkdir a && trap 'rm -r a' EXIT\npython t.py", "mkdir a && trap 'rm -r a' EXIT"),
        ("#SBATCH -N2 --gres=gpu:4\nWORLD_SIZE=$(cat w)\nsrun run_it --world $WORLD_SIZE", "$WORLD_SIZE"),
    ],
)
def test_a_part_that_the_line_cannot_do_is_named(lines: str, text: str) -> None:
    assert text in [part.text for part in converted(lines).untranslated]


def test_a_function_that_gets_the_arguments_of_a_script_without_any_gets_none() -> None:
    lines = 'E=${@:2}\nrun() { local w=$1; shift; python $w.py "$@"; }\nrun train --lr 1 $E'
    assert typed(converted(lines)) == "submit train.py --lr 1"


def test_a_loop_until_the_command_succeeds_is_a_retry() -> None:
    parts = converted("until srun python t.py; do sleep 9; done").parts
    assert any("--max-restarts" in part.reason for part in parts)


def test_an_option_of_python_in_the_word_of_its_module_is_kept() -> None:
    assert converted("python -Bm pkg.fit").command == ("python", "-Bm", "pkg.fit")
    assert converted("python -um pkg.fit").command == ("-m", "pkg.fit")


def test_a_value_that_sbatch_cuts_at_a_number_sign_is_named() -> None:
    image = "#SBATCH --container-image=nvcr.io#nvidia/pytorch"
    assert image in [part.text for part in converted(f"{image}\nsrun python t.py").changed]
    parts = converted("#SBATCH --ntasks=2 # small\nsrun python t.py").changed
    assert not any("comment" in part.reason for part in parts)


def test_the_shell_splits_a_value_in_the_middle_of_a_word() -> None:
    assert converted('A="x y"\npython t.py --d=$A').command[2] == "exec python t.py --d=$A"
    assert typed(converted('A="x"\nB=\npython t.py --d=$A$B')) == "submit t.py --d=x"


def test_a_program_that_each_node_of_a_step_runs_is_named() -> None:
    def named(lines: str) -> list[str]:
        return [part.text for part in converted(lines).changed if "runs once" in part.reason]

    launch = "torchrun --nproc_per_node 2 t.py"
    assert named(f'#SBATCH -N2\nsrun bash -c "cp a b && {launch}"') == ["cp a b"]
    assert named(f'#SBATCH -N2\nsrun bash -c "cd b && {launch}"') == []
    assert named(f'#SBATCH -N2\nsrun --container-image=i bash -c "cd b && {launch}"') == ["cd b"]


def test_an_option_for_threads_is_the_number_of_threads() -> None:
    launch = "accelerate launch --num_processes 2 --num_cpu_threads_per_process 4 t.py"
    parts = converted(f"#SBATCH -c 8\n{launch}").changed
    assert not any("The launcher sets 1" in part.reason for part in parts)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            "CUDA_VISIBLE_DEVICES=0 python prep.py",
            "--setup 'CUDA_VISIBLE_DEVICES=0 python prep.py || :' t.py",
        ),
        ("CUDA_VISIBLE_DEVICES=0 ./serve > log &", "--setup 'CUDA_VISIBLE_DEVICES=0 ./serve > log &' t.py"),
        ("export CUDA_VISIBLE_DEVICES=0,1", "--env CUDA_VISIBLE_DEVICES=0,1 t.py"),
        ('CUDA_VISIBLE_DEVICES="0,1"', "--env CUDA_VISIBLE_DEVICES=0,1 t.py"),
    ],
)
def test_visible_gpus_in_front_of_a_program_are_those_of_that_program(program: str, line: str) -> None:
    gpus = "#SBATCH --gres=gpu:2 --cpus-per-task=2\n"
    conversion = converted(f"{gpus}{program}\ntorchrun --nproc_per_node=2 t.py")
    assert typed(conversion) == f"submit --gpus 2 --cpus-per-rank 1 {line}"


@pytest.mark.parametrize("profiler", ["nsys profile -o out", "strace -f -o out.txt", "ncu -o out"])
def test_a_profiler_of_a_launcher_stays_around_it(profiler: str) -> None:
    conversion = converted(f"#SBATCH --gpus-per-node=4\n{profiler} torchrun --nproc_per_node 4 t.py")
    assert ("per-node", "") in conversion.options
    assert conversion.command == (*profiler.split(), "torchrun", "--nproc_per_node", "4", "t.py")


def test_limits_between_env_and_a_launcher_are_kept() -> None:
    conversion = converted(
        "#SBATCH --gres=gpu:2\nenv A=b timeout 47h nice -n 5 torchrun --nproc_per_node=2 t.py"
    )
    assert typed(conversion) == "submit --gpus 2 --env A=b timeout 47h nice -n 5 python t.py"


@pytest.mark.parametrize("more", ["--gpus-per-task=1", "--ntasks-per-node=2"])
def test_tasks_of_a_range_of_nodes_are_named(more: str) -> None:
    conversion = converted(f"#SBATCH --ntasks=4 --nodes=2-4 {more}\nsrun python t.py")
    assert "#SBATCH --ntasks=4" in [part.text for part in conversion.untranslated]


def test_the_line_of_a_script_that_is_not_read_guesses_no_launcher() -> None:
    with pytest.raises(BadInput) as caught:
        convert("#!/bin/csh\n#SBATCH --gres=gpu:2\nsrun -n 2 python t.py\n")
    assert "--gpus 2 COMMAND" in caught.value.remedy


def test_the_end_of_a_loop_of_retries_is_no_program() -> None:
    loop = "until torchrun --nproc_per_node 2 t.py; do\n  n=$((n+1))\n  [ $n -ge 5 ] && break\ndone"
    reasons = [part.reason for part in converted(loop).untranslated]
    assert len(reasons) == 1 and "--max-restarts" in reasons[0]


def test_a_requeue_behind_the_command_asks_for_restarts() -> None:
    lines = "srun python t.py\nif [ $? -ne 0 ]; then scontrol requeue $SLURM_JOB_ID; fi"
    assert any("--max-restarts" in part.reason for part in converted(lines).untranslated)


def test_a_function_that_a_trap_calls_at_an_error_may_end_the_script() -> None:
    lines = "stop() {{ rm -f x; {end}; }}\ntrap stop ERR\nmodule load cuda\nsrun python t.py"
    ends, goes_on = (converted(lines.format(end=end)) for end in ("exit 1", "echo failed"))
    strict = [part.text for part in goes_on.changed if part.text == "module load cuda"]
    assert strict and not [part for part in ends.changed if part.text == "module load cuda"]


def test_a_variable_that_a_text_sets_has_the_value_of_the_shell_around_it() -> None:
    text = 'A=$(cat x)\nsrun bash -c "export A=1; torchrun --nproc_per_node=2 t.py {word}"'
    assert "$A" in [part.text for part in converted(text.format(word="$A")).untranslated]
    path = 'srun bash -c "export PATH=$PATH:/x; torchrun --nproc_per_node=2 t.py"'
    assert not converted(path).untranslated


@pytest.mark.parametrize(
    ("launcher", "option"),
    [
        ("srun -N $n --ntasks-per-node=4 python", "-N '{n}'"),
        ("srun --gpus-per-task=$n python", "'--gpus-per-task={n}'"),
        ("srun --nodes=$n torchrun --nproc_per_node=4", "'--nodes={n}'"),
        ("torchrun --nnodes=$n --nproc_per_node=4", "'--nnodes={n}'"),
        ("torchrun --nproc_per_node=$n", "'--nproc_per_node={n}'"),
    ],
)
def test_a_size_that_a_loop_changes_is_named(launcher: str, option: str) -> None:
    job = "#SBATCH --nodes=4 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=2"
    conversion = converted(f"{job}\nfor n in 1 2 4; do\n  {launcher} t.py --size $n\ndone")
    assert option in [part.text for part in conversion.untranslated]


def test_a_block_with_a_lock_of_its_own_is_a_setup_line() -> None:
    block = "(\n  flock -n 9 || exit 1\n  cp -r /data .\n) 9>/tmp/lock"
    assert "cp -r /data" in typed(converted(f"{block}\npython t.py"))
    lock = "exec 9>/tmp/lock\nflock -n 9\npython t.py"
    assert any("singleton" in part.reason for part in converted(lock).untranslated)


@pytest.mark.parametrize(
    "setting",
    [
        "export CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=INFO",
        'if [ -n "$X" ]; then export CUDA_VISIBLE_DEVICES=0; fi',
    ],
)
def test_visible_gpus_that_stay_in_a_setup_line_are_named(setting: str) -> None:
    lines = f"#SBATCH --gres=gpu:2 --cpus-per-task=2\n{setting}\ntorchrun --nproc_per_node=2 t.py"
    assert [part.text for part in converted(lines).changed if "--env" in part.reason] == [setting]


def test_an_empty_environment_is_named() -> None:
    changed = converted("env -i PATH=/bin torchrun --nproc_per_node 2 t.py").changed
    assert any("env -i" in part.reason for part in changed)
