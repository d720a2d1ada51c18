"""Faults at states of the protocol, for both worlds."""
