"""Which partitions followers name and forget in sessions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.checks.check import Check, CheckContext
from chaos.checks.sessions.fetch_model import FETCH, FIRST_REVISIONS, PartitionName, partitions_of
from chaos.checks.sessions.fetch_responses import LOOKS_AT_ONCE
from reference_broker.core.events import Effect, Event, Send
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchPartition, FetchRequest

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FINAL_EPOCH = -1
NAMES_AT_ONCE = 300
"""The most new or changed partitions that one fetch of a follower names. The next fetches name the others."""


@dataclass(slots=True)
class _Sent:
    """The requests of a node to a leader."""

    node: "Node"
    number: int = 0
    """epoch, or number in the first revision, of the last request"""
    partitions: dict[PartitionName, FetchPartition] = field(default_factory=dict)
    """as the latest request that named them has them"""
    stale: dict[PartitionName, None] = field(default_factory=dict)
    """partitions that had changed at the last request already, and were not named"""
    requests: int = 0


class NamesWhatChanged(Check):
    """replicas-equal (F-12, G-13): an incremental fetch of a follower names each partition whose entry has changed, and
    no other one, and it forgets only partitions of its session.

    Fetch offset and log start change with the follower's log, and the leader epoch with its metadata. A partition
    counts as omitted only if it had already changed at the previous request, because a node may apply records or
    metadata between two requests. In sessions of more than 64 partitions the unnamed ones are compared after every P/64
    requests. A resent request is equal to the first one (G-3).
    """

    guarantee = "replicas-equal"
    needs_one_node = True
    acts_on = ((Send, FETCH),)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._sent: dict[tuple[int, int], _Sent] = {}
        """by node and leader"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is not Send or not isinstance(effect.body, FetchRequest):
                continue
            # The metadata log is fetched outside sessions (F-4), and consumers in a node are no followers.
            if effect.body.replica_id >= 0 and effect.body.session_epoch != FINAL_EPOCH:
                key = node.broker.node_id, effect.peer
                sent = self._sent.get(key)
                if sent is None or sent.node is not node:
                    sent = self._sent[key] = _Sent(node)
                for explanation in self._follow(sent, effect.peer, effect.api_version, effect.body):
                    who = f"node-{key[0]} to leader {key[1]}, request {effect.body.session_epoch}"
                    self.violated(at_us, f"{who}: {explanation}")

    def _follow(self, sent: _Sent, leader: int, version: int, body: FetchRequest) -> Iterator[str]:
        named = dict(partitions_of(version, body.topics))
        incremental = body.fetch_type == 1 if version in FIRST_REVISIONS else body.session_epoch > 0
        is_repeated = incremental and body.session_epoch == sent.number
        sent.number = body.session_epoch if incremental else 0
        if not incremental:
            sent.partitions, sent.stale, sent.requests = named, {}, 0
            return
        self.evidence += 1
        sent.requests += 1
        forgotten = [name for name, _ in partitions_of(version, body.forgotten)]
        if not is_repeated:
            for name in forgotten:
                if sent.partitions.pop(name, None) is None:
                    yield f"{_described(name)} is forgotten, and was not in the session (F-12)"
            for name, each in named.items():
                if sent.partitions.get(name) == each:
                    yield f"{_described(name)} is named, and nothing has changed (F-12)"
        sent.partitions.update(named)
        if len(named) + len(forgotten) >= NAMES_AT_ONCE or sent.requests % max(
            1, len(sent.partitions) // LOOKS_AT_ONCE
        ):
            return
        stale = {
            name: None
            for name, entry in sent.partitions.items()
            if name not in named and self._is_stale(sent.node, leader, name, entry)
        }
        for name in stale:
            if name in sent.stale:
                entry = sent.partitions[name]
                yield (
                    f"{_described(name)} is not named, though its entry (offset {entry.fetch_offset}, log start "
                    f"{entry.log_start_offset}, leader epoch {entry.current_leader_epoch}) has changed (F-12)"
                )
        sent.stale = stale

    @staticmethod
    def _is_stale(node: "Node", leader: int, name: PartitionName, entry: FetchPartition) -> bool:
        """Return whether the follower's own state of the partition differs from what it has sent last."""
        followed = _followed(node, name)
        if followed is None or followed.followed_leader != leader:
            return False  # The node will forget it.
        log = followed.log
        return (
            log.log_end_offset != entry.fetch_offset
            or log.log_start_offset != entry.log_start_offset
            or followed.leader_epoch != entry.current_leader_epoch
        )


def _followed(node: "Node", name: PartitionName) -> Partition | None:
    topic, index = name
    if isinstance(topic, str):
        known = node.broker.controller.image.topics.get(topic)
        topic = b"" if known is None else known.topic_id
    followed: Mapping[tuple[bytes, int], Partition] = node.broker.partitions.followed
    return followed.get((topic, index))


def _described(name: PartitionName) -> str:
    topic, index = name
    return f"{topic if isinstance(topic, str) else topic.hex()}-{index}"
