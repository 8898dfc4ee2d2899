#!/bin/sh
# Makes DIST/clusterrun-VERSION-bundle.tar.gz: wheels of clusterrun and all that it needs but torch, and an installer.
# packaging/bundle.sh PYTHON DIST [PYTHON_VERSION...]   (PYTHON has `build`, setuptools and pip, and reaches an index)
set -eu
python=$1 dist=$2
shift 2
[ $# -gt 0 ] || set -- 3.9 3.10 3.11 3.12 3.13
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(PYTHONPATH=$here "$python" -c 'from clusterrun.model.contract import VERSION; print(VERSION)')
name=clusterrun-$version-bundle
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$dist" "$made/$name/wheels"
"$python" -m build --no-isolation --wheel --outdir "$made/$name/wheels" "$here" >"$made/build.log" 2>&1 ||
    { cat "$made/build.log" >&2; exit 1; }
wheel=$made/$name/wheels/clusterrun-$version-py3-none-any.whl
more=pip # one for all, so that of the oldest Python
for one in "$@"; do # tomli by name: whether it is needed is judged by the Python that asks, not by the one meant
    # shellcheck disable=SC2086
    "$python" -m pip --disable-pip-version-check download --quiet --only-binary=:all: \
        --implementation cp --python-version "$one" --platform "manylinux2014_$(uname -m)" \
        --platform "manylinux_2_28_$(uname -m)" --dest "$made/$name/wheels" "$wheel" 'tomli>=2' $more
    more=
done
cp "$here/packaging/install.sh" "$here/LICENSE" "$made/$name/"
tar -C "$made" -czf "$dist/$name.tar.gz" "$name"
echo "$dist/$name.tar.gz: $(ls "$made/$name/wheels" | wc -l) wheels, for Python $*"
