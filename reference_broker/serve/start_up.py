"""Imports and garbage collections at a node's start: their order keeps the start short.

Nothing loads that a node never uses. What the first requests do not need loads after the start, while the node is idle.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

WARM_UP_AFTER_S: Final = 1.0
"""The delay from the start to the first step of ``warm_up``. The clients that waited for the node are served first."""
WARM_UP_EVERY_S: Final = 0.02
"""The pause between two steps of ``warm_up``. Loading one API takes 5 to 15 ms, and requests are served in between."""


def leave_out() -> None:
    """Keep libraries from loading what a node never uses. Call it before the node loads.

    kio registers strategies with hypothesis wherever that is installed, which costs 0.1 s and 15 MiB. A node runs no
    property tests, so here hypothesis counts as not installed. crc32c reads its own version from its package's
    metadata, which costs 20 ms: of it only the extension is loaded.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    found = None if "crc32c" in sys.modules else find_spec("crc32c")
    if found is None or found.submodule_search_locations is None:
        return
    package = ModuleType("crc32c")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["crc32c"] = package
    try:
        package.crc32c = import_module("crc32c._crc32c").crc32c  # type: ignore[attr-defined]
    except ImportError:
        del sys.modules["crc32c"]  # Another release, which is built differently, is loaded as a whole.


def collect_nothing() -> None:
    """Stop the garbage collector while the node loads. All that loading creates stays, so it would find nothing."""
    gc.disable()


def collect_seldom() -> None:
    """Collect less often once the node is loaded.

    A full collection walks the whole metadata image, which takes tens of milliseconds for 100,000 partitions, and finds
    next to nothing. So what the node holds now is never looked at again, and later objects less often than by default.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def warm_up(loop: "asyncio.AbstractEventLoop", done: Callable[[], None]) -> None:
    """Load the APIs that no request has used yet one by one, and what a snapshot of the metadata needs.

    So no first request has to wait for its API to load. ``done`` is called at the end.
    """
    # Late imports: the start itself must not load them.
    from reference_broker.apis.registry import SERVED, load
    from reference_broker.quorum.snapshots.format import prepare

    _later(loop, WARM_UP_AFTER_S, iter([*(partial(load, api_key) for api_key in SERVED), prepare, done]))


def _later(loop: "asyncio.AbstractEventLoop", delay_s: float, steps: Iterator[Callable[[], object]]) -> None:
    def take_one() -> None:
        step = next(steps, None)
        if step is not None:
            step()
            _later(loop, WARM_UP_EVERY_S, steps)

    loop.call_later(delay_s, take_one)
