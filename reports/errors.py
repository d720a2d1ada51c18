"""Errors that one sentence reports."""


class SetupError(Exception):
    """Something is missing on this machine, or a run's file is damaged. The message names it in one sentence."""
