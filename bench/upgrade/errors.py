"""The error of an upgrade."""


class UpgradeError(Exception):
    """A directory cannot be taken over, or a broker did not do what it was asked for. The message is one sentence."""
