"""Commands that users bring from sbatch and torchrun, beside plain Slurm with the same input."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.script.sbatch_table import OPTIONS
from tests.lab.test_slurm_runs import Site, site, until

pytestmark = pytest.mark.lab

BATCH = """#!/bin/bash
#SBATCH --job-name=ported
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:05:00
srun python3 train.py --lr 0.1
"""
FILES = {
    "port.sbatch": BATCH,
    "train.py": "print('trained')\n",
    "wrong.py": "def f(:\n",
    "dos.sh": "#!/bin/bash\r\necho hello\r\n",
    "no_first_line": "echo hello\n",
    # As torchrun does it: a world of two below each rank.
    "launch.sh": """#!/bin/bash
for MASTER_PORT in 1 2; do
    for RANK in 0 1; do
        export RANK MASTER_PORT
        {python} -c 'import time; time.sleep(600)' &
    done
done
wait
""",
}


@pytest.fixture
def project(lab: Lab, tmp_path: Path) -> Site:
    local = site(lab, tmp_path)
    for name, text in FILES.items():
        (local.project / name).write_text(text.replace("{python}", sys.executable))
        (local.project / name).chmod(0o755)
    return local


def plain(lab_site: Site, *arguments: str) -> tuple[int, str, str]:
    result = lab_site.lab.exec(["sbatch", *arguments], cwd=str(lab_site.project))
    return result.code, result.out, result.err


def queued(lab_site: Site) -> str:
    return lab_site.lab.exec(["squeue", "--noheader", "--format=%i"]).out


def runs(lab_site: Site) -> list[str]:
    folder = lab_site.home / "runs"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


@pytest.mark.parametrize(
    "typed",
    [
        "port.sbatch",
        "bash port.sbatch",
        "sbatch port.sbatch",
        "srun -N 2 python3 train.py",
        "--nodes 2 torchrun --nproc_per_node 2 train.py",
        "torchrun --nproc_per_node 2 train.py",
        "mpirun -n 2 python3 train.py",
        "python3 trian.py",
        "trian.py",
        "FOO=1 python3 train.py",
        "-m train.py",
        "wrong.py",
        "./dos.sh",
        "./no_first_line",
        "–nodes 2 train.py",
        "--array 0-3%2 train.py",
        "--sbatch array=0-3%2 train.py",
        "--wrap 'python3 train.py'",
        "--sbatch output=logs/%x_%j.out train.py",
        "--sbatch chdir=/tmp train.py",
    ],
)
def test_impossible_commands_are_refused_before_anything_is_queued(project: Site, typed: str) -> None:
    result = project.run("submit", *shlex.split(typed))
    assert (result.code, result.out) == (2, "")
    assert re.search(r"^error: .+\n.+", result.err, re.MULTILINE), "what was seen, and what to do"
    assert (queued(project), runs(project)) == ("", [])


def test_plain_sbatch_refuses_the_same_scripts(project: Site) -> None:
    assert "DOS line breaks" in plain(project, "dos.sh")[2]
    assert "does not look like a batch script" in plain(project, "no_first_line")[2]


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("port.sbatch", (2, 1)),
        ("torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 0.1", (2, 4)),
        ("srun -N2 -n4 python3 train.py --lr 0.1", (2, 2)),
    ],
)
def test_the_offered_line_makes_the_same_request(project: Site, typed: str, size: tuple[int, int]) -> None:
    refused = project.run("submit", *shlex.split(typed))
    line = next(line for line in refused.err.split("\n") if "clusterrun submit" in line)
    arguments = shlex.split(line[line.index("clusterrun submit ") :])[2:]
    assert arguments[-3:] == ["train.py", "--lr", "0.1"]
    answer = project.submit("--sbatch", "hold", *arguments)
    status = project.status(answer["run_id"])
    assert (status["nodes"], status["world_size"]) == (size[0], size[0] * size[1])
    requested = project.lab.exec(["squeue", "--noheader", f"--job={answer['job_id']}", "--format=%D %j"]).out
    assert requested.startswith(f"{size[0]} ")
    project.run("cancel", answer["run_id"])


PASSED_ON = (
    *("mail-type=BEGIN", "mail-type=END", "mail-user=a@example.org", "nice=7", "contiguous", "switches=1@10"),
    *(
        "mincpus=2",
        "tmp=10",
        "reboot",
        "delay-boot=3",
        "mcs-label=m",
        "network=x",
        "wckey=k",
        "deadline=now+9hours",
    ),
    *("threads-per-core=1", "exclude=n0004", "gres=gpu:2", "requeue", "hold", "distribution=cyclic"),
)
COMPARED = (
    *("MailType", "MailUser", "Nice", "Contiguous", "MinCPUsNode", "MinTmpDiskNode", "Reboot", "DelayBoot"),
    *(
        "MCS_label",
        "Network",
        "Requeue",
        "ExcNodeList",
        "TresPerNode",
        "Switches",
        "Socks/Node",
        "OverSubscribe",
    ),
)


def fields(lab_site: Site, job_id: str) -> dict[str, str]:
    output = lab_site.lab.exec(["scontrol", "--oneliner", "show", "job", job_id]).out
    pairs = [word.partition("=")[::2] for word in output.split()]
    return {name: value for name, value in pairs if name in COMPARED}


def test_options_that_are_passed_on_reach_the_job_as_with_plain_sbatch(project: Site) -> None:
    code, out, err = plain(project, "--parsable", *(f"--{option}" for option in PASSED_ON), "--wrap", "true")
    assert code == 0, err
    theirs = fields(project, out.strip())
    answer = project.submit(*(word for option in PASSED_ON for word in ("--sbatch", option)), "train.py")
    ours = fields(project, answer["job_id"])
    project.lab.exec(["scancel", out.strip()])
    project.run("cancel", answer["run_id"])
    assert theirs["MailType"] in ("BEGIN,END", "END")  # from 25.05 on sbatch takes the last one
    assert ours == {**theirs, "MailType": "BEGIN,END"}


def test_the_table_has_every_option_that_this_sbatch_names(project: Site) -> None:
    output = project.lab.exec(["sbatch", "--help"]).out
    names = set(re.findall(r"^\s+(?:-\w, ?|-\w  )?--([a-z][a-z-]+)", output, re.MULTILINE))
    assert len(names) > 80
    assert names <= {*OPTIONS}


def test_a_launcher_in_a_shell_script_is_reported_before_and_during_the_run(project: Site) -> None:
    """The rank starts two worlds. Plain ``srun`` starts the same two worlds without a warning."""
    answer = project.submit("--preflight", "off", "./launch.sh")
    until(lambda: "make at least 2 worlds" in project.status(answer["run_id"])["reason"])
    project.run("cancel", answer["run_id"])
    (project.project / "run.sh").write_text("#!/bin/bash\ntorchrun --nproc_per_node 2 train.py\n")
    result = project.run("submit", "--nodes", "2", "--dry-run", "bash", "run.sh")
    assert result.code == 0
    assert "run.sh, line 2 starts torchrun" in result.err
    assert re.search(r"instead clusterrun submit --nodes 2 .*--gpus 2 train\.py\b", result.err)


def test_a_request_without_gpus_on_a_gpu_partition_is_reported_in_one_line(project: Site) -> None:
    command = ("submit", "--sbatch", "comment=hint")
    outputs = [
        project.run(*command, *arguments, "train.py").err
        for arguments in (("--dry-run",), ("--dry-run", "--gpus", "0"), ("--sbatch", "hold"))
    ]
    outputs.append(project.run(*command, "--sbatch", "hold", "train.py").err)
    lines = [line for line in outputs[0].split("\n") if "this run asks for none" in line]
    assert len(lines) == 1
    assert "nodes of partition debug have up to 8 GPUs" in lines[0]
    assert ["asks for none" in output for output in outputs] == [True, False, True, False]
    for number in re.findall(r": job (\d+)", "".join(outputs)):
        project.run("cancel", number)


# Each rank appends one line: its arguments, directory, index and bounds of the array, and variables T_….
RECORD = """import json, os, sys
tagged = {name: value for name, value in os.environ.items() if name.startswith("T_") and name != "T_RECORDS"}
names = ("ID", "MIN", "MAX", "STEP", "COUNT") if "--task" in sys.argv else ()
array = [os.environ["SLURM_ARRAY_TASK_" + name] for name in names]
cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
record = json.dumps([sys.argv[1:], os.path.basename(os.getcwd()), array, cpus, sorted(tagged.items())])
with open(os.environ["T_RECORDS"], "a") as file:
    file.write(record + "\\n")
