"""Remote segments (KIP-405)."""
