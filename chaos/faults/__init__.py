"""What the faults of both worlds share."""
