"""Why a node ends by itself."""


class NodeFailed(Exception):  # noqa: N818 - it is an end, raised out of Node.handle
    """The node can no longer trust what it holds (a sync failed); the driver ends the process. One sentence."""
