"""Sources of an option's value: command line, environment, profile, project, user, default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun.config import profiles, settings
from clusterrun.config.settings import Setting, Source, settle
from clusterrun.model.errors import BadInput
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.model.spec import JobSpec

PROJECT = """
[defaults]
nodes = 3
partition = "project"
setup = ["module load project"]

[profile.big]
nodes = 5
cpus_per_rank = 2
snapshot = true
"""
USER = """
[defaults]
partition = "user"
account = "user"
setup = ["module load user"]

[profile.big]
qos = "high"
nodes = 6
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "xdg/clusterrun").mkdir(parents=True)
    (tmp_path / "xdg/clusterrun/config.toml").write_text(USER)
    (tmp_path / "project/deep/down").mkdir(parents=True)
    (tmp_path / "project/clusterrun.toml").write_text(PROJECT)
    return {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def settled(
    tmp_path: Path, environ: dict[str, str], profile: str = "", **said: settings.Value
) -> dict[str, Setting]:
    line = Source("command line", tuple(said.items()))
    sources = profiles.sources(profiles.load(str(tmp_path / "project/deep/down"), environ), profile)
    weakest = settings.from_sbatch_variables(environ)
    return settle([line, *settings.from_environment(environ), *sources, *weakest])


def test_variables_of_sbatch_are_passed_on_unless_their_option_is_set() -> None:
    shell = {"SBATCH_SIGNAL": "USR1@60", "SBATCH_MEM_PER_CPU": "2G", "SBATCH_WCKEY": ""}
    shell |= {"SBATCH_EXCLUSIVE": "", "SBATCH_EXPORT": "NONE"}

    def passed_on(**typed: settings.Value) -> settings.Value:
        line = Source("command line", tuple(typed.items()))
        return settle([line, *settings.from_sbatch_variables(shell, [line])])["sbatch"].value

    assert passed_on() == ("signal=USR1@60", "mem-per-cpu=2G", "export=NONE", "exclusive")
    stronger = ("exclusive=user", "export=ALL")
    assert passed_on(mem="9G", sbatch=stronger) == ("signal=USR1@60", *stronger)
    assert passed_on(sbatch=("signal=INT@5", "mem-per-gpu=1G", "export=ALL")) == (
        "exclusive",
        "signal=INT@5",
        "mem-per-gpu=1G",
        "export=ALL",
    )


@pytest.mark.parametrize(
    "shell, entries",
    [
        ({"SBATCH_GRES": "gpu:2"}, ("gres=gpu:2",)),
        ({"SBATCH_REQUEUE": "1"}, ("requeue",)),
        ({"SBATCH_NO_REQUEUE": ""}, ("no-requeue",)),
        ({"SBATCH_REQ_SWITCH": "1", "SBATCH_WAIT4SWITCH": "10"}, ("switches=1@10",)),
        ({"SBATCH_THREADS_PER_CORE": "1", "SBATCH_OUTPUT": "x"}, ("threads-per-core=1",)),
    ],
)
def test_each_variable_of_sbatch_is_its_option(shell: dict[str, str], entries: tuple[str, ...]) -> None:
    assert settle(settings.from_sbatch_variables(shell))["sbatch"].value == entries


@pytest.mark.parametrize(
    "shell, typed, entries",
    [
        ({"SBATCH_GRES": "gpu:2"}, {"gpus": 4}, ()),
        ({"SBATCH_GRES": "nvme:1"}, {"gpus": 4}, ("gres=nvme:1",)),
        ({"SBATCH_GPUS": "2"}, {"sbatch": ("gres=gpu:1",)}, ("gres=gpu:1",)),
        ({"SBATCH_NO_REQUEUE": "1"}, {"requeue": True}, ()),
        ({"SBATCH_CPUS_PER_GPU": "2"}, {"cpus-per-rank": 4}, ()),
    ],
)
def test_an_option_that_is_typed_takes_the_place_of_its_kind_in_the_shell(
    shell: dict[str, str], typed: dict[str, settings.Value], entries: tuple[str, ...]
) -> None:
    line = Source("command line", tuple(typed.items()))
    sources = [line, *settings.from_sbatch_variables(shell, [line])]
    assert settle(sources)["sbatch"].value == entries


def test_the_strongest_source_decides_and_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    shell = {
        "CLUSTERRUN_QOS": "mine",
        "CLUSTERRUN_NODES": "7",
        "SBATCH_ACCOUNT": "x",
        "SBATCH_TIMELIMIT": "7",
    }
    values = settled(tmp_path, {**environ, **shell}, "big", nodes=9)
    project, user = tmp_path / "project/clusterrun.toml", tmp_path / "xdg/clusterrun/config.toml"
    output = {
        name: (values[name].value, values[name].origin)
        for name in ("nodes", "qos", "partition", "account", "mem", "time")
    }
    assert output == {
        "nodes": (9, "command line"),
        "qos": ("mine", "CLUSTERRUN_QOS"),
        "partition": ("project", f"{project} [defaults]"),
        "account": ("user", f"{user} [defaults]"),
        "mem": ("", "default"),
        "time": ("7", "SBATCH_TIMELIMIT"),
    }


@pytest.mark.parametrize("weaker, nodes", [("", 3), ("big", 5)])
def test_a_profile_is_stronger_than_defaults(
    tmp_path: Path, environ: dict[str, str], weaker: str, nodes: int
) -> None:
    assert settled(tmp_path, environ, weaker)["nodes"].value == nodes


def test_lists_add_up_from_the_weakest_to_the_strongest(tmp_path: Path, environ: dict[str, str]) -> None:
    values = settled(
        tmp_path, {**environ, "CLUSTERRUN_SETUP": "export A=1\nexport B=2"}, setup=("echo last",)
    )
    assert values["setup"].value == (
        "module load user",
        "module load project",
        "export A=1",
        "export B=2",
        "echo last",
    )
    assert values["setup"].origin.endswith("[defaults] + CLUSTERRUN_SETUP + command line")


@pytest.mark.parametrize(
    "text, seen, remedy",
    [
        ("[defaults]\npartion = 'x'\n", "unknown key 'partion'", "did you mean 'partition'?"),
        ("[default]\nnodes = 1\n", "unknown table 'default'", "did you mean 'defaults'?"),
        ("[profile.a]\nzzzzzz = 1\n", "[profile.a]: unknown key 'zzzzzz'", "known are nodes, gpus"),
        ("[defaults]\nnodes = 'many'\n", "nodes 'many': not a number of nodes", ""),
        ("[defaults]\ngpus = 'many'\n", "gpus 'many': not a number of GPUs", "--gpus h100:8"),
        ("[defaults]\nnodes = true\n", "nodes: True is not a number of nodes", ""),
        ("[defaults]\nsetup = [1]\n", "setup: [1] is not a list of strings", ""),
        ("[defaults]\nsnapshot = 'maybe'\n", "snapshot: 'maybe' is not true or false", ""),
        ("[defaults]\ncluster = 'cloud'\n", "cluster: 'cloud' is not auto or slurm or local", ""),
        ("defaults = 3\n", "defaults is not a table", "write [defaults]"),
        ("profile.a = 3\n", "a is not a table", "write [a]"),
        ("nodes = \n", "is not TOML", ""),
        # A byte order mark and DOS line ends, as an editor of Windows writes them.
        ("\ufeff[defaults]\r\npartion = 'x'\r\n", "unknown key 'partion'", "did you mean 'partition'?"),
        ("\udcff", "is not TOML", ""),
    ],
)
def test_an_error_in_a_file_is_named_with_the_nearest_valid_word(
    tmp_path: Path, text: str, seen: str, remedy: str
) -> None:
    path = tmp_path / "clusterrun.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput) as refused:
        profiles.read(str(path))
    assert seen in refused.value.seen and str(path) in refused.value.seen and remedy in refused.value.remedy


@pytest.mark.parametrize("profile, remedy", [("bgi", "did you mean 'big'?"), ("zzz", "known are big")])
def test_a_profile_that_is_nowhere_is_refused(
    tmp_path: Path, environ: dict[str, str], profile: str, remedy: str
) -> None:
    with pytest.raises(BadInput) as refused:
        settled(tmp_path, environ, profile)
    assert (refused.value.seen, refused.value.remedy) == (f"there is no profile {profile!r}", remedy)


@pytest.mark.parametrize(
    "name, raw, value",
    [
        ("nodes", "4", 4),
        ("nodes", " 4 ", 4),
        ("gpus", 4, 4),
        ("gpus", "4", 4),
        ("gpus", "h100:4", "h100:4"),
        ("time", 90, "90"),
        ("snapshot", "on", True),
        ("snapshot", "0", False),
        ("setup", "one line", ("one line",)),
        ("env", ["A=1", "B"], ("A=1", "B")),
    ],
)
def test_text_and_toml_give_the_same_values(name: str, raw: object, value: settings.Value) -> None:
    assert settings.read_value(CONFIGURABLE[name], raw, "here") == value


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(BadInput, match="CLUSTERRUN_NODES 'x': not a number of nodes"):
        settings.from_environment({"CLUSTERRUN_NODES": "x"})


def test_a_misspelt_variable_is_mentioned_and_those_of_a_run_are_not() -> None:
    environ = {
        "CLUSTERRUN_PARTITON": "x",
        "CLUSTERRUN_NODE": "0",
        "CLUSTERRUN_RUN_ID": "r",
        "CLUSTERRUN_HOME": "/",
        "CLUSTERRUN_FIT_NODELIST": "n1",
        "CLUSTERRUN_UNFIT_NODELIST": "",
    }
    assert settings.misspelt(environ) == [
        "CLUSTERRUN_PARTITON is set but has no effect; did you mean CLUSTERRUN_PARTITION?"
    ]


def test_a_misspelt_variable_is_reported_with_a_suggestion() -> None:
    assert settings.misspelt({"CLUSTERRUN_LAB_HOM": "/labs"}) == [
        "CLUSTERRUN_LAB_HOM is set but has no effect; did you mean CLUSTERRUN_LAB_HOME?"
    ]
    assert settings.misspelt({"CLUSTERRUN_NODE": "3", "CLUSTERRUN_LAB_HOME": "/labs"}) == [
        "CLUSTERRUN_NODE is set but has no effect; did you mean CLUSTERRUN_NODES?"
    ]


def test_all_values_are_defaults_without_files(tmp_path: Path) -> None:
    assert profiles.files(str(tmp_path), {"XDG_CONFIG_HOME": str(tmp_path)}) == []
    assert {setting.origin for setting in settle([]).values()} == {"default"}


def test_every_field_of_a_spec_has_an_option_and_every_option_a_field() -> None:
    not_configured = {
        "command",
        "cwd",
        "after",
        "environment",
        "alone",
        "all_pairs",
        "table",
        "burn",
        "gpu_type",
        "min_nodes",
    }
    fields = set(JobSpec.__annotations__) - not_configured
    options = {name.replace("-", "_") for name in CONFIGURABLE} - {
        "env",
        "follow",
        "wait",
        "slurm_every",
        "trust",
    }
    assert options == fields


@pytest.mark.parametrize(
    "variables, home", [({"CLUSTERRUN_HOME": "/x/../y"}, "/y"), ({"CLUSTERRUN_HOME": ""}, "~/.clusterrun")]
)
def test_the_home_is_an_absolute_path(variables: dict[str, str], home: str) -> None:
    assert settings.home(variables) == str(Path(home).expanduser())


NO = ("requeue", False)


@pytest.mark.parametrize(
    "sources, is_refused",
    [
        ([(NO, ("sbatch", ("nice=5", "requeue")))], True),
        ([(NO,), (("sbatch", ("--requeue",)),)], True),
        ([(("sbatch", ("requeue",)),), (NO,)], False),
        ([(NO, ("sbatch", ("requeue", "no-requeue")))], False),
        ([(("sbatch", ("requeue",)),)], False),
        ([(NO,)], False),
    ],
)
def test_no_requeue_and_requeue_for_sbatch_contradict_each_other(
    sources: list[Any], is_refused: bool
) -> None:
    """A stronger source overrides a weaker one, as any option does."""
    ordered = [Source(f"source {number}", values) for number, values in enumerate(sources)]
    if is_refused:
        with pytest.raises(BadInput, match="contradict each other"):
            settle(ordered)
    else:
        assert settle(ordered)["requeue"].value is False
