"""Why a node ends by itself."""


class NodeFailed(Exception):  # noqa: N818 - it is an end, raised out of Node.handle
    """The node can no longer trust what it holds (a sync failed), so the driver ends the process.

    The message is one sentence.
    """
