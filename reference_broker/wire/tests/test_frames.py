"""The frame reader: whole, byte by byte, several at once, and lengths that must not be believed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import FrameReader


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def taken(reader: FrameReader) -> list[bytes]:
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=3000), max_size=6), st.data())
def test_frames_come_out_however_the_bytes_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader(3000)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        if data.draw(st.booleans()):
            frames += taken(reader)
    assert frames + taken(reader) == bodies


def test_byte_by_byte() -> None:
    reader = FrameReader(100)
    frames = []
    for byte in framed(b"first", b"", b"third"):
        reader.feed(bytes((byte,)))
        frames += taken(reader)
    assert frames == [b"first", b"", b"third"]


def test_a_frame_stays_valid_while_more_arrives() -> None:
    reader = FrameReader(100)
    reader.feed(framed(b"first")[:6])
    reader.feed(framed(b"first", b"second")[6:])
    first = reader.next_frame()
    reader.feed(framed(b"third"))
    assert taken(reader) == [b"second", b"third"]
    assert first is not None
    assert bytes(first) == b"first"
    assert first.readonly


@pytest.mark.parametrize("length", ["ffffffff", "80000000", "00000065", "7fffffff"])
def test_a_length_beyond_the_limit_is_refused_at_once(length: str) -> None:
    reader = FrameReader(100)
    reader.feed(bytes.fromhex(length)[:3])
    assert reader.next_frame() is None
    reader.feed(bytes.fromhex(length)[3:])
    with pytest.raises(ProtocolError, match="the limit is 100"):
        reader.next_frame()


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader(100)
    reader.feed(framed(bytes(100)))
    assert taken(reader) == [bytes(100)]
