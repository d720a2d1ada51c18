"""The index of nights."""
