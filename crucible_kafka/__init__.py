"""The command line of Crucible."""
