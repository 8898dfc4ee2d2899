"""`python -m clusterrun.lab`: the lab's commands, also where the rest is not installed."""

from clusterrun.cli.lab import lab

lab(prog_name="clusterrun lab")
