"""Produce, Fetch, ListOffsets and the other APIs of records."""
