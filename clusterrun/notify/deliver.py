"""Deliver messages to Slack, a web server, a mailbox, or through apprise. Every attempt has a limit."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit, urlunsplit

from clusterrun.model.contract import VERSION
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import Any, frozen
from clusterrun.model.visible import visible
from clusterrun.notify.event_message import EventMessage, message_of
from clusterrun.notify.notify_address import APPRISE, MAIL, SLACK, NotifyAddress, read_address

LIMIT_SECONDS = 20.0
# Names the site's mail server, ``HOST[:PORT]``, as the mail programs of some sites do.
SMTP_VARIABLE = "SMTP_SERVER"
_SENDMAIL_FOLDERS = ("/usr/sbin", "/usr/lib")
# Characters of a server's answer that are shown, and of a text that Discord accepts.
_LONGEST_ANSWER, _LONGEST_DISCORD = 120, 1900
_DISCORD = ("discord.com", "discordapp.com")


class Undelivered(Exception):
    """A message was not delivered. The text is the reason."""


@frozen
class _Parcel:
    """A message with all that its delivery to an address may need. ``seconds``: the limit."""

    message: EventMessage
    document: dict[str, Any]
    environ: Mapping[str, str]
    seconds: float


def deliver_all(
    urls: Sequence[str], document: dict[str, Any], environ: Mapping[str, str], seconds: float = LIMIT_SECONDS
) -> list[str]:
    """Send the message about an event to all addresses at once.

    Return a sentence for each address that did not accept it within ``seconds``.
    """
    parcel = _Parcel(message_of(document), document, environ, seconds)
    addresses: list[NotifyAddress] = []
    sentences: list[str] = []
    reasons: dict[str, str] = {}
    for url in dict.fromkeys(urls):
        try:
            addresses.append(read_address(url))
        except ClusterrunError as error:
            sentences.append(f"the message {document['event']!r} was not sent: {error.seen}")

    def deliver(address: NotifyAddress) -> None:
        try:
            _WAYS.get(address.kind, _to_web)(address, parcel)
            reasons[address.target] = ""
        except Undelivered as error:
            reasons[address.target] = str(error)
        except Exception as error:  # noqa: BLE001  # a message is never worth more than a line
            reasons[address.target] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=deliver, args=(address,), daemon=True) for address in addresses]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for address in addresses:
        if reason := reasons.get(address.target, f"no answer within {seconds:g} s"):
            # A library may repeat the URL in its error.
            hidden = reason if address.kind == MAIL else reason.replace(address.target, address.shortened)
            sentences.append(
                f"the message {document['event']!r} did not reach {address.shortened}: {visible(hidden)}"
            )
    return sentences


def _to_web(address: NotifyAddress, parcel: _Parcel) -> None:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Report a redirection. Following it would turn the POST into a GET."""

        def redirect_request(self, *_: Any) -> None:
            return None

    parts = urlsplit(address.target)
    # A text of Slack or Discord must call nobody.
    if address.kind == SLACK:
        text = parcel.message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body: dict[str, Any] = {"text": text}
    elif (parts.hostname or "") in _DISCORD:
        body = {"content": parcel.message.text[:_LONGEST_DISCORD], "allowed_mentions": {"parse": []}}
    else:
        body = {"text": parcel.message.text, **_clean(parcel.document)}
    headers = {"Content-Type": "application/json", "User-Agent": f"clusterrun/{VERSION}"}
    user, at, host = parts.netloc.rpartition("@")
    if at:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(user).encode()).decode()}"
    url = urlunsplit(parts._replace(netloc=host, fragment=""))
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=parcel.seconds) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        detail = " ".join(error.read(4 * _LONGEST_ANSWER).decode("utf-8", "replace").split())
        moved = f" (it has moved to {urlsplit(error.headers['Location'] or '').hostname})"
        detail = moved if 300 <= error.code < 400 else f" ({detail[:_LONGEST_ANSWER]})" if detail else ""
        raise Undelivered(f"the server answered {error.code}{detail}") from error
    except OSError as error:
        raise Undelivered(_reason(getattr(error, "reason", error), parcel.seconds)) from error


def _clean(value: Any) -> Any:
    """Return ``value`` without halves of characters, which strict readers of JSON refuse."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, (list, tuple)) else value


def _to_mailbox(address: NotifyAddress, parcel: _Parcel) -> None:
    import smtplib
    from email.message import EmailMessage
    from email.utils import formatdate

    mail = EmailMessage()
    mail["To"] = address.target
    mail["From"] = address.sender or address.target.partition(",")[0]
    mail["Subject"] = f"[clusterrun] {parcel.message.subject}"
    mail["Date"] = formatdate()
    mail.set_content("\n".join((parcel.message.subject, "", *parcel.message.lines)) + "\n")
    server = address.server or parcel.environ.get(SMTP_VARIABLE, "")
    folders = os.pathsep.join((parcel.environ.get("PATH", os.defpath), *_SENDMAIL_FOLDERS))
    sendmail = shutil.which("sendmail", path=folders)
    if sendmail and not server:
        argv = [sendmail, "-t", "-oi"]
        try:
            completed = subprocess.run(
                argv, input=bytes(mail), capture_output=True, timeout=parcel.seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Undelivered(f"{sendmail}: {error}") from error
        if completed.returncode:
            detail = completed.stderr.decode("utf-8", "replace").strip()[-_LONGEST_ANSWER:]
            raise Undelivered(f"{sendmail} exited with code {completed.returncode}: {detail}")
        return
    try:
        with smtplib.SMTP(
            server or "localhost", local_hostname=os.uname().nodename, timeout=parcel.seconds
        ) as connection:
            connection.ehlo()
            if connection.has_extn("starttls"):
                connection.starttls()
            refused = connection.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        refused = error.recipients
    except (OSError, smtplib.SMTPException) as error:
        prefix = "" if server else "this node has no sendmail, and its mail server: "
        raise Undelivered(prefix + _reason(error, parcel.seconds)) from error
    for receiver, (code, answer) in refused.items():
        detail = answer.decode("utf-8", "replace")[:_LONGEST_ANSWER]
        raise Undelivered(f"the mail server refused {receiver}: {code} {detail}")


def _through_apprise(address: NotifyAddress, parcel: _Parcel) -> None:
    try:
        import apprise
    except ImportError as error:
        raise Undelivered("this Python has no apprise: pip install apprise") from error
    sender = apprise.Apprise()
    if not sender.add(address.target):
        raise Undelivered("apprise does not understand the address")
    if not sender.notify(title=parcel.message.subject, body="\n".join(parcel.message.lines)):
        raise Undelivered("apprise could not send it")


def _reason(error: object, seconds: float) -> str:
    if isinstance(error, (TimeoutError, socket.timeout)):
        return f"no answer within {seconds:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# All other kinds of addresses are posted to.
_WAYS = {MAIL: _to_mailbox, APPRISE: _through_apprise}
