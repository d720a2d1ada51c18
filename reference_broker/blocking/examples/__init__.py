"""Examples of the blocking clients."""
