"""Faults of the network: cut, slow, lossy, flapping; all done at the router and the cable."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
from collections.abc import Iterable

from clusterrun.lab.faults.kinds import FaultType
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.place import Fault
from clusterrun.lab.site import LabSite
from clusterrun.model.errors import BadInput

FIRST_RULE, RULES_APART = 1000, 4
RATE = re.compile(r"([1-9]\d*)(k|m|g)bit")
FACTOR = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
# One segment as the kernel hands it over: a smaller bucket would never let one pass.
LEAST_BURST_BYTES = 65_536
# The kernel's rules take no range that ends with 65535.
LAST_PORT = 65534
QUEUE_MS = 100
QUEUE_PACKETS = 100


def cut(site: LabSite, fault: Fault) -> Fault:
    number = _free(site.state.faults, "rule", FIRST_RULE, RULES_APART)
    for offset, selector in enumerate(_selectors(site, fault)):
        site.router("ip", "rule", "add", "pref", str(int(number) + offset), *selector, "blackhole")
    return fault.with_details(rule=number)


def _free(faults: Iterable[Fault], detail: str, first: int = 1, apart: int = 1) -> str:
    """Return the first number that none of ``faults`` has as this detail."""
    taken = {fault.get(detail) for fault in faults}
    return next(number for number in map(str, itertools.count(first, apart)) if number not in taken)


def _selectors(site: LabSite, fault: Fault) -> list[list[str]]:
    """Return the packets that the router drops silently, as `ip rule` selectors."""
    address = site.host(fault.host).address
    port = _port(fault.get("port"))
    if not fault.get("to"):
        return [s + p for s in (["from", address], ["to", address]) for p in (port or [[]])]
    other_address = site.host(fault.get("to")).address
    ways = [["from", address, "to", other_address]]
    if fault.get("both"):
        ways.append(["from", other_address, "to", address])
    return [way + p for way in ways for p in (port or [[]])]


def _port(port: str) -> list[list[str]]:
    """Return selectors for TCP to these ports. The answers have other ports and need no rule."""
    if not port:
        return []
    ends = port.split("-")
    numbers = [int(end) for end in ends if end.isdigit() and 0 < int(end) <= LAST_PORT]
    if len(numbers) != len(ends) or len(ends) > 2 or numbers != sorted(numbers):
        raise BadInput(f"--port {port} is not a port", f"1 to {LAST_PORT}, or a range of them: 40000-60000")
    return [["ipproto", "tcp", "dport", port]]


def undo_cut(site: LabSite, fault: Fault) -> None:
    for offset in range(len(_selectors(site, fault))):
        site.router("ip", "rule", "del", "pref", str(int(fault.get("rule")) + offset))


def _rate(fault: Fault) -> tuple[str, int]:
    """Return the rate as given, and the bytes of a burst."""
    match = RATE.fullmatch(fault.get("rate"))
    if match is None:
        raise BadInput(
            f"--rate {fault.get('rate')!r} is not a rate", "write it as in 50mbit (kbit, mbit, gbit)"
        )
    return match[0], max(LEAST_BURST_BYTES, int(match[1]) * FACTOR[match[2]] // 8 // 100)


def _refuse_beside(site: LabSite, fault: Fault, kind: str) -> None:
    """A host's cable is shaped as a whole or by pairs: the kernel keeps one way of them."""
    ends = {fault.host, fault.get("to")} - {""}
    for other in site.state.faults:
        if other.kind == kind and ends & {other.host, other.get("to")}:
            raise BadInput(f"{other} is in force", "end it first: lab fault heal")


