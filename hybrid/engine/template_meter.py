"""What a chat template may hold and how much it may do: the values it knows, their sizes, and a bound on its work.

A unit of work is what looking at one character costs, and ``UNITS`` of them are a step. The laws
(``tests/engine/test_template_bounds.py``): every value is text, a finite number of 64 bits, None, or a list, tuple, set
or mapping of such; none is longer than ``MOST_TEXT`` when it is written out; all that a rendering makes and looks at is
paid for, so that its time and its memory are bounded by ``MOST_STEPS`` and by a multiple of what it was given.
What each operation costs is not known here (``template_functions.py``).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.visitor import NodeTransformer

# Some published templates look back over all turns at each turn: this is enough for 600 of them, in a second or two.
MOST_STEPS = 400_000
UNITS = 200
# Units for each value and each byte that is given: a choice, and not measured on published templates.
UNITS_A_PART, UNITS_A_BYTE = 60 * UNITS, 24
# Characters of one text that a template makes, and of what it writes: a context of a million tokens holds as many.
MOST_TEXT = 1 << 22
# A list within a list within a list: a schema of a tool has a dozen levels.
MOST_DEPTH = 64
# Of processor time, for the steps that every rendering has. Of 800 hostile programs the slowest took 3.5 s.
DEADLINE_S = 5.0
_LOOK = 2_000_000  # units between two looks at the clock
# Units for a value in a list: it is visited in Python.
VISIT = 80
_BITS = 64
# A number, None or a truth value when it is written, and what stands between two values of a list.
_SHORT, _BETWEEN = 24, 4


class WorkExceeded(Exception):
    """The template works for too long, or makes too much, or what it may not make."""


class Meter:
    """Counts one rendering's work. ``spent``: units; a value that was measured is kept, so that it is measured once."""

    def __init__(self) -> None:
        """Begin with nothing given."""
        self.spent = 0
        self._known: dict[int, tuple[Any, int, int]] = {}
        self.begin(())

    def begin(self, given: Iterable[Any]) -> None:
        """Count from nothing. ``given``: the values that the work may be in proportion to."""
        self._known.clear()
        least = MOST_STEPS * UNITS
        self.spent, self._most = 0, least + sum(map(_units_for, given))
        self._began, self._deadline_s = time.thread_time(), DEADLINE_S * self._most / least
        self._look_at = min(_LOOK, self._most)

    def end(self) -> None:
        """Keep nothing of what was measured."""
        self._known.clear()

    @property
    def share(self) -> float:
        """Which part of the work that is allowed was done."""
        return self.spent / self._most

    def spend(self, units: int) -> None:
        """Count work. Raises WorkExceeded."""
        self.spent += units
        if self.spent > self._look_at:
            self._look()

    def _look(self) -> None:
        if self.spent > self._most:
            msg = f"it is not done after {self._most // UNITS:,} steps"
            raise WorkExceeded(msg)
        if time.thread_time() - self._began > self._deadline_s:
            msg = f"it is not done after {self._deadline_s:.0f} s of processor time"
            raise WorkExceeded(msg)
        self._look_at = min(self.spent + _LOOK, self._most)

    def admit(self, value: Any) -> Any:
        """Pay for a value that an operation has made, and return it. Raises WorkExceeded for one that may not be."""
        if isinstance(value, str):
            check_length(len(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, Iterator):
            return self.drawn(value)
        else:
            self.written_size(value)
        return value

    def drawn(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield values one by one, each paid for."""
        for value in values:
            self.spend(VISIT)
            self.written_size(value)
            yield value

    def written_size(self, value: Any) -> int:
        """Return about how many characters a value has when it is written, however deep. Raises WorkExceeded."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, list | tuple | set | frozenset | Mapping):
            return self._measured(value)[0]
        check_plain(value)
        return _SHORT

    def depth(self, value: Any) -> int:
        """Return how many lists and mappings are around the deepest part of a value."""
        return self._measured(value)[1] if isinstance(value, list | tuple | set | frozenset | Mapping) else 0

    def _measured(self, value: Any, above: int = 0) -> tuple[int, int]:
        if (known := self._known.get(id(value))) is not None:
            return known[1:]
        if above > MOST_DEPTH:
            msg = f"it makes lists of more than {MOST_DEPTH} levels"
            raise WorkExceeded(msg)
        size, deepest = _BETWEEN, 0
        parts = value
        if isinstance(value, Mapping):
            parts = [*value.keys(), *value.values()]
        self.spend(VISIT * (1 + len(parts)))
        for part in parts:
            if isinstance(part, str):
                size += len(part) + _BETWEEN
            elif isinstance(part, list | tuple | set | frozenset | Mapping):
                inner, depth = self._measured(part, above + 1)
                size, deepest = size + inner + _BETWEEN, max(deepest, depth)
            else:
                check_plain(part)
                size += _SHORT
            check_length(size)
        if deepest >= MOST_DEPTH:
            msg = f"it makes lists of more than {MOST_DEPTH} levels"
            raise WorkExceeded(msg)
        self._known[id(value)] = (value, size, deepest + 1)  # it is kept, so its id is not given to another one
        return size, deepest + 1


def check_length(length: int) -> None:
    """Raise WorkExceeded for a text, or a value that is written as one, that is too long."""
    if length > MOST_TEXT:
        msg = f"it makes more than {MOST_TEXT:,} characters or parts"
        raise WorkExceeded(msg)


def check_plain(value: Any) -> None:
    """Raise WorkExceeded for what is no value of a template: a number that is too long, bytes, a function."""
    if value is None or isinstance(value, bool | Undefined):
        return
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            msg = f"it computes with whole numbers of more than {_BITS} bits"
            raise WorkExceeded(msg)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise WorkExceeded("it computes with a number that is not finite")
    elif not isinstance(value, str):
        msg = f"it makes a value that is no text, number or list: {type(value).__name__}"
        raise WorkExceeded(msg)


def _units_for(value: Any) -> int:
    """Return the work that a value which is given allows, however deep."""
    if isinstance(value, str):
        return UNITS_A_PART + UNITS_A_BYTE * sys.getsizeof(value)
    parts: Iterable[Any] = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return UNITS_A_PART + sum(map(_units_for, parts))


# A chat template's syntax, rewritten so that what it does is counted and weighed where the library's code would not.
#
# The compiled program calls back at the head of each body (a loop's, a branch's, a macro's), with the body's own
# length; and wherever it makes a list, cuts, joins or compares values. The law
# (``tests/engine/test_template_bounds.py``): there is no loop, and no operation whose time depends on its values, that
# does not call back.

# The names under which the compiled program calls back: filters that do no harm where a template spells their names.
TICK, MADE, CUT, JOINED, COMPARED = "counted by us", "made by us", "cut by us", "joined by us", "compared by us"
HELD, SPREAD, LOOPED, KEPT = "held by us", "spread by us", "looped by us", "kept by us"
# What has bodies, and their fields. An ``elif``'s test is part of the body around it.
_BODIES: dict[type[nodes.Node], tuple[str, ...]] = {
    nodes.For: ("body", "else_"),
    nodes.If: ("body", "else_"),
    nodes.Macro: ("body",),
    nodes.CallBlock: ("body",),
    nodes.Block: ("body",),
}


class GenerationTag(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; the text is what stands inside."""

    tags = {"generation"}  # noqa: RUF012  (the library's own shape)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rewrite(template: nodes.Template) -> nodes.Template:
    """Return a template that calls back. Raises WorkExceeded for a number that none may hold."""
    rewritten = cast(nodes.Template, _Rewriting().visit(template))
    _count_bodies(rewritten)
    return rewritten


class _Rewriting(NodeTransformer):
    """Has values weighed that are made without a call, and operations that would not be seen."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the library's own shape)
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), LOOPED)
        if node.test is not None:
            node.test = _filtered(cast(nodes.Expr, node.test), TICK, nodes.Const(_length(node.test)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), JOINED)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, MADE)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, CUT) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        kinds = [operand.op for operand in node.ops]
        if kinds in (["in"], ["notin"]):
            held = _filtered(node.expr, HELD, node.ops[0].expr)
            return held if kinds == ["in"] else nodes.Not(held, lineno=node.lineno)
        if {"in", "notin"} & set(kinds):
            raise WorkExceeded("it looks for a value in a chain of comparisons")
        node.expr = _filtered(node.expr, COMPARED)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, COMPARED)
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.target, nodes.NSRef) or node.target.find(nodes.NSRef):
            node.node = _filtered(cast(nodes.Expr, node.node), KEPT)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        return self._spread(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        return self._spread(node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        check_plain(node.value)
        return node

    def visit_ScopedEvalContextModifier(self, _: nodes.ScopedEvalContextModifier) -> nodes.Node:  # noqa: N802
        raise WorkExceeded("it asks for another way of escaping, which no conversation needs")

    def _spread(self, node: nodes.Call | nodes.Filter | nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _filtered(node.dyn_args, SPREAD)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _filtered(node.dyn_kwargs, SPREAD)
        return node


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _length(node: nodes.Node) -> int:
    return 1 + sum(map(_length, node.iter_child_nodes()))


def _count_bodies(node: nodes.Node) -> int:
    """Have every body below call back with its own length, and return the length of what is in no body."""
    length, bodies = 1, _BODIES.get(type(node), ())
    for name, field in node.iter_fields():
        children = field if isinstance(field, list) else [field]
        own = sum(_count_bodies(child) for child in children if isinstance(child, nodes.Node))
        if name in bodies and field:
            field.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None), TICK, nodes.Const(own)), lineno=node.lineno))
        else:
            length += own
    return length
