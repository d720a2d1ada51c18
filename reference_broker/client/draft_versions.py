"""Finds out which nodes know KIP-232's drafts. A node announces them as features in its ApiVersions answer, for which a
client asks on each new connection."""

from typing import TYPE_CHECKING, Final, cast

from kio.schema.api_versions.v4.request import ApiVersionsRequest

from reference_broker.client.group_requests import DRAFT_VERSION, PAGE_VERSION
from reference_broker.wire.apis import DRAFTS, ApiKey

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


def announces_drafts(body: object) -> bool:
    """Whether the node that sent this ApiVersions answer knows every draft that a consumer with the epoch uses."""
    offered = [each.name for each in cast("ApiVersionsResponse", body).supported_features]
    return all(each in offered for each in NEEDED_DRAFTS)
