"""Spark jobs, by subject."""
