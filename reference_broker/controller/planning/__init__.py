"""Metadata changes: each plans its records from an image."""
