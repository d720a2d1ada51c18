"""What nodes announce in ApiVersions: the newest version of each request, and the level of ``transaction.version``.

The level is a finalized feature (KIP-584). It has an epoch, so that older news never replaces newer news.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse

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
    """What has been learnt so far. ``transaction_version`` is 0 before anything was."""

    transaction_version: int = 0
    _epoch: int = -1
    _newest: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)

    def learn(self, host: str, port: int, body: object) -> None:
        """Learns from one node's answer to ApiVersions."""
        answer = cast("ApiVersionsResponse", body)
        self._newest[host, port] = {int(each.api_key): int(each.max_version) for each in answer.api_keys}
        epoch = int(answer.finalized_features_epoch)
        if epoch > self._epoch:
            self._epoch = epoch
            levels = {each.name: int(each.max_version_level) for each in answer.finalized_features}
            self.transaction_version = levels.get(TRANSACTION_VERSION, 0)

    @property
    def adds_by_itself(self) -> bool:
        """Whether transactions begun now are of the new generation."""
        return self.transaction_version >= ADDS_BY_ITSELF

    def version(self, host: str, port: int, key: ApiKey, adds_by_itself: bool) -> int:
        """Returns the version in which to ask this node, in a transaction of the old or of the new generation."""
        newest = min(NEWEST[key], self._newest.get((host, port), {}).get(int(key), NEWEST[key]))
        return newest if adds_by_itself else min(newest, LAST_WITHOUT_ADDING.get(key, newest))
