"""Retention and deletion in the remote tier."""
