"""Snapshots of the metadata log (KIP-630): made, kept, sent, fetched, loaded."""
