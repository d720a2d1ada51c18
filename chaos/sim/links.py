"""The network between clients and nodes: connections that deliver in order, over links that delay, stall and break.

A link behaves as TCP does: bytes are late, stalled (while a direction is cut) or the connection is gone; they are never
lost from the middle of a connection, reordered in it or doubled. (Doubled and late *requests* are the interceptor's.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.sim.agenda import Agenda

LATENCY_US = (60, 900)
"""One way, drawn for each message."""


@dataclass(slots=True)
class Direction:
    """``extra_us``: added to each message, drawn from the range. ``held``: what arrived while it was cut, in order."""

    cut: bool = False
    extra_us: tuple[int, int] = (0, 0)
    breaks_frames: bool = False
    """the next frame does not get through whole: its connection is closed instead"""
    held: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class Link:
    """Between all clients and one node. ``down``: refuses connections."""

    agenda: Agenda
    random: Random
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    refuses: bool = False

    def directions(self, which: str) -> list[Direction]:
        """``upstream``: requests; ``downstream``: answers; ``both``."""
        return {"upstream": [self.up], "downstream": [self.down], "both": [self.up, self.down]}[which]

    def arrival_us(self, direction: Direction, last_us: int) -> int:
        """When what is sent now arrives, after all that was sent before it on its connection."""
        delay_us = self.random.randint(*LATENCY_US)
        if direction.extra_us[1]:
            delay_us += self.random.randint(*direction.extra_us)
        return max(self.agenda.now_us + delay_us, last_us + 1)

    def deliver(self, direction: Direction, act: Callable[..., None], *args: Any) -> None:
        """At the time of arrival: does it, or holds it while the direction is cut."""
        if direction.cut:
            direction.held.append((act, args))
        else:
            act(*args)

    def mend(self, direction: Direction) -> None:
        """What was held arrives now, in its order and before anything that was sent later."""
        direction.cut = False
        held, direction.held = direction.held, []
        for act, args in held:
            act(*args)


@dataclass(slots=True, eq=False)
class Connection:
    """``client_open`` / ``node_open``: that side still has it. ``discards``: what the node sends goes nowhere."""

    number: int
    client: Any
    node: Any
    link: Link
    incarnation: int
    client_open: bool = True
    node_open: bool = False
    discards: bool = False
    up_last_us: int = 0
    down_last_us: int = 0

    def send_up(self, act: Callable[..., None], *args: Any) -> None:
        """From the client: ``act`` happens at the node when it arrives."""
        self.up_last_us = self.link.arrival_us(self.link.up, self.up_last_us)
        self.link.agenda.at(self.up_last_us, self.link.deliver, self.link.up, act, *args)

    def send_down(self, act: Callable[..., None], *args: Any) -> None:
        """From the node: ``act`` happens at the client when it arrives."""
        self.down_last_us = self.link.arrival_us(self.link.down, self.down_last_us)
        self.link.agenda.at(self.down_last_us, self.link.deliver, self.link.down, act, *args)
