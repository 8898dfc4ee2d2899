"""Python loads this file first in a rank: it starts the prelude, then any sitecustomize that it hides.

Its syntax suits very old Pythons too, because every program that a rank starts inherits the path to it.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    if sys.version_info >= (3, 8) and "CLUSTERRUN_PRELUDE" in os.environ:
        import clusterrun_prelude  # type: ignore[import-not-found, unused-ignore]

        clusterrun_prelude.begin(_here)
except Exception:  # noqa: BLE001 (a fault of the prelude must not stop the script)
    pass
sys.modules.pop("clusterrun_prelude", None)
sys.path[:] = [_place for _place in sys.path if _place != _here]
_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
