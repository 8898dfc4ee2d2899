"""Start accounting for a lab: a MariaDB and a slurmdbd of its own."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from clusterrun.lab import daemons
from clusterrun.lab.conf import DATABASE_PORT
from clusterrun.lab.namespaces import LabError, enter
from clusterrun.lab.place import LabPlace, LabState
from clusterrun.lab.spec import CONTROLLER

MAKE_SECONDS = 120.0
MAKE = ("--skip-test-db", "--auth-root-authentication-method=normal")
SERVE = (
    f"--port={DATABASE_PORT}",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=0",
)


def start(place: LabPlace, state: LabState) -> None:
    """Start the database and slurmdbd, and make the cluster known to them."""
    machine = replace(state, root="")  # the database is this machine's, whatever Slurm the lab runs
    common = ["--no-defaults", "--user=root", f"--datadir={place.spool}/mysql"]
    _run(place, machine, ["mariadb-install-db", *common, *MAKE])
    files = [f"--socket={place.run}/mysql.socket", f"--pid-file={place.run}/mysql.pid"]
    daemons.start(place, machine, CONTROLLER, ["mariadbd", *common, *SERVE, *files], "mariadbd.out")
    daemons.await_port(place, state, "mariadbd", DATABASE_PORT)
    daemons.start(place, state, CONTROLLER, ["slurmdbd", "-D"], "slurmdbd.out")
    daemons.await_port(place, state, "slurmdbd")
    _run(place, state, ["sacctmgr", "--immediate", "add", "cluster", state.spec.cluster])


def _run(place: LabPlace, state: LabState, argv: list[str]) -> None:
    inside = enter(state.processes[CONTROLLER], state.root)
    result = subprocess.run(
        [*inside, *argv],
        env=daemons.environment(place),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=MAKE_SECONDS,
    )
    if result.returncode != 0:
        raise LabError(f"{argv[0]} failed", (result.stderr.strip() or result.stdout.strip())[-500:])
