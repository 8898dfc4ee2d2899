"""The laws of asking and submitting when Slurm misbehaves; stand-ins play its programs, with its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun import system
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.slurm import sbatch_errors, submit_once
from clusterrun.slurm.client import SlurmClient, SubmitAnswer
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.slurm.sbatch_errors import SbatchAnswer

DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


class PushedClock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class StandInPrograms:
    """Answers in the order given; each is (exit code, stdout, stderr) or an error to raise."""

    def __init__(self, *answers: tuple[int, str, str] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, ...]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> system.Completed:
        self.asked.append(tuple(argv))
        self.environments.append(env or {})
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return system.Completed(tuple(argv), *answer, 0.01)


def client(*answers: tuple[int, str, str] | Exception, **environment: str) -> SlurmClient:
    return SlurmClient(environment, StandInPrograms(*answers), PushedClock(), user=1000)


def test_a_controller_that_is_down_is_unreachable_with_slurms_message_and_a_remedy() -> None:
    with pytest.raises(SchedulerUnreachable) as caught:
        client((1, "", DOWN)).jobs()
    assert caught.value.seen == (
        "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    )
    assert "scontrol ping" in caught.value.remedy


def test_a_query_without_an_answer_in_time_is_unreachable_too() -> None:
    with pytest.raises(SchedulerUnreachable, match="no answer within"):
        client(system.ProgramTimeout("squeue gave no answer within 30 s")).jobs()


def test_a_missing_program_is_an_error_with_its_name() -> None:
    with pytest.raises(SchedulerError, match="no program named squeue is on PATH"):
        client(system.ProgramMissing("the program 'squeue' was not found")).jobs()


def test_only_a_short_failure_is_retried() -> None:
    busy = (1, "", "squeue: error: RPC rate limit exceeded 1 times, please try again\n")
    programs = StandInPrograms(busy, busy, (0, "", ""))
    assert SlurmClient({}, programs, PushedClock(), user=0).jobs() == ()
    assert len(programs.asked) == 3
    programs = StandInPrograms((1, "", "squeue: error: Invalid user: 1000\n"))
    with pytest.raises(SchedulerError, match="Invalid user: 1000"):
        SlurmClient({}, programs, PushedClock(), user=1000).jobs()


def test_queries_read_times_in_seconds_but_jobs_do_not_inherit_that() -> None:
    programs = StandInPrograms((0, "", ""), (0, "17\n", ""))
    slurm = SlurmClient({"PATH": "/bin"}, programs, PushedClock(), user=0)
    slurm.jobs()
    slurm.sbatch(("sbatch", "x"), "/")
    assert programs.environments == [
        {"PATH": "/bin", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"},
        {"PATH": "/bin"},
    ]


def test_no_filter_of_the_shell_reaches_a_question_or_a_job() -> None:
    filters = {"SQUEUE_PARTITION": "x", "SINFO_FORMAT": "x", "SCANCEL_STATE": "PENDING", "SACCT_FORMAT": "x"}
    filters["SLURM_CLUSTERS"] = "elsewhere"
    programs = StandInPrograms((0, "", ""), (0, "17\n", ""))
    slurm = SlurmClient({"PATH": "/bin", **filters}, programs, PushedClock(), user=0)
    slurm.jobs()
    slurm.sbatch(("sbatch", "x"), "/")
    assert [sorted(set(environment) & set(filters)) for environment in programs.environments] == [[], []]


def test_a_site_without_accounting_has_nothing_finished() -> None:
    assert client((1, "", "Slurm accounting storage is disabled\n")).finished(("1",)) == ()


def test_cancelling_an_ended_job_is_no_error_and_a_refusal_is_one() -> None:
    ended = "scancel: error: Kill job error on job id 5: Invalid job id specified\n"
    client((1, "", ended)).cancel(("5",))
    with pytest.raises(SchedulerError, match="Access/permission denied"):
        client(
            (1, "", ended + "scancel: error: Kill job error on job id 6: Access/permission denied\n")
        ).cancel(("5", "6"))


def test_slurm_is_missing_without_its_programs_or_without_a_configuration(tmp_path: Path) -> None:
    assert client(PATH=str(tmp_path)).why_not() == "no program named sbatch is on PATH"
    (tmp_path / "sbatch").touch(0o755)
    assert client(PATH=str(tmp_path), SLURM_CONF=str(tmp_path)).why_not() == ""
    ended = client(PATH=str(tmp_path), SLURM_CONF="/x/slurm.conf")
    assert ended.why_not() == "SLURM_CONF names /x/slurm.conf, which is not there"
    unconfigured = "scontrol: fatal: Could not establish a configuration source\n"
    assert client((1, "", unconfigured), PATH=str(tmp_path)).why_not() == (
        "Slurm's programs know no cluster (Could not establish a configuration source)"
    )


def test_srun_reads_options_before_its_help_and_starts_nothing() -> None:
    programs = StandInPrograms((0, "Usage: srun\n", ""))
    assert SlurmClient({"PATH": "/bin"}, programs).misread_by_srun(["--overlap"]) == ""
    assert programs.asked == [("srun", "--overlap", "--help")]
    unknown = "srun: unrecognized option '--nosuch'\nTry \"srun --help\" for more information\n"
    assert (
        client((255, "", unknown)).misread_by_srun(["--nosuch"]).startswith("unrecognized option '--nosuch'")
    )


def test_slurm_refuses_an_impossible_job_and_queues_nothing() -> None:
    programs = StandInPrograms((0, "", "sbatch: Job 9 to start at 2027-01-01T00:00:00 using 16 processors\n"))
    slurm = SlurmClient({"PATH": "/bin"}, programs)
    assert slurm.could_not_start(["--nodes=1"], "/") == ""
    assert programs.asked == [("sbatch", "--test-only", "--nodes=1", "--wrap=true")]
    refused = "allocation failure: Requested node configuration is not available\n"
    assert client((1, "", refused)).could_not_start([], "/").endswith("configuration is not available")


@pytest.mark.parametrize(
    "host, displayed",
    [
        *(
            (name, True)
            for name in ("login", "login1", "login-03.alps.example", "alps-login2", "hpc.login01")
        ),
        *((name, True) for name in ("HeadNode", "frontend2", "submit01", "submit-node1")),
        *((name, False) for name in ("vm", "blogin", "loginserver", "ada-laptop", "n0001", "")),
    ],
)
def test_a_machine_of_a_cluster_is_recognised_by_its_name(
    monkeypatch: pytest.MonkeyPatch, host: str, displayed: bool
) -> None:
    monkeypatch.setattr("clusterrun.slurm.client.MUNGE", ())
    assert client().of_a_cluster(host) == (f"its name is {host}" if displayed else "")
    assert client(SLURM_CONF="/x").of_a_cluster(host) == "SLURM_CONF is set"


def test_a_machine_where_munge_runs_is_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.slurm.client.MUNGE", (str(tmp_path),))
    assert client().of_a_cluster("vm") == "munge runs here, by which Slurm authenticates"


@pytest.mark.parametrize(
    "out, job_id",
    [
        ("17\n", "17"),
        ("17;cluster\n", "17"),
        ("a site says hello\n17\n", "17"),
        ("", ""),
        ("Submitted 17", ""),
    ],
)
def test_the_job_id_is_the_last_line_with_a_number(out: str, job_id: str) -> None:
    assert sbatch_errors.job_id(out) == job_id


UNSPECIFIED = "sbatch: error: Batch job submission failed: Unspecified error\n"


@pytest.mark.parametrize(
    "err, kind",
    [
        (TIMED_OUT, SbatchAnswer.OPEN),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (send failure)",
            SbatchAnswer.OPEN,
        ),
        (
            "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
            SbatchAnswer.OPEN,
        ),
        (
            "Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SbatchAnswer.ABSENT,
        ),
        (
            "sbatch: error: Munge encode failed: No such file\nsbatch: error: Batch job submission failed: x",
            SbatchAnswer.ABSENT,
        ),
        ("sbatch: fatal: Could not establish a configuration source", SbatchAnswer.ABSENT),
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            SbatchAnswer.REFUSED,
        ),
        ("sbatch: unrecognized option '--frobnicate=1'", SbatchAnswer.REFUSED),
        (f"sbatch: error: Name a project for this host with --account.\n{UNSPECIFIED}", SbatchAnswer.REFUSED),
        (f"sbatch: warning: can't run 1 processes on 2 nodes\n{UNSPECIFIED}", SbatchAnswer.OPEN),
        (f"sbatch: error: Unable to contact slurm controller\n{UNSPECIFIED}", SbatchAnswer.OPEN),
        (UNSPECIFIED, SbatchAnswer.OPEN),
    ],
)
def test_the_state_after_a_failure_follows_from_slurms_message(err: str, kind: SbatchAnswer) -> None:
    assert sbatch_errors.kind(err) is kind


@pytest.mark.parametrize(
    "program, kind",
    [
        ((0, "17\n", ""), SbatchAnswer.QUEUED),
        ((0, "what?\n", ""), SbatchAnswer.OPEN),
        ((-9, "", ""), SbatchAnswer.OPEN),
        (system.ProgramTimeout("sbatch gave no answer"), SbatchAnswer.OPEN),
        (system.ProgramMissing("no sbatch"), SbatchAnswer.ABSENT),
        ((1, "", TIMED_OUT), SbatchAnswer.OPEN),
    ],
)
def test_every_end_of_sbatch_has_one_of_four_kinds(
    program: tuple[int, str, str] | Exception, kind: SbatchAnswer
) -> None:
    assert client(program).sbatch(("sbatch", "x"), "/").kind is kind


class StandInSlurm:
    """A controller that queues or loses what is sent, and shows the job only after some looks."""

    def __init__(self, answer: SubmitAnswer, looks: Sequence[str | Exception] = ()) -> None:
        self._answer = answer
        self._looks = list(looks)
        self.sent = 0

    def sbatch(self, argv: Sequence[str], cwd: str) -> SubmitAnswer:
        self.sent += 1
        return self._answer

    def find(self, token: str) -> str:
        look = self._looks.pop(0) if self._looks else ""
        if isinstance(look, Exception):
            raise look
        return look

    def partitions(self) -> tuple[PartitionOffer, ...]:
        return (PartitionOffer("debug", "up", True, "infinite", nodes=4, cpus=16, memory=65536, gpus=8),)


def send(slurm: StandInSlurm, partition: str = "") -> str:
    return submit_once.send(slurm, ("sbatch", "x"), "/", "TOKEN", partition, PushedClock(), lambda line: None)


LOOKS = st.lists(st.sampled_from(["", "17", SchedulerUnreachable("down")]), max_size=14)


@given(st.sampled_from(SbatchAnswer), LOOKS)
def test_a_job_is_sent_exactly_once_for_every_answer_of_slurm(
    kind: SbatchAnswer, looks: list[str | Exception]
) -> None:
    slurm = StandInSlurm(SubmitAnswer(kind, "words", "17" if kind is SbatchAnswer.QUEUED else ""), looks)
    try:
        assert send(slurm) == "17"
    except SchedulerUnreachable:
        assert kind is SbatchAnswer.OPEN
        assert "17" not in looks[:12]
    except SchedulerError:
        assert kind in (SbatchAnswer.REFUSED, SbatchAnswer.ABSENT)
    assert slurm.sent == 1


def test_a_job_whose_answer_was_lost_is_recognised_by_its_token() -> None:
    slurm = StandInSlurm(
        SubmitAnswer(SbatchAnswer.OPEN, "Socket timed out"), ["", SchedulerUnreachable("down"), "", "17"]
    )
    assert send(slurm) == "17"


def test_the_warning_of_sbatch_for_a_queued_job_is_shown() -> None:
    err = "sbatch: Your project has used 95 % of its hours\nsbatch: lua: moved to partition long\n"
    messages: list[str] = []
    for program in ((0, "17\n", err), (0, "17\n", "")):
        assert (
            submit_once.send(client(program), ("sbatch", "x"), "/", "T", "", PushedClock(), messages.append)
            == "17"
        )
    assert messages == ["sbatch warns: Your project has used 95 % of its hours; lua: moved to partition long"]


def test_an_interrupted_submission_warns_that_the_job_may_be_queued() -> None:
    messages: list[str] = []

    class Interrupted(StandInSlurm):
        def sbatch(self, argv: Sequence[str], cwd: str) -> SubmitAnswer:
            raise KeyboardInterrupt

    slurm = Interrupted(SubmitAnswer(SbatchAnswer.OPEN, ""))
    with pytest.raises(KeyboardInterrupt):
        submit_once.send(slurm, ("sbatch", "x"), "/", "TOKEN", "", PushedClock(), messages.append)
    assert messages == [
        "interrupted while sbatch ran: the job may be queued, which `clusterrun status` shows"
    ]


def test_an_open_submission_reports_its_state_and_a_command_to_look() -> None:
    with pytest.raises(SchedulerUnreachable) as caught:
        send(StandInSlurm(SubmitAnswer(SbatchAnswer.OPEN, "Socket timed out")))
    assert caught.value.seen == (
        "it is not known whether the job is queued:"
        " sbatch said 'Socket timed out', and the job is not in the queue so far"
    )
    assert "grep TOKEN" in caught.value.remedy


def test_a_refusal_has_slurms_message_a_remedy_and_the_partitions_offer() -> None:
    message = "Batch job submission failed: Invalid partition name specified"
    with pytest.raises(SchedulerError) as caught:
        send(StandInSlurm(SubmitAnswer(SbatchAnswer.REFUSED, message)), partition="debgu")
    assert str(caught.value) == (
        f"Slurm refused the job: {message}\n"
        "name a partition that exists with --partition\n"
        "did you mean 'debug'?\n"
        "partition debug (default): 4 nodes, up to 8 GPUs, 16 CPUs and 64 GiB each, time limit infinite"
    )


def test_an_unknown_message_is_checked_against_the_queue() -> None:
    assert send(StandInSlurm(SubmitAnswer(SbatchAnswer.REFUSED, "something new"), ["17"])) == "17"
    with pytest.raises(SchedulerError, match="Slurm refused the job: something new"):
        send(StandInSlurm(SubmitAnswer(SbatchAnswer.REFUSED, "something new")))


def test_slurms_messages_are_shown_without_program_names_and_repetition() -> None:
    err = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: No\n\n"
    assert sbatch_errors.words(err) == "invalid partition specified: x; Batch job submission failed: No"


@pytest.mark.parametrize(
    "text, name",
    [
        ("# ClusterName=old\n  clustername = alps # here\nSlurmctldHost=x\n", "alps"),
        ("SlurmctldHost=x\n", "asked"),
    ],
)
def test_a_cluster_has_the_name_of_its_configuration_else_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    monkeypatch.setattr("clusterrun.slurm.client.CONFIGURATIONS", ())
    (tmp_path / "slurm.conf").write_text(text)
    programs = StandInPrograms((0, "Configuration data\nClusterName             = asked\n", ""))
    result = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, programs).cluster_name()
    assert result == name


@pytest.mark.parametrize(
    "text, identity",
    [
        ("ClusterName=alps\nSlurmctldHost=Ctl1.site.org(10.0.0.1)\nSlurmctldHost=ctl2\n", "alps@ctl1"),
        ("ControlMachine=old\nClusterName=alps\n", "alps@old"),
        ("ClusterName=alps\n", ""),
        ("", "asked@away"),
    ],
)
def test_a_cluster_differs_from_another_of_its_name_by_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, identity: str
) -> None:
    monkeypatch.setattr("clusterrun.slurm.client.CONFIGURATIONS", ())
    (tmp_path / "slurm.conf").write_text(text)
    output = (
        "ClusterName             = asked\nSlurmctldHost[0]        = away(1.2.3.4)\nSlurmctldHost[1] = b\n"
    )
    client = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, StandInPrograms((0, output, "")))
    assert [client.identity(), client.identity()] == [identity, identity]


@pytest.mark.parametrize(
    "text, whole",
    [
        ("ClusterName=x\nSelectType=select/linear\n", True),
        ("ClusterName=x\n#SelectType=select/linear\nSelectType=select/cons_tres\n", False),
        ("ClusterName=x\n", False),
        ("", True),
    ],
)
def test_whole_nodes_are_read_from_slurms_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, whole: bool
) -> None:
    monkeypatch.setattr("clusterrun.slurm.client.CONFIGURATIONS", ())
    (tmp_path / "slurm.conf").write_text(text)
    output = "ClusterName             = asked\nSelectType              = select/linear\n"
    client = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, StandInPrograms((0, output, "")))
    assert client.gives_whole_nodes() is whole


@pytest.mark.parametrize(
    ("answer", "reason"), [((0, "bad GPU\nbad GPU\n", ""), "bad GPU"), ((1, "", "sinfo: error: no"), "")]
)
def test_node_reasons_are_those_of_slurm(answer: tuple[int, str, str], reason: str) -> None:
    programs = StandInPrograms(answer)
    assert SlurmClient({}, programs, PushedClock()).node_reasons("n[1-2]") == reason
    assert "--nodes=n[1-2]" in programs.asked[0]


@pytest.mark.parametrize(("partition", "option"), [("long", "--partition=long"), ("", "--all")])
def test_reasons_without_nodes_name_them(partition: str, option: str) -> None:
    programs = StandInPrograms((0, "n[1-2]: bad GPU\nn7: memory\n", ""))
    reasons = SlurmClient({}, programs, PushedClock()).node_reasons("", partition)
    assert reasons == "n[1-2]: bad GPU, n7: memory"
    assert option in programs.asked[0]


@pytest.mark.parametrize(
    ("text", "displayed", "seconds"),
    [
        ("KillWait=60", "", 60.0),
        ("KillWait = 0", "", 0.0),
        ("SlurmctldPort=6817", "", 30.0),
        ("Include more.conf", "KillWait                = 120 sec\n", 120.0),
        ("Include more.conf", "", 30.0),
    ],
)
def test_kill_wait_is_read_from_slurms_configuration(
    tmp_path: Path, text: str, displayed: str, seconds: float
) -> None:
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{text}\n")
    client = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, StandInPrograms((0, displayed, "")))
    assert client.kill_wait() == seconds


@pytest.mark.parametrize(
    ("message", "shares"),
    [
        ("slurm-wlm 20.11.4", False),
        ("slurm 21.08.8-2", False),
        ("slurm-wlm 22.05.8", True),
        ("slurm 24.11.5", True),
        ("", True),
    ],
)
def test_steps_share_gpus_since_slurm_22_05(message: str, shares: bool) -> None:
    assert SlurmClient({}, StandInPrograms((0, message, ""))).shares_gpus() is shares


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("SrunPortRange=60001-60010", 10),
        ("SrunPortRange = 60001-63000  # many", 3000),
        ("SrunPortRange=0-0", 0),
        ("#SrunPortRange=60001-60010", 0),
        ("SrunPortRange=(null)", 0),
        ("", 0),
    ],
)
def test_the_port_range_of_srun_is_read_from_slurms_configuration(
    tmp_path: Path, text: str, ports: int
) -> None:
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{text}\n")
    client = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, StandInPrograms())
    assert client.srun_ports() == ports


@pytest.mark.parametrize(
    "message, remedy",
    [
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "sacctmgr"),
        ("Name a partition; Batch job submission failed: Unspecified error", "do what its words ask for"),
        ("Time limit specification required, but not provided", "--time 2h"),
    ],
)
def test_a_long_refusal_has_the_remedy_of_its_cause(message: str, remedy: str) -> None:
    row = sbatch_errors.refusal(message)
    assert row is not None and remedy in row.remedy


@pytest.mark.parametrize("answer", [(1, "", DOWN), system.ProgramTimeout("no answer"), (0, "nothing", "")])
def test_a_cluster_that_nobody_names_has_a_name_all_the_same(
    answer: tuple[int, str, str] | Exception,
) -> None:
    client = SlurmClient({"SLURM_CONF": "/nowhere"}, StandInPrograms(answer))
    assert client.cluster_name() == "slurm" or Path("/etc/slurm/slurm.conf").exists()


@pytest.mark.parametrize(
    ("line", "requested"),
    [
        ("AcctGatherEnergyType=acct_gather_energy/ipmi", True),
        ("AcctGatherEnergyType=acct_gather_energy/none", False),
        ("", False),
    ],
)
def test_energy_is_requested_if_slurm_measures_it(tmp_path: Path, line: str, requested: bool) -> None:
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{line}\n")
    programs = StandInPrograms((1, "", "sacct: error: slurm_persist_conn_open failed"))
    slurm = SlurmClient({"SLURM_CONF": str(tmp_path / "slurm.conf")}, programs, PushedClock(), user=1000)
    now = PushedClock().now()
    assert slurm.energy(["23"], now - 60, now + 9) is None
    times = ["--starttime=now-60seconds", "--endtime=now"]
    assert [(argv[0], list(argv[-4:-2])) for argv in programs.asked] == [("sacct", times)] * requested
    assert slurm.energy([], now, now) is None
