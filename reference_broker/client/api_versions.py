"""The versions and features that nodes announce in ApiVersions.

A client sends ApiVersions on each new connection. The level of ``transaction.version`` is a finalized feature
(KIP-584). It has an epoch, so that an older level never replaces a newer one.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from kio.schema.api_versions.v4.request import ApiVersionsRequest

from reference_broker.client.group_requests import DRAFT_VERSION, PAGE_VERSION
from reference_broker.wire.apis import DRAFTS, FIRST_DRAFT_VERSION, ApiKey

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse


API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
API_VERSIONS_VERSION: Final = 3
API_VERSIONS_REQUEST: Final = ApiVersionsRequest(client_software_name="crucible-client", client_software_version="1")
NEEDED_DRAFTS: Final = tuple(
    DRAFTS[key, version]
    for key in (ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
    for version in (PAGE_VERSION, DRAFT_VERSION)
)


def announced_in(body: object) -> frozenset[str]:
    """The names of all features that the node announces in this ApiVersions response."""
    return frozenset(feature.name for feature in cast("ApiVersionsResponse", body).supported_features)


def announces_drafts(body: object) -> bool:
    """Return whether the node that sent this ApiVersions response knows every draft of KIP-232 that a consumer with the
    epoch uses."""
    return announced_in(body).issuperset(NEEDED_DRAFTS)


def may_be_sent(api_key: int, api_version: int, announced: frozenset[str]) -> bool:
    """Return whether a request in this version may go to a node that announces these features. Only drafts need one."""
    return api_version < FIRST_DRAFT_VERSION or DRAFTS.get((api_key, api_version)) in announced


TRANSACTION_VERSION: Final = "transaction.version"
ADDS_BY_ITSELF: Final = 2
"""From this level on Produce 12 and TxnOffsetCommit 5 add their partitions, and EndTxn 5 raises the epoch (KIP-890)."""

LAST_WITHOUT_ADDING: Final = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""The last versions that leave it to the client to add partitions and to raise the epoch."""
FIRST_THAT_ADDS: Final = {key: version + 1 for key, version in LAST_WITHOUT_ADDING.items()}
RAISES_EPOCH: Final = 3
"""The first version of InitProducerId with which a client raises its own epoch (KIP-360)."""

NEWEST: Final = {
    ApiKey.PRODUCE: 13,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
}
"""The newest versions that the producer speaks. AddPartitionsToTxn 4 and newer are for brokers."""


@dataclass(slots=True)
class Announced:
    """The features that are known so far. ``transaction_version`` is 0 before anything was."""

    transaction_version: int = 0
    _epoch: int = -1
    _newest: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)

    def learn(self, host: str, port: int, body: object) -> None:
        """Learn from one node's response to ApiVersions."""
        response = cast("ApiVersionsResponse", body)
        self._newest[host, port] = {int(each.api_key): int(each.max_version) for each in response.api_keys}
        epoch = int(response.finalized_features_epoch)
        if epoch > self._epoch:
            self._epoch = epoch
            levels = {feature.name: int(feature.max_version_level) for feature in response.finalized_features}
            self.transaction_version = levels.get(TRANSACTION_VERSION, 0)

    @property
    def adds_by_itself(self) -> bool:
        """Whether transactions begun now are of the new generation."""
        return self.transaction_version >= ADDS_BY_ITSELF

    def version(self, host: str, port: int, key: ApiKey, adds_by_itself: bool) -> int:
        """Return the version in which to send to this node, in a transaction of the old or of the new generation."""
        newest = min(NEWEST[key], self._newest.get((host, port), {}).get(int(key), NEWEST[key]))
        return newest if adds_by_itself else min(newest, LAST_WITHOUT_ADDING.get(key, newest))
