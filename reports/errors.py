"""Errors that are reported in one sentence."""


class SetupError(Exception):
    """A program or package is missing on this machine, or a file of a run is damaged. The message names it in one
    sentence."""
