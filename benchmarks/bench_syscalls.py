"""Every system call of every command that touches the home fails once, with ENOSPC and with EIO.

    python -m benchmarks.bench_syscalls [COMMAND …]

It needs strace, and runs on the login host of a lab. A first run lists the calls that touch the home. Then
the command runs once per call, and that call fails. No answer may be a traceback, no run may be lost or
damaged, and every job in the queue must belong to a run on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LOGIN, LabSpec
from clusterrun.model.errors import ClusterrunError
from clusterrun.runs.store import Store
from clusterrun.slurm.client import SlurmClient
from clusterrun.system import Completed
from tests.lab.test_slurm_words import OnLogin
from tests.lab_fixture import strangers

CALLS = (
    "openat,open,creat,read,pread64,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,"
    "link,linkat,symlink,unlink,unlinkat,rmdir,chmod,fchmod,fchmodat,newfstatat,stat,lstat,fstat,statx,"
    "getdents64,close,ftruncate,access,faccessat,faccessat2,readlink"
)
# Calls that fail if a disk is full or a quota is used up.
WRITES = ("openat", "write", "fsync", "rename", "mkdir", "mkdirat", "link", "linkat", "close", "fchmod")
PROGRAM = [sys.executable, "-m", "clusterrun"]
SCRIPT = "import sys\nprint('hello', file=sys.stderr)\nsys.exit(len(sys.argv) > 1)\n"
LIMIT = 120.0
CODES = range(8)


@dataclass
class Site:
    """A lab's login host with a home of runs. Before each run the home becomes a copy of ``template``."""

    lab: Lab
    folder: Path
    trouble: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def template(self) -> Path:
        return self.folder / "template"

    def run(self, *argv: str) -> Completed:
        environment = {"CLUSTERRUN_HOME": str(self.home), "NO_COLOR": "1", "CLUSTERRUN_PREFLIGHT": "off"}
        environment |= {"PYTHONPATH": os.getcwd(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return self.lab.exec(argv, env=environment, cwd=str(self.folder / "work"), timeout=LIMIT)

    def answer(self, *arguments: str) -> Completed:
        """Return the answer of a command. Raises ``RuntimeError`` for an unknown exit code."""
        completed = self.run(*PROGRAM, *arguments)
        if completed.code not in CODES:
            raise RuntimeError(f"{arguments} ended with {completed.code}: {completed.err}")
        return completed

    def restore(self) -> None:
        for process in strangers(self.lab):
            if process.host == LOGIN:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.process, signal.SIGKILL)  # a run on the login host
        while self.home.exists():
            shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.template, self.home, symlinks=True)


