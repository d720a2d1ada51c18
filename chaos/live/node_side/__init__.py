"""Hooks inside a node process of a live run: interceptor, trace, checks, costs of fetches."""
