"""Fault kinds, by what they act on."""
