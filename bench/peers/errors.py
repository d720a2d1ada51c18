"""The error of measurements beside a peer."""


class PeerError(Exception):
    """A broker or tool is missing, refused a request or took too long. The message is one sentence."""
