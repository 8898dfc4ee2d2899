"""The laws of loading click in part: less is loaded, and nothing is missing for who asks."""

from __future__ import annotations

import json
import subprocess
import sys

LEAN = """
import json, sys
from clusterrun.cli.lean import load_click
load_click()
seen = [name in sys.modules for name in ("click", "inspect", "uuid", "platform", "dis")]
"""


def told(program: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_click_comes_without_what_no_command_uses() -> None:
    assert told(LEAN + "print(json.dumps(seen))") == [True, False, False, False, False]


def test_who_asks_click_for_it_gets_the_real_one() -> None:
    program = """
import click, inspect, uuid

@click.command()
@click.option("--of", type=click.UUID, help="  An id.  ")
@click.option("--to", help='''Where
    it goes.''')
def go(of, to):
    '''Go.

        So.'''
    print(json.dumps([
        isinstance(of, uuid.UUID),
        [option.help for option in go.params],
        click.core.inspect.getsource is inspect.getsource,
        click.types.uuid.UUID is uuid.UUID,
        click.UUID.convert(of, None, None) is of,
    ]))

go(["--of", "12345678123456781234567812345678"])
"""
    assert told(LEAN + program) == [True, ["An id.  ", "Where\nit goes."], True, True, True]


def test_where_click_or_its_company_is_loaded_already_nothing_is_replaced() -> None:
    for first in ("import click, inspect, uuid", "import inspect, uuid"):
        program = f"{first}{LEAN}import click; from click import core, types\n"
        program += "print(json.dumps([core.inspect is inspect, types.uuid is uuid]))"
        assert told(program) == [True, True]
