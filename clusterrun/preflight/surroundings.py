"""What is around a probe: the environment that ranks will inherit, and whose processes there are."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def variables() -> Mapping[str, str]:
    """What the examiner was started with: what the node's ranks will inherit."""
    return os.environ


def owner(pid: int) -> str:
    """Whose process ``pid`` is; empty where it cannot be seen."""
    import pwd  # of use only where a GPU is in use

    try:
        number = os.stat(f"/proc/{pid}").st_uid
        return pwd.getpwuid(number).pw_name
    except OSError:
        return ""
    except KeyError:
        return f"user {number}"
