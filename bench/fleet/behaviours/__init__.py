"""Clients of the fleet as state machines, by kind."""
