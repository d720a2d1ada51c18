"""Expressions of ListTransactions: Python's own judge what they match, and none takes long."""

import re
from itertools import islice
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.apis.sliced import in_one_go
from reference_broker.apis.transactions.id_patterns import MOST_CHARACTERS, IdPattern, InvalidPattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\.", "1", "-", "[-a]", r"[\d-]"])
QUANTIFIERS = st.sampled_from(["", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])
PATTERNS = st.recursive(
    st.builds("{}{}".format, ATOMS, QUANTIFIERS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, QUANTIFIERS),
    ),
    max_leaves=6,
)


def matches(pattern: str, text: str) -> bool:
    return in_one_go(IdPattern(pattern).matches(text))


@given(PATTERNS, st.text("abc1.-", max_size=8))
def test_it_matches_what_pythons_expressions_match(pattern: str, text: str) -> None:
    assert matches(pattern, text) is (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^pay.*$", "payments-1", True),
        ("pay", "payments", False),
        ("", "", True),
        ("pay|ship", "ship", True),
        (r"a\$", "a$", True),
        (r"\D+\s\S", "ab c", True),
        (r"[]a]", "]", True),
        (r"\t", "\t", True),
        (".", "\n", False),
    ],
)
def test_some_expressions(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) is found


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "*",
        "a**",
        "a{2",
        "a{x}",
        "a{3,2}",
        "(?=a)",
        r"(a)\1",
        "[b-a]",
        "\\",
        "a{9999}",
        "(" * 60,
        "((a{100}){100}){100}",
        "a^b",
        "[[a]]",
        r"[\D]",
        "[" + "a" * MOST_CHARACTERS + "]",
    ],
)
def test_what_is_no_expression_or_takes_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        IdPattern(pattern)


def test_an_expression_that_others_need_years_for_takes_slices() -> None:
    slices = sum(1 for _ in islice(IdPattern("(a+)+(a+)+b").matches("a" * 30_000), 1000))
    assert 1 < slices < 100


def test_a_class_of_many_ranges_costs_no_more_than_a_small_one() -> None:
    """Every other character of a long class is a range of its own. A look at all of them would take 100 us."""
    characters = [chr(0x4E00 + 2 * number) for number in range(1900)]
    many, one = IdPattern("[" + "".join(characters) + "]*"), IdPattern("[\u4e00]*")

    def spent(pattern: IdPattern, text: str) -> float:
        before = process_time()
        for _ in pattern.matches(text):
            pass
        return process_time() - before

    text = characters[-1] * 3000
    assert min(spent(many, text) for _ in range(3)) < 5 * min(spent(one, chr(0x4E00) * 3000) for _ in range(3))
    assert all(matches(many.text, each) for each in (characters[0], characters[7], "".join(characters)))
    assert not any(matches(many.text, chr(ord(each) + 1)) for each in (characters[0], characters[7], characters[-1]))
    assert matches("[c-ea-dx]*", "abcdex")
    assert not matches("[c-ea-dx]*", "f")
    assert matches("[^c-ea-dx]*", "fy")


def test_many_ways_that_read_nothing_count_as_work() -> None:
    """One character leads through 960 places here, of which one reads."""
    text = "a" * 3000
    slices = sum(1 for _ in IdPattern("((" + "|" * 480 + ")a)*").matches(text))
    assert slices > 50
    assert matches("((" + "|" * 480 + ")a)*", text)


def test_the_work_for_many_short_texts_takes_slices() -> None:
    pattern = IdPattern("(a?){300}")
    assert sum(1 for _ in range(50) for _ in pattern.matches("a" * 15)) > 10
