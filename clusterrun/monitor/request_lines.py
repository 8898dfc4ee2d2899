"""Name the send or receive of torch whose request a rank waits for, as its source shows it."""

from __future__ import annotations

import ast
import re

from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.monitor.script_lines import ScriptFrame
from clusterrun.monitor.script_stack import ScriptStack
from clusterrun.rank_hooks.clusterrun_script_source import name_of

_HALVES = {"isend": "send", "irecv": "recv"}
# The keyword and place of the peer among the arguments, and the place of the tag.
_PLACES = {"isend": ("dst", 1, 3), "irecv": ("src", 1, 3), "P2POp": ("peer", 2, 4)}
_OWN_NUMBER = re.compile(r"(?<![.\w])(?:(?:torch\.)?dist(?:ributed)?\.)?get_(rank|world_size)\(\)")


def awaited_request(frames: list[ScriptFrame], rank: int, size: int, half: str = "") -> MainCall:
    """Return the send or receive whose request ``rank`` among ``size`` waits for in its innermost frame.

    ``half`` is ``send`` or ``recv`` if native frames show it. The result is empty if the source shows no
    request. Its name is ``wait`` if the script has begun others as well.
    """
    own_numbers = {"rank": str(rank), "world_size": str(size or -1)}
    stack = ScriptStack(
        frames,
        lambda source: _OWN_NUMBER.sub(lambda match: own_numbers[match[1]], source),
        lambda call: name_of(call) == "wait" and not call.args,
    )
    begun = [(call, depth) for call, depth in stack.begun() if name_of(call) in _PLACES]
    if not begun:
        return MainCall()
    posts = [_post(stack, call, depth) for call, depth in begun]
    candidates = {post for post in posts if not half or post.call in ("", half)}
    post = candidates.pop() if len(candidates) == 1 else PostedOp(half, -1)
    # A rank that has begun other requests too may serve its peer.
    name = post.call if post.call and stack.unawaited() == 1 else "wait"
    return MainCall(name=name, function=post.call, peer=post.peer, tag=post.tag)


def _post(stack: ScriptStack, call: ast.Call, depth: int) -> PostedOp:
    """Return the send or receive that a call begins. Its peer and its tag are -1 if they are unknown."""
    name = name_of(call)
    keyword, place, tag_place = _PLACES[name]
    begins = ast.unparse(call.args[0]).rpartition(".")[2] if name == "P2POp" and call.args else name
    peer = stack.passed(call, depth, keyword, place)
    return PostedOp(_HALVES.get(begins, ""), peer, stack.passed(call, depth, "tag", tag_place, 0))
