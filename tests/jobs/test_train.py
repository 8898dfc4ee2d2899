import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from clusterrun.training import Checkpoints  # noqa: E402
from tests.jobs.conftest import CURVE, INTERRUPTED, STARTS, WAYS  # noqa: E402
from tests.jobs.launch import alone  # noqa: E402


def after(directory: Path) -> dict:
    state = Checkpoints(directory).latest()
    assert state is not None
    return state


def gradients(directory: Path) -> list:
    """Return the gradients.

    After one step of gradient descent with momentum, the momentum is the gradient.
    """
    momenta = after(directory)["optimizer"]["state"]
    return [momenta[number]["momentum_buffer"] for number in sorted(momenta)]


def curve(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", text)]


def throughput(text: str) -> dict[str, str]:
    (line,) = [line for line in text.splitlines() if line.startswith("throughput ")]
    return dict(pair.split("=") for pair in line.split()[1:])


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_of_a_global_batch_equals_that_of_1_rank(single, four, way) -> None:
    assert four.ended[way][0].code == 0, four.ended[way][0].err
    expected, result = gradients(single.folder / WAYS[way][0]), gradients(four.folder / way)
    assert len(expected) == len(result) == 8
    for value, each in zip(expected, result, strict=True):
        assert value.abs().max() > 0
        torch.testing.assert_close(each, value, rtol=1e-11, atol=1e-14)


@pytest.fixture(scope="module")
def spawned():
    run = alone("--device", "cpu", "--strategy", "ddp-spawn", *CURVE, NPROC_PER_NODE="2", NNODES="1")
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def strategies(single, pair, spawned):
    """Return the output of rank 0 under each strategy."""
    return {
        "single": single.out("single"),
        "dp": single.out("dp"),
        "ddp": pair.out("ddp"),
        "ddp-spawn": spawned,
        "fsdp": pair.out("fsdp"),
    }


def test_the_loss_curve_is_the_same_under_every_strategy(strategies) -> None:
    expected = curve(strategies["single"])
    assert len(expected) == 10
    assert expected[-1] < expected[0] - 0.3
    for name, text in strategies.items():
        assert curve(text) == pytest.approx(expected, abs=3e-4), name


def test_the_throughput_line_has_the_requested_strategy_and_the_used_strategy(strategies) -> None:
    names = ("ran_as", "world", "steps", "model", "batch_size", "seed", "amp")
    output = {name: throughput(text) for name, text in strategies.items()}
    assert {
        requested: tuple(line[name] for name in ("strategy", *names)) for requested, line in output.items()
    } == {
        "single": ("single", "single", "1", "35", "cnn", "100", "0", "off"),
        "dp": ("dp", "single", "1", "35", "cnn", "100", "0", "off"),
        "ddp": ("ddp", "ddp", "2", "35", "cnn", "100", "0", "off"),
        "ddp-spawn": ("ddp-spawn", "ddp", "2", "35", "cnn", "100", "0", "off"),
        "fsdp": ("fsdp", "fsdp", "2", "35", "cnn", "100", "0", "off"),
    }


@pytest.mark.parametrize(
    ("run", "samples", "unit", "per_sample"),
    # An epoch's last batch is smaller: two of the 35 steps hold 37 samples.
    [("ddp", 3374, "images", 1), ("resnet", 12, "images", 1), ("gpt", 12, "tokens", 64)],
)
def test_the_figures_of_the_throughput_line_agree_with_each_other(
    pair, run, samples, unit, per_sample
) -> None:
    output = throughput(pair.out(run))
    seconds = float(output["seconds"])
    assert float(output["steps_per_second"]) == pytest.approx(int(output["steps"]) / seconds, rel=1e-2)
    assert float(output["samples_per_second"]) == pytest.approx(samples / seconds, rel=1e-2)
    assert float(output[f"{unit}_per_second"]) == pytest.approx(samples * per_sample / seconds, rel=1e-2)


def test_dp_without_gpus_runs_as_single_with_the_reason(single) -> None:
    assert "notice: DataParallel needs 2 GPUs or more in one process, and " in single.out("dp")
    assert "training as single\n" in single.out("dp")


def test_ddp_without_a_launcher_is_a_group_of_one(single) -> None:
    assert re.match(r"rank 0 of 1 on \S+: device cpu, 1 threads, backend gloo\n", single.out("ddp of one"))


def test_a_resumed_run_ends_with_the_exact_weights_of_an_uninterrupted_run(pair) -> None:
    assert "resuming after step 5\n" in pair.out("other half")
    (ninth,) = (pair.folder / "ddp").glob("step-000000009.*.pt")
    expected, halves = after(pair.folder / "whole"), torch.load(ninth)
    assert expected["step"] == halves["step"] == 9
    assert all(torch.equal(expected["model"][name], halves["model"][name]) for name in expected["model"])


def weights(text: str) -> str:
    (result,) = re.findall(r"^weights ([0-9a-f]{16})$", text, re.MULTILINE)
    return result


@pytest.mark.parametrize("how", INTERRUPTED)
def test_a_run_interrupted_after_every_step_ends_with_the_exact_weights_of_an_undisturbed_run(
    single, how, request
) -> None:
    runs = single if how == "alone" else request.getfixturevalue("interrupted_pair")
    for number in range(STARTS - 1):
        text = runs.out(f"start {number} {how}")
        assert f"stopped after step {number + 1} of {STARTS}: the job must end\n" in text
        assert "weights" not in text
    last = runs.out(f"start {STARTS - 1} {how}")
    assert f"resuming after step {STARTS - 1}\n" in last
    assert weights(last) == weights(runs.out(f"whole {how}"))
    document = json.loads((runs.folder / f"run {how}" / "attempts" / "000" / "progress.json").read_text())
    assert (document["step"], document["checkpoint"], document["stopping"]) == (STARTS, STARTS, True)


def test_training_without_a_checkpoint_folder_does_not_stop_early(tmp_path) -> None:
    (tmp_path / "attempts" / "000").mkdir(parents=True)
    (tmp_path / "attempts" / "000" / "notice.json").touch()
    run = alone("--steps", "3", "--device", "cpu", CLUSTERRUN_RUN_DIR=str(tmp_path))
    assert (run.returncode, "stopped" in run.stdout) == (0, False)
    assert json.loads((tmp_path / "attempts" / "000" / "progress.json").read_text())["step"] == 3


def test_a_checkpoint_fits_any_strategy_and_carries_its_batch_size(pair) -> None:
    assert "resuming after step 5\n" in pair.out("other half of fsdp")
    expected, sharded = after(pair.folder / "whole"), after(pair.folder / "fsdp")
    torch.testing.assert_close(sharded["model"], expected["model"], rtol=1e-4, atol=1e-6)
    assert "resuming after step 9\n" in pair.out("fsdp after ddp")
    last = after(pair.folder / "ddp")
    assert (last["step"], last["order"]) == (11, {"batch_size": 400, "seed": 0})


def test_the_same_seed_gives_the_same_bits_with_any_number_of_workers(pair) -> None:
    pair.out("whole, by workers")
    expected, result = after(pair.folder / "whole"), after(pair.folder / "workers")
    assert all(torch.equal(expected["model"][name], result["model"][name]) for name in expected["model"])


def test_a_run_reports_its_device_and_reaches_the_guides_accuracy(pair) -> None:
    lead = re.escape("device cpu, 1 threads, backend gloo")
    for rank in (0, 1):
        assert re.match(rf"rank {rank} of 2 on \S+: {lead}\n", pair.out("learnt", rank))
    assert float(pair.out("learnt").rsplit("accuracy ", 1)[1]) > 0.95
    assert pair.out("learnt", 1).count("\n") == 1


def test_training_without_a_launcher_runs_alone_with_a_notice() -> None:
    run = alone("--steps", "2", "--device", "cpu")
    assert (run.returncode, run.stderr) == (0, "")
    assert re.match(r"rank 0 of 1 on \S+: device cpu, 1 threads, backend none\n", run.stdout)
    last = r"trained 2 steps on 1 ranks in [\d.]+ s\nthroughput steps_per_second=\S+ .*\n"
    assert re.search(last + r"weights [0-9a-f]{16}\naccuracy 0\.\d{4}\n$", run.stdout)


def test_a_half_set_environment_is_refused_and_the_error_file_tells_the_launcher(tmp_path) -> None:
    notice = tmp_path / "error.json"
    run = alone(RANK="0", WORLD_SIZE="2", MASTER_ADDR="", TORCHELASTIC_ERROR_FILE=str(notice))
    assert run.returncode == 1
    message = json.loads(notice.read_text())["message"]["message"]
    assert "but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT" in message


def test_resuming_with_another_order_of_samples_is_refused(single) -> None:
    order = "made with {'batch_size': 64, 'seed': 0}, this run has {'batch_size': 32, 'seed': 0}"
    assert order in single.refused("another order")[0]


def test_strategies_of_one_process_refuse_several_ranks_and_ddp_spawn_refuses_a_launcher(pair) -> None:
    for name in ("single", "dp"):
        output = f"--strategy {name} trains in one process, and a launcher started 2 ranks"
        assert all(output in err for err in pair.refused(f"several {name}s"))
    spawn = "start it once per node (clusterrun submit --per-node)"
    assert all(spawn in err for err in pair.refused("spawn in ranks"))
