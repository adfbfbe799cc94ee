"""``hybrid chat``: a conversation. What was said before is part of every question, and stays in the local cache.

Ctrl-C ends an answer, and what was said of it stays in the conversation; the request is closed and settled before the
next question is read (``run.blocking``). Prompts are written to no file: the line editor's history ends with the chat.
"""

from __future__ import annotations

import math
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeAlias, Unpack

import typer
from rich.console import Console
from rich.text import Text

from hybrid.cli.command import Flags, exit_codes, takes_flags
from hybrid.cli.show import Screen, tell_assumed
from hybrid.errors import ContextOverflow, HybridError, UsageError, escape_controls, to_one_line
from hybrid.record.answer import Token
from hybrid.record.events import Finished, TokenEmitted, text_of
from hybrid.run.composition import check_effect, policy_of
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.settings.names import BUNDLED
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import choosing
from hybrid.spend import Bill, as_usd
from hybrid.spend.ledger import NAMES
from hybrid.types import Message

if TYPE_CHECKING:
    from hybrid.run.blocking import Client


# One line of an answer's divergence: a bar for each token, by KL(cloud || local) beside the policy's threshold.
#
# The law (``tests/cli/test_kl_line.py``): a token that was not measured is a gap, never a low bar; a bar is in the
# upper half exactly where the certain KL, the interval's lower end, is above the threshold; where several tokens share
# a column, the largest of them is drawn. Knows no terminal but its width.

BARS = "▁▂▃▄▅▆▇█"
HALF = len(BARS) // 2
GAP = " "
LEFT, RIGHT = "KL │", "│"
WITHIN, BEYOND = "cyan", "bold red"
# As ``Policy`` writes itself: a judge of the KL, or else what decides by it when the pen goes back.
_NUMBER = r"(?:[0-9.e+-]+|inf)"
_THRESHOLD = re.compile(rf"\b(?:judge|handback)=(?:kl|concept(?::{_NUMBER}:kl)?):({_NUMBER})")


def threshold_of(policy: str) -> float | None:
    """Return the threshold of KL in nats by which a composed policy decides; None: it decides by something else.

    >>> threshold_of("auto span=512 plan=worth:2.2 judge=kl:0.7 hold=512"), threshold_of("local span=1 gate=never")
    (0.7, None)
    >>> threshold_of("concepts judge=concept:0.1:kl:0.5"), threshold_of("auto judge=concept:0.4 hold=4")
    (0.5, 0.4)
    """
    found = _THRESHOLD.search(policy)
    return None if found is None else float(found[1])


def kl_line(tokens: Sequence[Token], threshold: float | None, width: int) -> Text:
    """Return the bars within ``width`` columns, and in words what they are: beside them, or below where they are long.

    Several tokens share a column where there are more than fit.
    """
    known = [None if token.kl is None else token.kl.lower for token in tokens]
    measured = [nats for nats in known if nats is not None]
    if not measured:
        return Text(f"KL: none of {len(tokens)} tokens was measured", "dim")
    most, step = max(measured), math.ceil(len(known) / max(1, width - len(LEFT) - len(RIGHT)))
    line = Text.assemble((LEFT, "dim"))
    for start in range(0, len(known), step):
        here = [nats for nats in known[start : start + step] if nats is not None]
        beyond = threshold is not None and any(nats > threshold for nats in here)
        line.append(_bar(max(here), threshold, most) if here else GAP, BEYOND if beyond else WITHIN)
    said = [f"{len(measured)} of {len(known)} tokens measured"]
    said += [f"{step} in a column"] if step > 1 else []
    said.append(f"most {most:.3g} nats at token {known.index(most) + 1}")
    said += [] if threshold is None else [f"threshold {threshold:g}"]
    words = ", ".join(said)
    beside = len(line) + len(RIGHT) + len(words) < width
    return line.append(f"{RIGHT}{' ' if beside else chr(10)}{words}", "dim")


def _bar(nats: float, threshold: float | None, most: float) -> str:
    """Return the bar of a KL: the threshold stands in the middle, and twice as much is on top.

    Without one, or where nothing can be above it, the most that was measured is on top.
    """
    if threshold is None or threshold == math.inf:
        return BARS[0] if not most else BARS[_height(1.0 if nats == most else nats / most, len(BARS))]
    if nats <= threshold:
        return BARS[_height(nats / threshold if threshold else 0.0, HALF)]
    return BARS[HALF + _height((nats - threshold) / threshold if threshold else 1.0, HALF)]


def _height(share: float, num_bars: int) -> int:
    return int(min(num_bars - 1.0, num_bars * min(1.0, share)))


EPILOG = """
Questions are lines. An answer may take the rest of the context, unless --max-tokens bounds it. On a terminal tokens are
coloured by who wrote them (magenta: the cloud; green: here, and checked), and Ctrl-C ends an answer and not the chat;
Ctrl-D or /exit ends it. From a pipe every line is a question, and standard output gets the answers and nothing else.
No file keeps what is said. /help lists the commands.

Examples:

  hybrid chat

  hybrid chat --policy kl --watch --price 1/0.1/4 --cap 0.05

  printf 'What is 47 + 86?\\nSort 42 17 99 23.\\n' | hybrid chat

Exit codes: 0 ended, 1 output lost, 2 usage, 3 local model unusable, 130 interrupted twice (143 terminated).
"""
Obey: TypeAlias = Callable[[str], bool | None]
"""What a command does with the rest of its line; False: the chat is over."""

