"""Stores snapshots of the metadata log (KIP-630) and transfers them between nodes."""
