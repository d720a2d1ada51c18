"""Shared parts of the faults of both worlds."""
