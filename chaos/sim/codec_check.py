"""A message through the wire's codec and back: what comes out must equal what went in."""

from bench.fleet.behaviours.protocol import Request as ClientRequest
from reference_broker.core.effects import Reply
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.headers import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response

MAX_FRAME_BYTES = 64 << 20


class CodecMismatchError(AssertionError):
    """The codec changed a message: a bug of ours in wire/."""


def request_bytes(action: ClientRequest, correlation: int) -> bytes:
    parts = encode_request(action.api_key, action.api_version, correlation, action.client_id, action.body)
    return b"".join(bytes(part) for part in parts)


def reply_bytes(reply: Reply) -> bytes:
    parts = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
    return b"".join(bytes(part) for part in parts)


def same_after_codec_request(action: ClientRequest, correlation: int) -> object:
    """The decoded body, which the node shall see. Raises CodecMismatchError if coding it again gives other bytes."""
    frame = _frame(request_bytes(action, correlation))
    header, offset = read_request_header(frame)
    if (header.correlation_id, header.client_id) != (correlation, action.client_id):
        raise CodecMismatchError(f"request header of API {action.api_key} v{action.api_version}: {header}")
    body = decode_request(action.api_key, action.api_version, frame, offset)
    again = ClientRequest(action.api_key, action.api_version, action.client_id, body, action.timeout_us)
    if request_bytes(again, correlation)[4:] != bytes(frame):
        raise CodecMismatchError(f"request of API {action.api_key} v{action.api_version}: {action.body} became {body}")
    return body


def same_after_codec_reply(reply: Reply) -> object:
    """The decoded body, which the client shall see. Raises CodecMismatchError as above."""
    frame = _frame(reply_bytes(reply))
    correlation, body = decode_response(reply.api_key, reply.api_version, frame)
    again = Reply(reply.connection, correlation, reply.api_key, reply.api_version, body, reply.tag)
    if reply_bytes(again)[4:] != bytes(frame):
        raise CodecMismatchError(f"reply of API {reply.api_key} v{reply.api_version}: {reply.body} became {body}")
    return body


def _frame(data: bytes) -> memoryview:
    reader = FrameReader(MAX_FRAME_BYTES)
    reader.feed(data)
    frame = reader.next_frame()
    assert frame is not None, "an encoded message is one whole frame"
    return frame
