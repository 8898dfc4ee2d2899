"""The start of ``python agent.pyz``.

Its syntax is so old that an old Python can report that it is too old.
"""

import os
import sys

if sys.version_info < (3, 9):  # noqa: UP036 (this is the one place that meets an older one)
    sys.stderr.write(
        "clusterrun: Python 3.9 or newer is needed on %s; %s is %d.%d\n"  # noqa: UP031
        % (os.uname()[1], sys.executable, sys.version_info[0], sys.version_info[1])
        + "name another one at submit: --python PATH\n"
    )
    sys.exit(1)

import gc

gc.disable()  # loaded modules are no garbage; the search for garbage takes a tenth of the start

packed = globals()["__loader__"]
if hasattr(packed, "archive"):  # False if the program runs from a folder
    from clusterrun.runtime.zip_bytecode import use

    use(packed)

from clusterrun.node.main import main  # noqa: E402

code = main(sys.argv[1:])
try:
    sys.stdout.flush()
    sys.stderr.flush()
except OSError:  # a full disk behind them
    pass
os._exit(code)  # a regular end of the interpreter takes another tenth
