"""Accounting for a lab: a MariaDB and a slurmdbd of its own; knows their commands and order only."""

from __future__ import annotations

import subprocess

from clusterrun.lab import daemons
from clusterrun.lab.conf import DATABASE_PORT
from clusterrun.lab.namespaces import LabError, enter
from clusterrun.lab.place import LabState, Place
from clusterrun.lab.spec import CONTROLLER

MAKE_SECONDS = 120.0


def start(place: Place, state: LabState) -> None:
    """Start the database and slurmdbd, and make the cluster known to them."""
    data = place.spool / "mysql"
    _run(
        place,
        state,
        [
            "mariadb-install-db",
            *_options(place),
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ],
    )
    server = ["mariadbd", *_options(place), f"--socket={place.run}/mysql.socket", f"--port={DATABASE_PORT}"]
    small = [
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=32M",
        "--innodb-flush-log-at-trx-commit=0",
    ]
    daemons.start(place, state, CONTROLLER, [*server, *small, f"--pid-file={data}/pid"], "mariadbd.out")
    daemons.await_port(place, state, "mariadbd", DATABASE_PORT)
    daemons.start(place, state, CONTROLLER, ["slurmdbd", "-D"], "slurmdbd.out")
    daemons.await_port(place, state, "slurmdbd")
    _run(place, state, ["sacctmgr", "--immediate", "add", "cluster", state.spec.cluster])


def _options(place: Place) -> list[str]:
    return ["--no-defaults", "--user=root", f"--datadir={place.spool}/mysql"]


def _run(place: Place, state: LabState, argv: list[str]) -> None:
    inside = enter(state.processes[CONTROLLER], state.root)
    done = subprocess.run(
        [*inside, *argv],
        env=daemons.environment(place),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=MAKE_SECONDS,
    )
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed", (done.stderr.strip() or done.stdout.strip())[-500:])
