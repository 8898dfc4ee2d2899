"""Read the addresses of ``--notify``. They hold secrets, so every text about them shows a shortened form."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

SLACK, WEB, MAIL, APPRISE = "slack", "web", "mail", "apprise"
ACCEPTED = (
    "give slack://T…/B…/… (the three parts of an incoming webhook), https://HOST/PATH, or "
    "mailto:NAME@HOST[?smtp=HOST:PORT]; with the package apprise, its addresses too"
)
_SLACK_HOOK = "https://hooks.slack.com/services/"
_TOKEN = "[A-Za-z0-9_-]+"
_MAILBOX = r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9][A-Za-z0-9.-]*"
_SERVER = r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?"


@frozen
class NotifyAddress:
    """One place that messages go to."""

    kind: str  # ``SLACK``, ``WEB``, ``MAIL`` or ``APPRISE``
    target: str  # the URL to post to, or the mail addresses with commas between them
    shortened: str  # for logs and terminals, without secrets
    server: str = ""  # mail server, ``HOST[:PORT]``; '': the node's own
    sender: str = ""  # mail address of the sender; '': the first receiver


def read_address(url: str) -> NotifyAddress:
    """Return the address that ``url`` names. Raise ``BadInput``, whose text holds no secret."""
    short = shortened(url)
    scheme, colon, rest = url.partition(":")
    if "…" in url:
        remedy = "give the whole address; records and terminals show it without its secret part"
        raise BadInput(f"--notify {short!r} is a shortened address", remedy)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(
            f"--notify {short!r} is no address: it has a space, or a sign that is not ASCII", ACCEPTED
        )
    if scheme == "mailto" and not rest.startswith("//"):
        from urllib.parse import parse_qsl, unquote  # as in ``_host``

        receivers, _, query = rest.partition("?")
        receivers = unquote(receivers)
        options = dict(parse_qsl(query, keep_blank_values=True))
        server, sender = options.pop("smtp", ""), options.pop("from", "")
        mailboxes = [*receivers.split(","), *filter(None, [sender])]
        wrong = [mailbox for mailbox in mailboxes if not re.fullmatch(_MAILBOX, mailbox)]
        if wrong:
            raise BadInput(f"--notify {short!r}: {wrong[0]!r} is no mail address", ACCEPTED)
        if options or (server and not re.fullmatch(_SERVER, server)):
            problem = next(iter(options), "smtp")
            remedy = "give ?smtp=HOST:PORT, &from=NAME@HOST, or neither"
            raise BadInput(f"--notify {short!r}: {problem!r} is not understood", remedy)
        return NotifyAddress(MAIL, receivers, short, server, sender)
    if scheme == "slack" and (tokens := re.fullmatch(rf"//({_TOKEN}/{_TOKEN}/{_TOKEN})/?", rest)):
        return NotifyAddress(SLACK, _SLACK_HOOK + tokens[1], short)
    if scheme in ("http", "https"):
        if not rest.startswith("//") or not _host(url):
            raise BadInput(f"--notify {short!r} names no host", ACCEPTED)
        return NotifyAddress(SLACK if url.startswith(_SLACK_HOOK) else WEB, url, short)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or not colon or not rest.startswith("//"):
        raise BadInput(f"--notify {short!r} is no address", ACCEPTED)
    return NotifyAddress(APPRISE, url, short)


def shortened(url: str) -> str:
    """Return ``url`` without what may be a secret: the scheme, and the host of a web address."""
    scheme, separator, rest = url.partition("://")
    if url.startswith("mailto:") and not rest:
        return url
    if not separator:
        return f"{url[:4]}…"
    host = _host(url) if scheme in ("http", "https") else ""
    return f"{scheme[:16]}://{host}/…" if host else f"{scheme[:16]}://…"


def _host(url: str) -> str:
    """Return the host of a web address with its port; '' if it has none."""
    from urllib.parse import urlsplit  # it takes 2 ms, and most submissions send no messages

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if host and port is not None else host
