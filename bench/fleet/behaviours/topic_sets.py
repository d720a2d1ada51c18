"""The sets of topics that admins create, and their names.

One request creates one set. Its k-th topic is ``<base>.<process>.<number>.<k>of<topics>.p<partitions>``. So a name says
how many topics and partitions must be there with it. No name is used twice.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_TAIL: Final = re.compile(r"\.(\d+)\.(\d+)of(\d+)\.p(\d+)$")


@dataclass(frozen=True, slots=True)
class TopicSet:
    """``name`` is ``<base>.<process>.<number>``. Each topic has ``partitions`` partitions."""

    name: str
    topics: int
    partitions: int

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{number}of{self.topics}.p{self.partitions}" for number in range(self.topics))


@dataclass(frozen=True, slots=True)
class LoadedTopic(TopicSet):
    """One topic of the load, which clients write and read. ``min_insync`` is its min.insync.replicas in the load, and
    ``replicas`` its replication factor."""

    min_insync: int
    replicas: int

    @property
    def topic_names(self) -> tuple[str, ...]:
        return (self.name,)


@lru_cache(maxsize=65_536)
def set_of(base: str, topic: str) -> TopicSet | None:
    """Returns the set of a topic, or None if no admin of this fleet has named the topic."""
    found = _TAIL.search(topic)
    if found is None or not topic.startswith(f"{base}."):
        return None
    number, _, topics, partitions = found.groups()
    return TopicSet(f"{topic[: found.start()]}.{number}", int(topics), int(partitions))
