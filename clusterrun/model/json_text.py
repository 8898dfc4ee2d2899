"""JSON text without the cost of ``json``: the same two functions on its C core; knows no meaning.

``json`` loads regular expressions to skip spaces and to word errors: a tenth of an agent's start, and
1,250 agents start at once. Whoever meets a text that is wrong loads it then.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_SPACES = " \t\n\r"
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Strict:
    """What the core asks for: how ``json`` reads by default."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    def __init__(self, parse_constant: Callable[[str], Any]) -> None:
        self.parse_constant = parse_constant


def _on_core(core: Any) -> tuple[Callable[..., Any], Callable[..., str]]:
    def encoder(item: str, key: str) -> Callable[[object, int], tuple[str, ...]]:
        ascii_only = core.encode_basestring_ascii
        return core.make_encoder(None, _refuse, ascii_only, None, key, item, False, False, True)  # type: ignore[no-any-return]

    scan, spaced = core.make_scanner(_Strict(_CONSTANTS.__getitem__)), encoder(", ", ": ")

    def loads(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
        """The value of a JSON text. Raises ``ValueError``."""
        whole = (text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")).strip(_SPACES)
        read = core.make_scanner(_Strict(parse_constant)) if parse_constant else scan
        try:
            value, end = read(whole, 0)
        except StopIteration as error:
            raise ValueError(f"no JSON value at character {error.value}") from None
        if end != len(whole):
            raise ValueError(f"more than one JSON value: another one at character {end}")
        return value

    def dumps(value: object, *, separators: tuple[str, str] | None = None) -> str:
        """The JSON text of a value, in ASCII. Raises ``TypeError`` for what JSON has no form for."""
        return "".join((encoder(*separators) if separators else spaced)(value, 0))

    return loads, dumps


def _refuse(value: object) -> object:
    raise TypeError(f"JSON has no form for {type(value).__name__}")


if TYPE_CHECKING:
    from json import dumps as dumps
    from json import loads as loads
else:
    try:
        import _json

        loads, dumps = _on_core(_json)
    except (ImportError, AttributeError, TypeError):  # a Python whose core is another one
        from json import dumps as dumps
        from json import loads as loads
