"""Finds out which drafts a node serves. It announces them as features in its ApiVersions answer, for which a client
asks on each new connection."""

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
    """The names of all features that the node announces in this ApiVersions answer."""
    return frozenset(each.name for each in cast("ApiVersionsResponse", body).supported_features)


def announces_drafts(body: object) -> bool:
    """Whether the node that sent this ApiVersions answer knows every draft of KIP-232 that a consumer with the epoch
    uses."""
    return announced_in(body).issuperset(NEEDED_DRAFTS)


def may_be_sent(api_key: int, api_version: int, announced: frozenset[str]) -> bool:
    """Whether a request in this version may go to a node that announces these features. Only drafts need one."""
    return api_version < FIRST_DRAFT_VERSION or DRAFTS.get((api_key, api_version)) in announced
