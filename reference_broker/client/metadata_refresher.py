"""When to ask whom for metadata, and whether to believe the answer; without I/O. For consumers, producers and admins.

One Metadata is in flight at a time. It is asked again after the backoff, and of the next node, in three cases: no
answer came; the cache refused the answer (spec M-5: its epoch is smaller than the last accepted one's); a wanted epoch
is not reached. Known nodes take turns, then the bootstrap addresses, unless a ``MetadataSource`` chooses. With
``metadata_epoch`` nodes that announce the draft of Metadata are asked in it; they are assumed to announce it until
``learn_drafts`` says otherwise. Times are microseconds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from reference_broker.client.consumer_observer import ConsumerObserver
from reference_broker.client.consumer_requests import METADATA, metadata_request
from reference_broker.client.group_requests import DRAFT_VERSION, GroupRequest
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH, MetadataCache, MetadataUpdate, NodeAddress

if TYPE_CHECKING:
    from kio.schema.metadata.v13.response import MetadataResponse


MetadataSource: TypeAlias = Callable[[tuple[NodeAddress, ...], tuple[NodeAddress, ...]], NodeAddress]
"""Chooses who is asked next from the known nodes (none before the first answer) and the bootstrap addresses."""


@dataclass(slots=True)
class MetadataRefresher:
    """``refused``: answers dropped by the epoch guard so far. ``due_at_us``: when the next is asked for. ``source``:
    who is asked; None: known nodes and bootstrap addresses take turns."""

    bootstrap: tuple[NodeAddress, ...]
    cache: MetadataCache
    metadata_epoch: bool
    version: int = 13
    backoff_us: int = 100_000
    max_age_us: int = 300_000_000
    request_timeout_us: int = 5_000_000
    refused: int = 0
    asking: bool = False
    stale: bool = True
    due_at_us: int = 0
    min_metadata_epoch: int = NO_METADATA_EPOCH
    """Asked again until this epoch is reached."""
    source: MetadataSource | None = None
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    _once_more: bool = False
    _turn: int = 0
    _drafts: dict[tuple[str, int], bool] = field(default_factory=dict)

    def learn_drafts(self, node: NodeAddress, announced: bool) -> None:
        """What ApiVersions says on a connection to that node."""
        self._drafts[node.host, node.port] = announced

    def speaks_drafts(self, node: NodeAddress) -> bool:
        """Whether to ask that node in drafts."""
        return self.metadata_epoch and self._drafts.get((node.host, node.port), True)

    def has_reached(self, min_metadata_epoch: int) -> bool:
        """Spec M-12: whether the last accepted metadata has at least this epoch."""
        return self.cache.metadata_epoch >= min_metadata_epoch

    def any_node(self) -> NodeAddress:
        """Whoever's turn it is."""
        known = tuple(self.cache.nodes.values())
        candidates = known + self.bootstrap
        return candidates[self._turn % len(candidates)]

    def try_another(self) -> None:
        """The last ``any_node`` was of no use."""
        self._turn += 1

    def want(self, now_us: int) -> None:
        """What is known turned out wrong, or is not enough; asked for at once, unless a backoff lasts already."""
        if not self.stale:
            self.stale, self.due_at_us = True, now_us

    def want_at_once(self) -> None:
        """There is something else to ask for, of which an answer that is on its way may say nothing."""
        self.stale, self.due_at_us = True, 0
        self._once_more = self.asking

    def next_request(self, now_us: int, topics: Iterable[str]) -> GroupRequest | None:
        """Metadata for these topics, if it is due; exactly one of ``answered`` and ``failed`` must follow."""
        if self.asking or now_us < self.due_at_us:
            return None
        self.asking, self._once_more = True, False
        node = self.any_node() if self.source is None else self.source(tuple(self.cache.nodes.values()), self.bootstrap)
        version = DRAFT_VERSION if self.speaks_drafts(node) else self.version
        return GroupRequest(METADATA, version, metadata_request(topics), self.request_timeout_us, node)

    def answered(self, now_us: int, body: object) -> bool:
        """Whether the cache has taken it; ``done`` must follow then."""
        self.asking = False
        update = MetadataUpdate.of(cast("MetadataResponse", body))
        accepted = self.cache.accepts(update)
        self.refused += not accepted
        self.observer.metadata_answered(update, accepted)
        if not accepted or not update.nodes:
            self._again(now_us)
            return False
        self.cache = self.cache.apply(update)
        return True

    def done(self, now_us: int, enough: bool) -> None:
        """``enough``: the owner found in it what it needs; else it is asked for again elsewhere."""
        if self._once_more:
            self.stale, self.due_at_us = True, now_us
        elif enough and self.has_reached(self.min_metadata_epoch):
            self.stale, self.due_at_us = False, now_us + self.max_age_us
        else:
            self._again(now_us)

    def failed(self, now_us: int) -> None:
        """No answer came."""
        self.asking = False
        self._again(now_us)

    def _again(self, now_us: int) -> None:
        self._turn += 1
        self.stale, self.due_at_us = True, now_us + self.backoff_us
