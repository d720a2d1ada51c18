"""Counts how often a run reached each decision outcome (``scenarios.decision_points``).

``watch`` recompiles the modules that declare points so that each condition is counted, and gives the functions that
exist the new code. From then on every run in this process, and in the processes forked from it, counts.
"""

import ast
import gc
import importlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, TypeVar

from scenarios.decision_points import Point, PointError, declared_points, outcome_names

DECIDES: Final = "__decides__"
"""The name under which a recompiled module finds the function that counts a condition whose value matters."""
REACHES: Final = "__reaches__"
"""The name under which it finds the function that counts an outcome, and returns None."""


Made = TypeVar("Made", bound=ast.AST)


class Reached(NamedTuple):
    """The outcomes that a run reached."""

    counts: tuple[int, ...] = ()
    """how often each outcome was reached: those of point k of ``declared_points`` at 2k and 2k + 1"""
    pairs: frozenset[int] = frozenset()
    """consecutive outcomes on one node: the earlier one's place in ``counts`` times their number, plus the later
    one's"""

    def by_outcome(self) -> dict[str, int]:
        """Return how often each outcome was reached, by ``NAME=OUTCOME``."""
        return dict(zip(outcome_names(), self.counts, strict=True)) if self.counts else {}


NOTHING_COUNTED: Final = Reached()

# Counting


@dataclass(slots=True)
class Recorder:
    """Counts outcomes. Each run takes its own counts with ``begin`` and ``end``.

    A run makes some hundred thousand decisions, but most events make the same ones as an earlier event. So a decision
    only appends to the list of its event, and equal lists are counted as a whole. Recompiled modules call the list's
    own ``append``, unless a fault of the run waits for decisions.
    """

    outcomes: int = 0
    """number of outcomes of all points"""
    _events: dict[tuple[int, ...], int] = field(default_factory=dict)
    """number of events by the outcomes that they reached, in order, after the one that the node had reached before
    (-1 for none)"""
    _reached: list[int] = field(default_factory=list)
    """the outcomes of the current event; between events what the checks reach, which is not counted"""
    _node: int = -1
    _last_of_nodes: dict[int, int] = field(default_factory=dict)
    _decided: Callable[[str], None] | None = None
    _modules: list[Any] = field(default_factory=list)
    """those that are recompiled"""
    _is_waited_for: bool = True
    """whether a fault of the run may wait for a decision; true between two runs"""

    def begin(self, is_waited_for: bool = True) -> None:
        """Forget what an earlier run reached. ``is_waited_for``: a fault of the new run may wait for a decision."""
        self.outcomes = 2 * len(declared_points())
        self._events.clear()
        self._last_of_nodes.clear()
        self._reached.clear()
        self._node = -1
        self._wait(is_waited_for)

    def _wait(self, is_waited_for: bool) -> None:
        if is_waited_for is not self._is_waited_for:
            self._is_waited_for = is_waited_for
            for module in self._modules:
                setattr(module, REACHES, self.reaches)

    def recompiled(self, module: Any) -> None:
        """Let a module that was recompiled find the functions that count."""
        self._modules.append(module)
        setattr(module, DECIDES, self.decides)
        setattr(module, REACHES, self.reaches)

    @property
    def reaches(self) -> Callable[[int], None]:
        """Return the function that counts the outcome at a place."""
        return self._reach if self._is_waited_for else self._reached.append

    def end(self) -> Reached:
        """Return what the run reached. What is decided from now on is kept nowhere."""
        self._wait(is_waited_for=True)
        counts, pairs = [0] * self.outcomes, set[int]()
        for (last, *reached), times in self._events.items():
            for at in reached:
                counts[at] += times
                if last >= 0:
                    pairs.add(last * self.outcomes + at)
                last = at
        return Reached(tuple(counts), frozenset(pairs))

    def enter(self, node_id: int, decided: Callable[[str], None] | None = None) -> None:
        """Note that from now on this node decides. ``decided`` is called with each outcome, ``NAME=OUTCOME``; it may
        raise ProcessKilled."""
        assert decided is None or self._is_waited_for, "a fault waits for decisions that do not call it"
        self._node, self._decided = node_id, decided
        self._reached.clear()

    def leave(self) -> None:
        """Note that no node decides: what the checks call is not counted."""
        if self._reached and self._node >= 0:
            event = (self._last_of_nodes.get(self._node, -1), *self._reached)
            self._events[event] = self._events.get(event, 0) + 1
            self._last_of_nodes[self._node] = event[-1]
        self._node, self._decided = -1, None

    def decides(self, place: int, value: Any) -> Any:
        """Note the outcome at ``place`` (twice the point's number), and return the condition's value as it is."""
        self._reach(place if value else place + 1)
        return value

    def _reach(self, at: int) -> None:
        if self._node >= 0:
            self._reached.append(at)
        if self._decided is not None:
            self._decided(outcome_names()[at])


_recorder: list[Recorder] = []


def recorder() -> Recorder | None:
    """Return what counts in this process, None before ``watch``."""
    return _recorder[0] if _recorder else None


