"""The command line end to end, on this machine: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.cli.status_view import RUN
from tests.cli.conftest import CommandLine

ID = r"\d{8}-\d{6}-[0-9a-z]{4}-"
FIELDS = [
    *(
        "run_id",
        "job_id",
        "name",
        "cluster",
        "state",
        "phase",
        "reason",
        "nodes",
        "gpus_per_node",
        "world_size",
    ),
    *("nodelist", "attempt", "submitted_at", "started_at", "ended_at", "exit_code", "run_dir"),
]
"""Fields of ``status --json`` that every version has. The schema lists all fields."""


def home(context: CommandLine) -> Path:
    return Path(context.environment["CLUSTERRUN_HOME"])


def test_submit_prints_the_run_id_and_the_next_commands(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "--nodes", "2", "train.py")
    run_id = result.out.strip()
    assert (result.code, re.fullmatch(ID + "train", run_id) is not None) == (0, True)
    assert [f"clusterrun {verb} {run_id}" in result.err for verb in ("logs -f", "status", "cancel")] == [
        True
    ] * 3
    assert clusterrun("wait", run_id).out == f"{run_id} COMPLETED\n"


def test_submit_json_is_one_document(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "--json", "--wait", "--name", "my run", "train.py", "--lr", "0.1")
    document = json.loads(result.out)
    assert list(document) == ["run_id", "job_id", "name", "cluster", "run_dir", "command"]
    assert {key: document[key] for key in ("name", "cluster", "command")} == {
        "name": "my run",
        "cluster": "local",
        "command": ["train.py", "--lr", "0.1"],
    }
    assert document["run_dir"] == str(home(clusterrun) / "runs" / document["run_id"])


def test_a_dry_run_touches_nothing_and_shows_the_script(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "--dry-run", "--json", "--nodes", "2", "train.py", "a b")
    document = json.loads(result.out)
    assert list(document)[-3:] == ["script", "argv", "survival"]
    assert document["job_id"] == "" and "coordinate" in document["script"]
    assert sorted(os.listdir(clusterrun.folder.parent)) == ["work"]


PRETENDED = Path(__file__).parent.parent / "preflight" / "torch_worker" / "pretended"
JOINS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
print(torch.cuda.device_count(), dist.get_backend(), flush=True)
dist.barrier()  # a rank that ends before the other has connected to it fails that one
dist.destroy_process_group()
"""


@pytest.mark.parametrize("isolated", [True, False])
def test_cpu_ranks_train_on_a_machine_with_a_pretended_gpu(clusterrun: CommandLine, isolated: bool) -> None:
    (clusterrun.folder / "joins.py").write_text(JOINS)
    clusterrun.environment["PYTHONPATH"] = os.pathsep.join((str(PRETENDED), str(PRETENDED.parents[3])))
    clusterrun.environment.update({"PRETENDED_ISOLATION": "1"} if isolated else {})
    ranks = ("--ranks-per-node", "2", "--preflight", "full")
    if not isolated:  # the ranks of such a machine see the GPU, so that only the check can be shown here
        assert clusterrun("check", "--cluster", "local", *ranks[:2]).code == 0
        return
    result = clusterrun("submit", "-f", *ranks, "joins.py")
    assert (result.code, sorted(result.out.splitlines())) == (
        0,
        [f"local-0 r{rank} | 0 gloo" for rank in (0, 1)],
    )


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_module_is_a_command_like_a_script(clusterrun: CommandLine, dashes: list[str]) -> None:
    result = clusterrun("submit", "-f", "--nodes", "1", *dashes, "-m", "train", "--nodes", "5")
    assert result.out == "local-0 r0 | rank 0 of 1 '--nodes' '5'\n"


def test_a_run_that_fails_names_the_first_failure_and_exits_1(clusterrun: CommandLine) -> None:
    result = clusterrun("submit", "--follow", "--nodes", "2", "train.py", "fail")
    assert result.code == 1
    assert "local-1 r1 ! about to fail" in result.out
    assert "FAILED" in result.err and "rank 1 on local-1 exited with code 7" in result.err
    assert "  its last lines:\n    rank 1 of 2 'fail'\n    about to fail\n" in result.err
    output = clusterrun("status", "last").out
    assert "exit code  7" in output and "first failure" in output and "about to fail" in output


