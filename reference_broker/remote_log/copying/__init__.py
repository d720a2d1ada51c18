"""Copying segments to the remote tier."""
