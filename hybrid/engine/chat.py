"""Fit a conversation to a chat template: every turn's text in what it writes, or a refusal by name.

Templates drop turns in silence: a role that they do not know, a system text that is not the first turn. So a template
is first given marks in the place of the texts, in forms that lose nothing, until one comes back whole:

1. the turns as they are, ``developer`` as ``system``
2. the system texts as one, at the head
3. turns in a row of one role (user, assistant) as one
4. the system text before the first user turn's text, or as a user turn at the head

The law (``tests/engine/test_chat.py``; all templates of llama.cpp: ``tests/engine/test_published_templates.py``): each
turn's mark is in the text, those of users, assistants and tools in their order; the system text stands where the
template wants it. What was fitted is kept by the roles: a template sees the marks once. An assistant turn at the end is
left open, and nothing stands after its text. A template may drop the thoughts of earlier assistant turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import Any, NoReturn

from hybrid.engine.port import NO_ARGS, Interrupted, IsCancelled, ThoughtMarks, marks_of, never
from hybrid.engine.template import ChatTemplate, TemplateFault, TemplateOverload
from hybrid.errors import UsageError
from hybrid.types import Message, TemplateArg

# Stand for a turn's text while its template is rendered, around a word of this template's and the turn's number; and
# after an open turn's text: what a template writes behind it is cut off. No argument may hold one of them.
_BEGIN, _END, _OPEN_END = MARK_CHARACTERS = "\ue000\ue001\ue002"
_BETWEEN = "\n\n"
# Fitted conversations kept, by their roles, and the turns in all of them: a turn takes some 400 bytes.
_MOST_KEPT, _MOST_TURNS_KEPT = 64, 1 << 15


@dataclass(frozen=True)
class Piece:
    """Some text of a rendered conversation: the template's own, or that of turn ``turn``."""

    text: str
    turn: int | None = None


@dataclass(frozen=True)
class _Turn:
    """A turn as a template sees it, and the turns of the conversation whose texts it holds, by their number."""

    role: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class _Fit:
    """A form that a template takes, and what it writes around the marks. ``prompt``: the assistant begins a turn.

    ``appended``: the open turn is not among them; its text follows what the template writes before an answer.
    """

    turns: tuple[_Turn, ...]
    given: Mapping[str, object]
    marked: str
    prompt: bool
    appended: bool


