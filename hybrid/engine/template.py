"""Chat templates: a Jinja program that a model file carries, run in a sandbox of our own and with bounded work.

The template is somebody else's program (CVE-2024-34359 was code execution through one). The laws
(``tests/engine/test_template.py``): it reaches nothing but the conversation, and changes nothing; it ends, after at
most ``MOST_STEPS`` loop turns and calls and ``MOST_TEXT`` characters; the same conversation gives the same text as long
as the template is loaded, since its clock is read once. It finds the names that Hugging Face's templates are written
for. How a conversation is fitted to it is not known here (``chat.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import UTC, datetime
from functools import cached_property, update_wrapper
from threading import Lock
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from hybrid.errors import UsageError
from hybrid.types import TemplateArg

# Some published templates look back over all turns at each turn: this is enough for 600 of them, in a second or two.
MOST_STEPS = 400_000
# Characters of one text that a template makes, and of what it writes: a context of a million tokens holds as many.
MOST_TEXT = 1 << 22
# Widths and counts that are given to a method or a filter: 'x'.ljust(10 ** 9) is one call.
MOST_NUMBER = 10_000
# Looking at so many characters takes as long as a turn of a loop.
CHARACTERS_A_STEP = 200
# The most characters of one level of JSON's indentation, and of what separates its parts.
_INDENT = 20
_WIDE = re.compile(r"\d{5}|\*")
# Names that a template has from us.
GIVEN = ("messages", "bos_token", "eos_token", "add_generation_prompt", "tools", "documents", "functions")


class TemplateFault(Exception):
    """The template cannot be read, refused the turns in its own words, failed, or worked for too long."""


class ChatTemplate:
    """A template with its model's two marks. Loaded once, and then given any number of conversations."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Take the text of the template, and the names of the tokens that begin and end a text."""
        self.source = source
        self._marks = {"bos_token": bos, "eos_token": eos}
        # Read once: a question must not change its bits at midnight, between two of an answer's requests.
        self.loaded_at = datetime.now(tz=UTC).astimezone()
        self._environment = _Environment(self.loaded_at)
        self._one_at_a_time = Lock()  # the steps are counted

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that the template reads and that a user may give. Raises TemplateFault where it cannot be read."""
        names = meta.find_undeclared_variables(self._parsed())
        return frozenset(names) - {*GIVEN, *self._environment.globals}

    def check_args(self, args: Mapping[str, TemplateArg]) -> None:
        """Raise UsageError for an argument that is not the user's to give, or that the template never reads."""
        for name in args:
            if name in {*GIVEN, *self._environment.globals}:
                msg = f"template argument {name}: a template has it from the conversation and the model"
                raise UsageError(msg)
            if name not in self.reads:
                own = f"it reads {', '.join(sorted(self.reads))}" if self.reads else "it reads none"
                msg = f"template argument {name}: the model's chat template never reads it; {own}"
                raise UsageError(msg)

    def write(self, turns: Sequence[Mapping[str, str]], given: Mapping[str, object], *, prompt: bool) -> str:
        """Return the text of a conversation; with ``prompt`` the assistant is next. Raises TemplateFault."""
        names = {**given, **self._marks, "messages": [dict(turn) for turn in turns], "add_generation_prompt": prompt}
        try:
            with self._one_at_a_time:
                self._environment.begin()
                return "".join(self._environment.bounded_parts(self._template.generate(names)))
        except Exception as error:  # a program may fail in any way, 1/0 and endless recursion included
            raise TemplateFault(_told(error)) from error

    @cached_property
    def _template(self) -> Any:
        return self._environment.from_string(_Counting().visit(self._parsed()))

    def _parsed(self) -> nodes.Template:
        try:
            return self._environment.parse(self.source)
        except Exception as error:
            raise TemplateFault(_told(error)) from error


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without an end"
    return " ".join(str(error).split()) or type(error).__name__


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; the text is what stands inside."""

    tags = {"generation"}  # noqa: RUF012  (the library's own shape)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Has every loop counted, every text measured that is put together or comes out of a filter, every list weighed.

    A list of two lists of two lists is weighed when it is made: whatever hashes or compares it is then bounded, too.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the library's own shape)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _Environment.STEPS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(each, _Environment.WEIGHED) for each in node.nodes]
        return _filtered(node, _Environment.SIZED)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _Environment.WEIGHED) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _Environment.WEIGHED)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _Environment.WEIGHED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _Environment.WEIGHED)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.node is None else _filtered(node, _Environment.SIZED)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox: nothing with an underscore, nothing that changes a value, no random number, bounded work."""

    STEPS, SIZED, WEIGHED = "counted by us", "measured by us", "weighed by us"  # no template can spell these
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    # Left out: random, and what works long on a long text or makes lists of any size from a number.
    WITHOUT = (
        "random",
        "slice",
        "batch",
        "urlize",
        "pprint",
        "wordwrap",
        "wordcount",
        "striptags",
        "xmlattr",
        "center",
    )
    # Filters that look at no more of a value than its first level.
    SHALLOW = ("length", "count", "first", "last", "list", "default", "d", "items", "map", "reverse")

    def __init__(self, now: datetime) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=self._weighed
        )
        own = self.filters | {"tojson": _as_json}
        self.filters = {name: self._few(name, each) for name, each in own.items() if name not in self.WITHOUT}
        self.filters |= {self.STEPS: self._counted, self.SIZED: self._sized, self.WEIGHED: self._weighed}
        self.globals = {name: each for name, each in self.globals.items() if name != "lipsum"}
        self.globals |= {"raise_exception": _refuse, "strftime_now": now.strftime}
        self._steps = 0

    def begin(self) -> None:
        """Count from nothing."""
        self._steps = 0

    def bounded_parts(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield what is written, as long as it is not too much."""
        length = 0
        for part in parts:
            length += len(part)
            _check_length(length)
            yield part

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls. Of macros only the calls are counted: what they do counts by itself."""
        given = (*args, *kwargs.values())
        _check_numbers(given)
        method = getattr(called, "__wrapped__", called)  # the sandbox's own wrapper around str.format
        own = getattr(method, "__self__", None)
        self._step(0 if isinstance(called, Macro) else self._weight((own if isinstance(own, str) else "", given)))
        if isinstance(own, str):
            _check_growth(method.__name__, own, *args, *kwargs.values())
        return self._sized(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute what may become long."""
        if operator == "%" and isinstance(left, str):
            self._step(self._weight((left, right)))
            _check_growth("format", left, right)
        if operator == "**":
            _check_numbers((left, right))
        if operator == "*":
            _check_length(_size(left) * _size(right), MOST_TEXT if isinstance(left, str) else MOST_STEPS)
        if operator == "+" and isinstance(left, Sized):
            _check_length(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def _few(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        """Have a filter refuse numbers that are widths of gigabytes, and values that are large when written out."""

        def bounded(*args: Any, **kwargs: Any) -> Any:
            values = args[1:] if getattr(made, "jinja_pass_arg", None) else args
            given = (*values[1:], *kwargs.values())
            _check_numbers(given)
            self._step(0 if name in self.SHALLOW else self._weight((values, given)))
            _check_growth(name, *values, *kwargs.values())
            return made(*args, **kwargs)

        return update_wrapper(bounded, made)  # the library's marks too: which filter wants the context

    def _step(self, weight: int = 0) -> None:
        """Count a step, and one more for so many characters that it has to look at."""
        self._steps += 1 + weight // CHARACTERS_A_STEP
        if self._steps > MOST_STEPS:
            msg = f"it is not done after {MOST_STEPS:,} steps"
            raise SecurityError(msg)

    def _counted(self, each: Iterable[Any]) -> Iterator[Any]:
        for one in each:
            self._step()
            yield one

    def _sized(self, value: Any) -> Any:
        if isinstance(value, str):
            _check_length(len(value))
        return value

    def _weighed(self, value: Any) -> Any:
        """Refuse a value that holds too much, however deep: a list of two lists of two lists is long to write."""
        self._weight(value)
        return value

    def _weight(self, value: Any) -> int:
        """Return the characters that a value holds, however deep; what it holds besides is counted as steps."""
        if isinstance(value, str):
            return len(value)
        weight = 0
        if isinstance(value, Mapping):
            weight = self._weight(list(value.items()))
        elif isinstance(value, list | tuple | set):
            for each in value:
                self._step()
                weight += self._weight(each)
        _check_length(weight)
        return weight


def _check_length(length: int, most: int = MOST_TEXT) -> None:
    if length > most:
        msg = f"it makes more than {most:,} characters or parts"
        raise SecurityError(msg)


def _check_growth(name: str, *given: Any) -> None:
    """Refuse a method or filter of a text whose result would be too long, before it is made."""
    texts = [each for each in given if isinstance(each, str)]
    match name:
        case "translate" | "expandtabs" | "format_map":
            msg = f"it asks for {name}, which no conversation needs"
            raise SecurityError(msg)
        case "replace" if len(texts) > 2:
            _check_length(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        case "join" if texts:  # the separator may be the text's own, or come last
            _check_length(len(texts[0 if isinstance(given[0], str) else -1]) * max(map(_size, given)))
        case "indent" if texts:
            _check_length((texts[0].count("\n") + 1) * max(map(_size, given[1:]), default=0))
        case "tojson" if any(isinstance(each, str | tuple) and _size(each) > _INDENT for each in given[1:]):
            raise SecurityError("it pads JSON without bound")
        case "tojson" if any(isinstance(part, str) and len(part) > _INDENT for part in _parts(given[1:])):
            raise SecurityError("it pads JSON without bound")
        case "format" if texts:
            if _WIDE.search(texts[0]):
                raise SecurityError("it pads a text without bound")
            _check_length(len(texts[0]) * max((_size(each) for each in _parts(given[1:])), default=0))
        case _:
            pass


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """Yield what stands in values, and in the tuples, lists and mappings among them."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _parts(value.values())
        elif isinstance(value, list | tuple):
            yield from _parts(value)
        else:
            yield value


def _size(value: Any) -> int:
    """Return the length of what has one; of a number how often it may repeat a text."""
    return len(value) if isinstance(value, Sized) else min(int(abs(value)), MOST_TEXT + 1) if value == value else 0  # noqa: PLR0124  (NaN)


def _check_numbers(given: Iterable[Any]) -> None:
    if any(isinstance(each, int | float) and abs(each) > MOST_NUMBER for each in given):
        msg = f"it computes with a number above {MOST_NUMBER:,}"
        raise SecurityError(msg)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Hugging Face does: no character is escaped for a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
