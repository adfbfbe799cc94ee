"""A chat template's syntax, rewritten so that what it does is counted and weighed where the library's code would not.

The compiled program calls back at the head of each body (a loop's, a branch's, a macro's), with the body's own length;
and wherever it makes a list, cuts, joins or compares values. The law (``tests/engine/test_template_bounds.py``): there
is no loop, and no operation whose time depends on its values, that does not call back.
"""

from __future__ import annotations

from typing import cast

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from hybrid.engine.template_meter import TooMuchWork, check_plain

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


class Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; the text is what stands inside."""

    tags = {"generation"}  # noqa: RUF012  (the library's own shape)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rewrite(template: nodes.Template) -> nodes.Template:
    """Return a template that calls back. Raises TooMuchWork for a number that none may hold."""
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
            raise TooMuchWork("it looks for a value in a chain of comparisons")
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
        raise TooMuchWork("it asks for another way of escaping, which no conversation needs")

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
