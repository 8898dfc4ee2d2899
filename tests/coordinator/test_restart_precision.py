"""The restart decision for every recorded failure, beside the result that a restart would have had.

``python -m tests.coordinator.test_restart_precision`` prints the figures of ``docs/figures.md``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from clusterrun.agent.log_tail import last_error, noticed
from clusterrun.coordinator.failure_rules import FailureConsequence, FailureEvidence, judge
from clusterrun.coordinator.failures import FailureEvent, FailureKind
from clusterrun.model.record import Attempt, Failure
from tests.diagnosis.test_job_log import EXPECTED, LOGS
from tests.diagnosis.test_recorded_failures import RECORDED

RECURS = {
    *("dl_worker", "mp_spawn", "torchrun_child", "torchrun_segv", "raise_from", "during_handling", "thread"),
    *("exit_text", "cli_args", "syntax", "syntax_module", "import_local", "segfault", "abort", "unicode_out"),
    *("multiline", "multiline_empty_head", "stderr_to_stdout", "tear_down", "warnings_after", "rich_tb"),
    *("rich_logging", "logging_exc", "logging_error_only", "terminate", "cuda_text", "excepthook_quiet"),
    *("pool", "errorfile_record", "cpu_oom_text", "assert", "sysexit_in_group", "recursion", "no_command"),
    *("stdout_last", "survived_retry", "finally_barrier", "per_node_text", "spawn_no_torch", "dl_chained"),
    *("click_like", "slow_end", "loguru_like", "pickle_spawn", "ddp_params_differ", "caught_by_peers"),
    *("pool_error", "loader_error", "mp_spawn_exit", "torchrun_silent", "stderr_closed", "subprocess_err"),
    *("exit0_early", "exit0_early_rank0", "exit0_osexit", "two_of_four_leave", "one_stays", "os_exit0"),
    *("import_on_one_node", "group_of_consequences"),
}
"""Recorded runs that fail again on the same nodes if nothing is changed.

The others were killed, lost a service or a peer, or the recording does not show why they failed.
"""

LOGS_THAT_RECUR = {
    *("torchrun-value-error", "torchrun-unmarked-old", "torchrun-oom-eight-ranks", "torchrun-error-file"),
    *("torchrun-import-error-all", "torchrun-argparse", "torchrun-segfault", "exception-then-watchdog"),
    "argparse-labelled",
    *("srun-labelled-exception", "srun-unlabelled-two-ranks", "srun-peer-reset-first-in-file"),
    *("lightning-misconfiguration", "lightning-ddp-init-then-error", "lightning-sigterm-exception"),
    *(
        "accelerate-simple-called-process",
        "deepspeed-exception",
        "mpirun-exception-tagged",
        "mpirun-untagged-exit",
    ),
    *(
        "torchrun-tee-default-prefix",
        "ray-actor",
        "pyxis-container",
        "slurm-script-missing",
        "command-not-found",
    ),
    *(
        "device-assert",
        "bus-error-worker",
        "dataloader-worker-exception",
        "mp-spawn",
        "time-limit-after-hang",
    ),
    *(
        "nccl-warn-then-oom",
        "nccl-system-error-interface",
        "syntax-error",
        "hydra-error",
        "timestamps-in-front",
    ),
    *("ansi-and-bars", "driver-too-old", "survived-then-real", "interleaved-no-prefix", "sigill-from-srun"),
    "driver-too-old-warned-first",
    *("exit-code-only", "two-attempts-torchrun-restarts", "hostile-bytes"),
    *("bar-before-traceback", "deepspeed-lines-behind-exception", "exception-group", "oom-two-of-four-ranks"),
    *("exception-without-traceback", "same-error-every-task", "pool-worker-exception"),
    "lightning-validation-bar",
    *("lightning-survived-then-behind-bar", "bar-behind-message", "ray-worker-killed", "apptainer-no-image"),
    *("torchrun-oom-and-second-agent", "lightning-zombies-behind-bar", "accelerate-no-pad-token"),
    *(
        "ray-train-by-the-driver",
        "time-limit-and-own-handler",
        "no-error-cache-miss",
        "two-attempts-appended",
    ),
    *("rich-traceback-frames", "logger-marks-and-nan", "glibc-of-extension", "torchrun-two-agents-report"),
    *("state-dict-mismatch-all-ranks", "ray-worker-out-of-gpu-memory", "lightning-wrong-task-count"),
    *("nemo-sample-too-long", "mpi-abort-rank", "loguru-annotated", "remote-traceback-of-map"),
    *("mmengine-old-launcher", "fairseq-recovered-then-nan", "webdataset-cut-shard", "hdf5-lock"),
    *("module-unknown-then-library", "conda-not-configured", "memory-summary-then-oom"),
    *("deepspeed-batch-sizes", "syntax-of-newer-python", "ddp-parameter-counts", "circular-import"),
    *("first-rank-fails-others-wait", "submitit-exception", "no-local-rank", "recursion-depth"),
    *("rich-without-bars", "others-step-on-after-the-end", "hydra-target-wraps-assertion", "woven-frames"),
    *("checkpoint-fails-in-another-rank", "woven-message-of-lines", "vllm-worker-of-engine"),
    *("two-attempts-by-hand", "mpirun-too-few-slots", "json-of-data-set", "logger-marks-behind-rank"),
    *("script-variable-not-set", "exception-group-labelled", "handled-then-watchdog"),
    *("submitit-plug-in-not-loaded", "pyxis-image-not-found", "vllm-no-room-for-cache"),
    *("script-not-there-all-ranks", "extension-not-compiled", "gated-repo", "mpi-message-truncated"),
    *("thread-fails-then-queue-is-empty", "compiled-code-of-user", "srun-options-exclude-each-other"),
    *("composer-sections-of-ranks", "mark-of-first-line-only", "preempted-then-failed"),
    *("json-message-and-exit-code", "labelled-abort-of-native-program", "map-worker-out-of-memory"),
    *(
        "option-missing-in-a-box",
        "container-log-in-json",
        "checkpoint-is-cut",
        "loss-is-nan-without-traceback",
    ),
    "woven-import",
    "ray-gpu-memory-of-driver-call",
    "handler-fails-after-gpu-memory",
    "ddp-ready-twice",
    "woven-two-places",
    "nccl-message-truncated",
    "batch-floating-point",
    "forward-compatibility",
    *("h100-illegal-access", "h100-device-assert", "h100-out-of-memory"),
}

NOT_ENDED = {"sigkill", "torchrun_kill", "futures", "timeout_alarm", "store_gone", "never_inits"}


def recorded() -> dict[str, tuple[int, list[str], bool, bool]]:
    """Return by name: exit code, lines of the first failed rank, whether per node, whether on every node."""
    cases = {}
    for name, case in RECORDED.items():
        failure = case["failure"]
        streams = [case["streams"].get(f"{failure['rank']} {stream}", []) for stream in ("err", "out")]
        parts = [text for pieces in streams for _, *texts in pieces for text in texts]
        lines = [line for text in parts for line in text.split("\n")]
        cases[name] = (failure["code"], lines, case["per_node"], name != "import_on_one_node")
    return cases


def logs() -> dict[str, tuple[int, list[str], bool, bool]]:
    """Return the same for other launchers' logs, as if clusterrun had started the launcher on each node."""
    cases = {}
    for name in EXPECTED:
        text = (LOGS / f"{name}.txt").read_bytes().decode("utf-8", "replace")
        lines = [line for line in text.split("\n") if not line.startswith(("srun:", "slurmstepd"))]
        code = 2 if "argparse" in name else 127 if "command-not-found" in name else 1
        cases[name] = (code, lines[-2000:], True, True)
    return cases


