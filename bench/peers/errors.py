"""Why a peer cannot be measured."""


class PeerError(Exception):
    """One sentence: what is missing and what to do."""
