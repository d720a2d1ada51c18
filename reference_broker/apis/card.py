"""The card on top of each API file: what it serves. ApiVersions and the gap lists are made from the cards."""

from dataclasses import dataclass

from reference_broker.wire.apis import DRAFTS


@dataclass(frozen=True, slots=True)
class Card:
    """``min_version`` / ``max_version`` inclusive. ``simplifications``: what Kafka does and this API does not."""

    api_key: int
    min_version: int
    max_version: int
    behaviour: str
    simplifications: str = ""
    kips: tuple[int, ...] = ()

    def serves(self, api_version: int) -> bool:
        """Whether requests of this version are answered: those of the range, and private drafts (``wire.drafts``)."""
        return self.min_version <= api_version <= self.max_version or (self.api_key, api_version) in DRAFTS
