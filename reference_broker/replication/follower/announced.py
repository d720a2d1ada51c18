"""Finds out whether a leader serves the first revision of fetch sessions. ApiVersions announces this private draft."""

from typing import TYPE_CHECKING

from reference_broker.wire.apis import DRAFTS, FETCH_FIRST_REVISION_REPLICAS, ApiKey
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import request as request_schema
    from kio.schema.api_versions.v4 import response as response_schema
else:
    request_schema = LazySchema("api_versions.v4.request")
    response_schema = LazySchema("api_versions.v4.response")


def versions_request() -> "request_schema.ApiVersionsRequest":
    return request_schema.ApiVersionsRequest(client_software_name="crucible", client_software_version="1")


def announces_first_revision(answer: object) -> bool:
    assert isinstance(answer, response_schema.ApiVersionsResponse), (
        f"ApiVersions was answered by {type(answer).__name__}"
    )
    draft = DRAFTS[ApiKey.FETCH, FETCH_FIRST_REVISION_REPLICAS]
    return any(feature.name == draft for feature in answer.supported_features)
