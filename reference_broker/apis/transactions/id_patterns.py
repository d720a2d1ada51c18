"""Regular expressions whose match takes time that is linear in the text, as those of RE2 do (KIP-1152).

Known are literals, ``.``, classes, ``\\d \\w \\s`` and their opposites, groups without a reference, ``|`` and the
quantifiers ``* + ? {m,n}``, and anchors around the whole. What RE2 knows beyond that is refused. An expression becomes
a program of steps, and all ways through it are followed at once.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MOST_CHARACTERS = 4000
"""They are parsed in some 15 ms."""
MOST_STEPS = 1000
MOST_DEPTH = 50
"""Of groups inside groups."""
STEPS_PER_SLICE = 20_000
"""They take some 4 ms."""


class InvalidPattern(Exception):  # noqa: N818 - what a client sent, not a failure of this program
    """The text is no expression that is known here. The message says why."""


@dataclass(frozen=True, slots=True)
class _Class:
    """The characters between each pair of numbers, or all others. The ranges are in order and apart from each other, so
    that a look costs little, however many they are."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def has(self, character: int) -> bool:
        at = bisect_right(self.ranges, (character, _BEYOND)) - 1
        return (at >= 0 and character <= self.ranges[at][1]) is not self.negated


def _apart(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


_BEYOND: Final = 0x110000
"""There is no such character."""
_ANY: Final = _Class(((10, 10), (13, 13)), negated=True)
_DIGITS = ((48, 57),)
_WORDS = (*_DIGITS, (65, 90), (95, 95), (97, 122))
_SPACES = ((9, 13), (32, 32))
_NAMED: Final = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS: Final = {"t": 9, "n": 10, "r": 13}


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Choice:
    options: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Repeat:
    what: "_Node"
    least: int
    most: int | None


_Node: TypeAlias = _Class | _Sequence | _Choice | _Repeat
_Step: TypeAlias = _Class | tuple[int, ...]
"""A character to read, or where to go on."""


@dataclass(slots=True)
class _Parser:
    text: str
    at: int = 0
    depth: int = 0

    def parsed(self) -> _Node:
        if self.text.startswith("^"):
            self.at = 1
        if self.text.endswith("$") and not self.text.endswith("\\$"):
            self.text = self.text[:-1]
        found = self._choice()
        if self.at < len(self.text):
            raise InvalidPattern(f"an unmatched {self.text[self.at]!r}")
        return found

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise InvalidPattern("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _takes(self, wanted: str) -> bool:
        found = self.text.startswith(wanted, self.at)
        self.at += len(wanted) if found else 0
        return found

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _atom(self) -> _Node:
        found = self._next()
        if found == "(":
            return self._group()
        if found == "[":
            return self._class()
        if found == "\\":
            return _Class(*self._escaped())
        if found in "*+?{^$":
            raise InvalidPattern(f"{found!r} in this place")
        return _ANY if found == "." else _only(found)

    def _group(self) -> _Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise InvalidPattern("groups are too deep")
        if self._takes("?") and not self._takes(":"):
            raise InvalidPattern("a group of this kind is not known")
        found = self._choice()
        if not self._takes(")"):
            raise InvalidPattern("an unmatched '('")
        self.depth -= 1
        return found

    def _escaped(self) -> tuple[tuple[tuple[int, int], ...], bool]:
        """The ranges, and whether all others are meant."""
        found = self._next()
        if found.lower() in _NAMED:
            return _NAMED[found.lower()], found.isupper()
        if found in _CONTROLS:
            return ((_CONTROLS[found], _CONTROLS[found]),), False
        if found.isalnum():
            raise InvalidPattern(f"\\{found} is not known")
        return ((ord(found), ord(found)),), False

    def _class(self) -> _Class:
        negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self._takes("]"):
            is_first = False
            low = self._class_part(ranges)
            if low is None or not self.text.startswith("-", self.at) or self.text.startswith("-]", self.at):
                ranges += [] if low is None else [(low, low)]
                continue
            self.at += 1
            high = self._class_part(ranges)
            if high is None or high < low:
                raise InvalidPattern("a range that is empty")
            ranges.append((low, high))
        return _Class(_apart(ranges), negated)

    def _class_part(self, ranges: list[tuple[int, int]]) -> int | None:
        """One character, or None if it stands for several, which are added."""
        found = self._next()
        if found == "[" or (found == "&" and self.text.startswith("&", self.at)):
            raise InvalidPattern("classes inside classes are not known")
        if found != "\\":
            return ord(found)
        escaped, negated = self._escaped()
        if negated:
            raise InvalidPattern("an opposite inside a class is not known")
        if len(escaped) == 1 and escaped[0][0] == escaped[0][1]:
            return escaped[0][0]
        ranges.extend(escaped)
        return None

    def _repeated(self, what: _Node) -> _Node:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = self.text[self.at : self.at + 1]
        if found in bounds and found:
            self.at += 1
            least, most = bounds[found]
        elif found == "{":
            self.at += 1
            least, most = self._bounds()
        else:
            return what
        if self.text[self.at : self.at + 1] in ("+", "{", "*"):
            raise InvalidPattern("a quantifier of a quantifier")
        self._takes("?")  # Whether it is greedy changes nothing: only whole texts match.
        return _Repeat(what, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        inside, closed, _ = self.text[self.at :].partition("}")
        low, comma, high = inside.partition(",")
        numbers = [each for each in (low, high) if each or each is low]
        if not closed or not all(each.isascii() and each.isdigit() and len(each) < 5 for each in numbers):
            raise InvalidPattern("bounds of a quantifier are numbers")
        self.at += len(inside) + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            raise InvalidPattern("bounds of a quantifier are in the wrong order")
        return least, most


def _only(character: str) -> _Class:
    return _Class(((ord(character), ord(character)),))


@dataclass(slots=True)
class IdPattern:
    """Raises InvalidPattern, also for what takes too many steps."""

    text: str
    _program: list[_Step] = field(default_factory=list)
    _steps: int = 0
    """Since the last slice. Short texts take slices together."""

    def __post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise InvalidPattern("it is too long")
        self._add(_Parser(self.text).parsed())

    def _put(self, step: _Step) -> int:
        if len(self._program) >= MOST_STEPS:
            raise InvalidPattern("it is too long")
        self._program.append(step)
        return len(self._program) - 1

    def _add(self, node: _Node) -> None:
        match node:
            case _Class():
                self._put(node)
            case _Sequence(parts):
                for part in parts:
                    self._add(part)
            case _Choice(options):
                self._add_choice(options)
            case _Repeat(what, least, most):
                self._add_repeat(what, least, most)

    def _add_choice(self, options: tuple[_Node, ...]) -> None:
        fork = self._put(())
        begins, ends = [], []
        for option in options:
            begins.append(len(self._program))
            self._add(option)
            ends.append(self._put(()))
        self._program[fork] = tuple(begins)
        for end in ends:
            self._program[end] = (len(self._program),)

    def _add_repeat(self, what: _Node, least: int, most: int | None) -> None:
        for _ in range(least):
            self._put(())
            self._program[-1] = (len(self._program),)
            self._add(what)
        if most is None:
            fork = self._put(())
            self._add(what)
            self._put((fork,))
            self._program[fork] = (fork + 1, len(self._program))
            return
        forks = []
        for _ in range(most - least):
            forks.append(self._put(()))
            self._add(what)
        for fork in forks:
            self._program[fork] = (fork + 1, len(self._program))

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Whether the whole text matches. It yields after each slice of the work, to which all texts count."""
        end = len(self._program)
        places, _ = self._reached([0])
        for character in map(ord, text):
            if not places:
                return False
            found = []
            for place in places:
                step = self._program[place] if place < end else ()
                if isinstance(step, _Class) and step.has(character):
                    found.append(place + 1)
            places, count = self._reached(found)
            self._steps += count + 1
            if self._steps >= STEPS_PER_SLICE:
                self._steps = 0
                yield
        return end in places

    def _reached(self, begins: list[int]) -> tuple[list[int], int]:
        """The places from which something is read, or the end, and how many places were passed on the way there."""
        seen, found, waiting = bytearray(len(self._program) + 1), [], begins[::-1]
        while waiting:
            place = waiting.pop()
            if seen[place]:
                continue
            seen[place] = 1
            step = self._program[place] if place < len(self._program) else None
            if isinstance(step, tuple):
                waiting.extend(step)
            else:
                found.append(place)
        return found, seen.count(1)
