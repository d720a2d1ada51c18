"""kio's module of one message for rooms that speak it seldom: it loads when one of its classes is first wanted.

Making a message's classes costs 3 to 10 ms of processor time, and a node comes to its first request without most of
them. Whoever uses one imports kio's module under the same name for type checkers only, so that types stay exact.
"""

from importlib import import_module
from typing import Any


class LazySchema:
    """``module``: below ``kio.schema``, such as ``vote.v2.request``. Its attributes are that module's."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(f"kio.schema.{self._module}"), name)
        setattr(self, name, found)
        return found
