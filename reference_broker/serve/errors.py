"""What stops a node from starting."""


class StartError(Exception):
    """The node cannot start; the message is one sentence that says what to do. Exit code 2."""
