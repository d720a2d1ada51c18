"""Figures of the report, by subject."""
