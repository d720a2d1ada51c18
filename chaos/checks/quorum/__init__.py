"""The metadata quorum (KIP-595)."""
