"""The runner's side of the fault ``response_lost_by_proxy``: Toxiproxy drops a response that its sender has held back.

``chaos/interceptor/held_responses.py`` has the sender's side, with the order of the steps. A fault has fired once
the sender has seen its connection closed while the toxic was on: ``limit_data`` with 0 bytes passes nothing, and closes
each connection on which a response comes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chaos.live.links import Link, Links, cure, poison
from reports.rows import FaultRow

KIND = "response_lost_by_proxy"
TOXIC = "swallow"
GAP_US = 30_000
"""The least time from one toxic to the next: what the sender sends in between must be past Toxiproxy by then."""
WINDOW_LIMIT_US = 3_000_000
"""A sender that reports nothing for this time has ended."""


@dataclass(slots=True)
class Window:
    """One time that the toxic is on a node's link to clients."""

    link: Link
    since_us: int


class ProxiedLosses:
    """``send_command`` sends a command to the sender of a node's responses."""

    def __init__(
        self, links: Links, send_command: Callable[[int, dict[str, Any]], None], now_us: Callable[[], int]
    ) -> None:
        self._links = links
        self._send_command = send_command
        self._now_us = now_us
        self._held: dict[int, dict[tuple[str, int, str], FaultRow]] = {}
        self._windows: dict[int, Window] = {}
        self._closed_us: dict[int, int] = {}

    def held(self, node: int, row: FaultRow) -> None:
        """Note that the sender holds a response. ``row`` has the state."""
        self._held.setdefault(node, {})[row.name, row.hit, row.client_id] = row

    def lost(self, node: int, keys: Sequence[tuple[str, int, str]]) -> list[FaultRow]:
        """Remove the toxic once the sender has reported which connections were closed. Return the rows that count."""
        window, held = self._windows.get(node), self._held.get(node, {})
        if window is None:
            return []
        rows = [held.pop(key) for key in map(tuple, keys) if key in held]
        on_ms = (self._now_us() - window.since_us) / 1000
        how = f"held until {window.link.proxy.name} had toxic {TOXIC} (limit_data 0), on for {on_ms:.0f} ms from "
        how += f"{window.since_us} us on; its connection was closed with nothing passed on"
        self._close(node)
        return [replace(row, until_us=self._now_us(), detail=f"{row.detail} {how}".strip()) for row in rows]

    def do_due(self) -> None:
        """Add the toxic where responses are held, and remove one that a sender that has ended left."""
        for node in [node for node, held in self._held.items() if held and node not in self._windows]:
            if self._now_us() - self._closed_us.get(node, -GAP_US) >= GAP_US:
                self._open(node)
        for node, window in list(self._windows.items()):
            if self._now_us() - window.since_us > WINDOW_LIMIT_US:
                self._held.pop(node, None)
                self._close(node)

    def end_all(self) -> None:
        self._held.clear()
        for node in list(self._windows):
            self._close(node)

    def _open(self, node: int) -> None:
        front = self._links.fronts.get(node)
        link = self._links.between("client", node) if front is None else front.link
        assert link is not None, f"no proxy leads clients to node-{node}"
        poison(link, TOXIC, "limit_data", "downstream", {"bytes": 0})
        self._windows[node] = Window(link, self._now_us())
        self._note_toxic(node, True)

    def _close(self, node: int) -> None:
        cure(self._windows.pop(node).link, TOXIC, "downstream")
        self._closed_us[node] = self._now_us()
        self._note_toxic(node, False)

    def _note_toxic(self, node: int, is_on: bool) -> None:
        front = self._links.fronts.get(node)
        if front is None:
            self._send_command(node, {"toxic": is_on})
        else:
            front.toxic(is_on)
