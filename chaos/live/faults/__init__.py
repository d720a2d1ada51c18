"""Faults at a time, with real processes, links and disks."""