def test_wait_has_the_worst_exit_code(clusterrun: CommandLine) -> None:
    ids = [clusterrun("submit", "--nodes", "2", "train.py", *more).out.strip() for more in ([], ["fail"])]
    result = clusterrun("wait", *ids)
    assert (result.code, result.out) == (1, f"{ids[0]} COMPLETED\n{ids[1]} FAILED\n")
    assert json.loads(clusterrun("wait", ids[0], "--json").out)["runs"][0]["state"] == "COMPLETED"


def test_wait_shows_the_warnings_of_a_completed_run(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "--wait", "train.py").out.strip()
    path = home(clusterrun) / "runs" / run_id / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "warnings": ["a swap"]}))
    result = clusterrun("wait", run_id)
    assert result.code == 0 and "  warning a swap\n" in result.err


def test_cancel_reports_the_end_of_a_run_and_can_be_repeated(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "--nodes", "2", "train.py", "wait").out.strip()
    first, second = clusterrun("cancel", "last"), clusterrun("cancel", run_id)
    assert [first.code, first.out, second.code, second.out] == [
        *(0, f"{run_id} CANCELLED\n"),
        *(0, f"{run_id} had already ended: CANCELLED\n"),
    ]
    assert clusterrun("wait", run_id).code == 1


def test_cancel_ends_the_other_runs_if_a_name_is_unknown(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "train.py", "wait").out.strip()
    result = clusterrun("cancel", "nosuch", run_id)
    assert (result.code, result.out) == (5, f"{run_id} CANCELLED\n") and "'nosuch'" in result.err


def test_ctrl_c_detaches_and_the_run_continues(clusterrun: CommandLine) -> None:
    process = clusterrun.start("submit", "--follow", "train.py", "wait")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("local-0 r0 | rank 0")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert re.search(rf"the run continues. To come back:\n  clusterrun logs -f {ID}train\n", err)
    assert json.loads(clusterrun("status", "--json").out)["runs"][0]["state"] == "RUNNING"


def test_a_reader_that_disconnects_is_no_error(clusterrun: CommandLine) -> None:
    process = clusterrun.start("submit", "--follow", "train.py", "wait")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.stderr.read()
    process.wait(90)


ALL_CLOSED = "<&- >&- 2>&-"
STREAMS = ["<&-", ">&-", "2>&-", ALL_CLOSED, "2>/dev/full", "| true", "2>&1 >/dev/null | true"]


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        *[("status", streams) for streams in STREAMS],
        *[("top --once stays", streams) for streams in STREAMS],
        *[
            (command, ALL_CLOSED)
            for command in ("--version", "status --json", "logs", "diagnose", "config show", "help")
        ],
        ("clean --dry-run", ALL_CLOSED),
        ("exec stays -- true", ALL_CLOSED),
    ],
)
def test_a_closed_or_full_stream_does_not_fail_a_command(
    live: CommandLine, command: str, streams: str
) -> None:
    result = in_shell(live, f"{command} {streams}")
    assert (result.returncode, "Traceback" in result.stderr, "bug" in result.stderr) == (0, False, False)


def test_following_a_run_for_a_reader_that_ends_does_not_claim_a_good_end(ended: CommandLine) -> None:
    # ``tail -f FILE | true`` exits with 141 too. A command without -f has done its work.
    assert [in_shell(ended, f"logs {option} | true").returncode for option in ("-f", "")] == [141, 0]


@pytest.mark.parametrize(
    "streams", [ALL_CLOSED, "2>&1 >/dev/null | true", ">/dev/full", ">/dev/full 2>/dev/full"]
)
def test_a_submission_succeeds_if_its_output_cannot_be_written(clusterrun: CommandLine, streams: str) -> None:
    result = in_shell(clusterrun, f"submit true {streams}")
    (run_id,) = os.listdir(home(clusterrun) / "runs")
    assert result.returncode == 0
    if streams == ">/dev/full":
        assert f"stdout: no space left on device; this was to be printed there:\n{run_id}\n" in result.stderr
    assert clusterrun("wait").code == 0
    assert in_shell(clusterrun, f"cancel {run_id} {streams}").returncode == 0


def test_data_that_does_not_fit_on_the_disk_is_an_error(ended: CommandLine) -> None:
    result = in_shell(ended, "status >/dev/full")
    assert (result.returncode, "no space left on device" in result.stderr) == (1, True)


def test_a_working_directory_that_was_removed_is_named(ended: CommandLine) -> None:
    folder = ended.folder / "gone"
    line = f"mkdir {folder}; cd {folder}; rmdir {folder}; "
    refused = in_shell(ended, "submit true", before=line)
    assert refused.returncode == 2
    assert f"error: the working directory no longer exists: {folder}\nchange to a directory" in refused.stderr
    assert in_shell(ended, "status", before=line).returncode == 0


