"""What ssh said, in plain words and with the next command; pure."""

from __future__ import annotations

import re
import shlex

REFUSED = "Session open refused by peer"
"""What a server with MaxSessions says to one session more."""


def explained(name: str, target: str, said: str) -> tuple[str, str]:
    """What was seen and what to do, where ssh ``said`` this of ``target`` (called ``name``)."""
    if changed := re.search(r"[Hh]ost key for (\S+) has changed", said):
        return _other_key(name, changed[1], said)
    for pattern, seen, remedy in _KNOWN:
        if re.search(pattern, said):
            return seen.format(name=name, target=target), remedy.format(name=name, target=shlex.quote(target))
    last = [line for line in said.splitlines() if line.strip()]
    return (
        f"ssh gives no connection to {name}: {last[-1].strip() if last else 'it gives no reason'}",
        _TRY.format(target=shlex.quote(target)),
    )


_TRY = "what ssh says by itself: ssh {target}"
_KNOWN = (
    (
        r"Could not resolve hostname|Name or service not known",
        "{name} is not in ssh_config, and no machine goes by the name {target}",
        'put it into ~/.ssh/config (Host {name}, HostName …, User …), or host = "…" below [host.{name}]; '
        "then try: ssh {target}",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "the host key of {name} was not accepted",
        "compare it with what the cluster publishes, and accept it once: ssh {target}",
    ),
    (r"Permission denied|Too many authentication failures", "{name} refused the login", _TRY),
    (
        r"(?:Connection|Operation) timed out|Connection refused|No route to host|Network is unreachable",
        "{name} cannot be reached: no machine answers to ssh at {target}",
        "is the network (VPN) there? " + _TRY,
    ),
    (
        r"administratively prohibited|forwarding (?:is )?disabled|port forwarding failed",
        "{name} forwards no ports",
        "its sshd has AllowTcpForwarding off, or the port here is in use: --local PORT takes another one",
    ),
)


def _other_key(name: str, known_as: str, said: str) -> tuple[str, str]:
    offending = re.search(r"Offending \S+ key in (.+):\d+", said)
    file = f" -f {shlex.quote(offending[1])}" if offending else ""
    return (
        f"the host key of {name} is not the one known: it was set up anew, or somebody stands in between",
        "ask its administrators or look at what they publish; if the new key is right: "
        f"ssh-keygen{file} -R {shlex.quote(known_as)}",
    )
