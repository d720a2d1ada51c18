"""Replica fetchers of followers."""
