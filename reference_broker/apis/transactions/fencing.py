"""How clients are told that their producer is fenced."""

from reference_broker.wire.errors import Error, ErrorCode


def told_to_client(error: Error, api_version: int, knows_fenced_from: int) -> Error:
    """Older clients do not know PRODUCER_FENCED (KIP-588). They are told INVALID_PRODUCER_EPOCH, which is as fatal to
    them."""
    if error is ErrorCode.producer_fenced and api_version < knows_fenced_from:
        return ErrorCode.invalid_producer_epoch
    return error
