"""Fetch sessions, and what Fetch responses contain (KIP-227)."""
