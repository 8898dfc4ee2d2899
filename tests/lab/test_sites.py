"""Sites as they are: a run, its restart, logs and cancel under each trait that docs/sites.md names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab import conf, daemons
from clusterrun.lab.lab import Lab
from clusterrun.lab.site import LabSite
from clusterrun.lab.spec import LabSpec, Layout
from tests.lab.test_slurm_runs import Site, site, until
from tests.lab.test_without_rights import PATHS, python_for
from tests.lab_fixture import MakeLab, leftovers

pytestmark = pytest.mark.lab

WORK = """
import json, os, sys, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ("WORLD_SIZE", "FROM_TASK_PROLOG", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "MASTER_ADDR")
if "fail" in sys.argv and attempt == 0:
    sys.exit(7 if os.environ["RANK"] == "3" else time.sleep(600))
print(json.dumps({name: os.environ.get(name, "") for name in names} | {
    "attempt": attempt, "python": list(sys.version_info[:2]), "zone": time.tzname[0],
    "here": os.listdir("/tmp"), "node": os.uname().nodename, "cpus": len(os.sched_getaffinity(0)),
}), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
"""
SIZE = ("--nodes", "2", "--gpus", "2")
SYSTEM_PYTHON = "/usr/bin/python3"
"""The distribution's Python has no torch. These tests need none, and it starts sooner."""


class Trained:
    """A run of 2 × 2 ranks on a site: checked, failed once, restarted in place and done; and what it left."""

    def __init__(self, lab_site: Site, *options: str) -> None:
        self.here = lab_site
        arguments = (
            *SIZE,
            "--python",
            SYSTEM_PYTHON,
            "--preflight",
            "quick",
            "--max-restarts",
            "1",
            *options,
        )
        self.answer = lab_site.submit(*arguments, "work.py", "fail")
        self.waited = lab_site.run("wait", self.answer["run_id"], limit=240)
        self.status = lab_site.status(self.answer["run_id"])
        self.ranks = {
            rank: json.loads(text) for rank, text in lab_site.outputs(self.answer, 1).items() if text
        }

    def check(self) -> None:
        """Check the law of every site on which a run works."""
        observed = (
            self.waited.code,
            self.status["state"],
            [attempt["cause"] for attempt in self.status["attempts"]],
        )
        assert observed == (0, "COMPLETED", ["first", "failure"]), (self.waited.err, self.status["reason"])
        assert {
            rank: (attempt["WORLD_SIZE"], attempt["attempt"]) for rank, attempt in self.ranks.items()
        } == dict.fromkeys(range(4), ("4", 1))
        logs = self.here.run("logs", self.answer["run_id"])
        assert (logs.code, logs.out.count('"WORLD_SIZE": "4"')) == (0, 4), logs.err


def cancelled(lab_site: Site, *options: str, requeued: list[str] | None = None) -> None:
    """Cancel a run that trains, and check that nothing is left; ``requeued``: once more on these nodes."""
    answer = lab_site.submit(
        *SIZE, "--python", SYSTEM_PYTHON, "--preflight", "off", *options, "work.py", "stay"
    )
    until(lambda: len(list(filter(None, lab_site.outputs(answer).values()))) == 4)
    if requeued:
        # Only its script still tells whose job it is.
        other = ("JobName=exp7", "Comment=VIP")
        assert lab_site.lab.exec(["scontrol", "update", f"JobId={answer['job_id']}", *other]).code == 0
        assert lab_site.lab.exec(["scontrol", "requeue", answer["job_id"]]).code == 0
        states = set()

        def has_restarted() -> bool:
            states.add(lab_site.status(answer["run_id"])["state"])
            return len(list(filter(None, lab_site.outputs(answer, 1).values()))) == 4

        until(has_restarted, 120)
        assert states <= {"PENDING", "RUNNING"}
        # The state is saved up to some seconds after the ranks have begun.
        until(lambda: all(attempt["nodes"] for attempt in lab_site.status(answer["run_id"])["attempts"]))
        attempts = lab_site.status(answer["run_id"])["attempts"]
        assert [attempt["nodes"] for attempt in attempts] == [requeued] * 2
        assert [attempt["cause"] for attempt in attempts] == ["first", "requeue"]
    assert lab_site.run("cancel", answer["run_id"]).code == 0
    assert (lab_site.status(answer["run_id"])["state"], leftovers(lab_site.lab)) == ("CANCELLED", [])


def project(lab: Lab, folder: Path) -> Site:
    local = site(lab, folder)
    (local.project / "work.py").write_text(WORK)
    return local


def script(folder: Path, name: str, *lines: str) -> str:
    """Return the path of a shell script that Slurm runs."""
    path = folder / name
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return str(path)


# --- a site with many rules, on which runs work ---

RULES = """
function slurm_job_submit(job, partitions, user)
  if job.comment ~= nil and string.find(job.comment, "without project") then
    slurm.log_user("Name a project for this host with --account.")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def strict(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Make a site with every strict rule that lets a run through."""
    folder = tmp_path_factory.mktemp("strict")
    folder.chmod(0o755)
    mark = folder / "epilog.log"
    settings = {
        "SelectTypeParameters": "CR_CPU",
        "TaskPlugin": "task/affinity",
        "PrologFlags": "Alloc,Contain",
        "Prolog": script(folder, "prolog", "sleep 0.5"),
        "Epilog": script(folder, "epilog", f'echo "$SLURM_JOB_ID" >>{mark}', "sleep 0.5"),
        "TaskProlog": script(folder, "task-prolog", "echo print welcome", "echo export FROM_TASK_PROLOG=yes"),
        "SrunProlog": script(folder, "srun-prolog", "echo words of a site"),
        "SrunPortRange": "61000-61999",
        "EnforcePartLimits": "ALL",
        "DefMemPerCPU": "1000",
        "MaxMemPerCPU": "1000",
        "JobRequeue": "0",
        "PrivateData": "jobs",
        "DebugFlags": "NO_CONF_HASH",
    }
    lab = make_lab(nodes=2, gpus=2, settings=settings)
    return project(lab, folder)


@pytest.fixture(scope="module")
def trained(strict: Site) -> Trained:
    return Trained(strict)


CONFIGURED = {
    "SelectType": "select/cons_tres",
    "TaskPlugin": "task/affinity",
    "PrologFlags": "Alloc,Contain",
    "SrunPortRange": "61000-61999",
    "EnforcePartLimits": "ALL",
    "DefMemPerCPU": "1000",
    "JobRequeue": "0",
    "PrivateData": "jobs",
}


@pytest.mark.parametrize("trait", CONFIGURED)
def test_a_run_works_with_this_setting_of_slurm(trained: Trained, trait: str) -> None:
    output = trained.here.lab.exec(["scontrol", "show", "config"]).out
    (result,) = re.findall(rf"(?m)^{trait}\s*= (.*)$", output)
    assert result.strip().lower().startswith(CONFIGURED[trait].lower())
    trained.check()


def test_prolog_and_epilog_run_and_ranks_get_the_variables_of_the_task_prolog(trained: Trained) -> None:
    trained.check()
    assert {entry["FROM_TASK_PROLOG"] for entry in trained.ranks.values()} == {"yes"}
    ended = trained.here.project.parent / "epilog.log"
    until(lambda: ended.exists() and ended.read_text().split().count(trained.answer["job_id"]) == 2)


def test_ranks_share_all_cpus_of_the_job_if_slurm_binds_tasks(trained: Trained) -> None:
    assert {entry["cpus"] for entry in trained.ranks.values()} == {len(os.sched_getaffinity(0))}


def test_a_strict_site_leaves_nothing_of_a_cancelled_run(strict: Site) -> None:
    cancelled(strict)


def test_requeue_is_requested_if_the_site_switched_it_off(strict: Site) -> None:
    answer = strict.submit("--requeue", "--sbatch", "hold", "work.py")
    output = strict.lab.exec(["scontrol", "show", "job", answer["job_id"]]).out
    assert "Requeue=1 " in output
    assert strict.run("cancel", answer["run_id"]).code == 0


def test_a_run_that_slurm_suspends_continues_after_resume(strict: Site) -> None:
    arguments = (
        *SIZE,
        "--python",
        SYSTEM_PYTHON,
        "--preflight",
        "off",
        "--hang-after",
        "20",
        "work.py",
        "stay",
    )
    answer = strict.submit(*arguments)
    until(lambda: len(list(filter(None, strict.outputs(answer).values()))) == 4)
    assert strict.lab.exec(["scontrol", "suspend", answer["job_id"]]).code == 0
    until(lambda: "suspended" in strict.status(answer["run_id"])["reason"])
    assert strict.lab.exec(["scontrol", "resume", answer["job_id"]]).code == 0
    until(lambda: strict.status(answer["run_id"])["state"] == "RUNNING")
    assert strict.run("cancel", answer["run_id"]).code == 0
    assert [attempt["cause"] for attempt in strict.status(answer["run_id"])["attempts"]] == ["first"]


REFUSED = {
    "time": (
        "MaxTime=10",
        "MaxTime=UNLIMITED",
        ("--time", "1h"),
        "Requested time limit is invalid",
        "change --time",
    ),
    "nodes": ("MaxNodes=1", "MaxNodes=UNLIMITED", (), "Node count specification invalid", "change --nodes"),
    "memory": (
        "MaxMemPerNode=1000",
        "MaxMemPerNode=60000",
        ("--mem", "5G"),
        "Memory required by task is not available",
        "lower --mem, or leave it out",
    ),
}
"""The administrator's settings and their reversal, the request, Slurm's message, the remedy."""


def refused(lab_site: Site, options: tuple[str, ...], arguments: str, remedy: str) -> None:
    runs = lab_site.home / "runs"
    before = sorted(runs.iterdir()) if runs.is_dir() else []
    result = lab_site.run("submit", *SIZE, *options, "work.py")
    assert (result.code, arguments in result.err, remedy in result.err) == (4, True, True), result.err
    assert "searching the queue" not in result.err
    assert sorted(runs.iterdir()) == before


@pytest.mark.parametrize("limit", REFUSED)
def test_a_request_against_site_limits_is_refused_with_a_remedy_and_creates_no_run(
    strict: Site, limit: str
) -> None:
    setting, lifted, options, arguments, remedy = REFUSED[limit]
    assert strict.lab.exec(["scontrol", "update", "partition=debug", setting]).code == 0
    try:
        refused(strict, options, arguments, remedy)
    finally:
        assert strict.lab.exec(["scontrol", "update", "partition=debug", lifted]).code == 0


def test_a_refusal_by_a_site_rule_is_shown_at_once_with_its_message(strict: Site) -> None:
    if strict.lab.state.graft:
        pytest.skip("this Slurm lies over another distribution's files, which lack its Lua")
    (strict.lab.place.conf / "job_submit.lua").write_text(RULES)
    with open(strict.lab.slurm_conf, "a", encoding="utf-8") as file:
        file.write("JobSubmitPlugins=lua\n")
    strict.lab.fault("controller")
    strict.lab.heal()
    assert strict.lab.wait_idle()
    arguments, remedy = (
        "Name a project for this host with --account.",
        "a rule of this site refuses the job: do what its words ask for",
    )
    refused(strict, ("--sbatch", "comment=without project"), arguments, remedy)


def of_which_the_last_two_are_fast(spec: LabSpec, layout: Layout) -> str:
    line = NODES(spec, layout).rstrip("\n")
    slow, fast = layout.node_names[0], layout.node_range.replace("01-", "02-")
    return f"{line.replace(layout.node_range, slow)}\n{line.replace(layout.node_range, fast)} Feature=fast\n"


def test_a_run_works_with_a_slow_prolog_no_killwait_and_few_srun_ports(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    """It stays on nodes of the feature that was asked for when it is restarted or queued again."""
    tmp_path.chmod(0o755)
    warm = f'[ -e {tmp_path}/warm-"$SLURMD_NODENAME" ] || sleep 12', f': >{tmp_path}/warm-"$SLURMD_NODENAME"'
    settings = {"Prolog": script(tmp_path, "prolog", *warm), "PrologFlags": "Alloc"}
    settings |= {"KillWait": "0", "SrunPortRange": "61000-61009"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conf, "_nodes", of_which_the_last_two_are_fast)
        lab = make_lab(nodes=3, gpus=2, settings=settings)
    local = project(lab, tmp_path)
    trained = Trained(local, "--constraint", "fast")
    trained.check()
    assert [attempt["nodes"] for attempt in trained.status["attempts"]] == [["n0002", "n0003"]] * 2
    cancelled(local, "--constraint", "fast", "--requeue", requeued=["n0002", "n0003"])
    result = local.run("submit", *SIZE, "--preflight", "off", "--constraint", "nosuch", "work.py")
    assert (result.code, "sinfo -o '%P %f'" in result.err) == (4, True), result.err
    lab.down()


ACCOUNTED = (
    "add account project",
    "add qos small",
    "modify qos small set MaxTRESPerJob=node=1 Flags=DenyOnLimit",
    "add user root account=project defaultaccount=project",
    "modify user root set qos+=small",
)


@pytest.fixture(scope="module")
def accounted(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site with enforced accounts and limits, and with few job numbers before reuse."""
    settings = {"AccountingStorageEnforce": "limits,qos", "MinJobAge": "2"}
    settings |= {"FirstJobId": "100", "MaxJobId": "103"}
    lab = make_lab(nodes=2, gpus=2, accounting=True, settings=settings)
    for arguments in ACCOUNTED:
        result = lab.exec(["sacctmgr", "--immediate", *arguments.split()])
        assert result.code == 0, (arguments, result)
    yield project(lab, tmp_path_factory.mktemp("accounted"))
    lab.down()


@pytest.mark.slow
def test_accounts_and_limits_that_slurm_enforces_refuse_with_the_place_to_look(accounted: Site) -> None:
    local = accounted
    runs = ("submit", *SIZE, "--preflight", "off", "--python", SYSTEM_PYTHON)
    for option, arguments in (
        (("--account", "nope"), "Invalid account"),
        (("--qos", "nope"), "Invalid qos"),
        (("--qos", "small"), "QOSMaxNodePerJobLimit"),
    ):
        result = local.run(*runs, *option, "work.py")
        assert (result.code, arguments in result.err, "sacctmgr show assoc user=$USER" in result.err) == (
            4,
            True,
            True,
        ), result.err
    assert local.run(*runs, "--wait", "work.py").code == 0


@pytest.mark.slow
def test_a_job_with_a_reused_number_is_not_mistaken_for_the_job_of_an_older_run(accounted: Site) -> None:
    """Its coordinator died without a word, nobody asked, and accounting knows a number's newest job only."""
    local, lab = accounted, accounted.lab
    arguments = ("--name", "same", "--python", SYSTEM_PYTHON, "--preflight", "off")
    stay = (*SIZE, *arguments, "work.py", "stay")
    older = local.submit(*stay)
    number = older["job_id"]
    until(lambda: len(list(filter(None, local.outputs(older).values()))) == 4)
    state = Path(older["run_dir"], "state.json")
    state_json = json.loads(state.read_text())
    assert (state_json["state"], lab.exec(["scancel", number]).code) == ("RUNNING", 0)
    others: set[str] = set()
    while len(others) < 2:
        result = lab.exec(["sbatch", "--parsable", "--hold", "-o/dev/null", "--wrap=true"])
        if (taken := result.out.strip()) == number:
            assert lab.exec(["scancel", number]).code == 0
        others |= {taken} - {"", number}
    until(lambda: number not in lab.exec(["squeue", "-ho%i", "-tall"]).out.split(), 180)
    state.write_text(json.dumps({**state_json, "updated_at": state_json["updated_at"] - 86400}))
    remote = Site(lab, local.home.with_name("another home"), local.project)
    newer = remote.submit(*stay)
    assert newer["job_id"] == number
    until(lambda: len(list(filter(None, remote.outputs(newer).values()))) == 4)
    until(lambda: "RUNNING" in lab.exec(["sacct", "-Xn", "-j", number, "-oState"]).out)
    status = local.status(older["run_id"])
    assert (status["state"], "Slurm no longer knows the job" in status["reason"]) == ("FAILED", True)
    assert local.run("exec", older["run_id"], "--", "true").code != 0
    assert local.run("submit", "--dry-run", "--after", older["run_id"], *arguments, "work.py").code != 0
    assert local.run("cancel", older["run_id"]).code == 0
    assert remote.status(newer["run_id"])["state"] == "RUNNING"
    assert remote.run("cancel", number).out == f"{newer['run_id']} CANCELLED\n"
    assert lab.exec(["scancel", *others]).code == 0


# --- sites whose nodes differ from the login host ---


def named_otherwise(spec: LabSpec, layout: Layout) -> str:
    """Name the nodes c1, c2 on the hosts n0001, n0002."""
    own = NODES(spec, layout)
    return own.replace(
        f"NodeName={layout.node_range}", f"NodeName=c[1-{spec.nodes}] NodeHostname={layout.node_range}"
    )


def of_these(spec: LabSpec, layout: Layout) -> str:
    return PARTITIONS(spec, layout).replace(f"Nodes={layout.node_range}", f"Nodes=c[1-{spec.nodes}]")


NODES, PARTITIONS = conf._nodes, conf._partitions
ZONES = {"n0001": "Asia/Tokyo", "n0002": "America/New_York"}


@pytest.fixture(scope="module")
def foreign(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Yield a site with node names that are no host names, and with a /tmp, time zone and Python per node."""
    patch = pytest.MonkeyPatch()
    patch.setattr(conf, "_nodes", named_otherwise)
    patch.setattr(conf, "_partitions", of_these)
    try:
        lab = make_lab(nodes=2, gpus=2, settings={"PrivateData": "jobs"})
    finally:
        patch.undo()
    hosts = LabSite(lab.place, lab.state)
    folder = lab.place.folder / "shared"  # below no /tmp
    folder.mkdir()
    local = project(lab, folder)
    for host in lab.nodes:
        hosts.on_outside_root(host, "mount", "-t", "tmpfs", "tmpfs", (lab.state.root or "") + "/tmp")
        hosts.on(host, "touch", f"/tmp/of-{host}")
        clock = hosts.on(host, "readlink", "-f", "/etc/localtime").strip()
        hosts.on(host, "mount", "--bind", f"/usr/share/zoneinfo/{ZONES[host]}", clock)
    second_network(lab)
    yield Trained(local)


def second_network(lab: Lab) -> None:
    """Connect two nodes by a fast cable, beside the slow cable of their host names."""
    ends = [["netns", str(lab.state.processes[host])] for host in lab.nodes]
    arguments = ["link", "add", "fast0", *ends[0], "type", "veth", "peer", "name", "fast0", *ends[1]]
    subprocess.run(["ip", *arguments], check=True, timeout=60)
    for number, host in enumerate(lab.nodes, 1):
        hosts = LabSite(lab.place, lab.state)
        hosts.on_outside_root(host, "ip", "addr", "add", f"192.168.77.{number}/24", "dev", "fast0")
        hosts.on_outside_root(host, "ip", "link", "set", "fast0", "up")


def test_a_named_interface_wins_over_the_interface_of_the_node_names(foreign: Trained) -> None:
    foreign.check()
    assert {entry["GLOO_SOCKET_IFNAME"] for entry in foreign.ranks.values()} == {"eth0"}
    named = Trained(foreign.here, "--env", "GLOO_SOCKET_IFNAME=fast0")
    named.check()
    assert {entry["GLOO_SOCKET_IFNAME"] for entry in named.ranks.values()} == {"fast0"}
    wrong = foreign.here.submit(
        "--preflight", "quick", *SIZE, "--python", SYSTEM_PYTHON, "--env", "GLOO_SOCKET_IFNAME=ib0", "work.py"
    )
    result = foreign.here.run("wait", wrong["run_id"], limit=240)
    assert (result.code, "ib0" in result.err) == (3, True), result.err


def test_a_run_works_without_warnings_if_node_names_are_not_host_names(foreign: Trained) -> None:
    foreign.check()
    assert (foreign.status["nodelist"], {entry["node"] for entry in foreign.ranks.values()}) == (
        "c[1-2]",
        set(ZONES),
    )
    result = foreign.here.run("report", foreign.answer["run_id"])
    assert "cannot resolve" not in result.out + result.err


def test_a_run_works_if_every_node_has_its_own_tmp(foreign: Trained) -> None:
    foreign.check()
    assert {(entry["node"], f"of-{entry['node']}" in entry["here"]) for entry in foreign.ranks.values()} == {
        (host, True) for host in ZONES
    }


def test_times_are_right_if_every_node_has_its_own_time_zone(foreign: Trained) -> None:
    foreign.check()
    assert {entry["zone"] for entry in foreign.ranks.values()} == {"JST", "EST"}
    times = [
        datetime.fromisoformat(foreign.status[f"{what}_at"]) for what in ("submitted", "started", "ended")
    ]
    assert times == sorted(times) and times[2] - times[0] < timedelta(minutes=30)


def other_python() -> str:
    """Return a Python of another release than the distribution's. Skip if there is none."""
    own = os.path.realpath(SYSTEM_PYTHON)
    for path in sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python3.[0-9]*[0-9]")):
        if path.name != Path(own).name and not path.is_symlink():
            return str(path)
    pytest.skip("one Python alone is installed here")


def test_a_run_works_if_nodes_have_another_python_than_the_login_host(
    foreign: Trained, tmp_path: Path
) -> None:
    lab, other = foreign.here.lab, other_python()
    if lab.state.root:
        pytest.skip("the nodes' Python is that of another distribution already")
    hosts, own = LabSite(lab.place, lab.state), os.path.realpath(SYSTEM_PYTHON)
    for host in lab.nodes:
        hosts.on(host, "mount", "--bind", other, own)
    try:
        trained = Trained(foreign.here)
    finally:
        for host in lab.nodes:
            hosts.on(host, "umount", own)
    trained.check()
    release = [int(part) for part in Path(other).name[len("python") :].split(".")]
    assert [entry["python"] for entry in trained.ranks.values()] == [release] * 4


NO_UTF_8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    "arguments", ["status", "status last", "logs last", "submit --dry-run work.py", "help"]
)
def test_every_command_prints_in_a_locale_that_is_not_utf_8(foreign: Trained, arguments: str) -> None:
    result = foreign.here.run(*arguments.split(), **NO_UTF_8)
    assert (result.code, "Traceback" in result.err) == (0, False), result.err


def test_a_run_works_if_root_may_not_read_the_home(make_lab: MakeLab, foreign: Trained) -> None:
    lab = foreign.here.lab
    python, rights = python_for(lab, "alice"), "-dac_override,-dac_read_search"
    squashed = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    home = lab.place.homes / "alice"
    for process in lab.processes():
        if process.name == "slurmd":
            os.kill(process.process, signal.SIGKILL)
    for host in lab.nodes:
        daemons.start(lab.place, lab.state, host, [*squashed, "slurmd", "-D"], f"slurmd.{host}.out")
    assert lab.wait_idle()
    assert lab.exec([*squashed, "ls", str(home)], host="n0001", cwd="/").code != 0

    def types(*words: str) -> Any:
        argv = ["env", "NO_COLOR=1", "sh", "-c", 'cd && exec "$@"', "-", python, "-m", "clusterrun", *words]
        return lab.exec(argv, user="alice", cwd="/", timeout=240, env={"PYTHONPATH": PATHS})

    assert lab.exec(["sh", "-c", 'cd && printf %s "$1" >work.py', "-", WORK], user="alice", cwd="/").code == 0
    size = (*SIZE, "--python", SYSTEM_PYTHON, "--preflight", "quick", "--max-restarts", "1")
    result = types("submit", "--cluster", "slurm", *size, "--wait", "work.py", "fail")
    assert result.code == 0, result.err
    assert types("logs", "last").out.count('"WORLD_SIZE": "4"') == 4
    ended = json.loads(types("status", "--json", "last").out)["runs"][0]
    assert (ended["state"], [attempt["cause"] for attempt in ended["attempts"]]) == (
        "COMPLETED",
        ["first", "failure"],
    )
    others = lab.exec(["squeue", "--noheader", "--states=all"], user="bob", cwd="/")
    assert (others.code, others.out) == (0, "")  # PrivateData=jobs


# --- how Slurm gives out nodes and tracks what runs on them ---

KINDS: dict[str, dict[str, Any]] = {
    "whole nodes": {"settings": {"SelectType": "select/linear", "SelectTypeParameters": "CR_Memory"}},
    "cgroup and affinity": {
        "proctrack": "cgroup",
        "settings": {"TaskPlugin": "task/cgroup,task/affinity", "PrologFlags": "Contain"},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_works_and_leaves_nothing_on_each_kind_of_site(
    make_lab: MakeLab, tmp_path: Path, kind: str
) -> None:
    if KINDS[kind].get("proctrack") == "cgroup" and not os.path.isdir("/sys/fs/cgroup/freezer"):
        pytest.skip("no freezer of cgroup version 1 here")
    lab = make_lab(nodes=2, gpus=2, **KINDS[kind])
    local = project(lab, tmp_path)
    Trained(local).check()
    cancelled(local)
    if kind == "whole nodes":
        dry = local.run("submit", "--dry-run", "--gpus", "2", "work.py")
        assert dry.code == 0 and "SelectType=select/linear" in dry.err and "--gpus-per-node" not in dry.out
        typed = local.run("submit", "--gpus", "h100:2", "work.py")
        assert (typed.code, "--gpus 2 --constraint h100" in typed.err) == (2, True), typed.err
    lab.down()


def test_a_run_preempted_with_a_grace_time_returns_to_the_queue(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(nodes=2, gpus=2, preempt="requeue")
    assert lab.exec(["scontrol", "update", "partition=debug", "GraceTime=60"]).code == 0
    local = project(lab, tmp_path)
    answer = local.submit(*SIZE, "--python", SYSTEM_PYTHON, "--requeue", "work.py", "stay")
    until(lambda: len(list(filter(None, local.outputs(answer).values()))) == 4)
    taken = lab.exec(["srun", "-p", "urgent", "-N2", "--exclusive", "true"], timeout=120)
    assert taken.code == 0, taken.err
    until(lambda: local.status(answer["run_id"])["reason"].startswith("preempted: "))
    assert local.run("cancel", answer["run_id"]).code == 0
    assert [attempt["outcome"] for attempt in local.status(answer["run_id"])["attempts"]] == ["PREEMPTED"]
    lab.down()


def test_a_job_is_held_after_a_failed_prolog_and_names_the_node(make_lab: MakeLab, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    bad = script(tmp_path, "prolog", '[ "$(hostname)" != n0002 ]')
    lab = make_lab(nodes=2, gpus=2, settings={"Prolog": bad, "PrologFlags": "Alloc"})
    local = project(lab, tmp_path)
    run_id = local.submit(*SIZE, "--preflight", "off", "work.py")["run_id"]
    # Slurm 20.11 drains the node and starts the job all the same, unless it refuses the step there.
    may_start = lab.state.slurm_version.startswith("20.11")

    def is_over() -> bool:
        status = local.status(run_id)
        is_held = status["state"] == "PENDING" and "sinfo -R: n0002" in status["reason"]
        return is_held or (may_start and status["ended_at"] is not None)

    until(is_over)
    local.run("cancel", run_id)
    lab.down()