def slow(site: LabSite, fault: Fault) -> Fault:
    rate, burst = _rate(fault)
    for kind in ("slow-link", "lose", "firewall"):
        _refuse_beside(site, fault, kind)
    shape = ["root", "tbf", "rate", rate, "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
    site.router("tc", "qdisc", "replace", "dev", site.host(fault.host).link, *shape)
    site.on_outside_root(fault.host, "tc", "qdisc", "replace", "dev", "eth0", *shape)
    return fault


def undo_slow(site: LabSite, fault: Fault) -> None:
    site.router("tc", "qdisc", "del", "dev", site.host(fault.host).link, "root")
    site.on_outside_root(fault.host, "tc", "qdisc", "del", "dev", "eth0", "root")


# --- one pair ---


def slow_link(site: LabSite, fault: Fault) -> Fault:
    if fault.host == fault.get("to"):
        raise BadInput(f"{fault.host} has no link to itself", "--to names another host")
    site.first(fault.get("to"))
    rate, burst = _rate(fault)
    _refuse_beside(site, fault, "slow")
    number = int(_free((other for other in site.state.faults if other.kind == "slow-link"), "number"))
    for cable, sender in _ways(site, fault):
        if not _pairs_at(site, cable):
            site.router("tc", "qdisc", "replace", "dev", cable, "root", "handle", "1:", "htb", "default", "0")
        own = f"1:{number:x}"
        shape = ["htb", "rate", rate, "burst", str(burst), "cburst", str(burst)]
        site.router("tc", "class", "add", "dev", cable, "parent", "1:", "classid", own, *shape)
        site.router("tc", "qdisc", "add", "dev", cable, "parent", own, "pfifo", "limit", str(QUEUE_PACKETS))
        chosen = ["u32", "match", "ip", "src", f"{sender}/32", "flowid", own]
        site.router("tc", "filter", "add", *_filter(cable, number), *chosen)
    return fault.with_details(number=str(number))


def _ways(site: LabSite, fault: Fault) -> list[tuple[str, str]]:
    """Both directions of the pair: the cable that leads to one end, and the address of the other."""
    source, target = site.host(fault.host), site.host(fault.get("to"))
    return [(target.link, source.address), (source.link, target.address)]


def _filter(cable: str, number: int) -> list[str]:
    return ["dev", cable, "parent", "1:", "protocol", "ip", "pref", str(number)]


def _pairs_at(site: LabSite, cable: str, but: Fault | None = None) -> list[Fault]:
    pairs = [fault for fault in site.state.faults if fault.kind == "slow-link" and fault != but]
    return [fault for fault in pairs if cable in {way[0] for way in _ways(site, fault)}]


def undo_slow_link(site: LabSite, fault: Fault) -> None:
    number = int(fault.get("number"))
    for cable, _ in _ways(site, fault):
        # The cable of a host that was switched off is gone, and all that lay on it.
        with contextlib.suppress(LabError):
            if _pairs_at(site, cable, but=fault):
                site.router("tc", "filter", "del", *_filter(cable, number))
                site.router("tc", "class", "del", "dev", cable, "classid", f"1:{number:x}")
            else:
                site.router("tc", "qdisc", "del", "dev", cable, "root")


# --- packets that vanish by chance, or by what they begin ---

_SENDER = ("lose", "firewall")
# Instructions of the kernel's classic packet filter.
_LOAD_WORD, _LOAD_BYTE, _AND, _EQUALS, _ABOVE, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x25, 0x06
# Reading at this offset returns a random number of 32 bits.
_RANDOM = 0xFFFFF038
# The offset of the IP header.
_IP = 0xFFF00000
_PROTOCOL, _DESTINATION, _TCP_FLAGS = _IP + 9, _IP + 16, _IP + 33
_TCP, _SYN, _SYN_ACK = 6, 0x02, 0x12


def lose(site: LabSite, fault: Fault) -> Fault:
    """Packets that a host sends are lost at random; ``netem`` does this too, but few kernels have it."""
    word = fault.get("share")
    share = int(word) if word.isdigit() else 0
    if not 0 < share < 100:
        raise BadInput(f"--share {word} is not a share of the packets", "1 to 99, in percent")
    return _drop(site, fault, [(_LOAD_WORD, _RANDOM, None), (_ABOVE, (1 << 32) // 100 * share, False)])


def firewall(site: LabSite, fault: Fault) -> Fault:
    """Drop the first packets of connections that a host opens. Its answers pass."""
    first = [(_LOAD_BYTE, _TCP_FLAGS, None), (_AND, _SYN_ACK, None), (_EQUALS, _SYN, True)]
    return _drop(site, fault, [(_LOAD_BYTE, _PROTOCOL, None), (_EQUALS, _TCP, True), *first])


def _drop(site: LabSite, fault: Fault, steps: list[tuple[int, int, bool | None]]) -> Fault:
    """Drop packets of the host that pass all ``steps``: instruction, number, result of its test."""
    if fault.get("to"):
        target = int.from_bytes(ipaddress.ip_address(site.host(fault.get("to")).address).packed, "big")
        steps = [(_LOAD_WORD, _DESTINATION, None), (_EQUALS, target, True), *steps]
    _refuse_beside(site, fault, "slow")
    if not _droppers(site, fault):
        _on_cable(site, fault, "qdisc", "replace", "root", "handle", "1:", "htb", "default", "0")
        _on_cable(site, fault, "class", "add", "parent", "1:", "classid", "1:1", "htb", "rate", "10gbit")
        _on_cable(site, fault, "qdisc", "add", "parent", "1:1", "blackhole")
    number = _free(_droppers(site, fault), "number")
    lines = []
    for index, (instruction, operand, value) in enumerate(steps):
        away = len(steps) - index
        yes, no = {None: (0, 0), True: (0, away), False: (away, 0)}[value]
        lines.append(f"{instruction} {yes} {no} {operand}")
    lines += [f"{_RETURN} 0 0 {0xFFFFFFFF}", f"{_RETURN} 0 0 0"]
    bytecode = f"{len(lines)},{','.join(lines)}"
    chosen = ["bpf", "bytecode", bytecode, "flowid", "1:1"]
    _on_cable(site, fault, "filter", "add", "parent", "1:", "protocol", "ip", "pref", number, *chosen)
    return fault.with_details(number=number)


def _droppers(site: LabSite, fault: Fault) -> list[Fault]:
    droppers = [other for other in site.state.faults if other.kind in _SENDER and other.host == fault.host]
    return [other for other in droppers if other != fault]


def _on_cable(site: LabSite, fault: Fault, what: str, how: str, *arguments: str) -> None:
    site.on_outside_root(fault.host, "tc", what, how, "dev", "eth0", *arguments)


def undo_drop(site: LabSite, fault: Fault) -> None:
    if _droppers(site, fault):
        _on_cable(site, fault, "filter", "del", "parent", "1:", "protocol", "ip", "pref", fault.get("number"))
    else:
        _on_cable(site, fault, "qdisc", "del", "root")


# --- a link that comes and goes ---

_FLAPPING = """
while :; do
    ip rule add pref $1 from $2 blackhole; ip rule add pref $(($1 + 1)) to $2 blackhole; sleep $3
    ip rule del pref $1; ip rule del pref $(($1 + 1)); sleep $4
done
"""


def flap(site: LabSite, fault: Fault) -> Fault:
    """Cut the host off for some seconds, again and again."""
    down, every = fault.get("down"), fault.get("every")
    if not (down.isdigit() and every.isdigit() and 0 < int(down) < int(every)):
        message = f"--down {down} --every {every} are not durations"
        raise BadInput(message, "whole seconds, as in --down 4 --every 10")
    number = _free(site.state.faults, "rule", FIRST_RULE, RULES_APART)
    command = [number, site.host(fault.host).address, down, str(int(every) - int(down))]
    start = 'setsid sh -c "$0" sh "$@" </dev/null >/dev/null 2>&1 & echo $!'
    process = site.router("sh", "-c", start, _FLAPPING, *command).strip()
    return fault.with_details(rule=number, process=process)


def undo_flap(site: LabSite, fault: Fault) -> None:
    number = int(fault.get("rule"))
    site.router("sh", "-c", 'kill -9 "-$0"', fault.get("process"))
    for rule in (number, number + 1):
        with contextlib.suppress(LabError):  # it was up just then
            site.router("ip", "rule", "del", "pref", str(rule))


KINDS = (
    FaultType("cut", frozenset({"to", "port", "both"}), cut, undo_cut),
    FaultType("slow-link", frozenset({"to", "rate"}), slow_link, undo_slow_link),
    FaultType("slow", frozenset({"rate"}), slow, undo_slow, alone=True, lives_in_host=True),
    FaultType("lose", frozenset({"to", "share"}), lose, undo_drop, lives_in_host=True),
    FaultType("firewall", frozenset({"to"}), firewall, undo_drop, lives_in_host=True),
    FaultType("flap", frozenset({"down", "every"}), flap, undo_flap, alone=True),
)
