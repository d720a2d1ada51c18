"""The message of a node that dies of a bug is short, whatever objects the exception has."""

import pytest

from reference_broker.serve.log_lines import MAX_SHOWN_CHARACTERS, describe_bug


class Endless:
    """An object whose repr never ends."""

    def __repr__(self) -> str:
        raise AssertionError("it was spelled out")


def caught(bug: Exception) -> Exception:
    def fails() -> None:
        raise bug

    try:
        fails()
    except type(bug) as found:
        return found
    raise AssertionError("nothing was raised")


def test_message_has_exception_and_location() -> None:
    assert describe_bug(caught(ValueError("no such thing"))).startswith("ValueError: no such thing at caught:")
    assert "fails:" in describe_bug(caught(ValueError("no such thing")))


def test_object_is_named_by_class() -> None:
    with pytest.raises(KeyError) as error:
        dict[object, object]()[Endless()]
    assert describe_bug(error.value).startswith("KeyError: Endless at ")


def test_long_text_is_truncated() -> None:
    assert len(describe_bug(caught(ValueError("x" * 10 * MAX_SHOWN_CHARACTERS)))) < 2 * MAX_SHOWN_CHARACTERS


def test_os_error_keeps_file_name() -> None:
    assert "No space left: 'some/file'" in describe_bug(caught(OSError(28, "No space left", "some/file")))
