"""Names that the honest client and hostile peers share."""

from typing import Final

TOPIC: Final = "honest"
"""The topic of the honest client, which hostile peers read, too."""
HOSTILE_TOPIC: Final = "hostile"
"""Hostile peers write to this one. What they write counts for nothing."""
CLIENT_ID: Final = "hostile"
