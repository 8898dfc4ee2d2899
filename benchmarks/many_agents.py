"""1,250 agents in one process, and strangers at the same entry: each has the real machine, none has a rank.

Started by a coordinator as its launcher: the bootstrap comes on the standard input. Every agent
connects from an address of its own (127.x.y.z), so that the limits per address count as on a real
network. Prints how long joining took and how often an agent had to try again.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

from clusterrun.agent import actions, events
from clusterrun.agent.agent import Agent
from clusterrun.protocol import messages
from clusterrun.protocol.bootstrap import Bootstrap, read_bootstrap
from clusterrun.protocol.codec import Encoder, WireError
from clusterrun.protocol.handshake import ClientEnd
from clusterrun.protocol.messages import Hello
from clusterrun.runtime import machine_events
from clusterrun.runtime.event_loop import steady

ENCODER = Encoder()
RANKS = 8


class FakeNode:
    """One agent: the real machine on a real connection, whose ranks are only claimed to run."""

    def __init__(self, number: int, bootstrap: Bootstrap, loop: selectors.BaseSelector) -> None:
        self.number = number
        self.bootstrap = bootstrap
        self.loop = loop
        self.tries = 0
        self.welcome_at = 0.0
        self.machine = Agent(number, RANKS)
        self.gone = False
        self.connect()

    def connect(self) -> None:
        self.tries += 1
        self.socket = socket.socket()
        self.socket.bind((f"127.1.{self.number // 250}.{self.number % 250 + 1}", 0))
        self.socket.setblocking(False)
        self.socket.connect_ex((self.bootstrap.addresses[0], self.bootstrap.port))
        hello = Hello(self.number, f"n{self.number:04d}", "127.0.0.1", self.number + 1)
        i = self.bootstrap
        self.end = ClientEnd(bytes.fromhex(i.secret), i.run_id, i.epoch, hello, os.urandom(32))
        self.loop.register(self.socket, selectors.EVENT_WRITE, self)

    def ready(self, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self.socket.sendall(self.end.take_output())
                self.loop.modify(self.socket, selectors.EVENT_READ, self)
                return
            data = self.socket.recv(65536)
            messages = self.end.receive(data) if data else None
        except (OSError, WireError):
            messages = None
        if messages is None:
            self.lost()
            return
        output = self.end.take_output()
        if output:
            self.socket.sendall(output)
        if self.end.proven and not self.welcome_at:
            self.welcome_at = time.monotonic()
            self.on(events.Welcomed())
        for message in messages:
            self.on(events.Told(message))

    def lost(self) -> None:
        self.loop.unregister(self.socket)
        self.socket.close()
        if self.welcome_at:
            self.gone = True
        else:
            self.connect()

    def on(self, event: Any) -> None:
        waiting: list[Any] = [event]
        while waiting and not self.gone:
            for action in self.machine.on(machine_events.Now(steady(), time.time()), waiting.pop(0)):
                waiting += self.did(action)

    def did(self, action: Any) -> list[Any]:
        if isinstance(action, actions.Tell):
            self.socket.sendall(self.end.seal(ENCODER.body(action.message)))
        elif isinstance(action, messages.ReservePort):
            return [messages.PortReserved(action.epoch, 4000)]
        elif isinstance(action, messages.StartRanks):
            return [messages.RanksStarted(action.epoch)]
        elif isinstance(action, messages.SignalRanks):
            ranks = range(self.number * RANKS, (self.number + 1) * RANKS)
            return [messages.RankExited(0, rank, -action.number) for rank in ranks]
        elif isinstance(action, actions.Sweep):
            return [messages.RanksGone(action.epoch)]
        elif isinstance(action, actions.Exit):
            self.loop.unregister(self.socket)
            self.socket.close()
            self.gone = True
        return []


def agents(result: str) -> None:
    """Join as many agents as are invited, tell how it went, beat until all have been sent home."""
    bootstrap = read_bootstrap(sys.stdin.buffer.readline())
    if os.environ.get("STRANGERS"):
        Path(os.environ["STRANGERS"]).write_text(json.dumps([bootstrap.addresses[0], bootstrap.port]))
        time.sleep(2.0)  # until they stand at the entry
    loop = selectors.EpollSelector()
    began = time.monotonic()
    nodes = [FakeNode(number, bootstrap, loop) for number in range(bootstrap.agents)]
    has_printed = False
    while not all(node.gone for node in nodes):
        wakes = [
            node.machine.wakes_at() or steady() + 1 for node in nodes if node.welcome_at and not node.gone
        ]
        for key, mask in loop.select(max(0.0, min([0.5, *(wake - steady() for wake in wakes)]))):
            key.data.ready(mask)
        now = steady()
        for node in nodes:
            if node.welcome_at and not node.gone and (node.machine.wakes_at() or now + 1) <= now:
                node.on(machine_events.Tick())
        if not has_printed and all(node.welcome_at for node in nodes):
            has_printed = True
            seconds = max(node.welcome_at for node in nodes) - began
            again = sum(node.tries - 1 for node in nodes)
            Path(result).write_text(json.dumps({"seconds": seconds, "again": again}))


def strangers(entry: str, count: int) -> None:
    """Keep ``count`` connections open that send almost nothing, and that return at once after a refusal."""
    while not Path(entry).exists():
        time.sleep(0.01)
    time.sleep(0.1)
    address = tuple(json.loads(Path(entry).read_text()))
    loop = selectors.EpollSelector()

    def come(number: int) -> None:
        client = socket.socket()
        client.bind((f"127.2.0.{number % 250 + 1}", 0))
        client.setblocking(False)
        client.connect_ex(address)
        loop.register(client, selectors.EVENT_READ, number)

    for number in range(count):
        come(number)
    while True:
        for key, _ in loop.select(0.2):
            try:
                is_closed = not key.fileobj.recv(4096)  # type: ignore[union-attr]
            except OSError:
                is_closed = True
            if is_closed:
                loop.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                come(key.data)
        for key in random.sample(list(loop.get_map().values()), 20):
            if key.data % 5 == 0:
                try:
                    key.fileobj.send(b"\0")  # type: ignore[union-attr]
                except OSError:
                    pass


if __name__ == "__main__":
    if sys.argv[1] == "agents":
        agents(sys.argv[2])
    else:
        strangers(sys.argv[2], int(sys.argv[3]))
