"""The filters, tests and methods that a chat template finds, and what each costs before it works.

What is not named here is refused. The law (``tests/engine/test_template_bounds.py``): whatever a template calls, its
work and its result are paid for (``template_meter.py``), those that may be long before they are made.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from types import GeneratorType
from typing import Any

from jinja2.filters import FILTERS, make_attrgetter
from jinja2.tests import TESTS
from jinja2.utils import pass_context, pass_environment

from hybrid.engine.template_meter import UNITS, VISIT, Meter, WorkExceeded, check_length, check_plain

# Widths and precisions that are given to a method or a filter: 'x'.ljust(10 ** 9) is one call.
MOST_NUMBER = 10_000
# The most characters of one level of JSON's indentation, of what separates its parts, and of an attribute's name.
_INDENT, _NAME = 20, 100
# Texts are compared at every place in the worst case, so many characters for the price of one.
_COMPARED = 50
_PLACES = 20
_SPEC = re.compile(r"%[-+ #0]*([0-9]*)(?:\.([0-9]*))?")
_DIGITS = re.compile(r"[0-9]+")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Left out: random, what works long on a long text, and what makes lists of any size from a number.
_WITHOUT = _names(
    "random slice batch urlize urlencode pprint wordwrap wordcount striptags xmlattr center filesizeformat"
)
# They look at no more than a value's first level, or take what is no value.
_LIGHT = frozenset(("default", "d", "attr", "first", "length", "count"))
_SORTS = frozenset(("sort", "dictsort", "groupby", "unique", "min", "max"))
_ITERATES = _names("list sort groupby unique min max sum join map select reject selectattr rejectattr reverse last")
_OF_NUMBERS = frozenset(("abs", "round", "odd", "even", "divisibleby"))
_ANY_KIND = _names(
    "defined undefined none boolean false true integer float string mapping number sequence iterable "
    "callable sameas escaped"
)

TEXT_METHODS = _names(
    "capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition "
    "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper zfill"
)
METHODS: Mapping[type, frozenset[str]] = {
    str: TEXT_METHODS,
    dict: frozenset(("get", "items", "keys", "values", "copy")),
    list: frozenset(("count", "index", "copy")),
    tuple: frozenset(("count", "index")),
}


def metered_filters(meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return the filters that a template finds."""
    own = FILTERS | {"tojson": _as_json, "sum": _sum}
    return {name: _metered_filter(meter, name, each) for name, each in own.items() if name not in _WITHOUT}


def metered_tests(meter: Meter) -> dict[str, Callable[..., Any]]:
    """Return the tests that a template finds."""
    return {name: _metered_test(meter, name, each) for name, each in TESTS.items()}


