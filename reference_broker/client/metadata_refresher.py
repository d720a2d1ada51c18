"""Decides which node gets the next Metadata request. It also decides whether the response is accepted.

Consumers, producers and admins use it. There is no I/O here. One Metadata request is in flight at a time. Times are
microseconds.

The next node gets a request after the backoff in three cases:

- No response came.
- The cache refused the response, because its epoch is smaller than that of the last accepted one (spec M-5).
- A wanted epoch is not reached yet.

The known nodes take turns, then the bootstrap addresses, unless a ``MetadataSource`` chooses. With ``metadata_epoch``
the draft of Metadata is sent to the nodes that announce it. A node is assumed to announce it until ``learn_drafts``
corrects that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.client.consumer_observer import ConsumerObserver
from reference_broker.client.group_requests import DRAFT_VERSION, GroupRequest
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH, MetadataCache, MetadataUpdate, NodeAddress
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.retired_fields import MetadataRequest

if TYPE_CHECKING:
    from reference_broker.wire.retired_fields import MetadataResponse


METADATA: Final = int(ApiKey.METADATA)
MetadataSource: TypeAlias = Callable[[tuple[NodeAddress, ...], tuple[NodeAddress, ...]], NodeAddress]
"""Chooses the node that gets the next request. Its arguments are the known nodes (none before the first response) and
the bootstrap addresses."""


@dataclass(slots=True)
class MetadataRefresher:
    """One client's refreshing of its metadata."""

    bootstrap: tuple[NodeAddress, ...]
    cache: MetadataCache
    metadata_epoch: bool
    version: int = 13
    backoff_us: int = 100_000
    max_age_us: int = 300_000_000
    request_timeout_us: int = 5_000_000
    refused: int = 0
    """Number of responses that the epoch guard dropped."""
    is_requesting: bool = False
    """Whether a request is in flight."""
    stale: bool = True
    """Whether new metadata is wanted."""
    due_at_us: int = 0
    """When the next request is due."""
    min_metadata_epoch: int = NO_METADATA_EPOCH
    """Metadata is requested again until this epoch is reached."""
    draft_version: int = DRAFT_VERSION
    source: MetadataSource | None = None
    """Chooses the node. With None, known nodes and bootstrap addresses take turns."""
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    _once_more: bool = False
    _turn: int = 0
    _drafts: dict[tuple[str, int], bool] = field(default_factory=dict)

    def learn_drafts(self, node: NodeAddress, announced: bool) -> None:
        """Record what ApiVersions returned on a connection to that node."""
        self._drafts[node.host, node.port] = announced

    def speaks_drafts(self, node: NodeAddress) -> bool:
        """Return whether to send drafts to that node."""
        return self.metadata_epoch and self._drafts.get((node.host, node.port), True)

    def has_reached(self, min_metadata_epoch: int) -> bool:
        """Return whether the last accepted metadata has at least this epoch (spec M-12)."""
        return self.cache.metadata_epoch >= min_metadata_epoch

    def any_node(self) -> NodeAddress:
        """The node whose turn it is."""
        known = tuple(self.cache.nodes.values())
        candidates = known + self.bootstrap
        return candidates[self._turn % len(candidates)]

    def try_another(self) -> None:
        """Move on to the next node, because the last ``any_node`` was of no use."""
        self._turn += 1

    def want(self, now_us: int) -> None:
        """Request metadata at once, because what is known is wrong or not enough. A running backoff still counts."""
        if not self.stale:
            self.stale, self.due_at_us = True, now_us

    def want_at_once(self) -> None:
        """Request newer metadata, which the response to the request in flight may not contain."""
        self.stale, self.due_at_us = True, 0
        self._once_more = self.is_requesting

    def next_request(self, now_us: int, topics: Iterable[str]) -> GroupRequest | None:
        """Return a Metadata request for these topics, if one is due. Exactly one of ``responded`` and ``failed`` must
        follow."""
        if self.is_requesting or now_us < self.due_at_us:
            return None
        self.is_requesting, self._once_more = True, False
        node = self.any_node() if self.source is None else self.source(tuple(self.cache.nodes.values()), self.bootstrap)
        version = self.draft_version if self.speaks_drafts(node) else self.version
        return GroupRequest(METADATA, version, metadata_request(topics), self.request_timeout_us, node)

    def responded(self, now_us: int, body: object) -> bool:
        """Apply a response. Returns True if the cache has taken it. The caller must then call ``done``."""
        self.is_requesting = False
        update = MetadataUpdate.of(cast("MetadataResponse", body))
        accepted = self.cache.accepts(update)
        self.refused += not accepted
        self.observer.metadata_received(update, accepted)
        if not accepted or not update.nodes:
            self._again(now_us)
            return False
        self.cache = self.cache.apply(update)
        return True

    def done(self, now_us: int, enough: bool) -> None:
        """End a response that the cache has taken. ``enough`` says whether the caller found what it needs in it. If
        it did not, the next node gets a request."""
        if self._once_more:
            self.stale, self.due_at_us = True, now_us
        elif enough and self.has_reached(self.min_metadata_epoch):
            self.stale, self.due_at_us = False, now_us + self.max_age_us
        else:
            self._again(now_us)

    def failed(self, now_us: int) -> None:
        """Record that the request in flight got no response."""
        self.is_requesting = False
        self._again(now_us)

    def _again(self, now_us: int) -> None:
        self._turn += 1
        self.stale, self.due_at_us = True, now_us + self.backoff_us


def metadata_request(topics: Iterable[str]) -> MetadataRequest:
    """A Metadata request for these topics. It does not create topics."""
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
