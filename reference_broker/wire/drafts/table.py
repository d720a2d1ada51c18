"""The layouts of the private drafts in ``apis.DRAFTS``. Kafka's design pages had them, but no release shipped them.

Most draft requests carry a subset of a released version's fields. They are decoded to the class that the API's
handler sees in every other version. The requests in ``OWN_REQUESTS`` carry more, so they have a class of their own.
Every draft response has a class of its own too.
"""

from collections.abc import Mapping
from typing import Final

from reference_broker.wire.apis import WITH_LEADER_EPOCHS, ApiKey
from reference_broker.wire.drafts.metadata import (
    MetadataRequest1000,
    MetadataResponse1000,
    MetadataResponse1001,
)
from reference_broker.wire.drafts.offsets import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitResponse1000,
    OffsetFetchRequest1000,
    OffsetFetchRequest1001,
    OffsetFetchResponse1000,
    OffsetFetchResponse1001,
)
from reference_broker.wire.drafts.snapshots import (
    FetchSnapshotRequest1000,
    FetchSnapshotResponse1000,
)
from reference_broker.wire.drafts.updates import (
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
    UpdateMetadataResponse1000,
)

LAYOUTS: Final[Mapping[tuple[int, int], tuple[type, type]]] = {
    (ApiKey.METADATA, 1000): (MetadataRequest1000, MetadataResponse1000),
    (ApiKey.UPDATE_METADATA, 1000): (UpdateMetadataRequest1000, UpdateMetadataResponse1000),
    (ApiKey.OFFSET_COMMIT, 1000): (OffsetCommitRequest1000, OffsetCommitResponse1000),
    (ApiKey.OFFSET_FETCH, 1000): (OffsetFetchRequest1000, OffsetFetchResponse1000),
    (ApiKey.FETCH_SNAPSHOT, 1000): (FetchSnapshotRequest1000, FetchSnapshotResponse1000),
    (ApiKey.METADATA, WITH_LEADER_EPOCHS): (MetadataRequest1000, MetadataResponse1001),
    (ApiKey.UPDATE_METADATA, WITH_LEADER_EPOCHS): (UpdateMetadataRequest1001, UpdateMetadataResponse1000),
    (ApiKey.OFFSET_COMMIT, WITH_LEADER_EPOCHS): (OffsetCommitRequest1001, OffsetCommitResponse1000),
    (ApiKey.OFFSET_FETCH, WITH_LEADER_EPOCHS): (OffsetFetchRequest1001, OffsetFetchResponse1001),
}
"""The class of the request and that of the response, by API key and version."""

OWN_REQUESTS: Final = frozenset(
    {
        (key, version)
        for key in (ApiKey.UPDATE_METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
        for version in (1000, WITH_LEADER_EPOCHS)
    }
)
"""Drafts whose request's layout is also the class that handlers see."""