PROMPT = "> "
# Bytes of a line: as many as 250,000 tokens have. /dev/zero is one line without an end.
LONGEST_LINE = 2**20
MEND = "/undo takes the last question back, /new begins a new conversation, --ctx N holds a longer one"
FULL = f"the context is full: {MEND}"
AGAIN = "Ctrl-C again leaves; so does Ctrl-D or /exit"
KEPT = "the answer is ended; what was said of it stays in the conversation"
UNSAID = "the answer is ended before it began, and the question is forgotten"
SINGLE = "the bundled models were trained on single questions: what was said before confuses them, and /new forgets it"
COLOURS = "colours: magenta was written by the cloud, green here and checked, the rest here and unchecked"


@takes_flags(SettingScope.FLAG)
def chat(
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show a line of KL(cloud || local) under each answer; gaps were not asked.")
    ] = False,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Show what the model thinks before it answers, on standard error.")
    ] = False,
    **flags: Unpack[Flags],
) -> None:
    """Hold a conversation."""
    with exit_codes():
        import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)

        opener = hybrid.open(**flags)
        check_effect(opener.settings, flags)
        if opener.settings.raw:
            raise UsageError("raw changes nothing in a chat: a conversation is put by the model's chat template")
        with opener as client:
            for note in client.notes:
                typer.echo(f"hybrid: {escape_controls(note)}", err=True)
            ChatSession(client, Screen(thoughts=thoughts), watch=watch).talk(Questions())


chat.__doc__ = f"{chat.__doc__}\n{EPILOG}"


class EndlessLine(UsageError):
    """A line is so long that nothing after it can be trusted to be a question: the chat is over."""


class Questions:
    """Lines of standard input: edited where there is a terminal and a line editor, read as they are from a pipe."""

    def __init__(self) -> None:
        """See who is there."""
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        self.interactive = sys.stdin.isatty()
        if self.interactive:
            with suppress(ImportError):  # Windows has none
                import readline  # noqa: F401, PLC0415  (to import it is to have ``input`` use it)

    def read(self) -> str:
        """Return the next line. Raises EOFError at the end, UsageError for a line that is no text, EndlessLine."""
        try:
            if self.interactive and sys.stdout.isatty():
                return input(PROMPT)
            if self.interactive:  # standard output is somebody else's
                typer.echo(PROMPT, err=True, nl=False)
            line = sys.stdin.buffer.readline(LONGEST_LINE + 1)
            if not line:
                raise EOFError
            if len(line) > LONGEST_LINE:
                msg = f"a line of standard input is longer than {LONGEST_LINE // 2**20} MiB: no question is"
                raise EndlessLine(msg)
            return line.decode()
        except UnicodeDecodeError:
            raise UsageError("the line is not UTF-8 text") from None


@dataclass
class ChatAnswerState:
    """What has come of one answer, and the policy that it is written by, as far as that is known by now."""

    policy: str
    text: str = ""
    tokens: list[Token] = field(default_factory=list)


