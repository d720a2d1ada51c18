"""Reads and writes as clients saw them."""
