"""Write the files of a new lab: configuration, keys, device files, /etc."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path

from clusterrun.lab import conf, needs
from clusterrun.lab.place import LabPlace, LabState, write_whole
from clusterrun.lab.spec import CONTROLLER, USERS

STAND_INS = Path(__file__).with_name("standins")
STARTER = """#!/bin/sh
# An ordinary user may not reach the interpreter that clusterrun runs in.
python={python}
[ -x "$python" ] || python=python3
exec "$python" -I -S {copy} {folder} "$@"
"""


def write_files(place: LabPlace, state: LabState) -> None:
    """Write all files that a lab's daemons and hosts read."""
    for folder in (
        place.conf,
        place.etc / "slurm",
        place.mounts,
        place.programs,
        place.devices,
        place.log,
        place.run,
        place.homes,
        place.spool / CONTROLLER,
        *(place.spool / name for name in state.layout.node_names),
    ):
        folder.mkdir(parents=True, mode=0o755)
    spec, version = state.spec, state.slurm_version
    place.slurm_conf.write_text(conf.slurm_conf(spec, state.layout, place, version))
    (place.conf / "gres.conf").write_text(conf.gres_conf(spec, place))
    (place.conf / "cgroup.conf").write_text(conf.cgroup_conf(spec, version, needs.unified_cgroups()))
    if spec.accounting:
        (place.conf / "slurmdbd.conf").write_text(conf.slurmdbd_conf(place))
        (place.conf / "slurmdbd.conf").chmod(0o600)
    machine = Path(state.root or "/") / "etc"
    users = "".join(f"{n}:x:{i}:{i}:lab user:{place.homes / n}:/bin/bash\n" for n, i in USERS.items())
    groups = "".join(f"{n}:x:{i}:\n" for n, i in USERS.items())
    contents = {
        "hosts": "\n".join(state.layout.lines()) + "\n",
        "passwd": (machine / "passwd").read_text() + users,
        "group": (machine / "group").read_text() + groups,
        # No name server: a name that is not the lab's fails at once instead of after a timeout.
        "resolv.conf": "",
        "ld.so.preload": "",
        "faketimerc": "",
    }
    for name, text in contents.items():
        (place.etc / name).write_text(text)
    (place.etc / "slurm" / "slurm.conf").symlink_to(place.slurm_conf)
    # Slurm takes these for GPUs: like /dev/null, or mounted over it later if that is forbidden.
    for number in range(state.spec.gpus):
        path = place.devices / f"nvidia{number}"
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            path.touch()
        path.chmod(0o666)
    # Copies on the hosts' PATH must be readable by every user of the lab.
    for half in STAND_INS.glob("[a-z]*.py"):
        shutil.copyfile(half, place.programs / half.name)
    for name, module in {"nvidia-smi": "nvidia_smi.py", "dmesg": "dmesg.py"}.items() if spec.gpus else ():
        program = place.programs / name
        copy = place.programs / module
        program.write_text(STARTER.format(python=sys.executable, copy=copy, folder=place.folder))
        program.chmod(0o755)
    write_whole(place.folder / "gpu.json", json.dumps({"count": spec.gpus}))
    for name, number in USERS.items():
        home = place.homes / name
        home.mkdir(mode=0o700)
        try:
            os.chown(home, number, number)
        except PermissionError:
            break
    (place.conf / "munge.key").write_bytes(secrets.token_bytes(128))
    (place.conf / "munge.key").chmod(0o400)
