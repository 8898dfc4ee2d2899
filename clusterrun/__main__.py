"""`python -m clusterrun`: the same as the command `clusterrun`."""

import sys

from clusterrun.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
