"""The metadata log, its snapshots, and nodes' images."""
