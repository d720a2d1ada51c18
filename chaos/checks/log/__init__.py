"""Logs of partitions: their bytes, files, producers and compaction."""
