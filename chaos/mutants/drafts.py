"""Mutants of the private draft versions: their layout, and their visibility to unmodified clients."""

from dataclasses import replace
from typing import Any

from kio.static.primitive import i16

from chaos.mutants.mutant import Function, mutant
from reference_broker.wire.apis import DRAFTS, FIRST_DRAFT_VERSION, ApiKey

API_VERSIONS = "reference_broker.apis.metadata.k18_api_versions"


@mutant("reference_broker.wire.apis:is_flexible")
def drafts_are_flexible(original: Function, api_key: int, version: int) -> bool:
    """The headers of drafts have tagged fields, like those of flexible versions (D-1). Fetch has its own code."""
    return bool(original(api_key, version)) or ((api_key, version) in DRAFTS and api_key != ApiKey.FETCH)


@mutant(f"{API_VERSIONS}:_drafts")
def drafts_not_announced(original: Function, broker: Any, taken: Any) -> list[tuple[str, int, int]]:
    """ApiVersions does not announce the drafts that are served (D-3)."""
    del original, broker, taken
    return []


@mutant(f"{API_VERSIONS}:_finalized")
def drafts_left_to_upgrade(original: Function, drafts: Any) -> list[tuple[str, int]]:
    """ApiVersions announces drafts as features that are not finalized, so administrators upgrade them (D-3)."""
    del original, drafts
    return []


@mutant(f"{API_VERSIONS}:_ranges")
def drafts_in_the_ranges(original: Function, served: Any) -> Any:
    """ApiVersions includes drafts in the version ranges, where unmodified clients choose a version (D-3)."""
    return tuple(
        replace(each, max_version=i16(FIRST_DRAFT_VERSION)) if (each.api_key, FIRST_DRAFT_VERSION) in DRAFTS else each
        for each in original(served)
    )
