"""The error of targets."""


class TargetError(Exception):
    """A target cannot be had as asked. The message is one sentence that says what to do."""
