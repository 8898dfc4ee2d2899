"""Every system call of every command that touches the home fails once, with ENOSPC and with EIO.

    python -m benchmarks.bench_syscalls [COMMAND …]

On the login host of a lab, with strace: a first run tells which calls touch the home; then the command
runs once for each of them, which fails. No answer may be a traceback, no run may be lost or damaged, and no
job may be in the queue that no run on disk leads to.
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

CALLS = (
    "openat,open,creat,read,pread64,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,"
    "link,linkat,symlink,unlink,unlinkat,rmdir,chmod,fchmod,fchmodat,newfstatat,stat,lstat,fstat,statx,"
    "getdents64,close,ftruncate,access,faccessat,faccessat2,readlink"
)
WRITES = ("openat", "write", "fsync", "rename", "mkdir", "mkdirat", "link", "linkat", "close", "fchmod")
"""A full disk, or a quota that is used up, shows itself in these."""
PROGRAM = [sys.executable, "-m", "clusterrun"]
SCRIPT = "import sys\nprint('hello', file=sys.stderr)\nsys.exit(len(sys.argv) > 1)\n"
LIMIT = 120.0
CODES = range(8)


@dataclass
class Site:
    """A lab's login host with a home of runs; ``kept`` is what it is put back to before each run."""

    lab: Lab
    folder: Path
    trouble: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    def run(self, *argv: str) -> Completed:
        environment = {"CLUSTERRUN_HOME": str(self.home), "NO_COLOR": "1", "CLUSTERRUN_PREFLIGHT": "off"}
        environment |= {"PYTHONPATH": os.getcwd(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return self.lab.exec(argv, env=environment, cwd=str(self.folder / "work"), timeout=LIMIT)

    def say(self, *words: str) -> Completed:
        done = self.run(*PROGRAM, *words)
        if done.code not in CODES:
            raise RuntimeError(f"{words} ended with {done.code}: {done.err}")
        return done

    def restore(self) -> None:
        for process in self.lab.processes():
            if process.host == LOGIN and not process.is_daemon:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.process, signal.SIGKILL)  # a run that was started here
        while self.home.exists():
            shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.kept, self.home, symlinks=True)


