"""The error that stops a node from starting."""


class StartError(Exception):
    """The node cannot start. The message is one sentence that says what to do. The exit code is 2."""