def _metered_filter(meter: Meter, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    passed = _passed(made)

    @pass_context  # no filter is computed while the template is compiled, where nothing is counted
    def metered(context: Any, *args: Any, **kwargs: Any) -> Any:
        meter.spend(VISIT)
        values, options = list(args), list(args[1:]) + list(kwargs.values())
        if isinstance(values[0], GeneratorType) and name != "first":
            values[0] = list(values[0])
        if name not in _LIGHT:
            _check_attribute(name, args[1:], kwargs)
            _charge_filter(meter, name, values[0], options)
        result = made(*passed(context), *values, **kwargs)
        return result if name in _LIGHT else meter.admit(result)

    return metered


def _metered_test(meter: Meter, name: str, made: Any) -> Callable[..., Any]:
    passed = _passed(made)

    @pass_context
    def metered(context: Any, *args: Any, **kwargs: Any) -> Any:
        meter.spend(VISIT)
        if name in _OF_NUMBERS:
            _check_numbers(name, args)
        elif name == "in":
            return is_held(meter, *args, **kwargs)
        elif name not in _ANY_KIND:
            charge_compared(meter, *args)
        return made(*passed(context), *args, **kwargs)

    return metered


def _passed(made: Callable[..., Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives a function the first argument that it is marked to want."""
    wanted = getattr(getattr(made, "jinja_pass_arg", None), "name", "")
    if wanted == "context":
        return lambda context: (context,)
    if wanted == "eval_context":
        return lambda context: (context.eval_ctx,)
    if wanted == "environment":
        return lambda context: (context.environment,)
    return lambda _: ()


def _check_numbers(name: str, values: Iterable[Any]) -> None:
    if not all(isinstance(each, int | float) for each in values):
        msg = f"it asks for {name} of what is no number"
        raise WorkExceeded(msg)


def _check_attribute(name: str, options: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise WorkExceeded for a long way into each value: 'a.b.c' is looked up part by part."""
    texts = [each for each in options[name == "join" :] if isinstance(each, str)]
    names = [*(texts[:1] if name in _ITERATES else ()), named.get("attribute")]
    if any(isinstance(each, str) and len(each) > _NAME for each in names):
        raise WorkExceeded("it asks for an attribute with a long name")


def _charge_filter(meter: Meter, name: str, value: Any, options: Sequence[Any]) -> None:
    """Pay for a filter before it works. Raises WorkExceeded, also where its result would be too long."""
    size = meter.written_size(value)
    sizes = [meter.written_size(each) for each in options]
    if name in _ITERATES:
        meter.spend(VISIT * (len(value) if hasattr(value, "__len__") else 1))
    if name not in {"list", "reverse", "last", "items", "map", "select", "reject", "selectattr", "rejectattr"}:
        meter.spend(size + sum(sizes))
    if name in _SORTS:
        meter.spend(size * _PLACES)
    _check_growth(meter, name, value, size, options, sum(sizes))


def _check_growth(meter: Meter, name: str, value: Any, size: int, options: Sequence[Any], given_size: int) -> None:
    match name:
        case "abs" | "round":
            _check_numbers(name, [value])
            check_widths(options, _INDENT)
        case "indent" | "truncate":
            check_widths(options)
            if name == "indent" and isinstance(value, str):
                lines = value.count("\n") + 1
                meter.spend(VISIT * lines)
                check_length(len(value) + lines * max([*map(_width, options), _SHORTEST]))
        case "replace" if len(options) > 1:
            charge_replaced(meter, str(value), str(options[0]), str(options[1]))
        case "join":
            check_length(size + given_size * (len(value) if hasattr(value, "__len__") else 1))
        case "trim":
            charge_search(meter, str(value), options)
        case "title":
            meter.spend(size * _PLACES)
        case "format":
            charge_percent(meter, str(value), options)
        case "tojson":
            _check_json(meter, value, size, options)
        case _:
            pass


_SHORTEST = 4  # indent's own width


def _width(value: Any) -> int:
    return len(value) if isinstance(value, str) else int(value) if isinstance(value, int) else 0


def check_widths(given: Iterable[Any], most: int = MOST_NUMBER) -> None:
    """Raise WorkExceeded for a width or a precision that makes long texts or numbers."""
    if any(isinstance(each, int | float) and abs(each) > most for each in given):
        msg = f"it computes with a number above {most:,}"
        raise WorkExceeded(msg)


def charge_search(meter: Meter, text: str, given: Iterable[Any]) -> None:
    """Pay for looking for texts in a text: at each place it may take the whole of what is looked for."""
    longest = max((len(each) for each in given if isinstance(each, str)), default=0)
    meter.spend(len(text) + longest + len(text) * longest // _COMPARED)


def charge_replaced(meter: Meter, text: str, old: str, new: str) -> None:
    """Pay for a replacement; raise WorkExceeded where its result would be too long."""
    charge_search(meter, text, [old])
    num = text.count(old)
    check_length(len(text) + num * len(new))


def charge_compared(meter: Meter, *values: Any) -> None:
    """Pay for comparing values with each other."""
    meter.spend(sum(meter.written_size(value) for value in values))


def is_held(meter: Meter, item: Any, held_by: Any) -> bool:
    """Return whether a text stands in a text, or a value in a list; and pay for it."""
    if isinstance(held_by, GeneratorType):
        return any(_is_equal(meter, item, each) for each in held_by)
    if isinstance(item, str) and isinstance(held_by, str):
        charge_search(meter, held_by, [item])
    else:
        charge_compared(meter, item, held_by)
    return bool(item in held_by)


def _is_equal(meter: Meter, first: Any, second: Any) -> bool:
    charge_compared(meter, first, second)
    return bool(first == second)


def charge_percent(meter: Meter, text: str, given: Sequence[Any]) -> None:
    """Pay for ``text % given``; raise WorkExceeded where it would be too long, or its widths are not in the text."""
    if "*" in text or "%(" in text:
        raise WorkExceeded("it pads a text without bound")
    meter.spend(UNITS * text.count("%"))
    widths = [int(each) for pair in _SPEC.findall(text) for each in pair if each]
    _check_format(meter, text, text.count("%"), widths, given)


def charge_format(meter: Meter, text: str, given: Sequence[Any]) -> None:
    """Pay for ``text.format(...)``; raise WorkExceeded where it would be too long, or looks into what it is given."""
    meter.spend(UNITS * (1 + text.count("{")))
    widths = []
    for _, name, spec, _ in Formatter().parse(text):
        if name is not None and ("." in name or "[" in name or "{" in (spec or "")):
            raise WorkExceeded("it formats what it is not given itself")
        widths += [int(digits) for digits in _DIGITS.findall(spec or "")]
    _check_format(meter, text, text.count("{"), widths, given)


def _check_format(meter: Meter, text: str, num: int, widths: Sequence[int], given: Sequence[Any]) -> None:
    check_widths(widths)
    longest = max((meter.written_size(each) for each in given), default=0)
    meter.spend(UNITS * num + len(text) + longest)
    check_length(len(text) + sum(widths) + num * longest)


def _check_json(meter: Meter, value: Any, size: int, options: Sequence[Any]) -> None:
    flat = [part for each in options for part in (each if isinstance(each, list | tuple) else (each,))]
    if any(isinstance(each, int | str) and _width(each) > _INDENT for each in flat):
        raise WorkExceeded("it pads JSON without bound")
    if any(not isinstance(each, bool) and isinstance(each, int | str) for each in options):
        check_length(size + size // 4 * _INDENT * meter.depth(value))


def charge_method(meter: Meter, name: str, own: Any, given: Sequence[Any]) -> None:
    """Pay for a value's method before it works. Raises WorkExceeded for one that no template needs."""
    kind = next((each for each in METHODS if isinstance(own, each)), None)
    if kind is None or name not in METHODS[kind]:
        msg = f"it asks for {name}, which no conversation needs"
        raise WorkExceeded(msg)
    sizes = sum(meter.written_size(each) for each in given)
    if not isinstance(own, str):
        meter.spend(sizes + (0 if name == "get" else meter.written_size(own)))
        return
    meter.spend(len(own) + sizes)
    match name:
        case (
            "find" | "index" | "rfind" | "rindex" | "count" | "partition" | "rpartition" | "strip" | "lstrip" | "rstrip"
        ):
            charge_search(meter, own, given)
        case "split" | "rsplit":
            charge_search(meter, own, given)
            by = [each for each in given if isinstance(each, str) and each]
            meter.spend(VISIT * own.count(by[0]) if by else len(own) * VISIT // 4)
        case "splitlines" | "title":
            meter.spend(len(own) * VISIT // 4)
        case "replace" if len(given) > 1:
            charge_replaced(meter, own, *map(str, given[:2]))
        case "join":
            num = max((len(each) for each in given if hasattr(each, "__len__")), default=0)
            meter.spend(VISIT * num)
            check_length(sizes + num * len(own))
        case "format":
            charge_format(meter, own, given)
        case "center" | "ljust" | "rjust" | "zfill":
            check_widths(given)
        case _:
            pass


def charge_number(operator: str, left: float, right: float) -> None:
    """Raise WorkExceeded for a power that is a number of any length."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int) and right * left.bit_length() > _POWER:
        raise WorkExceeded("it computes with a number of any length")


_POWER = 128


def charge_repeated(meter: Meter, left: Any, right: Any) -> None:
    """Pay for ``text * number`` and for ``list * number``; raise WorkExceeded where it would be too long."""
    values, number = (left, right) if isinstance(right, int | float) else (right, left)
    check_plain(number)
    times = max(0, int(number)) if isinstance(number, int | float) else 0
    check_length(meter.written_size(values) * times)
    check_length((len(values) if hasattr(values, "__len__") else 0) * times)


def joined(meter: Meter, parts: Sequence[Any]) -> str:
    """Return the parts as one text; and pay for it."""
    check_length(sum(meter.written_size(part) for part in parts))
    text = "".join(map(str, parts))
    check_length(len(text))
    meter.spend(sys.getsizeof(text))
    return text


@pass_environment
def _sum(environment: Any, value: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Add numbers. Adding lists would copy the first of them at each one."""
    numbers = list(value if attribute is None else map(make_attrgetter(environment, attribute), value))
    _check_numbers("sum", [*numbers, start])
    return sum(numbers, start)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Hugging Face does: no character is escaped for a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
