"""APIs of consumer groups and offsets."""