"""
CONVERTED = {
    "head-node": """#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --output=%x-%j.txt
set -euo pipefail
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head_node=${nodes[0]}
export T_A="a b"
ARGS="--lr 0.1"
ARGS+=" --name x"
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 2 --rdzv_id 7 --rdzv_backend c10d \\
    --rdzv_endpoint $head_node:29511 record.py $ARGS
""",
    "function": """#SBATCH -N 2 --ntasks-per-node=2
prepare() { mkdir -p "$1"; }
train() {
    local folder=$1
    export T_FOLDER=$folder
    cd "$folder"
    srun python ../record.py "${@:2}"
}
prepare out
train out --note "two words" '$HOME'
""",
    "array": """#SBATCH --array=1-3:2
value=$(sed -n "${SLURM_ARRAY_TASK_ID}p" values.txt)
python record.py --value $value --task $SLURM_ARRAY_TASK_ID
""",
    "loops": """#SBATCH -N 1
for seed in 1 2; do
    export T_OUT=run-$seed
    srun python record.py --seed $seed
done
""",
    "arrays": """#SBATCH -N 2 --ntasks-per-node=1
declare -A rate
while IFS='=' read -r key value; do rate[$key]=$value; done < <(printf 'small=0.1\\nbig=2 3\\n')
case ${MODE:-full} in full) options=(--note "two words") ;; esac
while :; do date > beat; sleep 1; done &
T_RATE="${rate[big]}" srun python record.py --lr "${rate[small]}" $((SLURM_NNODES - 3)) "${options[@]}"
kill $!
""",
    "module": """#SBATCH -N 1 -n 2 -c 2 --export=ALL,T_C=3