class ChatRenderer:
    """A model's template, and the conversations that were fitted to it. ``name``: the model's, for sentences."""

    def __init__(self, template: ChatTemplate, name: str) -> None:
        """Take a template."""
        self.template = template
        self.name = name
        # No template can spell its own digest: what it writes of marks is its text. Digits keep their case.
        self._word = f"{int.from_bytes(sha256(template.source.encode('utf-8', 'replace')).digest()[:8]):020}"
        self._marked = re.compile(f"{_BEGIN}{self._word}([0-9]{{1,9}}){_END}")
        self._open_end = _OPEN_END + self._word
        self._kept: dict[str, _Fit] = {}

    def pieces(
        self,
        messages: Sequence[Message],
        args: Mapping[str, TemplateArg],
        *,
        apart: bool,
        cancelled: IsCancelled = never,
    ) -> list[Piece]:
        """Render a conversation. ``apart``: each turn's text is a piece of its own, else only where it must be.

        Raises UsageError, which names the role, where the template has no place for a turn; Interrupted between two
        forms of it once ``cancelled()`` says so.
        """
        fit = self._fit_of(messages, args, cancelled)
        if not apart and (whole := self._whole(fit, messages, args)) is not None:
            return [Piece(whole)]
        return self._pieces(fit, messages)

    def thoughts(self, messages: Sequence[Message], args: Mapping[str, TemplateArg]) -> ThoughtMarks | None:
        """Return the marks around this model's thoughts; ``opened`` where the prompt leaves them open.

        Only what the template writes after the last turn of anybody else counts, and the open turn's own text.
        """
        marks = self._marks
        if marks is None:
            return None
        pieces = self._pieces(self._fit_of(messages, args), messages)
        others = [i for i, piece in enumerate(pieces) if _is_anothers(piece, messages)]
        tail = pieces[others[-1] + 1 if others else 0 :]
        return replace(marks, opened=marks.left_open("".join(piece.text for piece in tail)))

    def _pieces(self, fit: _Fit, messages: Sequence[Message]) -> list[Piece]:
        """Put the texts where their marks are; a number that no turn has is the template's own text."""
        pieces, at = [], 0
        for found in self._marked.finditer(fit.marked):
            if (turn := int(found[1])) < len(messages):
                pieces += [Piece(fit.marked[at : found.start()]), Piece(messages[turn].content, turn)]
                at = found.end()
        pieces.append(Piece(fit.marked[at:]))
        return [piece for piece in pieces if piece.text or piece.turn is not None]

    @cached_property
    def _marks(self) -> ThoughtMarks | None:
        """The marks that the template spells, or writes in a short conversation: some put them together from parts."""
        written, user = "", Message("user", "")
        for turns in ([user], [user, Message("assistant", ""), user]):
            with suppress(UsageError):
                written += self._fit_of(turns, NO_ARGS).marked
        return marks_of(self.template.source + written)

    # ---- the form that a template takes ------------------------------------------------------------------------------

    def _fit_of(
        self, messages: Sequence[Message], args: Mapping[str, TemplateArg], cancelled: IsCancelled = never
    ) -> _Fit:
        roles = tuple(message.role for message in messages)
        key = json.dumps([roles, sorted(args.items())])
        if key not in self._kept:
            try:
                self.template.check_args(args)
                _check_marks(args)
                fit, fault = self._fit(roles, args, cancelled)
            except TemplateFault as error:  # the template cannot be read at all
                fit, fault = None, error
            if fit is None:
                self._refuse(roles, args, fault, cancelled)
            num_turns = sum(len(each.turns) for each in self._kept.values())
            if len(self._kept) >= _MOST_KEPT or num_turns + len(roles) > _MOST_TURNS_KEPT:
                self._kept.clear()
            self._kept[key] = fit
        return self._kept[key]

    def _fit(
        self, roles: Sequence[str], args: Mapping[str, TemplateArg], cancelled: IsCancelled
    ) -> tuple[_Fit | None, TemplateFault | None]:
        """Return the first form that comes back whole, or how the first one that failed did: None, it lost a turn.

        Raises TemplateOverload where a form, or all that were tried together, take more work than one may.
        """
        first: list[TemplateFault | None] = []
        work = 0.0
        # Where no tools are given: as Hugging Face says so, then as some older templates want to hear it.
        older = {"tools": [], "documents": [], "functions": "", "datetime": f"{self.template.loaded_at:%b %d %Y}"}
        for given in ({"tools": None, "documents": None}, older):
            for turns, appended in _forms(roles):
                if cancelled():
                    raise Interrupted
                try:
                    if (fit := self._tried(turns, given, args, roles, appended=appended)) is not None:
                        return fit, None
                    first.append(None)
                except TemplateOverload:
                    raise
                except TemplateFault as fault:
                    first.append(fault)
                if (work := work + self.template.work_share) > 1:
                    raise TemplateOverload("it takes every form of the conversation with much work and in vain")
        return None, first[0]

    def _tried(
        self,
        turns: tuple[_Turn, ...],
        given: Mapping[str, object],
        args: Mapping[str, TemplateArg],
        roles: Sequence[str],
        *,
        appended: bool,
    ) -> _Fit | None:
        is_open = roles[-1] == "assistant"
        prompt = not is_open or appended
        marks = [f"{_BEGIN}{self._word}{i}{_END}" for i in range(len(roles))]
        marked = self.template.write(_filled(turns, marks), {**given, **args}, prompt=prompt)
        if appended:
            marked += marks[-1]
        elif is_open:
            marked = marked[: marked.rfind(marks[-1]) + len(marks[-1])] if marks[-1] in marked else ""
        # One pass: a search of its own for each mark would take the square of the turns.
        first = {int(mark[1]): mark.start() for mark in reversed(list(self._marked.finditer(marked)))}
        found = [first.get(i, -1) for i in range(len(roles))]
        spoken = [at for at, role in zip(found, roles, strict=True) if role not in _SYSTEM]
        if min(found) < 0 or spoken != sorted(spoken):
            return None
        return _Fit(turns, given, marked, prompt, appended)

    def _whole(self, fit: _Fit, messages: Sequence[Message], args: Mapping[str, TemplateArg]) -> str | None:
        """Let the template see the texts themselves; None where it then leaves one out, or fails."""
        texts = [message.content for message in messages]
        is_open = not fit.prompt
        if is_open:
            texts[-1] += self._open_end
        try:
            text = self.template.write(_filled(fit.turns, texts), {**fit.given, **args}, prompt=fit.prompt)
        except TemplateFault:
            return None
        if is_open:
            text = text[: text.rfind(self._open_end)] if self._open_end in text else ""
        if fit.appended:
            text += texts[-1]
        return text if self._holds(text, messages) else None

    def _holds(self, text: str, messages: Sequence[Message]) -> bool:
        """Whether all texts are in a rendered one, in order; space around them and thoughts in them may be gone.

        System texts have an order of their own. Each search goes on from the end of the last one.
        """
        marks, ends = self._marks, {True: 0, False: 0}
        for message in messages:
            wanted, is_system = message.content, message.role in _SYSTEM
            if message.role == "assistant" and marks is not None:
                wanted = wanted.rpartition(marks.close)[2]
            found = text.find(wanted.strip(), ends[is_system])
            if found < 0:
                return False
            ends[is_system] = found + len(wanted.strip())
        return True

    def _refuse(
        self,
        roles: Sequence[str],
        args: Mapping[str, TemplateArg],
        fault: TemplateFault | None,
        cancelled: IsCancelled,
    ) -> NoReturn:
        """Raise UsageError: name the role without which the conversation could be rendered, if there is one."""
        said = f" ({fault})" if fault else ""
        role = None if isinstance(fault, TemplateOverload) else self._role_without_place(roles, args, cancelled)
        if role is not None:
            msg = f"the chat template of {self.name} has no place for a turn of role {role}{said}"
            raise UsageError(msg)
        what = f"refused the conversation ({fault})" if fault else f"drops a turn of {', '.join(roles)}"
        msg = f"the chat template of {self.name} {what}; --raw sends the text as it stands"
        raise UsageError(msg)

    def _role_without_place(
        self, roles: Sequence[str], args: Mapping[str, TemplateArg], cancelled: IsCancelled
    ) -> str | None:
        with suppress(TemplateOverload):
            for role in sorted(set(roles) - {"user"}, key=_RAREST.index):
                rest = [each for each in roles if each != role]
                if rest and self._fit(rest, args, cancelled)[0] is not None:
                    return role
        return None


