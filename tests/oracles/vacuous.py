"""Asserts that may say nothing, found in the text of a test. ``tests/test_house.py`` holds that there are none.

One stands in a loop over what may be empty. A loop is guarded where its items are there for certain by what is written
(a literal, a range of numbers, a name that is only given such, and what ``zip``, ``sorted`` and the like make of them),
or where ``cases.each_of`` raises if none comes; with ``least=0`` it does not, and the test asserts something elsewhere.
A ``while`` and an ``async for`` are not looked at.

The other compares with the very number of the product that it bounds: whoever changes the number changes both.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import ismodule
from typing import TypeAlias

# Calls whose result is as long as their first argument, and those that are empty where any argument is.
KEEPS = {"enumerate", "sorted", "list", "tuple", "set", "frozenset", "reversed", "iter", "dict", "Counter", "deepcopy"}
KEEPS_ALL = {"zip", "product"}
VIEWS = {"items", "values", "keys", "encode", "copy"}
Given: TypeAlias = dict[str, list[ast.expr | None]]


def bare_loops(tree: ast.Module) -> Iterator[tuple[str, ast.For]]:
    """Yield the loops of tests that hold an assert and may not run, with the name of the test."""
    module = _given(tree)
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            given = module | {arg.arg: [None] for arg in ast.walk(test.args) if isinstance(arg, ast.arg)} | _given(test)
            chains = list(_asserts(test, ()))
            loops = {id(loop): loop for chain in chains for loop in chain}
            bare = [loop for loop in loops.values() if not _is_sure(loop.iter, given)]
            if not any(all(not _may_be_none(loop) for loop in chain) for chain in chains):
                bare += [loop for loop in loops.values() if _may_be_none(loop)]
            yield from ((test.name, loop) for loop in bare)


def _may_be_none(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and any(
        word.arg == "least" and ast.unparse(word.value) == "0" for word in loop.iter.keywords
    )


def _asserts(node: ast.AST, loops: tuple[ast.For, ...]) -> Iterator[tuple[ast.For, ...]]:
    """Yield for each assert the loops that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert) or _is_assertion(child):
            yield loops
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _asserts(child, (*loops, child) if isinstance(child, ast.For) else loops)


def _is_assertion(node: ast.AST) -> bool:
    """Whether it calls what asserts, by its name."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("pytest"), "raises")):
            return True
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name.startswith("assert_")
    return False


def _given(scope: ast.AST) -> Given:
    """Return what each name of a scope is given; None for what is not known to be anything."""
    given: Given = {}
    for node in ast.walk(scope) if not isinstance(scope, ast.Module) else scope.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for name in ast.walk(target) if target is not None else ():
                if isinstance(name, ast.Name):
                    known = isinstance(node, ast.Assign | ast.AnnAssign) and target is name
                    given.setdefault(name.id, []).append(node.value if known else None)
    return given


def _is_sure(node: ast.expr | None, given: Given) -> bool:
    """Whether something comes of an expression, by what is written."""
    sure = False
    match node:
        case ast.Name(id):
            values = given.get(id, [])
            sure = bool(values) and all(_is_sure(value, {**given, id: []}) for value in values)
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            sure = any(not isinstance(each, ast.Starred) or _is_sure(each.value, given) for each in elts)
        case ast.Dict(keys, values):
            sure = any(key is not None or _is_sure(value, given) for key, value in zip(keys, values, strict=True))
        case ast.Constant(str() | bytes() as text):
            sure = bool(text)
        case ast.BinOp(left, ast.Add() | ast.BitOr(), right):
            sure = _is_sure(left, given) or _is_sure(right, given)
        case ast.BinOp(left, ast.Mult(), ast.Constant(int(number))):
            sure = number > 0 and _is_sure(left, given)
        case ast.IfExp(_, body, orelse):
            sure = _is_sure(body, given) and _is_sure(orelse, given)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            sure = all(not part.ifs and _is_sure(part.iter, given) for part in node.generators)
        case ast.Call(ast.Attribute(value, name), []) if name in VIEWS:
            sure = _is_sure(value, given)
        case ast.Call(ast.Name(name) | ast.Attribute(_, name), [*values]):
            sure = _is_sure_call(name, values, given)
    return sure


def _is_sure_call(name: str, values: list[ast.expr], given: Given) -> bool:
    if name == "range":
        return _is_sure_range(values)
    if name in KEEPS_ALL:
        return bool(values) and all(_is_sure(value, given) for value in values)
    if name == "map":
        return all(_is_sure(value, given) for value in values[1:])
    return name == "each_of" or (name in KEEPS and bool(values) and _is_sure(values[0], given))


def _is_sure_range(values: list[ast.expr]) -> bool:
    """Whether the ends are numbers, and far enough apart; or the end is one more than a length."""
    match values:
        case [ast.BinOp(ast.Call(ast.Name("len")), ast.Add(), ast.Constant(int(more)))]:
            return more > 0
    known = {ast.Constant, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Pow, ast.USub}
    if any(type(node) not in known for value in values for node in ast.walk(value)):
        return False
    return len(range(*(eval(ast.unparse(value)) for value in values))) > 0


def shared_bounds(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line of each assert that bounds something by a number of the product, and the number's name.

    Only what the product gives one name in capitals and a test imports, or reads from a module that it imports.
    """
    numbers = dict(_product_numbers(tree))
    for node in (node for test in ast.walk(tree) if isinstance(test, ast.Assert) for node in ast.walk(test.test)):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops
        ):
            names = {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}
            yield from ((node.lineno, name) for name in sorted(names & numbers.keys()))


def _product_numbers(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Yield the constants of the product that are numbers, as the test names them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"hybrid", "server_stub"}:
            home = importlib.import_module(node.module or "")
            for alias in node.names:
                name, found = alias.asname or alias.name, getattr(home, alias.name, None)
                if (
                    found is None and hasattr(home, "__path__") and find_spec(f"{node.module}.{alias.name}")
                ):  # a module that nobody has loaded yet
                    found = importlib.import_module(f"{node.module}.{alias.name}")
                inner = {f"{name}.{each}": value for each, value in vars(found).items()} if ismodule(found) else {}
                for written, value in {name: found, **inner}.items():
                    if written.rpartition(".")[2].isupper() and isinstance(value, int | float):
                        yield written, value
