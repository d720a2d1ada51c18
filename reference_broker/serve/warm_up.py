"""Loads the remaining APIs one by one after the start, so that no first request has to wait for its API to load."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from reference_broker.apis.registry import SERVED, load
from reference_broker.quorum.snapshots.format import prepare

AFTER_S = 1.0
"""The clients that waited for the node are served first."""
EVERY_S = 0.02
"""Loading one API takes 5 to 15 ms. Requests are served between two of them."""


def warm_up(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    """Loads all APIs, and what a snapshot of the metadata needs, and then calls ``done``."""
    _later(loop, AFTER_S, iter([*(partial(load, api_key) for api_key in SERVED), prepare, done]))


def _later(loop: asyncio.AbstractEventLoop, delay_s: float, steps: Iterator[Callable[[], object]]) -> None:
    def take_one() -> None:
        step = next(steps, None)
        if step is not None:
            step()
            _later(loop, EVERY_S, steps)

    loop.call_later(delay_s, take_one)
