"""Faults of the network: cut and slow; all done at the router and the cable, hosts know nothing of it."""

from __future__ import annotations

import re

from clusterrun.lab.faults.kinds import Kind, told
from clusterrun.lab.place import Fault
from clusterrun.lab.site import Site
from clusterrun.model.errors import BadInput

FIRST_RULE, RULES_APART = 1000, 4
RATE = re.compile(r"([1-9]\d*)(k|m|g)bit")
FACTOR = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
LEAST_BURST_BYTES = 65_536
"""One segment as the kernel hands it over: a smaller bucket would never let one pass."""
QUEUE_MS = 100


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
    """TCP to that port; the answers have other ports and need no rule of their own."""
    if not port:
        return []
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--port {port} is no port", "1 to 65535")
    return [["ipproto", "tcp", "dport", port]]


def _join(site: Site, fault: Fault) -> None:
    for offset in range(len(_selectors(site, fault))):
        site.router("ip", "rule", "del", "pref", str(int(fault.get("rule")) + offset))


def _slow(site: Site, fault: Fault) -> Fault:
    match = RATE.fullmatch(fault.get("rate"))
    if match is None:
        raise BadInput(f"--rate {fault.get('rate')!r} is no rate", "write it as in 50mbit (kbit, mbit, gbit)")
    burst = max(LEAST_BURST_BYTES, int(match[1]) * FACTOR[match[2]] // 8 // 100)
    shape = ["root", "tbf", "rate", match[0], "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
    site.router("tc", "qdisc", "replace", "dev", site.host(fault.host).link, *shape)
    site.on_outside_root(fault.host, "tc", "qdisc", "replace", "dev", "eth0", *shape)
    return fault


def _quicken(site: Site, fault: Fault) -> None:
    site.router("tc", "qdisc", "del", "dev", site.host(fault.host).link, "root")
    site.on_outside_root(fault.host, "tc", "qdisc", "del", "dev", "eth0", "root")


KINDS = (
    Kind("cut", frozenset({"to", "port", "both"}), _cut, _join),
    Kind("slow", frozenset({"rate"}), _slow, _quicken, alone=True, lives_in_host=True),
)