def main() -> None:
    """Test all commands, or those whose names begin with one of the arguments."""
    prefixes = sys.argv[1:]
    if shutil.which("strace") is None:
        raise SystemExit("this needs strace")
    folder = Path(tempfile.mkdtemp(prefix="syscalls-"))
    lab = Lab(f"syscalls-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=1, gpus=1))
    site, outcomes, began = Site(lab, folder), Counter[str](), time.monotonic()
    try:
        runs = make_runs(site)
        for name, arguments in commands(runs).items():
            if not prefixes or any(name.startswith(start) for start in prefixes):
                count = sweep(site, name, arguments)
                outcomes[name] = count
                print(f"{time.monotonic() - began:5.0f} s  {name}: {count} faults", flush=True)
    finally:
        lab.down()
        shutil.rmtree(folder)
    print("\n".join(site.trouble))
    print(
        f"{sum(outcomes.values())} faults in {len(outcomes)} commands: {len(site.trouble)} wrong    goal: 0"
    )
    raise SystemExit(1 if site.trouble else 0)


def make_runs(site: Site) -> dict[str, str]:
    """Make runs of every kind, the template of the home. Return their ids by name."""
    (site.folder / "work").mkdir()
    (site.folder / "work/x.py").write_text(SCRIPT)
    for name, arguments in (("well", ()), ("ill", ("fail",))):
        site.answer("submit", "--cluster", "local", "--name", name, "--wait", "x.py", *arguments)
        site.answer(
            "submit", "--cluster", "slurm", "--gpus", "0", "--name", f"s{name}", "--wait", "x.py", *arguments
        )
    site.answer("check", "--cluster", "local", "--preflight", "quick", "--wait")
    site.answer("submit", "--cluster", "slurm", "--gpus", "0", "--name", "live", "--sbatch", "hold", "x.py")
    listed = json.loads(site.answer("status", "--json").out)["runs"]
    runs = {row["name"]: row["run_id"] for row in listed}
    site.home.rename(site.template)
    return runs


def commands(runs: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return every command that touches the home, by name."""
    slurm = ("--cluster", "slurm", "--gpus", "0", "--sbatch", "hold")
    well, ill, live = runs["swell"], runs["ill"], runs["live"]
    return {
        "submit to slurm": ("submit", "--json", *slurm, "x.py"),
        "submit here": ("submit", "--json", "--cluster", "local", "x.py"),
        "submit --snapshot": ("submit", "--json", *slurm, "--snapshot", "x.py"),
        "submit --dry-run": ("submit", "--dry-run", *slurm, "x.py"),
        "submit --after": ("submit", "--json", *slurm, "--after", live, "x.py"),
        "status": ("status",),
        "status --json": ("status", "--json"),
        "status --all": ("status", "--all"),
        "status ended": ("status", well),
        "status live": ("status", live),
        "status by name": ("status", "live"),
        "logs": ("logs", ill),
        "logs --raw": ("logs", "--raw", ill),
        "wait": ("wait", ill),
        "cancel ended": ("cancel", well),
        "cancel live": ("cancel", live),
        "report": ("report", "check"),
        "diagnose": ("diagnose", ill),
        "nodes": ("nodes",),
        "nodes --forget": ("nodes", "--forget", "n0001"),
        "top": ("top", "--once", live),
        "exec": ("exec", live, "true"),
        "config show": ("config", "show"),
    }


def sweep(site: Site, name: str, arguments: Sequence[str]) -> int:
    """Run a command once per call that touches the home. Return the number of runs."""
    count = 0
    hits = calls_on_home(site, arguments)
    for call, number in hits:
        for error in ("EIO", "ENOSPC") if call in WRITES else ("EIO",):
            run_with_fault(site, name, arguments, (call, number, error))
            count += 1
    return count


def run_under_strace(
    site: Site, arguments: Sequence[str], inject: Sequence[str] = ()
) -> tuple[Completed, str]:
    """Run a command under strace, its main thread alone. Return its answer and the trace."""
    log = site.folder / "trace"
    argv = ["strace", "-qq", "-y", "-s", "200", "-o", str(log), "-e", f"trace={CALLS}", *inject]
    completed = site.run(*argv, *PROGRAM, *arguments)
    return completed, log.read_text(errors="replace")


def calls_on_home(site: Site, arguments: Sequence[str]) -> list[tuple[str, int]]:
    """Return the calls that touch the home: name, and number among the calls of that name."""
    site.restore()
    completed, trace = run_under_strace(site, arguments)
    if completed.code not in CODES or "Traceback" in completed.err:
        raise RuntimeError(f"{arguments} ended with {completed.code}: {completed.err}")
    cancel_jobs(site, arguments)
    numbers, hits = Counter[str](), []
    for line in trace.splitlines():
        if match := re.match(r"(\w+)\(", line):
            numbers[match[1]] += 1
            if str(site.home) in line:
                hits.append((match[1], numbers[match[1]]))
    return hits


def run_with_fault(site: Site, name: str, arguments: Sequence[str], fault: tuple[str, int, str]) -> None:
    """Run a command in which one call fails, and note what is wrong."""
    call, number, error = fault
    site.restore()
    completed, trace = run_under_strace(site, arguments, ("-e", f"inject={call}:error={error}:when={number}"))
    failed_call = next((line for line in trace.splitlines() if "(INJECTED)" in line), "")
    if str(site.home) not in failed_call:
        cancel_jobs(site, arguments)
        return  # the order of calls differs between runs
    problems = [*verdict(completed), *lost_runs(site, arguments, completed)]
    site.trouble += [f"{name}: {failed_call[:300]}\n    {problem}" for problem in problems]
    if problems:
        print(site.trouble[-1], flush=True)
    cancel_jobs(site, arguments)


def verdict(completed: Completed) -> Iterator[str]:
    """Yield what is wrong with an answer."""
    if "Traceback" in completed.err or "this is a bug" in completed.err:
        yield f"a traceback: {completed.err[-1500:]}"
    if completed.code not in CODES:
        yield f"it ended with {completed.code}: {completed.err[-300:]}"
    if completed.code not in (0, 1) and "error: " not in completed.err:
        yield f"code {completed.code} without a reason: {completed.err[-300:]}"


def lost_runs(site: Site, arguments: Sequence[str], completed: Completed) -> Iterator[str]:
    """Yield runs of the template that are unreadable or changed, and jobs without a run."""
    before, now = Store(str(site.template)), Store(str(site.home))
    for run_id in before.ids():
        for part in (recorded, ended, state):
            try:
                value_before, value = part(before, run_id), part(now, run_id)
            except ClusterrunError as error:
                yield f"the run {run_id} is lost: {error.seen}"
                continue
            if value_before is not None and value != value_before and part is not ended:
                yield f"the run {run_id} has changed: {value_before} → {value}"
    if arguments[0] in ("submit", "check") and "slurm" in arguments:
        yield from jobs_without_run(site, now, completed)


def recorded(store: Store, run_id: str) -> object:
    return store.read(run_id)


def ended(store: Store, run_id: str) -> object:
    return store.ended(run_id)


def state(store: Store, run_id: str) -> object:
    return store.state(run_id)


def jobs_without_run(site: Site, now: Store, completed: Completed) -> Iterator[str]:
    """Yield jobs that belong to no run on disk, and a reported run that does not exist."""
    tokens = {}
    for run_id in now.ids():
        try:
            tokens[now.read(run_id).token] = run_id
        except ClusterrunError:
            continue
    for row in SlurmClient({}, OnLogin(site.lab), user=0).jobs():
        if not row.state.ended and row.comment.rpartition(":")[2] not in tokens:
            yield f"job {row.job_id} belongs to no run on disk: {row.comment}"
    if (
        completed.code == 0
        and completed.out.startswith("{")
        and json.loads(completed.out)["run_id"] not in tokens.values()
    ):
        yield f"the reported run does not exist: {completed.out}"


def cancel_jobs(site: Site, arguments: Sequence[str]) -> None:
    """Cancel the jobs of a command. The held job of the template stays."""
    if arguments[0] == "cancel":
        restart_live(site)
    if arguments[0] not in ("submit", "check") or "slurm" not in arguments:
        return
    live = Store(str(site.template))
    template_jobs = {live.read(run_id).job_id for run_id in live.ids()}
    rows = SlurmClient({}, OnLogin(site.lab), user=0).jobs()
    jobs = [row.job_id for row in rows if row.job_id not in template_jobs and not row.state.ended]
    if jobs:
        site.lab.exec(["scancel", *jobs])


def restart_live(site: Site) -> None:
    """Queue another held job for the live run if its job has ended."""
    template = Store(str(site.template))
    (live,) = [run_id for run_id in template.ids() if run_id.endswith("-live")]
    record = template.read(live)
    rows = SlurmClient({}, OnLogin(site.lab), user=0).jobs()
    if any(row.job_id == record.job_id and not row.state.ended for row in rows):
        return
    comment = f"--comment=clusterrun:{live}:{record.token}"
    completed = site.lab.exec(["sbatch", "--parsable", "--hold", comment, "-J", "live", "--wrap", "true"])
    path = Path(template.paths(live).record)
    path.write_text(path.read_text().replace(f'"{record.job_id}"', f'"{completed.out.strip()}"'))


if __name__ == "__main__":
    main()
