"""Chat templates: a Jinja program that a model file carries, run in a sandbox of our own and with bounded work.

The template is somebody else's program (CVE-2024-34359 was code execution through one). The laws
(``tests/engine/test_template.py``, ``test_template_bounds.py``): it reaches nothing but the conversation, and changes
nothing; it ends, and its time and memory are bounded by a constant and a multiple of what it is given
(``template_meter.py``); the same conversation gives the same text as long as the template is loaded, since its clock is
read once. It finds the names that Hugging Face's templates are written for. How a conversation is fitted to it is not
known here (``chat.py``), nor that an unknown template first runs in a process of its own (``template_trial.py``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from datetime import UTC, datetime
from functools import cached_property
from threading import Lock
from types import GeneratorType
from typing import Any, NoReturn, TypeVar

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from hybrid.engine import template_functions as functions
from hybrid.engine import template_meter as syntax
from hybrid.engine.template_meter import UNITS, VISIT, Meter, WorkExceeded, check_length, check_plain
from hybrid.errors import UsageError
from hybrid.types import TemplateArg

# The longest of 70 published templates has 17,000 characters. Compiling so many takes half a second.
MOST_SOURCE = 100_000
TOO_LONG = f"it has more than {MOST_SOURCE:,} characters itself"
# Of a fault's own words: a template chooses them.
_MOST_WORDS = 300
# A format of a date. C libraries pad a field as wide as it says.
_MOST_FORMAT = 100
# A node of the syntax is looked at in the time of so many characters.
_NODE = 25
# Names that a template has from us.
GIVEN = ("messages", "bos_token", "eos_token", "add_generation_prompt", "tools", "documents", "functions")

T = TypeVar("T")


class TemplateFault(Exception):
    """The template cannot be read, refused the turns in its own words, or failed."""


class TemplateOverload(TemplateFault):
    """The template worked for too long, or made too much: no other form of the conversation is worth a try."""


class MemoryOverload(TemplateOverload):
    """There was no memory for what the template made."""


class ChatTemplate:
    """A template with its model's two marks. Loaded once, and then given any number of conversations."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Take the text of the template, and the names of the tokens that begin and end a text."""
        self.source = source
        self._marks = {"bos_token": bos, "eos_token": eos}
        # Read once: a question must not change its bits at midnight, between two of an answer's requests.
        self.loaded_at = datetime.now(tz=UTC).astimezone()
        self._environment = _Environment(self.loaded_at)
        self._one_at_a_time = Lock()  # the work is counted

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that the template reads and that a user may give. Raises TemplateFault where it cannot be read."""
        names = _guarded(lambda: meta.find_undeclared_variables(self._parsed()))
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
        with self._one_at_a_time:
            self._environment.meter.begin(names.values())
            try:
                return _guarded(lambda: self._environment.concat(self._template.generate(names)))
            finally:
                self._environment.meter.end()

    @property
    def work_share(self) -> float:
        """Which part of the work that it was allowed the last conversation took."""
        return self._environment.meter.share

    @cached_property
    def _template(self) -> Any:
        return self._environment.from_string(syntax.rewrite(self._parsed()))

    def _parsed(self) -> nodes.Template:
        if len(self.source) > MOST_SOURCE:
            raise WorkExceeded(TOO_LONG)
        return self._environment.parse(self.source)


def _guarded(work: Callable[[], T]) -> T:
    """Do what a program may fail in, in any way: 1/0 and endless recursion included. Raises TemplateFault.

    It is raised without the failure itself, whose frames hold all that the program had made.
    """
    fault: TemplateFault
    try:
        return work()
    except RecursionError:
        fault = TemplateFault("it calls itself without an end")
    except WorkExceeded as error:
        fault = TemplateOverload(_words(error))
    except MemoryError:
        fault = MemoryOverload("there is no memory for what it makes")
    except Exception as error:  # noqa: BLE001  (somebody else's program)
        fault = TemplateFault(_words(error))
    raise fault


def _words(error: Exception) -> str:
    words = " ".join(str(error)[: 4 * _MOST_WORDS].split()) or type(error).__name__
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}..."


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox: nothing with an underscore, nothing that changes a value, no random number, bounded work."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, now: datetime) -> None:
        self.meter = Meter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while it is compiled, where nothing is counted
            extensions=[syntax.GenerationTag, loopcontrols],
            finalize=self._written,
        )
        self.filters.clear()
        self.filters.update(functions.metered_filters(self.meter) | self._own_filters())
        self.tests.clear()
        self.tests.update(functions.metered_tests(self.meter))
        self._makers = (self._range, dict, Namespace, Joiner, Cycler, _refuse, _date_writer(now))
        names = ("range", "dict", "namespace", "joiner", "cycler", "raise_exception", "strftime_now")
        self.globals = dict(zip(names, self._makers, strict=True))

    def concat(self, given: Iterable[str]) -> str:
        """Put together what is written: the whole, or what a block or a macro holds."""
        parts: list[str] = []
        length = 0
        for part in given:
            length += len(part)
            check_length(length)
            parts.append(part)
        text = "".join(parts)
        self.meter.spend(_NODE * len(parts) + sys.getsizeof(text))
        return text

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls: a macro or a block of its own, one of our functions, a value's method."""
        self.meter.spend(UNITS)
        if isinstance(called, Macro | BlockReference | Undefined):  # what they do counts by itself
            self.meter.spend(2 * UNITS)
            return super().call(context, called, *args, **kwargs)
        given = (*args, *(value for name, value in kwargs.items() if name not in _LIBRARY))
        method = getattr(called, "__wrapped__", called)  # the sandbox's own wrapper around str.format
        own = getattr(method, "__self__", None)
        if isinstance(called, LoopContext):
            self._looped(context, *args)
        elif any(called is each for each in self._makers) or isinstance(called, Joiner) or isinstance(own, _LOOPS):
            functions.charge_compared(self.meter, *given)
        else:
            functions.charge_method(self.meter, getattr(method, "__name__", type(called).__name__), own, given)
        made = super().call(context, called, *args, **kwargs)
        return (
            made if isinstance(made, _HELPERS) else self.meter.admit(list(made) if isinstance(made, _VIEWS) else made)
        )

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute what may become long."""
        self.meter.spend(VISIT)
        if isinstance(left, int | float) and isinstance(right, int | float):
            functions.charge_number(operator, left, right)
            made = super().call_binop(context, operator, left, right)
            check_plain(made)
            return made
        if operator == "%" and isinstance(left, str):
            functions.charge_percent(self.meter, left, right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            functions.charge_repeated(self.meter, left, right)
        else:
            check_length(self.meter.written_size(left) + self.meter.written_size(right))
        return self.meter.admit(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up a part of a value. A list within the key takes as long to hash as to write."""
        self.meter.spend(_NODE)
        if not isinstance(argument, str | int):
            functions.charge_compared(self.meter, argument)
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute of a value."""
        self.meter.spend(_NODE)
        return super().getattr(obj, attribute)

    def _own_filters(self) -> dict[str, Callable[..., Any]]:
        """Return what the rewritten syntax calls; ``pass_context`` keeps the library from calling it earlier."""
        return {
            syntax.TICK: self._count,
            syntax.MADE: self._made,
            syntax.CUT: self._cut,
            syntax.JOINED: self._joined,
            syntax.COMPARED: self._compared,
            syntax.HELD: self._held,
            syntax.SPREAD: self._spread,
            syntax.LOOPED: self._looped,
            syntax.KEPT: self._kept,
        }

    @pass_context
    def _made(self, _: Any, value: Any) -> Any:
        return self.meter.admit(value)

    @pass_context
    def _joined(self, _: Any, parts: tuple[Any, ...]) -> str:
        return functions.joined(self.meter, parts)

    @pass_context
    def _held(self, _: Any, item: Any, held_by: Any) -> bool:
        return functions.is_held(self.meter, item, held_by)

    @pass_context
    def _count(self, _: Any, value: Any, num_nodes: int) -> Any:
        self.meter.spend(UNITS // 2 + _NODE * num_nodes)
        return value

    @pass_context
    def _cut(self, _: Any, value: Any) -> Any:
        self.meter.spend(sys.getsizeof(value))  # of a list: the places; its values were paid for
        return value

    @pass_context
    def _compared(self, _: Any, value: Any) -> Any:
        if isinstance(value, str):
            self.meter.spend(len(value))
        elif isinstance(value, list | tuple | Mapping):
            functions.charge_compared(self.meter, value)
        return value

    @pass_context
    def _spread(self, _: Any, value: Any) -> Any:
        if isinstance(value, _HOLDERS):  # each part becomes an argument
            self.meter.spend(VISIT * len(value))
        return value

    @pass_context
    def _looped(self, _: Any, value: Any) -> Any:
        """Take only a value's parts one by one: a text's characters, too, are paid for before a test looks at them."""
        if not isinstance(value, GeneratorType):
            if isinstance(value, _HOLDERS):
                self.meter.spend(VISIT * len(value))
            else:
                check_plain(value)
        return value

    @pass_context
    def _kept(self, _: Any, value: Any) -> Any:
        if not isinstance(value, GeneratorType):
            self.meter.written_size(value)
        return value

    @pass_context
    def _written(self, _: Any, value: Any) -> str:
        self.meter.spend(_NODE)
        if isinstance(value, str):
            return value
        self.meter.spend(self.meter.written_size(value))
        return str(value)

    def _range(self, *args: int) -> list[int]:
        numbers = safe_range(*args)
        self.meter.spend(_NODE * len(numbers))
        return list(numbers)


# What a template has beside values: it may call them, and neither write nor keep them in lists.
_LOOPS = (LoopContext, Cycler)
_HELPERS = (Namespace, Joiner, Cycler)
_HOLDERS = (str, list, tuple, set, dict)
_VIEWS = (KeysView, ValuesView, ItemsView)
# What the library gives to each call in a loop or a block.
_LIBRARY = frozenset(("_loop_vars", "_block_vars"))


def _date_writer(now: datetime) -> Callable[[str], str]:
    def write(form: str) -> str:
        if len(form) > _MOST_FORMAT or re.search(r"%[^a-zA-Z%]*[0-9]", form):
            raise WorkExceeded("it writes a date in a form of any length")
        return now.strftime(form)

    return write


def _refuse(message: Any) -> NoReturn:
    raise TemplateError(str(message)[:_MOST_WORDS] if isinstance(message, str) else repr(message)[:_MOST_WORDS])
