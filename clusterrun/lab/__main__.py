"""`python -m clusterrun.lab`: the same as `clusterrun lab`."""

import sys

from clusterrun.cli.main import main

sys.exit(main(["lab", *sys.argv[1:]]))