def in_shell(context: CommandLine, arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``clusterrun WORDS`` in a shell, in which words may be redirections."""
    return subprocess.run(
        ["bash", "-c", f"{before}set -o pipefail; {shlex.quote(sys.executable)} -m clusterrun {arguments}"],
        cwd=context.folder,
        env=context.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_status_json_has_the_documented_fields_and_times_with_a_zone(ended: CommandLine) -> None:
    (run,) = json.loads(ended("status", "--json").out)["runs"]
    assert list(run)[: len(FIELDS)] == FIELDS
    assert {
        key: run[key] for key in ("state", "phase", "nodes", "gpus_per_node", "world_size", "exit_code")
    } == {
        "state": "COMPLETED",
        "phase": "ended",
        "nodes": 2,
        "gpus_per_node": 0,
        "world_size": 6,
        "exit_code": 0,
    }
    assert (run["step"], run["checkpoint"]) == (None, None)
    times = [run[key] for key in ("submitted_at", "started_at", "ended_at", "heard_at")]
    iso = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    assert all(re.fullmatch(iso, moment) for moment in times)
    assert times == sorted(times)


def test_status_in_a_pipe_is_plain_lines(ended: CommandLine) -> None:
    heads, line = ended("status").out.splitlines()
    assert heads.split() == [field.header for field in RUN.columns]
    assert re.match(rf"{ID}train +\d+\.\d+ +COMPLETED +ended +2×3 ", line)


def test_status_without_runs_shows_how_to_start_a_run(clusterrun: CommandLine) -> None:
    result = clusterrun("status")
    assert (result.code, result.out) == (0, "") and "clusterrun submit" in result.err
    assert json.loads(clusterrun("status", "--json").out) == {"runs": []}


@pytest.mark.parametrize(
    "options, lines",
    [
        ([], [f"local-{r // 3} r{r} | rank {r} of 6" for r in range(6)]),
        (["--rank", "0,2-3"], [f"local-{r // 3} r{r} | rank {r} of 6" for r in (0, 2, 3)]),
        (["--node", "1"], [f"local-1 r{r} | rank {r} of 6" for r in (3, 4, 5)]),
        (
            ["--node", "local-0", "--rank", "3"],
            [f"local-{r // 3} r{r} | rank {r} of 6" for r in (0, 1, 2, 3)],
        ),
        (["--stream", "err"], []),
        (["--tail", "0"], []),
        (["--raw", "--rank", "1"], ["rank 1 of 6"]),
        (["--attempt", "0", "--tail", "1", "--rank", "2"], ["local-0 r2 | rank 2 of 6"]),
        (["-f", "--rank", "2"], ["local-0 r2 | rank 2 of 6"]),
        (["--grep", "rank [14] of"], [f"local-{r // 3} r{r} | rank {r} of 6" for r in (1, 4)]),
        (["-f", "--grep", "k 5", "--raw"], ["rank 5 of 6"]),
        (["--since", "1d", "--rank", "3"], ["local-1 r3 | rank 3 of 6"]),
        (["--since", "2999-01-01"], []),
    ],
)
def test_logs_shows_the_requested_lines(ended: CommandLine, options: list[str], lines: list[str]) -> None:
    result = ended("logs", *options)
    assert (result.code, sorted(result.out.splitlines())) == (0, lines)


def test_logs_reports_a_pattern_that_matches_no_line_with_their_number(ended: CommandLine) -> None:
    result = ended("logs", "--grep", "nothing")
    assert (result.code, result.out, result.err) == (0, "", "the pattern was not found in any of 6 lines\n")


def test_logs_shows_the_newest_attempt_with_output_under_the_names_of_its_nodes(
    clusterrun: CommandLine,
) -> None:
    run_id = clusterrun("submit", "--wait", "train.py").out.strip()
    folder = home(clusterrun) / "runs" / run_id
    before = clusterrun("logs").out
    state = json.loads((folder / "state.json").read_text())
    state["attempts"].append({**state["attempts"][0], "epoch": 1, "nodes": ["other"]})
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "attempts/001").mkdir()
    after = clusterrun("logs")
    assert before and after.out == before == clusterrun("logs", "--attempt", "0").out
    assert after.err == "attempt 1 has no output; these lines are of attempt 0\n"
    assert clusterrun("logs", "--attempt", "1").out == ""


def test_follow_exits_with_the_code_of_wait(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "--nodes", "2", "train.py", "fail").out.strip()
    codes = [clusterrun(*arguments, run_id).code for arguments in (["wait"], ["logs", "-f"], ["logs"])]
    assert codes == [1, 1, 0]


def test_logs_reports_a_run_without_output(ended: CommandLine) -> None:
    result = ended("logs", "--stream", "err")
    assert "no output: the run has ended, COMPLETED" in result.err
    assert ended("logs", "--tail", "0").err == ""


@pytest.mark.parametrize(
    "args, code, arguments",
    [
        (["sumbit"], 2, "there is no command 'sumbit'. Did you mean submit?"),
        (["squeue"], 2, "there is no command 'squeue'. Did you mean status?"),
        (["submit", "--node", "2", "train.py"], 2, "Did you mean --nodes"),
        (["submit"], 2, "Missing argument"),
        (["submit", "-"], 2, "clusterrun convert - prints the submit line"),
        (["submit", "/dev/stdin"], 2, "clusterrun convert - prints the submit line"),
        (["submit", "--gres", "nvme:1", "train.py"], 2, "give --sbatch gres=nvme:1"),
        (["submit", "--gres", "gpu:2", "--gpus", "2", "train.py"], 2, "--gpus and --gres are the same"),
        (["submit", "--gpus", "many", "train.py"], 2, "--gpus 'many': not a number of GPUs"),
        (["submit", "-G", "8", "train.py"], 2, "Use --gpus, which counts the GPUs of one node"),
        (["submit", "-n", "8", "train.py"], 2, "Use --nodes and --gpus"),
        (["submit", "-c", "8", "train.py"], 2, "Did you mean --cpus-per-rank?"),
        (["submit", "--ntasks-per-node=8", "train.py"], 2, "Use --gpus (or --ranks-per-node"),
        (["submit", "--nproc_per_node=8", "train.py"], 2, "Use --gpus (or --ranks-per-node"),
        (["submit", "--queue", "gpu", "train.py"], 2, "Did you mean --partition?"),
        (["submit", "--walltime", "1h", "train.py"], 2, "Did you mean --time?"),
        (["submit", "--cpus", "2", "train.py"], 2, "Did you mean --cpus-per-rank?"),
        (["submit", "--image", "x.sif", "train.py"], 2, "Did you mean --container?"),
        (["submit", "--output", "x", "train.py"], 2, "Use clusterrun logs"),
        (["submit", "--comment", "x", "train.py"], 2, "Pass it on: --sbatch comment"),
        (["check", "--cpus-per-task", "2"], 2, "Did you mean --cpus-per-rank?"),
        (["logs", "--output", "x"], 2, "there is no option --output"),
        (["cancel", "-u", "me"], 2, "there is no option -u. Name each RUN"),
        (["wait", "--state", "PENDING"], 2, "there is no option --state. Name each RUN"),
        (["submit", "-\u2013time", "5", "x"], 2, "a dash that no keyboard types (U+2013)"),
        (["submit", "--cpus-per-task", "2", "train.py"], 2, "Did you mean --cpus-per-rank?"),
        (["submit", "--nodes", "0", "train.py"], 2, "--nodes must be at least 1, not 0"),
        (["submit", "--nodes", "x", "train.py"], 2, "error: --nodes 'x': not a number of nodes"),
        (["submit", "--time", "soon", "train.py"], 2, "--time 'soon' is not a duration"),
        (["submit", "missing.py"], 2, "there is no script"),
        (["submit", "tarin.py"], 2, "did you mean train.py?"),
        (["submit", "--array", "0-3%2", "train.py"], 2, "A run is one job: use clusterrun sweep"),
        (["submit", "--wrap", "x", "train.py"], 2, "Give the command after the options"),
        (["submit", "-o", "x", "train.py"], 2, "Use clusterrun logs"),
        (["submit", "-L", "a", "train.py"], 2, "Pass it on: --sbatch licenses="),
        (["submit", "–nodes", "2", "train.py"], 2, "clusterrun submit --nodes 2 train.py"),
        (["submit", "--nodes", "2", "torchrun", "train.py"], 2, "clusterrun submit --nodes 2"),
        (["rehearse", "torchrun", "train.py"], 2, "clusterrun rehearse --nodes 2"),
        (["submit", "--name", "last", "train.py"], 2, "last means the newest run\ngive another name"),
        (["sweep", "--name", "41", "--set", "a=1", "true", "{a}"], 2, "--name 41 names a run that no"),
        (["submit", "--python", "/no/python", "train.py"], 2, "there is no Python '/no/python'"),
        (["submit", "--env", "NOT_SET", "train.py"], 2, "the variable NOT_SET is not set"),
        (["submit", "--cluster", "cloud", "train.py"], 2, "'cloud' is not one of"),
        (["submit", "--profile", "big", "train.py"], 2, "there is no profile 'big'"),
        (["submit", "--json", "-f", "train.py"], 2, "--json and --follow do not go together"),
        (["submit", "--after", "nothing", "train.py"], 5, "there is no run 'nothing'"),
        (["submit", "--after", "4711", "train.py"], 5, "--sbatch dependency=afterok:JOB"),
        (["submit", "--cluster", "slurm", "train.py"], 4, "Slurm cannot be used here"),
        (["status", "tarin"], 5, "did you mean train?"),
        (["logs", "nothing"], 5, "there is no run 'nothing'"),
        (["cancel", "nothing"], 5, "there is no run 'nothing'"),
        (["wait", "nothing"], 5, "there is no run 'nothing'"),
        (["logs", "--rank", "9"], 2, "there is no rank 9\nthe run has ranks 0 to 5"),
        (["logs", "--node", "local-7"], 2, "no node 'local-7' in this run\nits nodes are local-0, local-1"),
        (["logs", "--attempt", "4"], 2, "there is no attempt 4\nattempts of the run: 0"),
        (["logs", "--fold", "--raw"], 2, "--fold and --raw do not go together"),
        (["logs", "--grep", "("], 2, "--grep '(' is not a pattern"),
        (["logs", "--since", "x"], 2, "'x' is neither a duration nor a date"),
        (["completion", "tcsh"], 2, "'tcsh' is not one of"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason_and_a_remedy(
    ended: CommandLine, args: list[str], code: int, arguments: str
) -> None:
    result = ended(*args)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ") or "\nerror: " in result.err
    assert arguments in result.err and "Traceback" not in result.err


def test_debug_shows_the_traceback_of_an_error(ended: CommandLine) -> None:
    assert "Traceback" in ended("--debug", "status", "nothing").err


def test_config_show_names_the_source_of_each_value(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "clusterrun.toml").write_text('[defaults]\nnodes = 2\n[profile.a]\nname = "x"\n')
    results = {
        o["name"]: o
        for o in json.loads(clusterrun("config", "show", "--profile", "a", "--json").out)["options"]
    }
    path = str(clusterrun.folder / "clusterrun.toml")
    assert [results[name] for name in ("nodes", "name", "cluster", "mem", "home")] == [
        {"name": "nodes", "value": 2, "origin": f"{path} [defaults]"},
        {"name": "name", "value": "x", "origin": f"{path} [profile.a]"},
        {"name": "cluster", "value": "local", "origin": "CLUSTERRUN_CLUSTER"},
        {"name": "mem", "value": "", "origin": "default"},
        {"name": "home", "value": str(home(clusterrun)), "origin": "CLUSTERRUN_HOME"},
    ]
    result = clusterrun("submit", "--profile", "a", "--dry-run", "train.py")
    assert "would submit x to this machine, 2 nodes" in result.err


def test_a_run_uses_its_snapshot_after_the_code_changes(clusterrun: CommandLine) -> None:
    script = clusterrun.folder / "train.py"
    script.write_text("import os; print(os.getcwd(), 'before')\n")
    run_id = clusterrun("submit", "--snapshot", "--wait", "train.py").out.strip()
    run_dir = home(clusterrun) / "runs" / run_id
    assert clusterrun("logs", "--raw").out == f"{run_dir}/snapshot before\n"
    assert "commit none" in (run_dir / "snapshot.txt").read_text()


@pytest.mark.parametrize(
    "typed",
    [
        "clusterrun submit tr",
        "clusterrun submit --nodes 2 tr",
        "clusterrun submit train.py --no",
        "clusterrun submit train.py --nodes .",
        "clusterrun submit -m train --no",
        "clusterrun submit -- train.py --no",
        "clusterrun submit --template my",
        "clusterrun submit --snapshot-include d",
        "clusterrun report --html r",
        "clusterrun lab exec -- ./x",
        "clusterrun exec -- ./x",
        "clusterrun exec last -- ls --x",
    ],
)
def test_tab_leaves_files_to_the_shell_and_the_users_command_its_own_options(
    ended: CommandLine, typed: str
) -> None:
    tokens = typed.split()
    context = CommandLine(
        ended.folder,
        {
            **ended.environment,
            "_CLUSTERRUN_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(tokens) - 1),
        },
    )
    assert context().out == f"file,{tokens[-1]}\n"


@pytest.mark.parametrize(
    "shell, arguments", [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_completion_scripts_are_printed(ended: CommandLine, shell: str, arguments: str) -> None:
    result = ended("completion", shell)
    assert result.code == 0 and arguments in result.out and "_CLUSTERRUN_COMPLETE" in result.out


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("clusterrun st", "status"),
        ("clusterrun logs tr", "train"),
        ("clusterrun submit --dry", "--dry-run"),
        ("clusterrun submit --profile b", "big"),
    ],
)
def test_tab_completes_commands_options_and_run_names(ended: CommandLine, typed: str, offered: str) -> None:
    tokens = typed.split()
    (ended.folder / "clusterrun.toml").write_text("[profile.big]\nnodes = 2\n")
    ended.environment.update(
        _CLUSTERRUN_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(tokens) - 1)
    )
    try:
        result = ended()
    finally:
        (ended.folder / "clusterrun.toml").unlink()
        for name in ("_CLUSTERRUN_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
            del ended.environment[name]
    assert offered in [line.partition(",")[2] for line in result.out.splitlines()]


@pytest.mark.parametrize(
    "arguments, environment, code, observed",
    [
        (("--gpus", "8"), {}, 2, "8 GPUs requested, and this machine has none, and Slurm cannot be used"),
        (("--partition", "gpu"), {}, 2, "--partition needs Slurm, which cannot be used here: "),
        (("--nodes", "2"), {"SLURM_CONF": "/gone.conf"}, 4, "looks like a login node (SLURM_CONF is set)"),
    ],
)
def test_auto_starts_no_ranks_on_this_machine_if_options_need_a_cluster(
    clusterrun: CommandLine, arguments: tuple[str, ...], environment: dict[str, str], code: int, observed: str
) -> None:
    clusterrun.environment.update({"CLUSTERRUN_CLUSTER": "auto", "CUDA_VISIBLE_DEVICES": "", **environment})
    result = clusterrun("submit", *arguments, "train.py")
    assert (result.code, result.out, observed in result.err, "--cluster local" in result.err) == (
        code,
        "",
        True,
        True,
    )
    assert not home(clusterrun).exists()


def test_cancel_tells_of_an_older_run_of_the_name_that_lives_and_leaves_it_alone(
    clusterrun: CommandLine,
) -> None:
    older = clusterrun("submit", "--name", "same", "train.py", "wait").out.strip()
    newest = clusterrun("submit", "--name", "same", "--wait", "train.py").out.strip()
    result = clusterrun("cancel", "same")
    message = f"an older run of that name is live: clusterrun cancel {older}\n"
    assert (result.code, result.out, result.err) == (1, f"{newest} had already ended: COMPLETED\n", message)
    assert clusterrun("cancel", older).out == f"{older} CANCELLED\n"
    again = clusterrun("cancel", "same", newest)
    assert (again.code, again.out, again.err) == (0, f"{newest} had already ended: COMPLETED\n", "")


def test_a_report_of_a_run_that_was_not_checked_is_bad_input(
    ended: CommandLine, clusterrun: CommandLine
) -> None:
    clusterrun("submit", "--wait", "train.py")
    result = clusterrun("report")
    assert (result.code, result.out, "was submitted with --preflight off" in result.err) == (2, "", True)
    assert ended("report").code == 0


def test_a_secret_value_is_not_in_the_process_list_while_submit_waits(clusterrun: CommandLine) -> None:
    addresses = ("--notify", "http://127.0.0.1:1/hunter4", "--notify=http://127.0.0.1:1/hunter5")
    variables = ("--env", "TOKEN=hunter2", "--env=OTHER=hunter3", "--env", "HOME")
    arguments = (*addresses, *variables, "train.py", "wait")
    process = clusterrun.start("submit", "--wait", "--json", *arguments)
    try:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        output = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert [
            output[output.index(b"--env") + 1],
            next(word for word in output if word.startswith(b"--env=")),
            output[-4],
        ] == [b"TOKEN=*******", b"--env=OTHER=*******", b"HOME"]
        assert b"http:" + b"*" * 21 in output and b"--notify=http:" + b"*" * 21 in output
        orders = json.loads(Path(document["run_dir"], "orders.json").read_text())
        assert ["TOKEN", "hunter2"] in orders["environment"]
        assert ["OTHER", "hunter3"] in orders["environment"]
    finally:
        process.terminate()
        process.communicate(timeout=60)
