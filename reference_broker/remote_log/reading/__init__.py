"""Reading from the remote tier."""
