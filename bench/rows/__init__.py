"""Rows of ``crucible bench``, by subject."""
