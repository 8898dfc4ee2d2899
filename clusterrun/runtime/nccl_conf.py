"""Read NCCL's configuration files, so that our defaults do not override an administrator's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun import proc

SYSTEM_FILE = "/etc/nccl.conf"
MOST_BYTES = 64 * 1024


def nccl_conf(environment: Mapping[str, str], system_file: str = SYSTEM_FILE) -> dict[str, str]:
    """Return the variables that NCCL reads from its configuration files, less those in ``environment``.

    NCCL reads ``NCCL_CONF_FILE``, else ``~/.nccl.conf``, then ``/etc/nccl.conf``. The first file that sets a
    variable wins, and a variable in the environment beats all files (NCCL User Guide, Environment Variables).
    """
    users_file = environment.get("NCCL_CONF_FILE") or os.path.join(
        environment.get("HOME", "/nonexistent"), ".nccl.conf"
    )
    settings: dict[str, str] = {}
    for path in (users_file, system_file):
        for line in proc.content(path)[:MOST_BYTES].decode("utf-8", "surrogateescape").splitlines():
            name, equals, value = line.partition("#")[0].partition("=")
            if equals and name.strip() not in environment:
                settings.setdefault(name.strip(), value.strip())
    return settings
