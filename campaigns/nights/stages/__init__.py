"""The stages of a night, one file each. Each has ``play(work, until)``, which ends by that time."""
