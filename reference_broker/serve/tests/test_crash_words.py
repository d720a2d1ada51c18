"""A node that dies of a bug says so shortly, whatever objects the exception holds."""

import pytest

from reference_broker.serve.log_lines import MAX_SHOWN_CHARACTERS, describe_bug


class Endless:
    """Whoever spells it out is never done."""

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


def test_the_exception_and_where_it_came_from() -> None:
    assert describe_bug(caught(ValueError("no such thing"))).startswith("ValueError: no such thing at caught:")
    assert "fails:" in describe_bug(caught(ValueError("no such thing")))


def test_an_object_is_told_by_its_class() -> None:
    with pytest.raises(KeyError) as found:
        dict[object, object]()[Endless()]
    assert describe_bug(found.value).startswith("KeyError: Endless at ")


def test_a_long_text_is_cut() -> None:
    assert len(describe_bug(caught(ValueError("x" * 10 * MAX_SHOWN_CHARACTERS)))) < 2 * MAX_SHOWN_CHARACTERS


def test_a_failure_of_the_system_keeps_its_file() -> None:
    assert "No space left: 'some/file'" in describe_bug(caught(OSError(28, "No space left", "some/file")))
