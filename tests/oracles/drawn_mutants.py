"""Mutants drawn by chance: one node of a file's syntax tree takes the place of its neighbour.

What changes: a comparison, an operator, a number, a truth value, a call that has a neighbour (``min`` and ``max``), a
value that is returned. What does not: texts, annotations, decorators, and what is inside of an f-string, which has no
places in Python 3.11. The laws are in ``tests/test_drawn_mutants.py``; ``tests/mutants.py --draw`` is who uses it.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

OPERATORS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PAIRS = [("min", "max"), ("any", "all"), ("mean", "sum"), ("find", "rfind"), ("floor", "ceil"), ("argmin", "argmax")]
CALLS = dict(PAIRS) | {other: name for name, other in PAIRS}
UNSEEN_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}


class Change(NamedTuple):
    """The bytes of a file from ``start`` to ``end``, and what takes their place."""

    line: int
    start: int
    end: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Return the file with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()


def changes(source: str) -> list[Change]:
    """Return every change that can be made in a file."""
    raw, begins = source.encode(), [0]
    for line in raw.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = []
    for node in _nodes(ast.parse(source)):
        start, end = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
        for other in _neighbours(node):
            new = ast.unparse(other)
            new = f"({new})" if isinstance(node, ast.expr) else new
            found.append(Change(node.lineno, start, end, raw[start:end].decode(), new))
    return found


def draw(folders: Sequence[Path], num: int, seed: int) -> Iterator[tuple[Path, Change]]:
    """Yield ``num`` different changes, of each folder as many as of the others: a file by its number of changes.

    A folder that holds rooms has the files of its own alone.
    """
    rng, decks = random.Random(seed), []
    for folder in folders:
        paths = folder.glob("*.py") if folder in {other.parent for other in folders} else folder.rglob("*.py")
        decks.append([(path, each) for path in sorted(paths) for each in changes(path.read_text(encoding="utf-8"))])
        rng.shuffle(decks[-1])
    rng.shuffle(decks)
    while num and (decks := [deck for deck in decks if deck]):
        for deck in decks[:num]:
            yield deck.pop()
        num -= len(decks[:num])


def _nodes(node: ast.AST) -> Iterator:
    """Yield the nodes that have a place, but for texts and what only a type checker reads."""
    is_alias = isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)
    if isinstance(node, ast.JoinedStr) or is_alias:
        return
    if hasattr(node, "lineno"):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in UNSEEN_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def _neighbours(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may take a node's place."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[i] = OPERATORS[type(op)]()
            yield other
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        other = copy.deepcopy(node)
        other.op = OPERATORS[type(node.op)]()
        yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        yield ast.Constant(
            not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
        )
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in CALLS:
            other = copy.deepcopy(node)
            setattr(other.func, "id" if isinstance(other.func, ast.Name) else "attr", CALLS[name])
            yield other
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
