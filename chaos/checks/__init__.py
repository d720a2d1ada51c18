"""Checks of the simulator, by subject."""
