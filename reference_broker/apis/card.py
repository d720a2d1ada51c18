"""The card on top of each API file: what it serves. ApiVersions and the gap lists are made from the cards."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """``min_version`` / ``max_version`` inclusive. ``simplifications``: what Kafka does and this API does not."""

    api_key: int
    min_version: int
    max_version: int
    behaviour: str
    simplifications: str = ""
    kips: tuple[int, ...] = ()
