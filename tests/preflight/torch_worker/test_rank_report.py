"""The laws of a node's result: the slowest rank counts, the first word of what went wrong is kept."""

from __future__ import annotations

from clusterrun.preflight.tasks import CPU_WAIT, GroupResult
from clusterrun.preflight.torch_worker.rank_report import RankReport, joined, line, read

FAST = RankReport("done", True, (("all_reduce", 9.0), ("send", 4.0)))
SLOW = RankReport("done", True, (("all_reduce", 8.0), ("send", 1.0)))


def test_a_word_comes_through_the_pipe_as_it_was() -> None:
    word = RankReport("exact", True, (("send", 1.5),), "wrong\n", "why", "print")
    assert read(line(word)) == word
    assert "\n" not in line(word)


def test_a_single_rank_is_its_node() -> None:
    assert joined(7, 0.5, [FAST]) == GroupResult(7, True, "done", 0.5, FAST.rates)


def test_rates_of_ranks_add_up_and_the_slowest_joint_rate_counts() -> None:
    result = joined(7, 0.5, [FAST, SLOW])
    assert result.passed
    assert result.rates == (
        ("all_reduce", 8.0), ("send", 5.0),
        ("all_reduce:0", 9.0), ("all_reduce:1", 8.0), ("send:0", 4.0), ("send:1", 1.0),
    )  # fmt: skip


def test_a_node_waited_for_processors_as_long_as_the_rank_that_waited_longest() -> None:
    arguments = [
        RankReport("done", True, (("all_reduce", 9.0), (CPU_WAIT, share))) for share in (0.1, 0.7, 0.2)
    ]
    rates = joined(7, 0.5, arguments).rates
    assert [(name, rate) for name, rate in rates if name.startswith(CPU_WAIT)] == [(CPU_WAIT, 0.7)]


def test_a_node_is_as_far_as_its_last_rank() -> None:
    arguments = [RankReport("timed", True, why="lost"), RankReport("exact", True, why="closed"), FAST]
    result = joined(7, 0.5, arguments)
    assert (result.passed, result.stage, result.why) == (False, "exact", "lost")


def test_a_wrong_sum_fails_a_node_whose_ranks_all_finished() -> None:
    result = joined(7, 0.5, [FAST, RankReport("done", True, wrong="element 3")])
    assert (result.passed, result.stage, result.wrong, result.why) == (False, "done", "element 3", "")


def test_a_gpu_with_another_product_than_the_others_is_named() -> None:
    usual, odd = RankReport("done", True, fingerprint="a"), RankReport("done", True, fingerprint="b")
    result = joined(7, 0.5, [usual, usual, odd, usual])
    assert (result.passed, result.fingerprint) == (False, "a")
    assert result.wrong == "the product of GPU 2 differs from that of the others"


def test_the_result_names_the_selected_network() -> None:
    assert joined(7, 0.5, [FAST], "NET/IB mlx5_0").transport == "NET/IB mlx5_0"