class ChatSession:
    """A conversation: its turns so far, and how the next question is answered."""

    def __init__(self, client: Client, screen: Screen, *, watch: bool = False) -> None:
        """Begin with nothing said. ``watch``: a line of divergence stands under each answer."""
        self._client, self._screen, self._watch = client, screen, watch
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._turns: tuple[Message, ...] = ()
        self._bills: list[Bill] = []
        self._settings: Settings = client.settings
        # Nobody has chosen a limit: then an answer is bounded by the context alone.
        self._choices: AnswerChoices = {} if "max_tokens" in self._settings.model_fields_set else {"max_tokens": 0}
        self._choices["conversation"] = self._settings.conversation or _new_name()
        self._commands: Mapping[str, tuple[Obey, str]] = {
            "/policy": (self._policy, "[NAME[:X]]: answer by another policy from now on; alone: tell by which"),
            "/cost": (self._cost, "tell what was spent, and what the caps leave"),
            "/undo": (self._undo, "take the last question and its answer back"),
            "/new": (self._new, "begin a new conversation; so does /clear"),
            "/clear": (self._new, ""),
            "/help": (self._help, "list the commands"),
            "/exit": (lambda _: False, "end the chat; so does Ctrl-D"),
        }

    def talk(self, questions: Questions) -> None:
        """Answer line after line until the input ends or somebody leaves."""
        if questions.interactive:
            self._tell(f"policy {self._settings.policy}; /help lists commands, Ctrl-C ends an answer, Ctrl-D the chat")
        interruptions = 0
        while True:
            try:
                line = questions.read().strip()
                interruptions = 0
                if line and not self._do(line, interactive=questions.interactive):
                    return
            except EOFError:
                if questions.interactive:
                    self._err.print()
                return
            except KeyboardInterrupt as error:
                # Another signal than Ctrl-C's comes with its number. From a pipe nobody says what is to happen next.
                if questions.interactive:
                    self._err.print()  # a shell's own line comes next, or ours
                if error.args or interruptions or not questions.interactive:
                    raise
                interruptions += 1
                self._tell(AGAIN)
            except HybridError as error:
                self._tell_fault(error)

    def _do(self, line: str, *, interactive: bool) -> bool:
        """Obey a command, or answer a question; return whether the chat goes on."""
        if not line.startswith("/"):
            self._answer(line, interactive=interactive)
            return True
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            msg = f"there is no command {to_one_line(name)}: /help lists them"
            raise UsageError(msg)
        return self._commands[name][0](rest.strip()) is not False

    # ---- an answer ---------------------------------------------------------------------------------------------------

    def _answer(self, question: str, *, interactive: bool) -> None:
        """Answer a question. What was said of an answer that was ended or that failed is part of the conversation."""
        turns = (*self._turns, Message("user", question))
        heard, before = ChatAnswerState(str(policy_of(self._settings))), self._client.spent.assumed_nanousd
        try:
            self._listen(turns, heard)
        except KeyboardInterrupt as error:
            if error.args or not interactive:
                raise
            self._break_off(KEPT if heard.text else UNSAID)
        except ContextOverflow as error:
            self._break_off(f"{error}; in a chat, {MEND}")
        except HybridError as error:
            self._break_off(str(error))
        finally:
            tell_assumed(self._client.spent.assumed_nanousd - before, self._client.settings.cloud)
        if heard.text.strip():
            self._turns = (*turns, Message("assistant", heard.text))
        if self._watch and heard.tokens:
            self._err.print(kl_line(heard.tokens, threshold_of(heard.policy), self._err.width))

    def _listen(self, turns: tuple[Message, ...], heard: ChatAnswerState) -> None:
        """Show an answer as it comes. Whoever interrupts it, it has ended and is settled when this is left."""
        named = (self._settings.local or "small", *self._settings.experts)
        if len(turns) == 3 and all(str(model) in BUNDLED for model in named):
            self._tell(SINGLE)
        with closing(self._client.stream(turns, **self._choices)) as events:
            for event in events:
                heard.text += text_of(event)
                self._screen.show(event)
                if isinstance(event, TokenEmitted):
                    heard.tokens.append(event.token)
                elif isinstance(event, Finished):
                    heard.policy = event.answer.policy
                    self._bills.append(event.answer.bill)
                    if event.answer.finish_reason == "length" and self._choices.get("max_tokens") == 0:
                        self._tell(FULL)

    def _break_off(self, why: str) -> None:
        self._screen.close()
        self._tell(why)

    def _tell_fault(self, error: HybridError) -> None:
        """Say what went wrong; the chat goes on, unless nothing more can be read."""
        if isinstance(error, EndlessLine):
            raise error
        self._tell(str(error))

    def _tell(self, text: str) -> None:
        self._err.print(Text(escape_controls(text), "dim"))

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _policy(self, name: str) -> None:
        """Answer by another policy from now on. Raises UsageError for one that cannot be."""
        settings = choosing(self._settings, {"policy": name or None})
        composed = policy_of(settings)
        if name:
            self._settings, self._choices["policy"] = settings, name
        self._tell("policy local: offline" if settings.offline else f"policy {composed}")

    def _cost(self, _: str) -> None:
        """Tell what this chat has cost, beside the cloud alone, and what is left of the caps that bind it."""
        spent, alone = self._client.spent, [bill.cloud_only_nanousd for bill in self._bills]
        known = [each for each in alone if each is not None]
        beside = f" (the cloud alone: {as_usd(sum(known))})" if known and len(known) == len(alone) else ""
        requests = f"{spent.requests} request{'' if spent.requests == 1 else 's'}"
        answers = f"{spent.answers} answer{'' if spent.answers == 1 else 's'}"
        self._tell(f"{as_usd(spent.nanousd)} for {requests} in {answers}{beside}")
        for cap in self._client.cap_statuses(self._choices["conversation"]):
            self._tell(f"{NAMES[cap.level]} of {as_usd(cap.cap_nanousd)}: {as_usd(max(0, cap.left_nanousd))} left")

    def _undo(self, _: str) -> None:
        """Take the last question and its answer back."""
        if not self._turns:
            raise UsageError("nothing was said yet")
        self._turns = self._turns[:-2]
        self._tell(f"taken back; {len(self._turns) // 2} questions and answers are left")

    def _new(self, _: str) -> None:
        """Begin a new conversation, with a cap of its own unless the user has named one."""
        self._turns = ()
        if self._client.settings.conversation is None:
            self._choices["conversation"] = _new_name()
        self._tell("a new conversation")

    def _help(self, _: str) -> None:
        """List the commands."""
        for name, (_obey, told) in self._commands.items():
            if told:
                self._tell(f"{name} {told}")
        self._tell(COLOURS)


def _new_name() -> str:
    """Return a name that no other conversation has: its cap and its place in the local cache are its own."""
    return f"chat-{secrets.token_hex(4)}"