module load cuda/12
source activate.sh
cat > made.txt <<EOF
tasks: $SLURM_NTASKS
EOF
export T_MADE="$(cat made.txt)"
srun --chdir=out python ../record.py $SLURM_NTASKS $SLURM_CPUS_PER_TASK
""",
    "document": """#SBATCH -N 2 --ntasks-per-node=2 -c 2
read -r -d '' command <<EOF
export T_HALF=$((SLURM_CPUS_PER_TASK / 2)) \\
&& python record.py --note "two words"
EOF
srun -l bash -c "$command"
""",
    "script": """#SBATCH -N 2 --ntasks-per-node=1
srun bash -c 'touch staged.$SLURM_NODEID'
export T_STAGED="$(ls -d staged.* | wc -l)"
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun bash launch.sh base.yaml
""",
}
LAUNCH = """torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_NODEID --nproc_per_node 2 \\
    --master_addr $MASTER_ADDR --master_port 29522 record.py --config $1
"""


def test_a_converted_line_has_the_effect_of_the_batch_script(lab: Lab, tmp_path: Path) -> None:
    """Each script runs under sbatch, and as the line that convert prints; both record the same."""
    local = site(lab, tmp_path)
    (local.project / "out").mkdir()
    page = (Path(__file__).parents[2] / "docs/coming-over.md").read_text(encoding="utf-8")
    scripts = {**CONVERTED, "page": page.split("```bash\n")[1].split("```")[0]}
    files = {
        "record.py": RECORD,
        "train.py": RECORD,
        "activate.sh": "export T_VENV=on\n",
        "values.txt": "0.5\n0.25\n0.125\n",
        "launch.sh": LAUNCH,
    }
    for name, text in files.items():
        (local.project / name).write_text(text)
    module = 'module() { export T_MODULES="$*"; }; export -f module; '
    path = f"export PATH={Path(sys.executable).parent}:$PATH CLUSTERRUN_PREFLIGHT=off; "
    plain_lines, our_lines = [], []
    for name, text in scripts.items():
        (local.project / f"{name}.sbatch").write_text(f"#!/bin/bash\n{text}")
        line = local.run("convert", f"{name}.sbatch")
        assert line.code == 0, line.err
        plain_lines.append(f"T_RECORDS={tmp_path}/{name}.plain sbatch --wait {name}.sbatch &")
        our_lines.append(f"export T_RECORDS={tmp_path}/{name}.ours; {line.out.strip()}")
    for lines in ([*plain_lines, "wait"], our_lines):
        result = lab.exec(
            ["bash", "-c", "\n".join((module + path, *lines))],
            cwd=str(local.project),
            env={"CLUSTERRUN_HOME": str(local.home)},
            timeout=240,
        )
        assert result.code == 0, result.err
    run_ids = [run["run_id"] for run in json.loads(local.run("status", "--json").out)["runs"]]
    assert local.run("wait", *run_ids, limit=240).code == 0
    for name in scripts:
        plain_records = sorted((tmp_path / f"{name}.plain").read_text().splitlines())
        our_records = sorted((tmp_path / f"{name}.ours").read_text().splitlines())
        assert (name, our_records) == (name, plain_records)
