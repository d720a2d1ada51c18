"""Scenarios: files, their values and their ledger."""
