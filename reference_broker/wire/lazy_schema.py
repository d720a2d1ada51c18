"""Loads kio's module of one message when one of its classes is first used.

Creating a message's classes costs 3 to 10 ms of processor time, and a node needs few of them before its first request.
A user of ``LazySchema`` also imports kio's module under the same name in an ``if TYPE_CHECKING`` block, so that types
stay exact.
"""

from importlib import import_module
from typing import Any


class LazySchema:
    """Has the attributes of kio's module. ``module`` is its path below ``kio.schema``, such as ``vote.v2.request``."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(f"kio.schema.{self._module}"), name)
        setattr(self, name, found)
        return found
