"""Histories of any size, to measure the cost."""
