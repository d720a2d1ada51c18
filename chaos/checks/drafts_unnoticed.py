from collections.abc import Sequence
from typing import TYPE_CHECKING

from kio.schema.api_versions.v4.response import ApiVersionsResponse

from chaos.checks.check import Check
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Event

if TYPE_CHECKING:
    from reference_broker.core.node import Node

API_VERSIONS = 18
FEATURES_SINCE = 3
"""The version of ApiVersions from which answers tell features (KIP-584)."""
FIRST_DRAFT = 1000
EVERYWHERE = {"Fetch.1000": 1, "FetchSnapshot.1000": 59}
OF_METADATA_EPOCH = {
    f"{name}.{version}": key
    for name, key in {"Metadata": 3, "UpdateMetadata": 6, "OffsetCommit": 8, "OffsetFetch": 9}.items()
    for version in (1000, 1001)
}
"""The names of drafts end so. Each has the key of its API. Those of KIP-232 are served where its switch allows it."""
ONLY_DRAFTS = 6
"""UpdateMetadata: Kafka 4 has removed it."""


class DraftsUnnoticed(Check):
    """drafts-unnoticed: ApiVersions tells no draft in its ranges, and each served one as a supported feature (D-3).

    A client that knows no drafts takes the highest version that it and the node have. So the ranges must hold only what
    Apache Kafka has shipped, and an API that exists only as a draft must not be among them. A client that knows drafts
    finds each of them among the supported features, which others ignore, with one name each (D-1 lists the drafts).
    Each is finalized at its one level, because administrators upgrade the features whose finalized level is below the
    highest supported one, and drafts cannot be switched.

    A listener that does not take an API tells neither its range nor its drafts. UpdateMetadata has no range that would
    show whether it is taken, so its draft may be left out.
    """

    guarantee = "drafts-unnoticed"
    needs_one_node = True
    acts_on = (API_VERSIONS,)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Reply and isinstance(effect.body, ApiVersionsResponse) and not effect.body.error_code:
                for wrong in _wrong(effect.body, effect.api_version, node.broker.config.crucible_metadata_epoch_enable):
                    self.violated(at_us, f"node-{node.broker.node_id} told {effect.tag.client_id} {wrong}")


def _wrong(body: ApiVersionsResponse, version: int, keeps_metadata_epoch: bool) -> list[str]:
    wrong = []
    for each in body.api_keys:
        if each.max_version >= FIRST_DRAFT or each.min_version >= FIRST_DRAFT:
            wrong.append(f"API {each.api_key} in versions {each.min_version} to {each.max_version}, a draft among them")
        elif each.api_key == ONLY_DRAFTS:
            wrong.append(f"API {each.api_key}, which has drafts only")
    if version >= FEATURES_SINCE:
        names, taken = [str(each.name) for each in body.supported_features], {each.api_key for each in body.api_keys}
        finalized = {str(each.name): int(each.max_version_level) for each in body.finalized_features}
        for draft, api_key in {**EVERYWHERE, **(OF_METADATA_EPOCH if keeps_metadata_epoch else {})}.items():
            found = sum(name.endswith(f".{draft}") for name in names)
            if found > 1 or (found == 0 and api_key in taken):
                wrong.append(f"{found} features for the draft {draft}")
            if any(level != 1 for level in (finalized.get(name) for name in names if name.endswith(f".{draft}"))):
                wrong.append(f"the draft {draft} as a feature to upgrade")
    return wrong
