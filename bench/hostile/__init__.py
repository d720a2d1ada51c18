"""Peers that misbehave, many at once, and an honest client that must not notice them."""
