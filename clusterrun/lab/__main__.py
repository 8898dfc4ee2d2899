"""`python -m clusterrun.lab`: the lab's commands alone, for a machine that has no more of the package installed."""

from clusterrun.cli.lab import lab

lab(prog_name="clusterrun lab")
