"""Read from the source of a rank the function of MPI that it waits in, and the ranks that the call names."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache

from clusterrun.diagnosis.evidence import MainCall, PostedOp
from clusterrun.monitor.script_lines import ScriptFrame, assignments
from clusterrun.monitor.script_stack import ScriptStack
from clusterrun.rank_hooks.clusterrun_script_source import name_of

# The methods of mpi4py that wait for other ranks. Methods for objects and for buffers differ in case.
_WAITS = re.compile(
    r"(?i)barrier|bcast|(?:all)?gatherv?|scatterv?|alltoall[vw]?|(?:all)?reduce(?:_scatter)?|(?:ex)?scan"
    r"|s?send|m?recv|sendrecv|m?probe|wait(?:all|any|some)?|finalize"
)
# The methods that make a communicator wait for all ranks of the old communicator.
_WAITING_MAKERS = re.compile(r"Split(?:_type)?|Dup|Clone|Create(?:_cart|_graph)?")
_HALF = re.compile(r"(?i)[isbrm]?(send|recv|probe)")
# The keyword and the place of the rank among the arguments: of a peer, and of a root.
_PEERS = {"send": ("dest", 1), "recv": ("source", 1), "probe": ("source", 0)}
_ROOTS = {
    **dict.fromkeys(("bcast", "Bcast", "gather", "scatter"), 1),
    **dict.fromkeys(("Gather", "Gatherv", "Scatter", "Scatterv", "reduce"), 2),
    "Reduce": 3,
}
# These make a communicator that lacks ranks, or numbers them in another way.
_MAKERS = re.compile(r"COMM_SELF|Split\w*|Create\w*|Sub|Merge|Spawn\w*|Accept|Connect|Join|Get_parent")
# A rank's own number, and the number of ranks, in a communicator.
_OWN_NUMBER = re.compile(r"(?<![.\w])((?:\w+\.)*\w*(?i:comm|world)\w*)\.(?:Get_)?(rank|size)\b(?:\(\))?")


def mpi_call(frames: list[ScriptFrame], rank: int, size: int) -> tuple[tuple[str, ...], MainCall]:
    """Return the function of MPI that the innermost line calls by mpi4py, and the ranks that it names.

    The function is () if the line calls several. Ranks are known in the communicator of all ranks only.
    """
    trees = list({id(frame.tree): frame.tree for frame in frames}.values())
    own_numbers = {"rank": rank, "size": size}

    def own_number(match: re.Match[str]) -> str:
        return str(own_numbers[match[2]]) if _is_of_all(trees, match[1]) else match[0]

    stack = ScriptStack(
        frames, lambda source: _OWN_NUMBER.sub(own_number, source), lambda call: _waits(trees[0], call)
    )
    if not stack.wait:
        return (), MainCall()
    call, depth, method = stack.wait, 0, _of_method(trees[0], stack.wait)
    name = name_of(method)
    function = f"MPI_{name.capitalize()}"
    if _WAITING_MAKERS.fullmatch(name):
        function = f"MPI_Comm_{name.lower()}"
    if name.lower() == "wait":
        # The wait for the request of one send or receive is that call.
        begun = stack.begun()
        call, depth = begun[0] if len(begun) == 1 else (call, 0)
        method = call
    half = _HALF.fullmatch(name_of(method))
    if name.lower().startswith("wait") and not half:
        return (function,), MainCall()
    is_of_all = name == "Finalize" or _is_of_all(trees, _owner(method))

    def argument(keyword: str, place: int, default: int) -> int:
        """Return the number that the call passes; -1 if it is unknown, or negative as for any rank."""
        return stack.passed(call, depth, keyword, place, default) if is_of_all else -1

    if half:
        kind = half[1].lower()
        keyword, place = _PEERS[kind]
        # A receive takes messages with any tag by default.
        tag = argument("tag", place + 1, 0 if kind == "send" else -1)
        peer = argument(keyword, place, -1)
        kind = "send" if kind == "send" else "recv"
        return (function,), MainCall(name=kind, function=function, peer=peer, tag=tag)
    if name.lower() == "sendrecv":
        posts = (PostedOp("send", argument("dest", 1, -1)), PostedOp("recv", argument("source", 4, -1)))
        is_known = all(post.peer >= 0 for post in posts)
        return (function,), MainCall(name="wait", function=function, posts=posts if is_known else ())
    return (function,), MainCall(
        function=function,
        rooted=function if name in _ROOTS else "",
        root=argument("root", _ROOTS[name], 0) if name in _ROOTS else -1,
        # The first ranks leave a scan before the last ones have come.
        is_of_all=is_of_all and "scan" not in name.lower(),
        group="" if is_of_all else _owner(method),
    )


def _waits(tree: ast.Module, call: ast.Call) -> bool:
    method = _of_method(tree, call)
    is_maker = _WAITING_MAKERS.fullmatch(name_of(method)) and not _owner(method).endswith("Win")
    return bool(_WAITS.fullmatch(name_of(method)) or is_maker)


def _of_method(tree: ast.Module, call: ast.Call) -> ast.Call:
    """Return the call of a variable as that of the method it holds, as ``put`` after ``put = comm.send``."""
    methods: list[ast.expr | None] = []
    for value in assignments(tree).get(name_of(call), []) if isinstance(call.func, ast.Name) else []:
        methods += [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    # A script may choose between ``ssend`` and ``send``.
    kinds = {
        method.attr.replace("ss", "s") if isinstance(method, ast.Attribute) else "" for method in methods
    }
    if len(kinds) == 1 and isinstance(methods[-1], ast.Attribute):
        return ast.Call(methods[-1], call.args, call.keywords)
    return call


def _owner(call: ast.Call) -> str:
    """Return the expression whose method a call names; '' for a function."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _is_of_all(trees: Sequence[ast.Module], owner: str) -> bool:
    """Return whether ``owner`` is the communicator of all ranks: the files name it so, or make no other."""
    values = assignments(trees[0]).get(owner, [])
    if owner.endswith("COMM_WORLD") or (
        values and all(value and ast.unparse(value).endswith("COMM_WORLD") for value in values)
    ):
        return True
    names = frozenset().union(*map(_names, trees))
    return bool(values) and "COMM_WORLD" in names and not any(map(_MAKERS.fullmatch, names))


@lru_cache(maxsize=16)
def _names(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        name
        for node in ast.walk(tree)
        for name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", ""))
        if isinstance(name, str)
    )
