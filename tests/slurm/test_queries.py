"""The laws of asking Slurm: question and answer cannot drift, and no text can forge a row."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.errors import SchedulerError
from clusterrun.model.states import State
from clusterrun.slurm import queries
from clusterrun.slurm.queries import JobRow, PartitionOffer

RECORDED = Path(__file__).parent.parent / "recorded"
MARK = "<MARK>"


def recorded(name: str, version: str = "22.05") -> str:
    return (RECORDED / version / name).read_text()


def job(job_id: str, word: str, reason: str, name: str, **known: object) -> JobRow:
    kept = {"nodelist": "", "start": None, "end": None, "comment": "", "nodes": 1}
    return JobRow(job_id=job_id, word=word, reason=reason, name=name, **{**kept, **known})  # type: ignore[arg-type]


def test_squeue_of_22_05_is_read_row_by_row_whatever_names_and_comments_hold() -> None:
    assert queries.read_jobs(recorded("squeue.txt"), MARK) == (
        job(
            "72",
            "FAILED",
            "NonZeroExitCode",
            "failed",
            nodelist="n0003",
            start=1795162529.0,
            end=1795162530.0,
        ),
        job(
            "73",
            "FAILED",
            "BadConstraints",
            "refused",
            start=1795162531.0,
            end=1795162531.0,
            comment="clusterrun:s:refused",
        ),
        job("69", "PENDING", "PartitionNodeLimit", "toobig", nodes=50),
        job("71", "PENDING", "BeginTime", "later", start=1795166129.0),
        job("68", "PENDING", "JobHeldUser", "evil\n99[<GUESS>]1<GUESS>RUNNING\x1b[2J", comment='a,b "c"'),
        job(
            "70",
            "RUNNING",
            "None",
            "running",
            nodelist="n[0001-0002]",
            nodes=2,
            start=1795162529.0,
            end=1795164329.0,
            comment="clusterrun:r:tok",
        ),
    )


def test_sacct_of_22_05_is_read_with_exit_codes_and_signals() -> None:
    ran = {"nodelist": "n0001", "comment": ""}
    assert queries.read_finished(recorded("sacct.txt"), MARK) == (
        job("1", "COMPLETED", "None", "two\nlines", start=1795164015.0, end=1795164015.0, exit_code=0, **ran),
        job("2", "FAILED", "None", "failed", start=1795164017.0, end=1795164017.0, exit_code=7, **ran),
        job("3", "FAILED", "None", "sig", start=1795164019.0, end=1795164019.0, exit_code=137, **ran),
    )


@pytest.mark.parametrize(
    "version, too_big",
    [
        ("20.11", (State.PENDING, "PartitionConfig", 50, "")),
        ("24.11", (State.FAILED, "BadConstraints", 50, "")),
        ("26.05", (State.PENDING, "PartitionConfig", 50, "")),
    ],
)
def test_other_releases_answer_the_same_questions_in_the_same_words(
    version: str, too_big: tuple[State, str, int, str]
) -> None:
    rows = queries.read_jobs(recorded("squeue.txt", version), MARK)
    assert {row.name: (row.state, row.reason, row.nodes, row.comment) for row in rows} == {
        "cancelled": (State.CANCELLED, "JobHeldUser", 1, ""),
        "vers.sh": (State.COMPLETED, "None", 2, ""),
        "running": (State.COMPLETED, "None", 2, "clusterrun:r:tok"),
        "failed": (State.FAILED, "NonZeroExitCode", 1, ""),
        "refused": (State.FAILED, "BadConstraints", 1, "clusterrun:s:refused"),
        "toobig": too_big,
        "later": (State.PENDING, "BeginTime", 1, ""),
        "evil\n99[<GUESS>]1<GUESS>RUNNING\x1b[2J": (State.PENDING, "JobHeldUser", 1, 'a,b "c"'),
    }
    (partition,) = queries.read_partitions(recorded("sinfo.txt", version), MARK)
    assert (partition.name, partition.default, partition.nodes, partition.gpus) == ("debug", True, 2, 8)


@pytest.mark.parametrize(
    "version, reasons",
    [
        ("20.11", ("None", "NonZeroExitCode", "JobLaunchFailure")),
        ("24.11", ("None", "None", "None")),
        ("26.05", ("None", "None", "None")),
    ],
)
def test_the_accounting_of_other_releases_is_read_the_same_way(
    version: str, reasons: tuple[str, str, str]
) -> None:
    rows = queries.read_finished(recorded("sacct.txt", version), MARK)
    assert [(row.name, row.state, row.exit_code, row.reason, row.nodelist) for row in rows] == [
        ("two\nlines", State.COMPLETED, 0, reasons[0], "n0001"),
        ("failed", State.FAILED, 7, reasons[1], "n0001"),
        ("sig", State.FAILED, 137, reasons[2], "n0001"),
    ]


def test_a_row_says_what_its_words_mean() -> None:
    rows = queries.read_jobs(recorded("squeue.txt"), MARK)
    assert [(row.state, row.explained) for row in rows] == [
        (State.FAILED, "ended with an exit code other than 0"),
        (State.FAILED, "it asks for what no node has"),
        (State.PENDING, "it asks for more or fewer nodes than the partition allows"),
        (State.PENDING, "waits for its begin time (after a requeue: Slurm's delay of about two minutes)"),
        (State.PENDING, "is held by its owner"),
        (State.RUNNING, ""),
    ]


def test_sinfo_of_22_05_tells_what_a_partition_offers() -> None:
    assert queries.read_partitions(recorded("sinfo.txt"), MARK) == (
        PartitionOffer(
            name="debug",
            default=True,
            available="up",
            time_limit="infinite",
            nodes=4,
            cpus=16,
            memory=64000,
            gpus=8,
            kinds=((8, 16),),
        ),
    )


def test_rows_of_one_partition_add_their_nodes_and_keep_the_largest_node() -> None:
    kinds = (
        "[M]bigMbigMupM1-00:00:00M2M16M64000Mgpu:4\n",
        "[M]bigMbigMupM1-00:00:00M3M128M128000+Mgpu:a100:8(S:0-1)\n",
    )
    assert queries.read_partitions("".join(kinds), "M") == (
        PartitionOffer("big", "up", False, "1-00:00:00", 5, 128, 128000, 8, kinds=((4, 16), (8, 128))),
    )


def test_no_answer_at_all_is_no_job() -> None:
    assert queries.read_jobs("", MARK) == ()


def test_the_columns_that_are_asked_for_are_those_that_are_read() -> None:
    assert queries.jobs_argv(1000, "@")[-1] == "--format=[@]%i@%T@%N@%D@%S@%e@%r@%j@%k"
    assert queries.partitions_argv("@")[-1] == "--format=[@]%R@%P@%a@%l@%D@%c@%m@%G"
    assert queries.finished_argv(("1", "2"), "@")[-3:] == (
        "--delimiter=@",
        "--format=JobIDRaw,State,NodeList,NNodes,Start,End,ExitCode,Reason,JobName,Comment",
        "--jobs=1,2",
    )


@pytest.mark.parametrize(
    "out", ["[<MARK>]1<MARK>RUNNING", "slurm_load_jobs error", "[<MARK>]" + "<MARK>" * 9]
)
def test_a_wrong_number_of_cells_is_an_error_that_shows_the_line(out: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        queries.read_jobs(out, MARK)
    assert repr(out.removeprefix("[<MARK>]")) in caught.value.seen


HOSTILE = st.text(st.sampled_from("a1|[]<>\n\r\x1b %\\\"'") | st.characters(codec="utf-8"), max_size=30)


@given(st.lists(st.tuples(HOSTILE, HOSTILE), max_size=4))
def test_text_that_does_not_know_the_mark_of_its_query_cannot_forge_cells_or_rows(
    texts: list[tuple[str, str]],
) -> None:
    mark = "<3f0c9a>"
    rows = [
        f"[{mark}]{number}{mark}RUNNING{mark}n1{mark}1{mark}5{mark}N/A{mark}None{mark}{name}{mark}{comment}\n"
        for number, (name, comment) in enumerate(texts)
    ]
    found = queries.read_jobs("".join(rows), mark)
    assert [(row.job_id, row.name, row.comment) for row in found] == [
        (str(number), name, queries.text(comment)) for number, (name, comment) in enumerate(texts)
    ]


@given(st.lists(st.tuples(HOSTILE, HOSTILE), max_size=4))
def test_rows_of_sacct_survive_line_breaks_in_names_and_comments(texts: list[tuple[str, str]]) -> None:
    mark = "<3f0c9a>"
    rows = [
        f"{number}{mark}COMPLETED{mark}n1{mark}1{mark}5{mark}6{mark}0:0{mark}None{mark}{name}{mark}{comment}\n"
        for number, (name, comment) in enumerate(texts)
    ]
    found = queries.read_finished("".join(rows), mark)
    assert [(row.job_id, row.name, row.comment) for row in found] == [
        (str(number), name, queries.text(comment)) for number, (name, comment) in enumerate(texts)
    ]


@pytest.mark.parametrize(
    "cell, count",
    [
        ("(null)", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:4(S:0,1),gpu:v100:2,nvme:1", 6),
        ("craynetwork:4", 0),
    ],
)
def test_gpus_are_counted_in_a_list_of_generic_resources(cell: str, count: int) -> None:
    assert queries.gpus(cell) == count


@pytest.mark.parametrize("cell, code", [("0:0", 0), ("7:0", 7), ("0:9", 137), ("", None), ("7", None)])
def test_an_exit_code_is_read_as_a_shell_gives_it(cell: str, code: int | None) -> None:
    assert queries.exit_code(cell) == code


@pytest.mark.parametrize("cell, number", [("16", 16), ("16+", 16), ("4-8", 4), ("1K", 1024), ("N/A", 0)])
def test_a_number_is_what_a_cell_begins_with(cell: str, number: int) -> None:
    assert queries.number(cell) == number