def _is_anothers(piece: Piece, messages: Sequence[Message]) -> bool:
    return piece.turn is not None and messages[piece.turn].role != "assistant"


def _check_marks(args: Mapping[str, TemplateArg]) -> None:
    """Raise UsageError for an argument's text that holds what stands for the texts of turns."""
    for name, value in args.items():
        if isinstance(value, str) and (held := set(MARK_CHARACTERS) & set(value)):
            said = f"it holds the private character U+{ord(min(held)):04X}, which marks turns here"
            msg = f"template argument {name}: {said}"
            raise UsageError(msg)


_SYSTEM = frozenset(("system", "developer"))
# Roles in the order in which templates are likely to have no place for them.
_RAREST = ("tool", "developer", "system", "assistant")


def _forms(roles: Sequence[str]) -> Iterator[tuple[tuple[_Turn, ...], bool]]:
    """Yield the forms of a conversation, the one nearest to it first; True: without its open turn."""
    forms: list[tuple[_Turn, ...]] = []
    plain = tuple(_Turn("system" if role in _SYSTEM else role, (i,)) for i, role in enumerate(roles))
    system = tuple(i for i, role in enumerate(roles) if role in _SYSTEM)
    spoken = tuple(turn for turn in plain if turn.role != "system")
    head = (_Turn("system", system),) if system else ()
    joined = _joined(spoken)
    forms = [plain, head + spoken, head + joined]
    if system and joined and joined[0].role == "user":
        forms.append((_Turn("user", system + joined[0].members), *joined[1:]))
    elif system:
        forms.append((_Turn("user", system), *joined))
    forms = list(dict.fromkeys(forms))
    yield from ((form, False) for form in forms)
    if roles[-1] == "assistant":
        yield from ((form[:-1], True) for form in forms if form[-1].members == (len(roles) - 1,) and len(form) > 1)


def _joined(turns: Sequence[_Turn]) -> tuple[_Turn, ...]:
    """Join turns in a row of one role. What tools say stays apart: each answers a call of its own."""
    found: list[_Turn] = []
    for role, row in groupby(turns, key=lambda turn: turn.role):
        same = list(row)
        if role == "tool":
            found += same
        else:
            found.append(_Turn(role, tuple(i for turn in same for i in turn.members)))
    return tuple(found)


def _filled(turns: Sequence[_Turn], texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": turn.role, "content": _BETWEEN.join(texts[i] for i in turn.members)} for turn in turns]
