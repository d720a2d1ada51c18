"""Mutants of the private draft versions: what is on the wire, and what other people's clients hear of them."""

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.wire.apis import DRAFTS, ApiKey


@mutant("reference_broker.wire.apis:is_flexible")
def drafts_are_flexible(original: Function, api_key: int, version: int) -> bool:
    """The headers of drafts have tagged fields, as those of flexible versions have (D-1). Fetch writes its own."""
    return bool(original(api_key, version)) or ((api_key, version) in DRAFTS and api_key != ApiKey.FETCH)


@mutant("reference_broker.apis.metadata.k18_api_versions:_drafts")
def drafts_not_announced(original: Function, broker: Any, taken: Any) -> list[tuple[str, int, int]]:
    """ApiVersions does not announce the drafts that are served (D-3)."""
    del original, broker, taken
    return []
