"""A running lab, as its hosts show it."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.model.errors import BadInput

pytestmark = pytest.mark.lab


def test_a_job_runs_on_all_nodes_with_all_their_gpus(lab: Lab) -> None:
    arguments = ["srun", "-N4", "--gpus-per-node=8", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"]
    result = lab.exec(arguments)
    assert sorted(result.out.splitlines()) == [f"{node} 0,1,2,3,4,5,6,7" for node in lab.nodes]


def test_two_jobs_on_one_node_get_different_gpus(lab: Lab) -> None:
    job = "echo $CUDA_VISIBLE_DEVICES; sleep 0.3"
    step = f"srun -N1 -w n0001 -n1 --gpus=4 --mem=1000 sh -c '{job}'"
    result = lab.exec(["sh", "-c", f"{step} & {step} & wait"])
    assert sorted(result.out.split()) == ["0,1,2,3", "4,5,6,7"]


def test_each_host_has_its_own_name_address_and_processes(lab: Lab) -> None:
    look = "hostname; hostname -I; ps -e -o comm= | sort -u | tr '\\n' ' '"
    message = {host: lab.exec(["sh", "-c", look], host=host).out.split() for host in ("n0001", "n0002")}
    own = ["hostname", "ps", "sh", "sleep", "slurmd", "sort", "tr"]
    assert {host: arguments[0] for host, arguments in message.items()} == {"n0001": "n0001", "n0002": "n0002"}
    assert message["n0001"][1] != message["n0002"][1]
    assert set(message["n0001"][2:]) <= set(own)


def test_exec_keeps_directory_environment_input_and_exit_code(lab: Lab, tmp_path) -> None:
    look = ["sh", "-c", 'pwd; echo "$MINE"; cat; exit 7']
    result = lab.exec(look, cwd=tmp_path, env={"MINE": "a b"}, stdin="typed")
    assert (result.out, result.code) == (f"{tmp_path}\na b\ntyped", 7)


def test_the_login_host_has_the_tools_of_a_login_node(lab: Lab) -> None:
    for program in ("sbatch", "squeue", "srun", "scancel", "python"):
        assert lab.exec(["sh", "-c", f"command -v {program}"]).code == 0, program
    assert lab.exec(["sh", "-c", "command -v python"]).out.strip() == os.path.join(
        os.path.dirname(sys.executable), "python"
    )


def test_slurm_works_without_the_environment(lab: Lab) -> None:
    assert lab.exec(["env", "-u", "SLURM_CONF", "sinfo", "-h", "-o", "%D"]).out.strip() == "4"


def test_nothing_outside_the_lab_can_be_reached(lab: Lab) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        tried = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"
        for address in ("127.0.0.1", "192.0.2.1"):
            result = lab.exec([sys.executable, "-c", tried, address, str(port)])
            assert "refused" in result.err or "unreachable" in result.err


def test_an_unknown_name_fails_at_once(lab: Lab) -> None:
    result = lab.exec(["getent", "hosts", "nonesuch.example"])
    assert (result.code != 0, result.seconds < 1) == (True, True)


def test_orphans_are_collected_on_every_host(lab: Lab) -> None:
    lab.exec(["sh", "-c", "(setsid sleep 0.05 &) ; sleep 0.3"], host="n0001")
    assert lab.exec(["sh", "-c", "ps -e -o stat= | grep -c Z"], host="n0001").out.strip() == "0"


def test_an_ordinary_user_submits_and_another_user_sees_the_job(lab: Lab) -> None:
    options = ["--parsable", "--output=/dev/null", "--chdir=/tmp"]
    submitted = lab.exec(["sbatch", *options, "--wrap", "id -un; sleep 30"], user="alice")
    job = submitted.out.strip()
    observed = lab.exec(["squeue", "-h", "-j", job, "-o", "%i %u"], user="bob")
    refused = lab.exec(["scancel", job], user="bob")
    home = lab.exec(["sh", "-c", "cd && pwd && id -un"], user="alice").out.split()
    lab.exec(["scancel", job], user="alice")
    assert observed.out.split() == [job, "alice"]
    assert "Access/permission denied" in refused.err
    assert home == [str(lab.place.homes / "alice"), "alice"]


def test_a_user_that_does_not_exist_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="there is no user 'carol'"):
        lab.exec(["true"], user="carol")


def test_a_host_that_does_not_exist_is_named(lab: Lab) -> None:
    with pytest.raises(BadInput, match="has no host 'n0099'"):
        lab.exec(["true"], host="n0099")
