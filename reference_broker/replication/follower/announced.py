"""Finds out which private drafts of Fetch a leader serves. ApiVersions announces them."""

from typing import TYPE_CHECKING

from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import request as request_schema
    from kio.schema.api_versions.v4 import response as response_schema
else:
    request_schema = LazySchema("api_versions.v4.request")
    response_schema = LazySchema("api_versions.v4.response")


def versions_request() -> "request_schema.ApiVersionsRequest":
    return request_schema.ApiVersionsRequest(client_software_name="crucible", client_software_version="1")


def announces(version: int, answer: object) -> bool:
    """``version`` is that of the draft."""
    assert isinstance(answer, response_schema.ApiVersionsResponse), (
        f"ApiVersions was answered by {type(answer).__name__}"
    )
    draft = DRAFTS[ApiKey.FETCH, version]
    return any(feature.name == draft for feature in answer.supported_features)
