"""`bench scaling` as a user has it: real runs on this machine, of scripts that take no time."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, CommandLine, Said

FAST = ("bench", "scaling", "--no-probe", "--oversubscribe", "--repeats", "1")


def document(message: Said) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(message.out)
    return result


def runs_of(context: CommandLine) -> list[str]:
    return sorted(os.listdir(Path(context.environment["CLUSTERRUN_HOME"]) / "runs"))


def test_worlds_are_measured_shown_and_stored(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2", "paced.py")
    assert result.code == 0, result
    heads, entry, two, _, legend, *_ = result.out.splitlines()
    assert heads.split()[:3] == ["CONFIGURATION", "TIME", "SPEED-UP"]
    assert entry.split("  ")[0].strip() == "ranks × 1" and "2.00 s" in entry and "1.00×" in entry
    assert "1.00 s" in two and "2.00×" in two and "100%" in two and "cores shared" in two
    assert legend.startswith("paced.py · strong scaling · this machine")
    again = context(*FAST, "--worlds", "1,2", "paced.py")
    assert (again.code, again.out) == (0, result.out) and "measured before" in again.err
    assert len(runs_of(context)) == 2


def test_a_failed_configuration_is_reported_and_the_others_continue(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2,3", "--json", "paced.py", "fails=2")
    rows = document(result)["rows"]
    assert result.code == 1
    assert [row["speed_up"] for row in rows] == [1.0, None, 3.0]
    assert "FAILED" in rows[1]["failed"] and "no such layer" in rows[1]["failed"]


def test_a_later_call_measures_new_and_failed_points(context: CommandLine) -> None:
    context(*FAST, "--worlds", "1,2", "paced.py", "fails=2")
    before = len(runs_of(context))
    result = context(*FAST, "--worlds", "1,2,3", "paced.py", "fails=2")
    assert (len(runs_of(context)) - before, result.code) == (2, 1)


def test_an_interrupted_study_continues_with_its_current_run(context: CommandLine) -> None:
    requested = (*FAST, "--worlds", "1,2", "--json", "paced.py", "hangs=2")
    process = context.start(*requested)
    until = time.monotonic() + 90
    while not (context.folder / "hanging").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (130, "")
    assert "a run under way continues" in err
    (context.folder / "let-go").touch()
    (hanging,) = [
        run for run in runs_of(context) if context("status", run, "--json").out.find('"RUNNING"') > 0
    ]
    context("cancel", hanging)
    before = runs_of(context)
    result = context(*requested)
    assert f"going on with {hanging}" in result.err
    assert (runs_of(context), document(result)["rows"][0]["speed_up"]) == (before, 1.0)


def test_a_changed_script_is_measured_again(context: CommandLine) -> None:
    context(*FAST, "--worlds", "1", "paced.py")
    script = context.folder / "paced.py"
    script.write_text(script.read_text().replace("10.0", "20.0"))
    result = context(*FAST, "--worlds", "1", "--json", "paced.py")
    assert document(result)["rows"][0]["steps_per_second"] == 20.0


def test_a_named_study_of_another_subject_is_not_overwritten_unasked(context: CommandLine) -> None:
    context(*FAST, "--name", "mine", "--worlds", "1", "paced.py")
    refused = context(*FAST, "--name", "mine", "--worlds", "1", "paced.py", "a=b")
    assert refused.code == 2 and "--fresh" in refused.err
    assert context(*FAST, "--name", "mine", "--fresh", "--worlds", "1", "paced.py", "a=b").code == 0


def test_a_script_without_throughput_is_timed_from_start_to_end_and_reported(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2", "paced.py", "mute=1")
    assert result.code == 0 and "the whole run, start-up and all" in result.out


def test_a_world_that_alone_never_reports_has_failed(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2", "--json", "paced.py", "silent=2")
    assert result.code == 1
    assert "never printed steps_per_second" in document(result)["rows"][1]["failed"]


def test_more_ranks_than_cores_are_refused_without_a_terminal(context: CommandLine) -> None:
    result = context("bench", "scaling", "--no-probe", "--worlds", "1,4096", "paced.py")
    assert (result.code, result.out) == (2, "")
    assert "4096 ranks are more than the" in result.err and "--oversubscribe" in result.err


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_more_ranks_than_cores_need_an_answer_on_a_terminal(
    context: CommandLine, answer: str, code: int
) -> None:
    worlds = str(len(os.sched_getaffinity(0)) + 1)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", *FAST[:3], "--repeats", "1", "--worlds", worlds, "paced.py"],
        cwd=context.folder,
        env={**context.environment, "NO_COLOR": "1"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=120)
    os.close(ours)
    assert (process.returncode, out[:6]) == (code, b"CONFIG" if answer == "y" else b"")


def test_arguments_with_placeholders_grow_with_the_world(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2", "--json", "paced.py", "batch={64/world}")
    assert [row["notes"] for row in document(result)["rows"]] == [["batch 64"], ["batch 32"]]


def test_strategies_are_refused_if_the_script_does_not_get_them(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1", "--strategies", "ddp,mine", "paced.py")
    assert result.code == 2 and "{strategy}" in result.err
    message = context(
        *FAST, "--worlds", "2", "--strategies", "ddp,mine", "--json", "paced.py", "batch={strategy}"
    )
    assert [row["notes"] for row in document(message)["rows"]] == [["batch ddp"], ["batch mine"]]


def test_a_mistake_in_every_run_is_reported_as_a_single_error(context: CommandLine) -> None:
    result = context(*FAST, "--worlds", "1,2", "missing.py")
    assert (result.code, result.out) == (2, "") and "there is no script" in result.err


def test_a_dry_run_shows_every_command_and_touches_nothing(context: CommandLine) -> None:
    result = context(
        "bench", "scaling", "--dry-run", "--worlds", "1,2", "--weak", "--strategies", "single,ddp"
    )
    lines = [line.split("train.py ")[1] for line in result.out.splitlines()]
    assert lines == ["--strategy single --batch-size 64", "--strategy ddp --batch-size 128"]
    assert not Path(context.environment["CLUSTERRUN_HOME"]).exists()


def test_a_profiles_size_is_for_other_runs(context: CommandLine) -> None:
    (context.folder / "clusterrun.toml").write_text("[defaults]\nnodes = 7\nname = 'other'\n")
    result = context(*FAST, "--worlds", "2", "--json", "paced.py")
    assert document(result)["rows"][0]["environment"]["nodes"] == 1


def test_the_short_job_reports_its_hardware_and_the_prediction(context: CommandLine) -> None:
    requested = ("bench", "scaling", "--oversubscribe", "--repeats", "1", "--worlds", "1,2", "--json")
    message = document(context(*requested, "--parameters", "1M", "paced.py"))
    assert [group["ranks"] for group in message["all_reduce"]] == [2]
    two = message["rows"][1]
    assert two["environment"]["torch"] and two["environment"]["device"]
    group = message["all_reduce"][0]
    cores = min(2, message["rows"][1]["environment"]["cores"])
    expected = 0.1 / (0.1 / cores + group["latency"] + 4e6 / group["bandwidth"])
    assert abs(two["predicted"] - expected) < 1e-6
    file = message["name"]
    shape = ("--gpus-per-node", "2", "--parameters", "1M")
    advice = json.loads(context("bench", "advise", "--from", file, *shape, "--json").out)
    assert advice["asked"]["bandwidth"] == group["bandwidth"] and advice["take"] == "ddp"


def test_advice_without_a_model_is_bad_usage(context: CommandLine) -> None:
    result = context("bench", "advise")
    assert (result.code, result.out) == (2, "") and "--parameters" in result.err
    assert context("bench", "advise", "--from", "nothing").code == 2


def test_the_shipped_script_is_recognized_in_any_folder(context: CommandLine) -> None:
    copy = context.folder / "train.py"
    copy.write_bytes((ROOT / "jobs/train.py").read_bytes())
    result = context(
        "bench", "scaling", "--dry-run", "--worlds", "1", "--script", "train.py", "--", "--steps", "3"
    )
    assert [line.split(": ", 1)[1] for line in result.out.splitlines()] == [
        "train.py --steps 3 --strategy single",
        "train.py --steps 3 --strategy dp",
    ]
