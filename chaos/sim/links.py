"""The network's links: connections that deliver in order, over links that delay, stall and break.

A link is directed: one for each pair (who dials, who is dialled). It behaves as TCP does: bytes are late, stalled
(while a direction is cut) or the connection is gone; they are never lost from the middle of a connection, reordered in
it or doubled. (Doubled and late *requests* are the interceptor's.)
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from chaos.seeds import random_for
from chaos.sim.agenda import Agenda

LATENCY_US = (60, 900)
"""One way, drawn for each message."""

CLIENTS = -1
"""Stands for all clients where a link's ends are node numbers."""


@dataclass(slots=True)
class Direction:
    """``cuts``: how many faults cut it now. ``extra_us``: added to each message, drawn from the range. ``held``: what
    arrived while it was cut, in order."""

    cuts: int = 0
    extra_us: tuple[int, int] = (0, 0)
    breaks_frames: bool = False
    """the next frame does not get through whole: its connection is closed instead"""
    held: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Link:
    """``source`` dials ``target``. ``up``: bytes from the source; ``refuses``: new connections."""

    agenda: Agenda
    random: Random
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    refuses: bool = False
    source: int = CLIENTS
    target: int = 0

    def directions(self, which: str) -> list[Direction]:
        """``upstream``: requests; ``downstream``: answers; ``both``."""
        return {"upstream": [self.up], "downstream": [self.down], "both": [self.up, self.down]}[which]

    def arrival_us(self, direction: Direction, last_us: int) -> int:
        """When what is sent now arrives, after all that was sent before it on its connection."""
        low, high = LATENCY_US
        at_us = self.agenda.now_us + low + int(self.random.random() * (high - low + 1))
        low, high = direction.extra_us
        if high:
            at_us += low + int(self.random.random() * (high - low + 1))
        return at_us if at_us > last_us else last_us + 1

    def deliver(self, direction: Direction, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        """At the time of arrival: does it, or holds it while the direction is cut."""
        if direction.cuts:
            direction.held.append((act, args))
        else:
            act(*args)

    def mend(self, direction: Direction) -> None:
        """If no fault cuts it any more: what was held arrives now, in order and before anything that was sent later."""
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
    """All links of a run, each made with a generator of its own when it is first used."""

    def __init__(self, agenda: Agenda, seed: int) -> None:
        self._agenda = agenda
        self._seed = seed
        self._links: dict[tuple[int, int], Link] = {}

    def between(self, source: int, target: int) -> Link:
        """``source`` CLIENTS or a node's number."""
        link = self._links.get((source, target))
        if link is None:
            random = random_for(self._seed, f"link-{source}-{target}")
            link = self._links[source, target] = Link(self._agenda, random, source=source, target=target)
        return link


class Caller(Protocol):
    """Whoever opened a connection: a client, or a node's channel to another node."""

    @property
    def name(self) -> str: ...

    def accepted(self, connection: "Connection") -> None: ...

    def refused(self, connection: "Connection") -> None: ...

    def answered(self, connection: "Connection", correlation: int, body: object) -> None: ...

    def lost(self, connection: "Connection", reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Connection:
    """``client_open`` / ``node_open``: that side still has it. ``discards``: what the node sends goes nowhere.
    ``busy``: the node works on a request; ``waiting``: those behind it, not yet given to the node."""

    number: int
    client: Caller
    node: Any
    link: Link
    incarnation: int
    client_open: bool = True
    node_open: bool = False
    discards: bool = False
    busy: bool = False
    up_last_us: int = 0
    down_last_us: int = 0
    waiting: deque[Any] = field(default_factory=deque)

    def send_up(self, act: Callable[..., None], *args: Any) -> None:
        """From the client: ``act`` happens at the node when it arrives."""
        link = self.link
        at_us = self.up_last_us = link.arrival_us(link.up, self.up_last_us)
        link.agenda.at(at_us, link.deliver, link.up, act, args)

    def send_down(self, act: Callable[..., None], *args: Any) -> None:
        """From the node: ``act`` happens at the client when it arrives."""
        link = self.link
        at_us = self.down_last_us = link.arrival_us(link.down, self.down_last_us)
        link.agenda.at(at_us, link.deliver, link.down, act, args)
