"""Simulated links and connections: they deliver in order, over links that delay, stall and break.

There is one directed link for each pair (dialling end, dialled end). It behaves as TCP does: bytes may be late, wait
while a direction is cut, or be lost with their connection. They are never lost from the middle of a connection,
reordered in it or doubled. The interceptor makes doubled and late *requests*.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from chaos.seeds import random_for
from chaos.sim.agenda import Agenda
from chaos.sim.codec_check import ReplyStream

if TYPE_CHECKING:
    from chaos.sim.machine import Machine

LATENCY_US = (60, 900)
"""The range from which the delay of each message is drawn, in one direction."""

CLIENTS = -1
"""The end of all clients, where a link's ends are node numbers."""


@dataclass(slots=True)
class Direction:
    """One direction of a link."""

    cuts: int = 0
    """number of faults that cut it now"""
    extra_us: tuple[int, int] = (0, 0)
    """range from which a delay is drawn for each message, in addition to the usual one"""
    breaks_frames: bool = False
    """the next frame does not get through whole: its connection is closed instead"""
    held: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    """messages that arrived while the direction was cut, in order"""


@dataclass(slots=True, eq=False)
class Link:
    """A link from one machine to another, or from the clients to a machine."""

    agenda: Agenda
    random: Random
    up: Direction = field(default_factory=Direction)
    """carries bytes from the source to the target"""
    down: Direction = field(default_factory=Direction)
    """carries bytes from the target to the source"""
    refuses: bool = False
    """whether new connections are refused"""
    source: int = CLIENTS
    """the side that dials"""
    target: int = 0
    """the side that is dialled"""

    def directions(self, which: str) -> list[Direction]:
        """Return the directions of a fault: ``upstream`` (requests), ``downstream`` (responses) or ``both``."""
        return {"upstream": [self.up], "downstream": [self.down], "both": [self.up, self.down]}[which]

    def arrival_us(self, direction: Direction, last_us: int) -> int:
        """Return the arrival time of a message that is sent now, which is after all earlier messages of its
        connection."""
        low, high = LATENCY_US
        at_us = self.agenda.now_us + low + int(self.random.random() * (high - low + 1))
        low, high = direction.extra_us
        if high:
            at_us += low + int(self.random.random() * (high - low + 1))
        return at_us if at_us > last_us else last_us + 1

    def deliver(self, direction: Direction, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Called at the time of arrival. Calls the act, or holds it back while the direction is cut."""
        if direction.cuts:
            direction.held.append((act, args))
        else:
            act(*args)

    def mend(self, direction: Direction) -> None:
        """Deliver the held messages, in order and before later ones. Do nothing while a fault still cuts the
        direction."""
        if direction.cuts:
            return
        held, direction.held = direction.held, []
        for act, args in held:
            act(*args)

    @property
    def name(self) -> str:
        source = "client" if self.source == CLIENTS else f"node-{self.source}"
        return f"{source}>node-{self.target}"


class Links:
    """All links of a run. Each is created at its first use, with its own random generator."""

    def __init__(self, agenda: Agenda, seed: int) -> None:
        self._agenda = agenda
        self._seed = seed
        self._links: dict[tuple[int, int], Link] = {}

    def between(self, source: int, target: int) -> Link:
        """Return the link. ``source`` is CLIENTS or a node's number."""
        link = self._links.get((source, target))
        if link is None:
            random = random_for(self._seed, f"link-{source}-{target}")
            link = self._links[source, target] = Link(self._agenda, random, source=source, target=target)
        return link


class Caller(Protocol):
    """The side that opened a connection: a client, or a node's channel to another node."""

    @property
    def name(self) -> str: ...

    def accepted(self, connection: "Connection") -> None: ...

    def refused(self, connection: "Connection") -> None: ...

    def responded(self, connection: "Connection", correlation: int, body: object) -> None: ...

    def lost(self, connection: "Connection", reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Connection:
    """One connection."""

    number: int
    client: Caller
    node: "Machine"
    link: Link
    incarnation: int
    client_open: bool = True
    """whether the client still has it open"""
    node_open: bool = False
    """whether the node still has it open"""
    discards: bool = False
    """whether everything that the node sends is lost"""
    busy: bool = False
    """whether the node works on a request"""
    garbled: ReplyStream | None = None
    """set once bytes to the client were damaged"""
    up_last_us: int = 0
    down_last_us: int = 0
    waiting: deque[Any] = field(default_factory=deque)
    """requests that the node gets after the one that it works on"""

    def send_up(self, act: Callable[..., None], *args: Any) -> None:
        """Send from the client. ``act`` happens at the node when the message arrives."""
        link = self.link
        at_us = self.up_last_us = link.arrival_us(link.up, self.up_last_us)
        link.agenda.at(at_us, link.deliver, link.up, act, args)

    def send_down(self, act: Callable[..., None], *args: Any) -> None:
        """Send from the node. ``act`` happens at the client when the message arrives."""
        link = self.link
        at_us = self.down_last_us = link.arrival_us(link.down, self.down_last_us)
        link.agenda.at(at_us, link.deliver, link.down, act, args)
