"""The laws of asking Slurm: question and answer cannot drift, and no text can forge a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterrun.model.errors import SchedulerError
from clusterrun.model.states import State
from clusterrun.slurm import queries
from clusterrun.slurm.queries import AccountingQuery, Field, JobRow, PartitionOffer, Query

RECORDED = Path(__file__).parent.parent / "recorded"
VERSIONS = sorted(path.parent.name for path in RECORDED.glob("*/squeue.txt"))
MARK = "<MARK>"
EVIL = "evil\n99[<GUESS>]1<GUESS>RUNNING\x1b[2J"


def recorded(version: str, program: str) -> str:
    """Return the recorded answer of a release (``make recordings``)."""
    return (RECORDED / version / f"{program}.txt").read_text()


def read(query: Query, out: str, mark: str = MARK) -> tuple[JobRow, ...]:
    return tuple(JobRow(**cells) for cells in query.rows(out, mark))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_recorded_release_has_every_requested_column(version: str) -> None:
    requested = {
        "squeue": queries.JOBS,
        "sinfo": queries.PARTITIONS,
        "sacct": queries.FINISHED,
        "energy": queries.ENERGY,
    }
    columns = {program: [field.column for field in query.fields] for program, query in requested.items()}
    assert json.loads((RECORDED / version / "columns.json").read_text()) == columns, "run `make recordings`"


Row = tuple[State, str, int, str]
EVERYWHERE: dict[str, Row] = {
    "cancelled": (State.CANCELLED, "JobHeldUser", 1, ""),
    "failed": (State.FAILED, "NonZeroExitCode", 1, ""),
    "refused": (State.FAILED, "BadConstraints", 1, "clusterrun:s:refused"),
    "running": (State.RUNNING, "None", 2, "clusterrun:r:tok"),
    "two\nlines": (State.COMPLETED, "None", 1, ""),
    "later": (State.PENDING, "BeginTime", 1, ""),
    EVIL: (State.PENDING, "JobHeldUser", 1, 'a,b "c"'),
}


@pytest.mark.parametrize(
    "version, signal, toobig",
    [
        ("20.11", "JobLaunchFailure", (State.PENDING, "PartitionNodeLimit", 50, "")),
        ("22.05", "JobLaunchFailure", (State.PENDING, "PartitionNodeLimit", 50, "")),
        ("24.11", "RaisedSignal:9(Killed)", (State.FAILED, "BadConstraints", 50, "")),
        ("26.05", "RaisedSignal:9(Killed)", (State.PENDING, "PartitionNodeLimit", 50, "")),
    ],
)
def test_squeue_of_each_release_is_read_row_by_row_whatever_names_and_comments_hold(
    version: str, signal: str, toobig: Row
) -> None:
    rows = read(queries.JOBS, recorded(version, "squeue"))
    cells = {row.name: (row.state, row.reason, row.nodes, row.comment) for row in rows}
    assert cells == {**EVERYWHERE, "sig": (State.FAILED, signal, 1, ""), "toobig": toobig}
    assert all(row.job_id.isdecimal() for row in rows)


def test_a_job_has_its_nodes_and_times_as_soon_as_slurm_has_them() -> None:
    rows = {row.name: row for row in read(queries.JOBS, recorded("22.05", "squeue"))}
    running, failed, later, held = (rows[name] for name in ("running", "failed", "later", EVIL))
    assert (running.nodelist, failed.nodelist[:1], later.nodelist, held.nodelist) == (
        "n[0001-0002]",
        "n",
        "",
        "",
    )
    assert running.start and running.end == running.start + 30 * 60
    assert failed.start and failed.end and failed.start <= failed.end < running.end
    assert later.start and (later.end, held.start, held.end) == (None, None, None)


@pytest.mark.parametrize(
    "version, reason",
    [("20.11", "JobHeldUser"), ("22.05", "JobHeldUser"), ("24.11", "None"), ("26.05", "None")],
)
def test_the_accounting_of_each_release_is_read_with_exit_codes_and_signals(
    version: str, reason: str
) -> None:
    rows = read(queries.FINISHED, recorded(version, "sacct"))
    assert [(row.name, row.state, row.exit_code, row.reason, row.nodelist[:3]) for row in rows] == [
        ("two\nlines", State.COMPLETED, 0, reason, "n00"),
        ("failed", State.FAILED, 7, reason, "n00"),
        ("sig", State.FAILED, 137, reason, "n00"),
    ]
    assert all(row.start and row.end and row.start <= row.end for row in rows)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_energy_of_jobs_is_unknown_on_releases_without_it(version: str) -> None:
    message = recorded(version, "energy")
    job_ids = [line.partition(MARK)[0] for line in message.splitlines()]
    assert (len(job_ids), all(map(str.isdecimal, job_ids))) == (3, True)
    assert queries.joules_of_jobs(queries.ENERGY.rows(message, MARK), job_ids) is None


@pytest.mark.parametrize(
    "word, reason, state, message",
    [
        ("FAILED", "NonZeroExitCode", State.FAILED, "ended with an exit code other than 0"),
        ("FAILED", "BadConstraints", State.FAILED, "it asks for what no node has"),
        (
            "PENDING",
            "PartitionNodeLimit",
            State.PENDING,
            "it asks for more or fewer nodes than the partition allows",
        ),
        ("PENDING", "BeginTime", State.PENDING, "waits for its begin time"),
        ("PENDING", "JobHeldUser", State.PENDING, "is held by its owner"),
        ("RUNNING", "None", State.RUNNING, ""),
    ],
)
def test_a_row_is_parsed_by_its_columns(word: str, reason: str, state: State, message: str) -> None:
    row = JobRow("1", word, reason, "", None, None, "name", "")
    assert (row.state, row.explained) == (state, message)


@pytest.mark.parametrize("version", VERSIONS)
def test_sinfo_of_each_release_gives_the_partitions_offer(version: str) -> None:
    (partition,) = queries.partition_offers(queries.PARTITIONS.rows(recorded(version, "sinfo"), MARK))
    assert partition == PartitionOffer(
        name="debug",
        default=True,
        available="up",
        time_limit="infinite",
        nodes=4,
        cpus=16,
        memory=64000,
        gpus=8,
        kinds=((8, 16),),
    )


def test_rows_of_one_partition_add_their_nodes_and_keep_the_largest_node() -> None:
    kinds = (
        "[M]bigMbigMupM1-00:00:00M2M16M64000Mgpu:4\n",
        "[M]bigMbigMupM1-00:00:00M3M128M128000+Mgpu:a100:8(S:0-1)\n",
    )
    assert queries.partition_offers(queries.PARTITIONS.rows("".join(kinds), "M")) == (
        PartitionOffer("big", "up", False, "1-00:00:00", 5, 128, 128000, 8, kinds=((4, 16), (8, 128))),
    )


def test_text_of_a_wrapper_is_no_row_and_alone_it_is_no_answer() -> None:
    out = recorded("22.05", "squeue")
    message = read(queries.JOBS, f"*** 3000 core-hours left ***\n{out}Thank you for using squeue\n")
    assert [row.job_id for row in message] == [row.job_id for row in read(queries.JOBS, out)]
    with pytest.raises(SchedulerError, match="text before the first row"):
        read(queries.JOBS, "*** 3000 core-hours left ***\n")


def test_an_empty_answer_is_no_job() -> None:
    assert read(queries.JOBS, "") == ()


def test_the_requested_columns_are_the_columns_that_are_read() -> None:
    fields = (Field("job_id", "%i", queries.text_of), Field("word", "%T", queries.text_of))
    query = Query(("squeue", "--noheader"), fields)
    assert query.argv("@", "--me") == ("squeue", "--noheader", "--me", "--format=[@]%i@%T")
    assert list(query.rows("[@]1@RUNNING\n", "@")) == [{"job_id": "1", "word": "RUNNING"}]
    accounting = AccountingQuery(("sacct",), fields)
    assert accounting.argv("@", "--jobs=1") == ("sacct", "--jobs=1", "--delimiter=@", "--format=%i,%T")
    assert list(accounting.rows("1@RUNNING\n", "@")) == [{"job_id": "1", "word": "RUNNING"}]


@pytest.mark.parametrize(
    "out",
    ["[<MARK>]1<MARK>RUNNING", "slurm_load_jobs error", "[<MARK>]" + "<MARK>" * len(queries.JOBS.fields)],
)
def test_a_wrong_number_of_cells_is_an_error_that_shows_the_line(out: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        read(queries.JOBS, out)
    assert repr(out.removeprefix("[<MARK>]")) in caught.value.seen


def cells(fields: tuple[Field, ...], mark: str, number: int, name: str, comment: str) -> str:
    """Return a row as Slurm prints it, with a chosen name and comment."""
    values = {"job_id": str(number), "name": name, "comment": comment}
    return mark.join(values.get(field.name, "5") for field in fields) + "\n"


HOSTILE = st.text(st.sampled_from("a1|[]<>\n\r\x1b %\\\"'") | st.characters(codec="utf-8"), max_size=30)


@example([("[", "]"), ("a\n[", "]\n")])
@given(st.lists(st.tuples(HOSTILE, HOSTILE), max_size=4))
def test_text_that_does_not_know_the_mark_of_its_query_cannot_forge_cells_or_rows(
    texts: list[tuple[str, str]],
) -> None:
    mark = "<3f0c9a>"
    rows = [f"[{mark}]{cells(queries.JOBS.fields, mark, number, *text)}" for number, text in enumerate(texts)]
    result = read(queries.JOBS, "".join(rows), mark)
    assert [(row.job_id, row.name, row.comment) for row in result] == [
        (str(number), name, queries.text_of(comment)) for number, (name, comment) in enumerate(texts)
    ]


@given(st.lists(st.tuples(HOSTILE, HOSTILE), max_size=4))
def test_rows_of_sacct_survive_line_breaks_in_names_and_comments(texts: list[tuple[str, str]]) -> None:
    mark = "<3f0c9a>"
    rows = [cells(queries.FINISHED.fields, mark, number, *text) for number, text in enumerate(texts)]
    result = read(queries.FINISHED, "".join(rows), mark)
    assert [(row.job_id, row.name, row.comment) for row in result] == [
        (str(number), name, queries.text_of(comment)) for number, (name, comment) in enumerate(texts)
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
    assert queries.gpu_count(cell) == count


@pytest.mark.parametrize("cell, code", [("0:0", 0), ("7:0", 7), ("0:9", 137), ("", None), ("7", None)])
def test_an_exit_code_is_read_as_a_shell_gives_it(cell: str, code: int | None) -> None:
    assert queries.exit_code_of(cell) == code


@pytest.mark.parametrize("cell, number", [("16", 16), ("16+", 16), ("4-8", 4), ("1K", 1024), ("N/A", 0)])
def test_a_number_is_the_beginning_of_a_cell(cell: str, number: int) -> None:
    assert queries.number_of(cell) == number


@pytest.mark.parametrize(
    ("out", "joules"),
    [
        ("23<MARK>123456\n24<MARK>1000\n", 124456),
        ("23<MARK>123456\n23<MARK>4\n24<MARK>1000\n", 124460),  # requeued: a row for each start
        ("23<MARK>123456\n", None),
        ("23<MARK>123456\n24<MARK>\n", None),
        ("23<MARK>123456\n24<MARK>0\n", None),
        ("23<MARK>18446744073709551614\n24<MARK>1000\n", None),
        ("", None),
    ],
)
def test_the_energy_of_jobs_is_complete_if_every_start_was_measured(out: str, joules: int | None) -> None:
    assert queries.joules_of_jobs(queries.ENERGY.rows(out, MARK), ["23", "24"]) == joules
