"""Metadata of remote segments and its topic."""
