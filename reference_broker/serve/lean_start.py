"""Keeps the start of a node short. Nothing loads that it will not use, and no garbage is collected meanwhile."""

import gc
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def leave_out() -> None:
    """Keeps libraries from loading what a node never uses. Call it before the node loads.

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
    """Stops the garbage collector while the node loads. All that loading creates stays, so it would find nothing."""
    gc.disable()


def collect_seldom() -> None:
    """Collects less often once the node is loaded.

    A full collection walks the whole metadata image, which takes tens of milliseconds for 100,000 partitions, and finds
    next to nothing. So what the node holds now is never looked at again, and later objects less often than by default.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
