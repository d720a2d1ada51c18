"""Tokens that count as code: neither prose nor the layout of lines."""

import pytest

from tools.code_tokens import tokens_in


@pytest.mark.parametrize(
    ("code", "tokens"),
    [
        ("x = 1", 3),
        ("x = 1  # one\n\n# more\n", 3),
        ('"""About."""\n\nX = 1\n"""About X."""\n', 3),
        ('def f():\n    """About."""\n    return "é" + f"{1} {2:>{3}}"\n', 9),
        ('class C:\n    """About\n    C."""\n    x: str = """no docstring"""\n', 8),
        ("f(\n    a,\n    b,\n)\n", 6),
        ("f(\n    a,  # first\n    # second\n)\n", 4),
        ("f(a, b)", 6),
        ("[1,], {2: 3,}", 9),
    ],
)
def test_token_counts(code: str, tokens: int) -> None:
    assert tokens_in(code) == tokens
