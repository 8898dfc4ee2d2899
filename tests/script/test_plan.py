"""The laws of planning: a spec becomes one whole submission, compared whole, and nothing is invented."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterrun import shipped
from clusterrun.model import contract
from clusterrun.model.errors import BadInput, SchedulerError
from clusterrun.model.frozen import replace
from clusterrun.model.option_table import CONFIGURABLE, Option
from clusterrun.model.orders import Interpreter, Level, Orders, Preflight, Survival, WatchOrders
from clusterrun.model.run_words import default_name
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit
from clusterrun.script import environment as environment_module
from clusterrun.script.plan import MachineFacts, Plan, plan, rank_command

GOLDEN = Path(__file__).parent.parent / "golden"
RUN_DIR = "/home/ada/.clusterrun/runs/20260102-030405-train"
SCRIPT = f"{RUN_DIR}/script.sh"
PYTHON = "/opt/venv/bin/python"
ON_SLURM = MachineFacts(slurm=True, python=PYTHON, why_python="the one clusterrun runs in")
HERE = MachineFacts(slurm=False, python=PYTHON, why="no program named sbatch is on PATH", gpus=2)

SPECS = {
    "small": JobSpec(("train.py", "--lr", "1e-3"), cwd="/home/ada/project"),
    "whole": JobSpec(
        ("-m", "pkg.train", "--name", "a b"),
        cwd="/home/ada/my project",
        name='näme "x" $(id)',
        nodes=4,
        gpus=8,
        cpus_per_rank=6,
        time=129600,
        partition="gpu",
        account="physics",
        qos="high",
        reservation="class",
        constraint="a100&nvlink",
        exclude="n[3-4]",
        nodelist="n[1-8]",
        mem="200G",
        sbatch=("exclusive", "mail-type=END", "comment=for the paper"),
        srun=("overlap",),
        setup=("module load cuda/12", "source 'my env'/bin/activate"),
        environment=(("WANDB_API_KEY", "secret"),),
        requeue=True,
        after=("17", "18"),
        max_restarts=2,
    ),
    "odd-paths": JobSpec(("./program",), cwd="/home/ada/two\nlines", name="hetjob", gpus=0, ranks_per_node=3),
}
DIRS = {"odd-paths": "/home/ada/100%\\x/runs/r"}


def made(name: str) -> Plan:
    return plan(SPECS[name], "20260102-030405-train", "f00dcafe", DIRS.get(name, RUN_DIR), ON_SLURM)


def test_the_script_runs_inside_an_allocation_on_the_selected_nodes() -> None:
    spec = replace(SPECS["small"], nodes=2, nodelist="n[1-2]", cluster=Cluster.SLURM)
    remote = plan(spec, "r", "f00dcafe", RUN_DIR, replace(ON_SLURM, allocation="41"))
    queued = plan(spec, "r", "f00dcafe", RUN_DIR, ON_SLURM)
    assert (remote.argv, remote.allocation, queued.allocation) == (("/bin/bash", SCRIPT), "41", "")
    assert "#SBATCH" not in remote.script and remote.script.split("exec >>")[1] in queued.script
    (place,) = [n for n, word in enumerate(remote.orders.launch) if word == "--overlap"]
    arguments = ("--overlap", "--immediate=100", "--nodelist=n[1-2]")
    assert remote.orders.launch[place : place + 3] == arguments
    launch = (*remote.orders.launch[:place], *remote.orders.launch[place + 3 :])
    assert replace(remote.orders, launch=launch, in_allocation=False) == queued.orders


@pytest.mark.parametrize("name", SPECS)
def test_the_script_equals_the_golden_one(name: str) -> None:
    assert made(name).script == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("option", [o for o in CONFIGURABLE.values() if o.sbatch], ids=lambda o: o.name)
def test_options_for_sbatch_are_only_directives(option: Option) -> None:
    value: Any = {"number": 7, "switch": True, "list": ("a", "b"), "time": 5400}.get(option.kind, "a1")
    written = {"switch": "", "list": "=a,b", "time": "=01:30:00"}.get(option.kind, f"={value}")
    spec = replace(SPECS["small"], **{option.field: value})
    plain = plan(SPECS["small"], "r", "f00dcafe", RUN_DIR, ON_SLURM).script
    remote = plan(spec, "r", "f00dcafe", RUN_DIR, ON_SLURM).script
    assert set(remote.splitlines()) - set(plain.splitlines()) == {f"#SBATCH --{option.name}{written}"}
    current = replace(HERE, why="")
    notices = plan(spec, "r", "f00dcafe", RUN_DIR, current).notices
    assert [option.name in notice for notice in notices] == ([True] if option.here else [])


def test_an_edit_of_a_shipped_template_takes_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(shipped.folder("templates"), tmp_path / "templates")
    monkeypatch.setattr(shipped, "folder", lambda name: str(tmp_path / name))
    as_shipped = made("small").script
    for name in ("job.sbatch.j2", "start.sh.j2"):
        with open(tmp_path / "templates" / name, "a", encoding="utf-8") as file:
            file.write(f"# edited: {name}\n")
        assert f"# edited: {name}" not in as_shipped
        assert f"# edited: {name}" in made("small").script


def test_sbatch_gets_the_script_and_only_options_without_a_directive() -> None:
    assert made("whole").argv == ("sbatch", "--parsable", f"{RUN_DIR}/script.sh")
    assert made("odd-paths").argv == (
        "sbatch",
        "--parsable",
        "--job-name=hetjob",
        "--chdir=/home/ada/two\nlines",
        "/home/ada/100%\\x/runs/r/script.sh",
    )


def test_the_orders_are_exact_and_start_one_agent_on_each_node() -> None:
    agent = ("-I", "-S", f"{RUN_DIR}/agent.pyz", "agent", RUN_DIR)
    assert made("whole").orders == Orders(
        run_id="20260102-030405-train",
        run_name='näme "x" $(id)',
        nodes=4,
        ranks_per_node=8,
        gpus_per_node=8,
        cpus_per_rank=6,
        command=(PYTHON, "-u", "-m", "pkg.train", "--name", "a b"),
        cwd="/home/ada/my project",
        environment=(("WANDB_API_KEY", "secret"),),
        launch=(
            "srun",
            "--nodes=4",
            "--ntasks=4",
            "--ntasks-per-node=1",
            "--cpu-bind=none",
            "--mpi=none",
            "--export=ALL",
            "--input=all",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--no-kill",
            "--unbuffered",
            "--quiet",
            "--overlap",
            PYTHON,
            *agent,
        ),
        max_restarts=2,
        preflight=Preflight(Level.FULL, python=PYTHON),
        watch=WatchOrders(on=True),
        grace=contract.GRACE_SECONDS,
        kill_wait=27.0,
        survival=Survival(
            "requeue",
            (
                *made("whole").argv[:-1],
                "--dependency=",
                "{dependency}",
                SCRIPT,
            ),
            120.0,
            20,
            20,
        ),
        interpreter=Interpreter(PYTHON, "the one clusterrun runs in", by_setup=True),
    )


def test_no_secret_of_the_environment_is_in_the_script_or_in_an_argument() -> None:
    whole = made("whole")
    assert "secret" not in whole.script + "".join(whole.argv) + "".join(whole.orders.launch)


@pytest.mark.parametrize(
    "command, name, argv",
    [
        (("train.py", "-x"), "train", (PYTHON, "-u", "train.py", "-x")),
        (("src/my train.py",), "my train", (PYTHON, "-u", "src/my train.py")),
        (("-m", "pkg.mod", "a"), "pkg.mod", (PYTHON, "-u", "-m", "pkg.mod", "a")),
        (("./run.sh", "a"), "run.sh", ("./run.sh", "a")),
        (("torchrun", "train.py"), "train", ("torchrun", "train.py")),
        (("bash", "-c", "python $D/train.py -x"), "train", ("bash", "-c", "python $D/train.py -x")),
        (("./run.sh", "eval.py"), "run.sh", ("./run.sh", "eval.py")),
        ((".py",), "run", (PYTHON, "-u", ".py")),
    ],
)
def test_a_command_gets_its_python_and_a_name(
    command: tuple[str, ...], name: str, argv: tuple[str, ...]
) -> None:
    result = plan(JobSpec(command, cwd="/"), "r", "t", RUN_DIR, ON_SLURM)
    assert (result.spec.name, default_name(command), result.orders.command) == (name, name, argv)


def directives(**wish: object) -> list[str]:
    spec = JobSpec(("train.py",), cwd="/", **wish)  # type: ignore[arg-type]
    script = plan(spec, "r", "t", RUN_DIR, ON_SLURM).script
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)


def test_no_time_no_memory_and_no_partition_are_invented() -> None:
    assert directives() == [
        "--job-name=train",
        "--comment=clusterrun:r:t",
        "--chdir=/",
        f"--output={RUN_DIR}/job.out",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
    ]


@pytest.mark.parametrize(
    "entry, removed, stays, notice",
    [
        (
            "time=1",
            "--time=00:10:00",
            "--time=1",
            "--sbatch time takes the place of --time",
        ),
        (
            "gres=gpu:a100:4",
            "--gpus-per-node=4",
            "--gres=gpu:a100:4",
            "--sbatch gres takes the place of --gpus-per-node",
        ),
        (
            "job-name=x",
            "--job-name=train",
            "--job-name=x",
            "--sbatch job-name takes the place of --job-name",
        ),
        ("gres=lscratch:100", "--gres=gpu:4", "--gpus-per-node=4", None),
        ("begin=now+1hour", "--begin=now", "--begin=now+1hour", None),
    ],
)
def test_a_passed_on_option_replaces_ours_with_a_notice(
    entry: str, removed: str, stays: str, notice: str | None
) -> None:
    spec = JobSpec(("train.py",), cwd="/", gpus=4, time=600, sbatch=(entry,))
    result = plan(spec, "r", "t", RUN_DIR, ON_SLURM)
    lines = [line.removeprefix("#SBATCH ") for line in result.script.split("\n")]
    assert (removed in lines, lines.count(stays)) == (False, 1)
    assert result.notices == (() if notice is None else (notice,))


def test_the_type_of_gpus_reaches_sbatch_and_their_number_is_ours() -> None:
    spec = JobSpec(("train.py",), cwd="/", nodes=2, gpus=8, gpu_type="h100")
    result = plan(spec, "r", "t", RUN_DIR, ON_SLURM)
    assert "#SBATCH --gpus-per-node=h100:8" in result.script.split("\n")
    assert (result.orders.gpus_per_node, result.orders.ranks_per_node, spec.world_size) == (8, 8, 16)


@pytest.mark.parametrize(
    ("sbatch", "expected", "unwanted"),
    [((), "--exclusive", "--oversubscribe"), (("oversubscribe",), "--oversubscribe", "--exclusive")],
)
def test_gpus_of_the_node_request_the_whole_node_instead_of_gpus(
    sbatch: tuple[str, ...], expected: str, unwanted: str
) -> None:
    spec = JobSpec(("train.py",), cwd="/", nodes=2, gpus=8, gpus_from="node", sbatch=sbatch)
    result = plan(spec, "r", "t", RUN_DIR, replace(ON_SLURM, cpus_per_gpu=12))
    lines = result.script.split("\n")
    assert not re.search("gpus-per|gres|gpus=", result.script)
    assert (f"#SBATCH {expected}" in lines, f"#SBATCH {unwanted}" in lines) == (True, False)
    assert "#SBATCH --cpus-per-task=8" in lines  # at least; the whole node is the job's
    orders = result.orders
    assert (orders.node_gpus, orders.hide_gpus, orders.gpus_per_node) == (True, False, 8)


def test_a_type_cannot_be_had_of_gpus_that_slurm_does_not_know() -> None:
    with pytest.raises(BadInput, match="Slurm is not asked for a type of GPU") as refused:
        JobSpec(("train.py",), cwd="/", gpus=8, gpu_type="h100", gpus_from="node")
    assert "--gpus 8 --constraint h100" in refused.value.remedy


def test_gpus_per_task_is_refused_because_it_binds_them_to_one_task() -> None:
    for entries in ({"sbatch": ("gpus-per-task=1",)}, {"srun": ("gpus-per-task=1",)}):
        with pytest.raises(BadInput, match="gpus-per-task cannot be passed on"):
            plan(JobSpec(("train.py",), cwd="/", gpus=2, **entries), "r", "t", RUN_DIR, ON_SLURM)


def test_the_type_of_gpus_is_ignored_on_this_machine_with_a_notice() -> None:
    spec = JobSpec(("train.py",), cwd="/", gpus=1, gpu_type="h100", cluster=Cluster.LOCAL)
    result = plan(spec, "r", "t", RUN_DIR, replace(ON_SLURM, slurm=False, gpus=8))
    assert result.notices == ("the type in --gpus h100:1 is ignored in local runs",)


def test_dependencies_and_comments_are_joined_not_replaced() -> None:
    result = directives(after=("5",), sbatch=("dependency=singleton", "comment=mine"))
    assert '"--comment=clusterrun:r:t mine"' in result
    assert "--dependency=afterok:5,singleton" in result


@pytest.mark.parametrize(
    "wish, message",
    [
        ({"sbatch": ("array=1-5",)}, "--sbatch array cannot be passed on"),
        ({"sbatch": ("nodes=2",)}, "--sbatch nodes cannot be passed on"),
        ({"srun": ("multi-prog",)}, "--srun multi-prog cannot be passed on"),
        ({"srun": ("bcast=/tmp/p",)}, "--srun bcast cannot be passed on"),
        ({"sbatch": ("p=debug",)}, "'p' is not the name of an option"),
        ({"sbatch": ("-x n1 -H",)}, "write --sbatch exclude=n1 --sbatch hold"),
        ({"sbatch": ("--mem-per-cpu=1 --nice=5",)}, "write --sbatch mem-per-cpu=1 --sbatch nice=5"),
        ({"sbatch": ("mail-type END",)}, "write --sbatch mail-type=END"),
        ({"sbatch": ("a b=c",)}, "'a b' is not the name of an option"),
        ({"sbatch": ("comment=a\nb",)}, "has a control character"),
    ],
)
def test_an_option_that_breaks_a_promise_is_refused_with_an_alternative(
    wish: dict[str, tuple[str]], message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        directives(**wish)
    assert message in str(caught.value) and caught.value.remedy


def test_a_run_without_slurm_is_local_with_a_notice() -> None:
    spec = JobSpec(("train.py",), cwd="/w", nodes=2, gpus=1, time=60, mem="4G", setup=("echo hi",))
    result = plan(spec, "r", "t", RUN_DIR, HERE)
    assert (result.spec.cluster, result.argv, result.orders.launch, result.orders.gpus_per_node) == (
        Cluster.LOCAL,
        ("/bin/bash", f"{RUN_DIR}/script.sh"),
        (),
        1,
    )
    assert result.notices == (
        "no program named sbatch is on PATH: the run stays on this machine",
        "--mem is ignored in local runs",
    )
    assert (result.orders.time_limit, "#SBATCH" in result.script, "echo hi\n" in result.script) == (
        60.0,
        False,
        True,
    )


def test_a_run_without_enough_gpus_gets_cpu_ranks_and_a_notice() -> None:
    result = plan(JobSpec(("train.py",), cwd="/", nodes=2, gpus=4), "r", "t", RUN_DIR, replace(HERE, why=""))
    assert (result.orders.gpus_per_node, result.orders.ranks_per_node) == (0, 4)
    share = "--gpus 0 --ranks-per-node 4 --env CUDA_VISIBLE_DEVICES=0,1 shares the GPUs that are here"
    lacks = "8 GPUs requested, and this machine has only 2: 4 CPU ranks on each simulated node"
    assert result.notices == (f"{lacks}; {share}",)


@pytest.mark.parametrize(
    "site, wish, hidden",
    [
        (ON_SLURM, {}, True),
        (ON_SLURM, {"gpus": 8}, False),
        (ON_SLURM, {"sbatch": ("gres=gpu:a100:8",), "ranks_per_node": 8}, False),
        (ON_SLURM, {"sbatch": ("gpus=8",)}, False),
        (ON_SLURM, {"srun": ("tres-per-task=cpu=1,gres/gpu=1",)}, False),
        (ON_SLURM, {"sbatch": ("gres=shard:1,nvme",)}, True),
        (ON_SLURM, {"sbatch": ("exclusive",)}, True),
        (HERE, {}, True),
        (HERE, {"gpus": 2}, False),
        (replace(HERE, why=""), {"gpus": 4}, True),
        (replace(HERE, why=""), {"sbatch": ("gres=gpu:2",)}, True),
    ],
)
def test_unrequested_gpus_are_hidden(site: MachineFacts, wish: dict[str, Any], hidden: bool) -> None:
    spec = JobSpec(("train.py",), cwd="/w", **wish)
    assert plan(spec, "r", "t", RUN_DIR, site).orders.hide_gpus is hidden


@pytest.mark.parametrize(
    "message, python",
    [
        ("", PYTHON),
        ("python3", "python3"),
        ("venv/bin/python", "/w/venv/bin/python"),
        ("/a/python", "/a/python"),
    ],
)
def test_a_python_named_by_a_path_is_the_same_from_everywhere(message: str, python: str) -> None:
    assert (
        plan(JobSpec(("train.py",), cwd="/w", python=message), "r", "t", RUN_DIR, ON_SLURM).spec.python
        == python
    )


def test_an_option_has_priority_over_the_machine() -> None:
    spec = JobSpec(("train.py",), cwd="/", cluster=Cluster.LOCAL)
    assert plan(spec, "r", "t", RUN_DIR, ON_SLURM).spec.cluster is Cluster.LOCAL


def test_a_users_template_must_request_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "mine.j2").write_text(
        "#!/bin/sh\n{{ directives | sbatch }}\nexec {{ python }} {{ agent }} coordinate {{ run_dir }}\n"
    )
    spec = JobSpec(("train.py",), cwd=str(tmp_path), template="mine.j2")
    assert plan(spec, "r", "tok", RUN_DIR, ON_SLURM).script.endswith(
        f"\nexec {PYTHON} {RUN_DIR}/agent.pyz coordinate {RUN_DIR}\n"
    )
    (tmp_path / "mine.j2").write_text("#!/bin/sh\nsrun {{ command }}\n")
    with pytest.raises(BadInput, match=r"does not use directives and agent"):
        plan(spec, "r", "tok", RUN_DIR, ON_SLURM)


def test_variables_of_a_job_around_us_are_dropped_but_not_the_path_to_slurm() -> None:
    environment = {
        "SLURM_CPU_BIND": "x",
        "SBATCH_TIME": "1",
        "PET_NNODES": "2",
        "SLURM_CONF": "c",
        "PATH": "p",
        "PMIX_RANK": "0",
    }
    assert environment_module.scrubbed(environment) == {"SLURM_CONF": "c", "PATH": "p"}
    assert environment_module.dropped(environment, SPECS["small"]) == (
        "PET_NNODES",
        "PMIX_RANK",
        "SBATCH_TIME",
        "SLURM_CPU_BIND",
    )
    of_job = {f"SLURM_{number}": "" for number in range(4)}
    assert environment_module.dropped({**environment, **of_job}, SPECS["small"])[-2:] == (
        "SBATCH_TIME",
        "SLURM_*",
    )


@pytest.mark.parametrize(
    "wish, level",
    [({}, "quick"), ({"nodes": 2}, "full"), ({"alone": True}, "full"), ({"preflight": "off"}, "off")],
)
def test_several_nodes_are_checked_in_full_and_one_quickly_by_default(
    wish: dict[str, Any], level: str
) -> None:
    result = plan(JobSpec(("train.py",), cwd="/", **wish), "r", "t", RUN_DIR, ON_SLURM)
    assert (result.orders.preflight.level, result.spec.preflight) == (level, level)


def test_the_orders_of_a_check_are_the_options() -> None:
    site = replace(ON_SLURM, cluster="alps", findings="/h/findings/alps")
    requested = JobSpec(
        ("train.py",),
        cwd="/",
        nodes=3,
        spares=2,
        preflight_budget=90,
        preflight_limit=(("slow_fail", 0.4),),
        check_command=("/opt/check", "exit 1"),
        on_unfit=OnUnfit.RESUBMIT,
        exclude="n[3-4]",
    )
    result = plan(requested, "r", "t", RUN_DIR, site)
    assert result.orders.preflight == Preflight(
        Level.FULL,
        budget=90.0,
        limits=(("slow_fail", 0.4),),
        check_commands=("/opt/check", "exit 1"),
        cluster="alps",
        findings="/h/findings/alps",
        python=PYTHON,
        resubmit=("sbatch", "--parsable", "--exclude=n[3-4],{excluded}", f"{RUN_DIR}/script.sh"),
    )
    assert (result.orders.nodes, result.orders.spares) == (3, 2)


def test_spares_are_allocated_and_each_gets_an_agent() -> None:
    result = plan(JobSpec(("train.py",), cwd="/", nodes=3, spares=2), "r", "t", RUN_DIR, ON_SLURM)
    assert "#SBATCH --nodes=5\n" in result.script
    assert result.orders.launch[1:3] == ("--nodes=5", "--ntasks=5")


def test_options_of_a_check_that_does_not_run_are_reported_and_dropped() -> None:
    requested = JobSpec(("t.py",), cwd="/", nodes=2, spares=1, preflight="off", on_unfit=OnUnfit.RESUBMIT)
    result = plan(requested, "r", "t", RUN_DIR, ON_SLURM)
    assert result.notices == ("--on-unfit is ignored with --preflight off",)
    assert (result.orders.spares, result.orders.preflight, result.spec.allocated) == (1, Preflight(), 3)


def test_a_spare_that_could_never_train_is_reported() -> None:
    requested = JobSpec(("t.py",), cwd="/", nodes=2, spares=1, preflight="off", max_restarts=0)
    result = plan(requested, "r", "t", RUN_DIR, ON_SLURM)
    assert result.notices == ("--spares is ignored with --preflight off and no restarts",)


@pytest.mark.parametrize(
    "more", [{"after": ("7",)}, {"sbatch": ("dependency=singleton",)}], ids=["after", "dependency"]
)
def test_a_run_that_is_queued_again_waits_for_nothing_that_is_over(more: dict[str, Any]) -> None:
    requested = JobSpec(("t.py",), cwd="/", on_unfit=OnUnfit.RESUBMIT, **more)
    arguments = plan(requested, "r", "t", RUN_DIR, ON_SLURM).orders.preflight.resubmit
    assert arguments[2:-1] == ("--exclude={excluded}", "--dependency=")


@pytest.mark.parametrize(
    "more, message",
    [
        ({"preflight": "half"}, "--preflight must not be 'half'"),
        ({"preflight": "off", "alone": True}, "checks nothing"),
        ({"preflight_limit": (("slow", 1.0),)}, "no limit is named slow"),
        ({"preflight_limit": (("z", -1.0),)}, "limit z must be a number from 0 on, not -1.0"),
        ({"check_command": (" ",)}, "--check-command ' ' is no command"),
        ({"on_hang": "pray"}, "--on-hang must not be 'pray'"),
        ({"spares": -1}, "--spares must be at least 0, not -1"),
    ],
)
def test_meaningless_options_of_a_check_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        JobSpec(("t.py",), cwd="/", **more)


@pytest.mark.parametrize(
    "command, python",
    [
        (("train.py",), PYTHON),
        (("-m", "pkg"), PYTHON),
        (("python3", "x"), "python3"),
        (("/a/python3.12", "x"), "/a/python3.12"),
        (("bash", "-c", "exec python x --dir $D"), "python"),
        (("bash", "-c", 'eval "set -- $ARGUMENTS"\nexec /a/python x "$@"'), "/a/python"),
        (("bash", "-c", "exec ./program $D"), ""),
        (("torchrun", "train.py"), ""),
        (("./pythonic",), ""),
    ],
)
def test_the_checks_torch_is_that_of_the_ranks(command: tuple[str, ...], python: str) -> None:
    result = plan(JobSpec(command, cwd="/"), "r", "t", RUN_DIR, ON_SLURM)
    assert result.orders.preflight.python == python


@pytest.mark.parametrize(
    "command, arguments",
    [
        (("-rf.py", "x"), ("python", "-u", "./-rf.py", "x")),
        (("--version.py",), ("python", "-u", "./--version.py")),
        (("a.py", "-c"), ("python", "-u", "a.py", "-c")),
        (("-m", "pkg.-x"), ("python", "-u", "-m", "pkg.-x")),
        (("/x/-rf.py",), ("python", "-u", "/x/-rf.py")),
    ],
)
def test_a_script_is_never_an_option_of_its_python(
    command: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    assert rank_command(command, "python") == arguments


@pytest.mark.parametrize(
    "wish",
    [
        {"partition": "gpu"},
        {"account": "me"},
        {"qos": "high"},
        {"reservation": "mine"},
        {"constraint": "a100"},
        {"nodelist": "n1"},
        {"sbatch": ("exclusive",)},
        {"srun": ("mpi=pmix",)},
    ],
)
def test_a_slurm_option_never_starts_ranks_on_this_machine_instead(wish: dict[str, Any]) -> None:
    spec = JobSpec(("train.py",), cwd="/w", ranks_per_node=16, **wish)
    with pytest.raises(BadInput, match="needs Slurm, which cannot be used here: no program named sbatch"):
        plan(spec, "r", "t", RUN_DIR, HERE)
    local = replace(spec, cluster=Cluster.LOCAL)
    assert plan(local, "r", "t", RUN_DIR, replace(HERE, why="")).spec.cluster is Cluster.LOCAL


def test_missing_gpus_are_not_replaced_by_cpu_ranks_if_slurm_was_requested() -> None:
    spec = JobSpec(("train.py",), cwd="/w", nodes=2, gpus=8)
    with pytest.raises(
        BadInput, match="16 GPUs requested, and this machine has only 2, and Slurm cannot be used here: no p"
    ):
        plan(spec, "r", "t", RUN_DIR, HERE)
    assert plan(replace(spec, nodes=1, gpus=2), "r", "t", RUN_DIR, HERE).orders.gpus_per_node == 2


def test_a_machine_like_a_login_node_starts_ranks_only_on_request() -> None:
    spec, login = JobSpec(("train.py",), cwd="/w"), replace(HERE, of_a_cluster="its name is login1")
    with pytest.raises(SchedulerError, match=r"looks like a login node \(its name is login1\)"):
        plan(spec, "r", "t", RUN_DIR, login)
    current = replace(login, why="")
    assert plan(replace(spec, cluster=Cluster.LOCAL), "r", "t", RUN_DIR, current).argv[0] == "/bin/bash"


@pytest.mark.parametrize(
    "wish, cpus",
    [
        ({"gpus": 8}, "128"),
        ({"gpus": 2}, "32"),
        ({"gpus": 2, "cpus_per_rank": 3}, "6"),
        ({"gpus": 2, "sbatch": ("cpus-per-task=5",)}, "5"),
        ({"gpus": 2, "sbatch": ("mem-per-cpu=4G",)}, "2"),
        ({"gpus": 2, "alone": True}, "32"),
        ({"ranks_per_node": 4}, "4"),
    ],
)
def test_a_rank_on_a_gpu_gets_its_share_of_cpus_by_default(wish: dict[str, Any], cpus: str) -> None:
    site = replace(ON_SLURM, cpus_per_gpu=16)
    script = plan(JobSpec(("train.py",), cwd="/w", **wish), "r", "t", RUN_DIR, site).script
    assert re.findall(r"--cpus-per-task=(\d+)", script) == [cpus]


def test_threads_of_a_rank_are_not_those_of_its_share_of_cpus() -> None:
    site = replace(ON_SLURM, cpus_per_gpu=16)
    assert plan(JobSpec(("a.py",), cwd="/w", gpus=8), "r", "t", RUN_DIR, site).orders.cpus_per_rank == 0
