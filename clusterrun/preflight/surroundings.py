"""The environment of this process, which is that of the ranks to come: the very thing some checks examine."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def variables() -> Mapping[str, str]:
    """What the examiner was started with: what the node's ranks will inherit."""
    return os.environ
