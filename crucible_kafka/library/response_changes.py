"""Functions of a test that change responses. They need nodes that run in the test's process.

A rule is plain values, so it has the number of its function. The ``Rule`` of the test keeps the function alive.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from crucible_kafka.library.errors import CrucibleError

_NUMBERS: Final = count(1)


class ResponseChange:
    """A function, and the first exception that it has raised in a node. The response passed unchanged then."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise TypeError(f"change is {function!r}: give a function of the response.")
        self.number = next(_NUMBERS)
        self._function = function
        self._failure: Exception | None = None
        _CHANGES[self.number] = self

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", "a function")

    def __call__(self, response: Any) -> Any:
        try:
            return self._function(response)
        except Exception as failure:  # It is raised in the test's thread: the node must not end of it.
            self._failure = self._failure or failure
            return response

    def check(self) -> None:
        """Raise CrucibleError if the function has failed."""
        if self._failure is not None:
            raise CrucibleError(f"The function {self!r} of a rule failed: {self._failure!r}.") from self._failure


_CHANGES: Final[WeakValueDictionary[int, ResponseChange]] = WeakValueDictionary()


def changed(number: int, response: Any) -> Any:
    """Return what the function with this number makes of a response, which is the same if its rule is gone."""
    change = _CHANGES.get(number)
    return response if change is None else change(response)
