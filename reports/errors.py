"""Errors of this room that its user can put right."""


class SetupError(Exception):
    """Something is missing on this machine; the message is one sentence that says what to do."""
