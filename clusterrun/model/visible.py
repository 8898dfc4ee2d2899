"""Make foreign text safe to print: no byte of it can control a terminal or forge a line."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match

# Compiled at first use, because that takes 4 ms and most text needs no check.
_HARMFUL = (
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1 (NEL among them)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of text
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # undecodable bytes, and halves of pairs
    "\ufff9-\ufffb\U000e0000-\U000e007f]"  # invisible annotations and tags
)
_COLOUR = "\x1b\\[[0-9;:]{0,40}m"
_RESET = "\x1b\\[0{0,4}m"


def visible(text: str, colours: bool = False) -> str:
    """Return one line of foreign text with harmful characters written out (``\\x1b``, ``\\u2028``).

    ``text`` is decoded with ``surrogateescape``: invalid bytes are shown as ``\\xff``. Tabs become spaces.
    Colour sequences are dropped, or kept with ``colours`` if the line resets them at its end.
    """
    if text.isprintable():
        return text
    if "\x1b" not in text:
        return _written_out(text)
    colour_codes = list(re.finditer(_COLOUR, text))
    keep = colours and bool(colour_codes) and re.fullmatch(_RESET, colour_codes[-1].group()) is not None
    if not keep:
        return _written_out(re.sub(_COLOUR, "", text))
    parts, end = [], 0
    for colour in colour_codes:
        parts += [_written_out(text[end : colour.start()]), colour.group()]
        end = colour.end()
    return "".join(parts) + _written_out(text[end:])


def _written_out(text: str) -> str:
    if "\t" in text:
        text = text.expandtabs(8)
    return re.sub(_HARMFUL, _escape, text)


def _escape(match: Match[str]) -> str:
    number = ord(match.group())
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x100:
        return {0x0A: "\\n", 0x0D: "\\r"}.get(number, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def job_name(name: str) -> str:
    """Return ``name`` for Slurm, without characters that move the cursor in the tools of other people."""
    return "".join(letter if letter.isprintable() else "_" for letter in name)[:200]
