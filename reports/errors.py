"""Errors of this room that a person can put right."""


class SetupError(Exception):
    """Something is missing on this machine; the message is one sentence that says what to do."""
