"""After the start: APIs that nobody has asked for yet load one by one, so that nobody's first request waits for it."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from reference_broker.apis.registry import SERVED, load
from reference_broker.quorum.snapshots.format import prepare

AFTER_S = 1.0
"""Whoever waited for the node to be ready is served first."""
EVERY_S = 0.02
"""An API's module and its schemas take 5 to 15 ms: requests have their turn between two."""


def warm_up(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    """Calls ``done`` when all are there, and what a snapshot of the metadata needs."""
    _later(loop, AFTER_S, iter([*(partial(load, api_key) for api_key in SERVED), prepare, done]))


def _later(loop: asyncio.AbstractEventLoop, delay_s: float, steps: Iterator[Callable[[], object]]) -> None:
    def take_one() -> None:
        step = next(steps, None)
        if step is not None:
            step()
            _later(loop, EVERY_S, steps)

    loop.call_later(delay_s, take_one)
