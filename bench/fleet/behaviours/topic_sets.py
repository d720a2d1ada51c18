"""The topics that admins create, in sets with names that say all of it.

A set is what one request creates: ``<base>.<process>.<number>.<k>of<topics>.p<partitions>`` for its k-th topic. So
whoever reads a name knows how many topics and partitions must be there with it, and no name is ever used twice.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_TAIL: Final = re.compile(r"\.(\d+)\.(\d+)of(\d+)\.p(\d+)$")


@dataclass(frozen=True, slots=True)
class TopicSet:
    """``name``: ``<base>.<process>.<number>``. ``partitions``: of each topic."""

    name: str
    topics: int
    partitions: int

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{number}of{self.topics}.p{self.partitions}" for number in range(self.topics))


@lru_cache(maxsize=65_536)
def set_of(base: str, topic: str) -> TopicSet | None:
    """The set that a topic belongs to; None: no admin of this fleet gave it its name."""
    found = _TAIL.search(topic)
    if found is None or not topic.startswith(f"{base}."):
        return None
    number, _, topics, partitions = found.groups()
    return TopicSet(f"{topic[: found.start()]}.{number}", int(topics), int(partitions))
