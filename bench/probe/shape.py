"""What an answer must hold before a case can look at it: a broker decides how long its lists are."""

from collections.abc import Sequence
from typing import Any, TypeVar

from bench.probe.case import Unexpected

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def sole(items: Sequence[T], what: str) -> T:
    """The one entry of a list, which an answer calls ``what``. Raises Unexpected if it has none or several."""
    if len(items) != 1:
        raise Unexpected(f"{what} of the answer has {len(items)} entries, not one")
    return items[0]


def single(answer: Any, *names: str) -> Any:
    """The one entry of a list, of the list in that entry, and so on: ``single(answer, "topics", "partitions")``.
    Raises Unexpected if a list has none or several."""
    for name in names:
        answer = sole(getattr(answer, name) or (), name)
    return answer


class Told(dict[K, V]):
    """What an answer tells, by some key. To look at what it does not tell raises Unexpected."""

    def __missing__(self, key: K) -> V:
        raise Unexpected(f"the answer tells nothing of {key}")
