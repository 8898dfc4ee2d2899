"""The tables `[host.NAME]`: what they mean, and what is refused by the name of file and key."""

from __future__ import annotations

import pytest

from clusterrun.config import profiles
from clusterrun.config.profiles import HostEntry
from clusterrun.model.errors import BadInput

WHOLE = """[host.a]
host = "login1"
python = "~/env/bin/python"
folder = "/scratch"
options = ["User=me", "Port=22"]
[host.b]
"""


def read(tmp_path, text):
    path = tmp_path / "clusterrun.toml"
    path.write_text(text)
    path.chmod(0o600)
    return profiles.read(str(path))


def test_a_host_has_the_settings_of_its_table_and_its_name_for_ssh(tmp_path) -> None:
    text = read(tmp_path, WHOLE)
    assert text.hosts == (
        HostEntry("a", "login1", "~/env/bin/python", "/scratch", ("User=me", "Port=22")),
        HostEntry("b", "b"),
    )
    assert profiles.host([text], "a") == text.hosts[0]
    assert profiles.host([text], "unlisted") == HostEntry("unlisted", "unlisted")


@pytest.mark.parametrize(
    ("text", "observed"),
    [
        ('[host.a]\npyton = "x"\n', r"\[host\.a\]: unknown key 'pyton'"),
        ("[host.a]\nfolder = 3\n", r"\[host\.a\] folder: 3 is not a string"),
        ('[host.a]\noptions = "User=me"\n', "is not a list of KEY=VALUE"),
        ('[host.a]\noptions = ["-v"]\n', "is not a list of KEY=VALUE"),
        ('[host.a]\nhost = "-oProxyCommand=id"\n', "is not a host name for ssh"),
        ("host = 3\n", "host is not a table"),
    ],
)
def test_a_meaningless_host_entry_is_refused(tmp_path, text, observed) -> None:
    with pytest.raises(BadInput, match=observed):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["", "-oProxyCommand=id", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_something_else_is_refused(name) -> None:
    with pytest.raises(BadInput, match="is not a host name for ssh"):
        profiles.host([], name)
