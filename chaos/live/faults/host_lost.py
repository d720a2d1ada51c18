"""The fault ``host_lost``: a node's machine vanishes from the network, and comes back.

The death of a process is seen at once, because the kernel closes the process's connections. Here Toxiproxy silences
all links of the node before the kill (``chaos.live.links.silence``): other nodes and clients notice only when their own
timeouts expire. While the node is away a listener of ours holds its port. Otherwise Toxiproxy could not dial the node
and would close each new connection at once, which a machine that vanished does not do.

The evidence is the death, the silence before it, and the state of probe connections through the same links. Some were
opened before, others afterwards. None of them may get a byte, a FIN or an RST.
"""

import errno
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

from bench.fleet.spec import address_of
from chaos.live.faults.fault_context import Begin, End, Ended, LiveFaultContext, node_of
from chaos.live.links import Link, restore, silence
from chaos.live.probe import REQUEST
from chaos.live.targets import FaultTarget

MAX_WITNESSES = 6
"""Number of links with probe connections."""
GREETING_LIMIT_S = 0.3
"""Time for which the witnesses wait for responses before the silence. A node that is stopped at a state does not
respond."""
PORT_LIMIT_S = 1.0
"""A process that is killed by a shell command may hold its port a little longer."""
BACKLOG = 4096


def host_lost(context: LiveFaultContext, target: FaultTarget) -> End:
    """The node is killed behind silent links, and is back with its links after ``restart_after_s``. Appended bytes
    stay."""
    fault, node = target.fault, node_of(target)
    before = [Witness(link) for link in target.links[:MAX_WITNESSES]]
    greet(before)
    for link in target.links:
        silence(link, fault.name)
    for witness in before:
        witness.drain()
    before = [each for each in before if not each.failure]  # Another node may have been down already.
    silent_us = context.now_us()
    child = context.child(node)
    how, killed_us = child.kill(), context.now_us()
    port = hold_port(context.addresses()[node])
    inward = [link for link in target.links if link.node == node]
    after = [] if port is None else [Witness(link) for link in inward[:MAX_WITNESSES]]
    for witness in (*before, *after):
        witness.send()

    def end() -> Ended:
        fates = [each.fate() for each in (*before, *after)]
        for witness in (*before, *after):
            witness.close()
        for link in target.links:
            restore(link, fault.name)
        if port is not None:
            port.close()
        context.restart(node)
        if "SIGKILL" not in how or not before or any(fates):
            return Ended("", doubt=next(filter(None, fates), how))
        lasted_s, swallowed = (context.now_us() - killed_us) / 1e6, len(fates) * len(REQUEST)
        return Ended(
            f"{how}, {(killed_us - silent_us) / 1000:.0f} ms after toxics (slow_close, timeout) had silenced its "
            f"{len(target.links)} links; {swallowed} bytes to it were swallowed, and no byte and no FIN came back "
            f"within {lasted_s:.1f} s on {len(before)} connections from before and {len(after)} from afterwards"
        )

    return end


BEGIN: Final[dict[str, Begin]] = {"host_lost": host_lost}


class Witness:
    """A connection of ours through a link. ``failure`` says how it ended, and is empty while it is open."""

    def __init__(self, link: Link) -> None:
        self.failure = ""
        self._name = link.name
        self._socket = socket.socket()
        self._socket.settimeout(GREETING_LIMIT_S)
        try:
            self._socket.connect(address_of(link.listen))
        except OSError as failure:
            self._failed(failure)
        else:
            self._socket.setblocking(False)

    def send(self) -> None:
        try:
            self._socket.sendall(REQUEST)
        except OSError as failure:
            self._failed(failure)

    def drain(self) -> int:
        """Read what has come, and return how many bytes that was."""
        try:
            seen = self._socket.recv(65_536)
        except BlockingIOError:
            return 0
        except OSError as failure:
            self._failed(failure)
            return 0
        if not seen:
            self._failed("it was closed")
        return len(seen)

    def fate(self) -> str:
        """Return what was received from the node since the last call; empty if the link was silent."""
        count = self.drain()
        return f"{self._name}: {count} bytes came" if count else self.failure

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _failed(self, why: object) -> None:
        self.failure = self.failure or f"{self._name}: {why}"
        self._socket.close()


def greet(witnesses: Sequence[Witness]) -> None:
    """Send a request on each connection and wait for the responses. They show that Toxiproxy has reached the node."""
    for witness in witnesses:
        witness.send()
    waiting = [each for each in witnesses if not each.failure]
    until_s = time.monotonic() + GREETING_LIMIT_S
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        for each in select.select(waiting, (), (), left_s)[0]:
            each.drain()
            waiting.remove(each)


def hold_port(listen: str) -> socket.socket | None:
    """Listen at the node's address. The kernel accepts connections there, and nothing reads them. Return None if the
    port cannot be bound, for example on another machine."""
    until_s = time.monotonic() + PORT_LIMIT_S
    while True:
        try:
            return socket.create_server(address_of(listen), backlog=BACKLOG)
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE or time.monotonic() > until_s:
                return None
        time.sleep(0.05)
