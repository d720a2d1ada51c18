"""Confidence intervals, change points and comparisons."""