def decisions(code: int, lines: list[str], per_node: bool, everywhere: bool) -> list[str]:
    """Return the decision after the first attempt, and after a second one that fails in the same way."""
    error, place = last_error(0, code, lines, per_node)
    failure = Failure(
        0, "n0", code, 30.0, "", error=error, place=place, noticed=noticed(0, code, lines, per_node)
    )
    attempts: list[Attempt] = []
    rules = []
    for epoch in range(2):
        attempts.append(Attempt(epoch, "", ("n0",), 0.0, ranks_at=0.0, failure=failure))
        event = FailureEvent(FailureKind.RANK, failure, everywhere=everywhere)
        judgement = judge(FailureEvidence(event, tuple(attempts), tuple(attempts)))
        rules.append(judgement.word if judgement else "failure")
        if judgement and judgement.consequence is FailureConsequence.END:
            return [*rules, "end"]
    return rules


def figures() -> tuple[Counter[str], list[str]]:
    """Return how many failures end after 1 or 2 attempts, rightly and wrongly, and the wrong ones' names."""
    counts: Counter[str] = Counter()
    wrong = []
    truth = {
        **{name: name in RECURS for name in RECORDED},
        **{name: name in LOGS_THAT_RECUR for name in EXPECTED},
    }
    for name, case in {**recorded(), **logs()}.items():
        rules = decisions(*case)
        ends = rules[-1] == "end"
        counts["failures"] += 1
        counts["that recur"] += truth[name]
        if ends:
            counts[f"ended after attempt {len(rules) - 1}"] += 1
            counts["ended rightly"] += truth[name]
            wrong += [] if truth[name] else [name]
    return counts, wrong


def test_no_recorded_failure_that_may_pass_is_ended() -> None:
    counts, wrong = figures()
    assert wrong == []
    assert counts["ended rightly"] >= 60


@pytest.mark.parametrize("name", sorted(NOT_ENDED))
def test_failures_by_a_kill_a_service_or_one_node_are_restarted(name: str) -> None:
    assert decisions(*recorded()[name])[-1] != "end"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("syntax", "own-text"),
        ("cli_args", "usage"),
        ("import_local", "environment"),
        ("no_command", "environment"),
    ],
)
def test_an_error_of_the_script_ends_the_run_at_once(name: str, word: str) -> None:
    assert decisions(*recorded()[name]) == [word, "end"]


if __name__ == "__main__":
    counted, mistakes = figures()
    print(dict(counted), "wrong:", mistakes)
    for label, case in {**recorded(), **logs()}.items():
        print(f"{label:36} {decisions(*case)}")
