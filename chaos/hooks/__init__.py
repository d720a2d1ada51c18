"""Hooks of a node's driver beside the interceptor, in both worlds: trace, metadata digest, presets."""
