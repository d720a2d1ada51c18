"""Answers that say an error for each partition that was asked for, made in slices."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from reference_broker.apis.sliced import Sliced
from reference_broker.wire.errors import Error

ERRORS_A_SLICE = 1000
"""So many are made in one event. They take some 3 ms."""
TopicT = TypeVar("TopicT")


class _Asked(Protocol):
    """A topic of the request."""

    @property
    def name(self) -> Any: ...

    @property
    def partitions(self) -> Sequence[Any]: ...


def topics_told(
    asked: Iterable[_Asked], errors: Iterable[Error], topic: Callable[..., TopicT], partition: Callable[..., object]
) -> Sliced[tuple[TopicT, ...]]:
    """The topics of the answer, which are ``topic`` with ``partition`` inside. The errors come in the request's
    order."""
    told, found, count = iter(errors), list[TopicT](), 0
    for each in asked:
        partitions = []
        for one in each.partitions:
            partitions.append(partition(partition_index=one.partition_index, error_code=next(told)))
            count += 1
            if count % ERRORS_A_SLICE == 0:
                yield
        found.append(topic(name=each.name, partitions=tuple(partitions)))
    return tuple(found)
