"""Faults of the network: cut and slow; all done at the router and the cable, hosts know nothing of it."""

from __future__ import annotations

import contextlib
import re

from clusterrun.lab.faults.kinds import Kind, told
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.place import Fault
from clusterrun.lab.site import Site
from clusterrun.model.errors import BadInput

FIRST_RULE, RULES_APART = 1000, 4
RATE = re.compile(r"([1-9]\d*)(k|m|g)bit")
FACTOR = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
LEAST_BURST_BYTES = 65_536
"""One segment as the kernel hands it over: a smaller bucket would never let one pass."""
QUEUE_MS = 100
QUEUE_PACKETS = 100


def _cut(site: Site, fault: Fault) -> Fault:
    number = str(_free_rule(site))
    for offset, selector in enumerate(_selectors(site, fault)):
        site.router("ip", "rule", "add", "pref", str(int(number) + offset), *selector, "blackhole")
    return told(fault, rule=number)


def _free_rule(site: Site) -> int:
    taken = {int(fault.get("rule")) for fault in site.state.faults if fault.get("rule")}
    number = FIRST_RULE
    while number in taken:
        number += RULES_APART
    return number


def _selectors(site: Site, fault: Fault) -> list[list[str]]:
    """What the router is to swallow without a word, as `ip rule` selectors."""
    here = site.host(fault.host).address
    port = _port(fault.get("port"))
    if not fault.get("to"):
        return [s + p for s in (["from", here], ["to", here]) for p in (port or [[]])]
    there = site.host(fault.get("to")).address
    ways = [["from", here, "to", there]]
    if fault.get("both"):
        ways.append(["from", there, "to", here])
    return [way + p for way in ways for p in (port or [[]])]


def _port(port: str) -> list[list[str]]:
    """TCP to that port or those; the answers have other ports and need no rule of their own."""
    if not port:
        return []
    ends = port.split("-")
    numbers = [int(end) for end in ends if end.isdigit() and 0 < int(end) < 65536]
    if len(numbers) != len(ends) or len(ends) > 2 or numbers != sorted(numbers):
        raise BadInput(f"--port {port} is no port", "1 to 65535, or a range of them: 40000-60000")
    return [["ipproto", "tcp", "dport", port]]


def _join(site: Site, fault: Fault) -> None:
    for offset in range(len(_selectors(site, fault))):
        site.router("ip", "rule", "del", "pref", str(int(fault.get("rule")) + offset))


def _rate(fault: Fault) -> tuple[str, int]:
    """The rate as it was said, and how many bytes may pass at once."""
    match = RATE.fullmatch(fault.get("rate"))
    if match is None:
        raise BadInput(f"--rate {fault.get('rate')!r} is no rate", "write it as in 50mbit (kbit, mbit, gbit)")
    return match[0], max(LEAST_BURST_BYTES, int(match[1]) * FACTOR[match[2]] // 8 // 100)


def _refuse_beside(site: Site, fault: Fault, kind: str) -> None:
    """A host's cable is shaped as a whole or by pairs: the kernel keeps one way of them."""
    ends = {fault.host, fault.get("to")} - {""}
    for other in site.state.faults:
        if other.kind == kind and ends & {other.host, other.get("to")}:
            raise BadInput(f"{other} is in force", "end it first: lab fault heal")


def _slow(site: Site, fault: Fault) -> Fault:
    rate, burst = _rate(fault)
    _refuse_beside(site, fault, "slow-link")
    shape = ["root", "tbf", "rate", rate, "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
    site.router("tc", "qdisc", "replace", "dev", site.host(fault.host).link, *shape)
    site.on_outside_root(fault.host, "tc", "qdisc", "replace", "dev", "eth0", *shape)
    return fault


def _quicken(site: Site, fault: Fault) -> None:
    site.router("tc", "qdisc", "del", "dev", site.host(fault.host).link, "root")
    site.on_outside_root(fault.host, "tc", "qdisc", "del", "dev", "eth0", "root")


# --- one pair ---


def _slow_link(site: Site, fault: Fault) -> Fault:
    if fault.host == fault.get("to"):
        raise BadInput(f"{fault.host} has no link to itself", "--to names another host")
    site.first(fault.get("to"))
    rate, burst = _rate(fault)
    _refuse_beside(site, fault, "slow")
    number = _free_class(site)
    for cable, sender in _ways(site, fault):
        if not _pairs_at(site, cable):
            site.router("tc", "qdisc", "replace", "dev", cable, "root", "handle", "1:", "htb", "default", "0")
        own = f"1:{number:x}"
        shape = ["htb", "rate", rate, "burst", str(burst), "cburst", str(burst)]
        site.router("tc", "class", "add", "dev", cable, "parent", "1:", "classid", own, *shape)
        site.router("tc", "qdisc", "add", "dev", cable, "parent", own, "pfifo", "limit", str(QUEUE_PACKETS))
        chosen = ["u32", "match", "ip", "src", f"{sender}/32", "flowid", own]
        site.router("tc", "filter", "add", *_filter(cable, number), *chosen)
    return told(fault, number=str(number))


def _ways(site: Site, fault: Fault) -> list[tuple[str, str]]:
    """Both ways of the pair: the cable that leads to one end, and the address of the other."""
    here, there = site.host(fault.host), site.host(fault.get("to"))
    return [(there.link, here.address), (here.link, there.address)]


def _filter(cable: str, number: int) -> list[str]:
    return ["dev", cable, "parent", "1:", "protocol", "ip", "pref", str(number)]


def _free_class(site: Site) -> int:
    taken = {int(fault.get("number")) for fault in site.state.faults if fault.kind == "slow-link"}
    return next(number for number in range(1, len(taken) + 2) if number not in taken)


def _pairs_at(site: Site, cable: str, but: Fault | None = None) -> list[Fault]:
    pairs = [fault for fault in site.state.faults if fault.kind == "slow-link" and fault != but]
    return [fault for fault in pairs if cable in {way[0] for way in _ways(site, fault)}]


def _quicken_link(site: Site, fault: Fault) -> None:
    number = int(fault.get("number"))
    for cable, _ in _ways(site, fault):
        # The cable of a host that was switched off is gone, and all that lay on it.
        with contextlib.suppress(LabError):
            if _pairs_at(site, cable, but=fault):
                site.router("tc", "filter", "del", *_filter(cable, number))
                site.router("tc", "class", "del", "dev", cable, "classid", f"1:{number:x}")
            else:
                site.router("tc", "qdisc", "del", "dev", cable, "root")


KINDS = (
    Kind("cut", frozenset({"to", "port", "both"}), _cut, _join),
    Kind("slow-link", frozenset({"to", "rate"}), _slow_link, _quicken_link),
    Kind("slow", frozenset({"rate"}), _slow, _quicken, alone=True, lives_in_host=True),
)