def main() -> None:
    """All commands, or those whose names begin with one of the arguments."""
    wanted = sys.argv[1:]
    if shutil.which("strace") is None:
        raise SystemExit("this needs strace")
    folder = Path(tempfile.mkdtemp(prefix="syscalls-"))
    lab = Lab(f"syscalls-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=1, gpus=1))
    site, outcomes, began = Site(lab, folder), Counter[str](), time.monotonic()
    try:
        runs = furnish(site)
        for name, words in commands(runs).items():
            if not wanted or any(name.startswith(start) for start in wanted):
                count = sweep(site, name, words)
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


def furnish(site: Site) -> dict[str, str]:
    """Runs of every kind, kept as a template."""
    (site.folder / "work").mkdir()
    (site.folder / "work/x.py").write_text(SCRIPT)
    runs = {}
    for name, more in (("well", ()), ("ill", ("fail",))):
        site.say("submit", "--cluster", "local", "--name", name, "--wait", "x.py", *more)
        site.say("submit", "--cluster", "slurm", "--gpus", "0", "--name", f"s{name}", "--wait", "x.py", *more)
    site.say("check", "--cluster", "local", "--preflight", "quick", "--wait")
    site.say("submit", "--cluster", "slurm", "--gpus", "0", "--name", "live", "--sbatch", "hold", "x.py")
    listed = json.loads(site.say("status", "--json").out)["runs"]
    runs = {row["name"]: row["run_id"] for row in listed}
    site.home.rename(site.kept)
    return runs


def commands(runs: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Every command of the context that touches the home, by a name."""
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


def sweep(site: Site, name: str, words: Sequence[str]) -> int:
    """One command with each of its calls failing once; the number of runs."""
    count = 0
    hits = touching(site, words)
    for call, number in hits:
        for error in ("EIO", "ENOSPC") if call in WRITES else ("EIO",):
            once(site, name, words, (call, number, error))
            count += 1
    return count


def traced(site: Site, words: Sequence[str], inject: Sequence[str] = ()) -> tuple[Completed, str]:
    """The command under strace, its main thread alone, and what strace saw."""
    log = site.folder / "trace"
    argv = ["strace", "-qq", "-y", "-s", "200", "-o", str(log), "-e", f"trace={CALLS}", *inject]
    done = site.run(*argv, *PROGRAM, *words)
    return done, log.read_text(errors="replace")


def touching(site: Site, words: Sequence[str]) -> list[tuple[str, int]]:
    """Which calls touch the home, each by its name and its number among the calls of that name."""
    site.restore()
    done, seen = traced(site, words)
    if done.code not in CODES or "Traceback" in done.err:
        raise RuntimeError(f"{words} ended with {done.code}: {done.err}")
    forget_jobs(site, words)
    numbers, hits = Counter[str](), []
    for line in seen.splitlines():
        if match := re.match(r"(\w+)\(", line):
            numbers[match[1]] += 1
            if str(site.home) in line:
                hits.append((match[1], numbers[match[1]]))
    return hits


def once(site: Site, name: str, words: Sequence[str], fault: tuple[str, int, str]) -> None:
    """Run the command with one call failing, and note what must not be."""
    call, number, error = fault
    site.restore()
    done, seen = traced(site, words, ("-e", f"inject={call}:error={error}:when={number}"))
    struck = next((line for line in seen.splitlines() if "(INJECTED)" in line), "")
    if str(site.home) not in struck:
        forget_jobs(site, words)
        return  # the order of calls was another one this time
    wrong = [*verdict(done), *lost(site, words, done)]
    site.trouble += [f"{name}: {struck[:300]}\n    {what}" for what in wrong]
    if wrong:
        print(site.trouble[-1], flush=True)
    forget_jobs(site, words)


def verdict(done: Completed) -> Iterator[str]:
    """What is wrong with an answer."""
    if "Traceback" in done.err or "this is a bug" in done.err:
        yield f"a traceback: {done.err[-1500:]}"
    if done.code not in CODES:
        yield f"it ended with {done.code}: {done.err[-300:]}"
    if done.code not in (0, 1) and "error: " not in done.err:
        yield f"code {done.code} without a reason: {done.err[-300:]}"


def lost(site: Site, words: Sequence[str], done: Completed) -> Iterator[str]:
    """Runs of before that can no longer be read, and jobs that no run leads to."""
    before, now = Store(str(site.kept)), Store(str(site.home))
    for run_id in before.ids():
        for part in (recorded, ended, state):
            try:
                was, is_now = part(before, run_id), part(now, run_id)
            except ClusterrunError as error:
                yield f"the run {run_id} is lost: {error.seen}"
                continue
            if was is not None and is_now != was and part is not ended:
                yield f"the run {run_id} has changed: {was} → {is_now}"
    if words[0] in ("submit", "check") and "slurm" in words:
        yield from unclaimed(site, now, done)


def recorded(store: Store, run_id: str) -> object:
    return store.read(run_id)


def ended(store: Store, run_id: str) -> object:
    return store.ended(run_id)


def state(store: Store, run_id: str) -> object:
    return store.state(run_id)


def unclaimed(site: Site, now: Store, done: Completed) -> Iterator[str]:
    """Jobs of submissions that no record on disk leads to; a run that was told and is not there."""
    tokens = {}
    for run_id in now.ids():
        try:
            tokens[now.read(run_id).token] = run_id
        except ClusterrunError:
            continue
    for row in SlurmClient({}, OnLogin(site.lab), user=0).jobs():
        if not row.state.ended and row.comment.rpartition(":")[2] not in tokens:
            yield f"job {row.job_id} belongs to no run on disk: {row.comment}"
    if done.code == 0 and done.out.startswith("{") and json.loads(done.out)["run_id"] not in tokens.values():
        yield f"the run that was told is not there: {done.out}"


def forget_jobs(site: Site, words: Sequence[str]) -> None:
    """End the jobs that a command made, and let the held one stand that the template tells of."""
    if words[0] == "cancel":
        restart_live(site)
    if words[0] not in ("submit", "check") or "slurm" not in words:
        return
    live = Store(str(site.kept))
    keep = {live.read(run_id).job_id for run_id in live.ids()}
    rows = SlurmClient({}, OnLogin(site.lab), user=0).jobs()
    jobs = [row.job_id for row in rows if row.job_id not in keep and not row.state.ended]
    if jobs:
        site.lab.exec(["scancel", *jobs])


def restart_live(site: Site) -> None:
    """Another held job for the live run, where the last one has been ended."""
    kept = Store(str(site.kept))
    (live,) = [run_id for run_id in kept.ids() if run_id.endswith("-live")]
    record = kept.read(live)
    rows = SlurmClient({}, OnLogin(site.lab), user=0).jobs()
    if any(row.job_id == record.job_id and not row.state.ended for row in rows):
        return
    comment = f"--comment=clusterrun:{live}:{record.token}"
    done = site.lab.exec(["sbatch", "--parsable", "--hold", comment, "-J", "live", "--wrap", "true"])
    path = Path(kept.paths(live).record)
    path.write_text(path.read_text().replace(f'"{record.job_id}"', f'"{done.out.strip()}"'))


if __name__ == "__main__":
    main()
