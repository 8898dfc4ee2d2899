#!/bin/sh
# Installs clusterrun from the wheels beside this file, without a network: install.sh PLACE
# PLACE becomes a virtual environment of PYTHON (python3), which must be 3.9 or newer.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 PLACE   (PYTHON=python3.11 $0 PLACE chooses the Python)" >&2; exit 2; }
place=$1 python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || {
    echo "$python is older than 3.9, or is not there: PYTHON=/path/to/python3 $0 $place" >&2
    exit 2
}
"$python" -m venv --without-pip "$place"
pip=$(echo "$here"/wheels/pip-*.whl) # a wheel of pip is a program as it is
"$place/bin/python" "$pip/pip" --disable-pip-version-check install --quiet --no-index \
    --find-links "$here/wheels" clusterrun
echo "installed: $place/bin/clusterrun"