def watch() -> Recorder:
    """Count what the broker decides, from now on and in this process. Raise PointError. Doing it again changes
    nothing."""
    if _recorder:
        return _recorder[0]
    recorder = Recorder()
    recorder.begin()
    by_module: dict[str, list[tuple[int, Point]]] = {}
    for number, point in enumerate(declared_points()):
        by_module.setdefault(point.module, []).append((number, point))
    codes: dict[tuple[str, str, int], CodeType] = {}
    for name, points in by_module.items():
        module = importlib.import_module(name)
        path = str(module.__file__)
        recorder.recompiled(module)
        compiled = compile(counted(Path(path).read_text(), points), path, "exec", dont_inherit=True)
        codes |= {(path, code.co_qualname, code.co_firstlineno): code for code in _codes(compiled)}
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # What is frozen is not listed.
    paths = {path for path, _, _ in codes}
    for function in [item for item in gc.get_objects() if type(item) is FunctionType]:
        code = function.__code__
        if code.co_filename not in paths:
            continue
        new = codes.get((code.co_filename, code.co_qualname, code.co_firstlineno))
        if new is not None and function.__name__ != DECIDES:
            function.__code__ = new
    if was_frozen:
        gc.freeze()
    _recorder.append(recorder)
    return recorder


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def counted(source: str, points: Sequence[tuple[int, Point]]) -> ast.Module:
    """Return the module with a call around the condition of each point. Raise PointError for a comment at a
    statement that decides nothing."""
    lines, tree = source.splitlines(), ast.parse(source)
    targets: dict[int, tuple[int, Point]] = {}
    for number, point in points:
        at = point.line
        while at <= len(lines) and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
            at += 1
        targets[at] = number, point
    for node in _nodes_at(tree, sorted(targets)):
        line = node.ifs[0].lineno if isinstance(node, ast.comprehension) and node.ifs else getattr(node, "lineno", 0)
        if line in targets and (wrap := _decision(node)) is not None:
            number, _ = targets.pop(line)
            wrap(2 * number)
    for _, point in targets.values():
        raise PointError(f"{point.where}: nothing is decided here; move {point.name} to the statement that decides")
    return tree


def _nodes_at(tree: ast.AST, lines: Sequence[int]) -> Iterator[ast.AST]:
    """Yield the nodes that include one of the lines, which are sorted. Outer nodes come first."""
    left = deque([tree])
    while left:
        node = left.popleft()
        if isinstance(node, ast.stmt | ast.expr):
            at = bisect_left(lines, node.lineno)
            if at == len(lines) or lines[at] > (node.end_lineno or node.lineno):
                continue
        left.extend(ast.iter_child_nodes(node))
        yield node


def _decision(node: ast.AST) -> Callable[[int], None] | None:
    """Return a function that counts the condition of the node, None if it has none."""
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return lambda place: setattr(node, "test", _test(place, node.test))
        case ast.Try(handlers=[_, *_]):
            return lambda place: _count_caught(node, place)
        case ast.comprehension(ifs=[first, *_]):
            return lambda place: node.ifs.__setitem__(0, _test(place, first))
        case ast.Return(value=ast.expr() as value) | ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            if _is_condition(value):
                return lambda place: setattr(node, "value", _call(place, value))
            return next((counting for node in ast.walk(value) if (counting := _decision(node)) is not None), None)
        case ast.Expr(value) | ast.AugAssign(value=value):
            return next((counting for node in ast.walk(value) if (counting := _decision(node)) is not None), None)
    return None


def _is_condition(value: ast.expr) -> bool:
    is_not = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return is_not or isinstance(value, ast.Compare | ast.BoolOp)


def _count_caught(node: ast.Try, place: int) -> None:
    for handler in node.handlers:
        handler.body.insert(0, _located(ast.Expr(_reaches(place, handler)), handler))
    node.orelse.insert(0, _located(ast.Expr(_reaches(place + 1, node)), node))


def _call(place: int, value: ast.expr) -> ast.Call:
    """Count a condition, and return its value unchanged."""
    name = ast.Name(DECIDES, ast.Load())
    return _located(ast.Call(name, [ast.Constant(place), value], []), value)


def _test(place: int, value: ast.expr) -> ast.IfExp:
    """Count a condition of which only the truth matters: ``not reaches(place) if value else reaches(place + 1)``."""
    is_true = _located(ast.UnaryOp(ast.Not(), _reaches(place, value)), value)
    return _located(ast.IfExp(value, is_true, _reaches(place + 1, value)), value)


def _reaches(at: int, where: Any) -> ast.Call:
    return _located(ast.Call(ast.Name(REACHES, ast.Load()), [ast.Constant(at)], []), where)


def _located(made: Made, where: ast.AST) -> Made:
    """Set the location of a new node and of the new nodes in it. Walking over the whole module would take longer."""
    ast.copy_location(made, where)
    for child in ast.iter_child_nodes(made):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            ast.copy_location(child, where)
    return made
