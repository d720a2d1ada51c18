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


@pytest.mark.thorough
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


def test_frame_stays_valid_while_more_arrives() -> None:
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
def test_length_beyond_the_limit_is_refused_at_once(length: str) -> None:
    reader = FrameReader(100)
    reader.feed(bytes.fromhex(length)[:3])
    assert reader.next_frame() is None
    reader.feed(bytes.fromhex(length)[3:])
    with pytest.raises(ProtocolError, match="the limit is 100"):
        reader.next_frame()


def test_limit_itself_is_allowed() -> None:
    reader = FrameReader(100)
    reader.feed(framed(bytes(100)))
    assert taken(reader) == [bytes(100)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0, 5, 65_535, 65_536, 100_000, 200_000]), min_size=1, max_size=5), st.data())
def test_large_frames_come_out_however_the_bytes_are_cut(lengths: list[int], data: st.DataObject) -> None:
    bodies = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader(200_000)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        if data.draw(st.booleans()):
            frames += taken(reader)
        taken_bytes = sum(len(frame) + 4 for frame in frames)
        assert 0 <= end - taken_bytes - reader.buffered_bytes <= 4, "but for a length that was read already"
    assert frames + taken(reader) == bodies
    assert reader.buffered_bytes == 0


def test_large_frame_stays_valid_and_read_only_while_more_arrives() -> None:
    reader = FrameReader(1 << 20)
    body = bytes(range(256)) * 1000
    stream = framed(body, b"second")
    reader.feed(stream[:100_000])
    assert reader.next_frame() is None
    reader.feed(stream[100_000:])
    frame = reader.next_frame()
    reader.feed(framed(b"third"))
    assert taken(reader) == [b"second", b"third"]
    assert frame is not None
    assert bytes(frame) == body
    assert frame.readonly


def test_drop_releases_buffered_bytes() -> None:
    reader = FrameReader(1 << 20)
    reader.feed(framed(bytes(1 << 19))[:-1])
    assert reader.next_frame() is None
    assert reader.buffered_bytes == (1 << 19) - 1
    reader.drop()
    assert reader.buffered_bytes == 0
