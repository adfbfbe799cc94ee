"""What every command shares: exit codes and how errors end one, flags as settings, and where output goes."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import typer
from rich.console import Console
from typer.core import TyperCommand

from hybrid.ending_signals import ending_signals, handled
from hybrid.errors import CloudError, EngineError, HybridError, UsageError, escape_controls
from hybrid.report import Document, alarms, terminal
from hybrid.report.html import page
from hybrid.settings.config import GROUPS, OpenArguments, Settings, setting
from hybrid.settings.setting_info import SettingScope
from hybrid.store.files import OWNERS, beside_of, replace_content

# How a command ends: one sentence on standard error and an exit code for everything that can go wrong.
#
# The law: no command ends in a traceback, whatever the user, the models, the endpoint, the disk or whoever reads us did
# (``tests/cli/test_exits.py``, and with real processes in ``tests/end_to_end``). What a command does is not known here.

# What is being done, on standard error: a line that changes on a terminal, a line each or nothing elsewhere.


@contextmanager
def progress(at_first: str, *, only_on_a_terminal: bool = False) -> Iterator[Callable[[str], None]]:
    """Give a function to say it with; a terminal shows ``at_first`` until it is called."""
    console = _standard_error()
    if not console.is_terminal and only_on_a_terminal:
        yield lambda _: None
    elif not console.is_terminal:
        yield lambda said: typer.echo(f"hybrid: {said}", err=True)
    else:
        with console.status(at_first) as status:
            yield status.update


def is_shown_on_a_terminal() -> bool:
    """Whether a new line takes the last one's place."""
    return _standard_error().is_terminal


def _standard_error() -> Console:
    return Console(stderr=True, highlight=False)


# Files that are there whole or not at all, and files of one's own.
#
# The law: whether a file can be written is told before the work whose result it shall hold, and a failure while it is
# written leaves what stood there before. What hybrid makes holds prompts and answers, so that it is for its owner alone
# (mode 0600), whatever the umask; a file that is there keeps its mode (``tests/cli/test_whole_file.py``).


def check_writable(flag: str, path: Path) -> None:
    """Try to make a file beside ``path`` and leave nothing. Raises UsageError, naming the flag, where that fails."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            msg = f"{flag} {path}: not a file"
            raise UsageError(msg)
        if target.exists() and not os.access(target, os.W_OK):
            msg = f"{flag} {path}: write-protected"
            raise UsageError(msg)
        beside = beside_of(target)
        beside.touch(OWNERS, exist_ok=False)
        beside.unlink()
    except OSError as error:
        msg = f"{flag} {path}: {error.strerror}"
        raise UsageError(msg) from None
    except RuntimeError:  # links that lead to each other
        msg = f"{flag} {path}: a link that leads nowhere"
        raise UsageError(msg) from None


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text beside ``path`` and put it in its place in one step; links are followed, a file's mode is kept.

    Raises OSError, with nothing changed, where the text cannot be written.
    """
    replace_content(path.resolve(), text.encode(errors="replace"), keep_mode=True)


def print_report(
    title: str, document: Document, told: str | None, *, html: Path | None = None, svg: Path | None = None
) -> None:
    """Print a report, or ``told``, its JSON, with what nobody should overlook on standard error; write its pictures."""
    try:
        if told is None:
            terminal.show(document)
            return
        typer.echo(told)
        for alarm in alarms(document):
            typer.echo(f"hybrid: {escape_controls(alarm.text)}", err=True)
    finally:  # also where whoever read standard output has left
        if html:
            write_whole(html, page(title, document))
        if svg:
            write_whole(svg, terminal.picture(title, document))


EXIT_OUTPUT, EXIT_USAGE, EXIT_ENGINE, EXIT_CLOUD, EXIT_PARTLY, EXIT_DEGRADED, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 6, 130


@contextmanager
def exit_codes() -> Iterator[None]:
    """Run a command's body; turn what it raises on purpose, an interruption and a failing output into an exit."""
    if sys.stdout is None:  # closed by whoever started us; an answer is not paid for to be lost
        typer.echo("hybrid: standard output is closed", err=True)
        raise typer.Exit(EXIT_OUTPUT)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows another one
    try:
        yield
    except UsageError as error:
        _fail(EXIT_USAGE, error)
    except EngineError as error:
        _fail(EXIT_ENGINE, error)
    except CloudError as error:  # a refusal; or a failure where no local answer can stand in
        _fail(EXIT_CLOUD, error)
    except KeyboardInterrupt as error:  # with the signal's number, if it was another one than Ctrl-C's
        raise typer.Exit(128 + error.args[0] if error.args else EXIT_INTERRUPTED) from None
    except OSError as error:
        # Whoever read us has left, or the disk is full. What Python still holds for standard output goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"hybrid: {error.strerror}", err=True)
        raise typer.Exit(EXIT_OUTPUT) from None


def run_until_interrupted(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine function on an event loop of its own. The first Ctrl-C, SIGTERM or SIGHUP cancels it.

    Raises KeyboardInterrupt, with the signal's number, once it has come to rest. The second one ends the process at
    once, as the system does it.
    """
    heard: list[int] = []

    async def main() -> Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def interrupt(number: int, _: FrameType | None) -> None:
            heard.append(number)
            signal.signal(number, signal.SIG_DFL)
            if task and len(heard) == 1:
                loop.call_soon_threadsafe(task.cancel)

        # One that is ignored (nohup) stays ignored.
        with handled([each for each in ending_signals() if callable(signal.getsignal(each))], interrupt):
            return await work()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt(*heard[:1]) from None


def _fail(code: int, error: HybridError) -> NoReturn:
    typer.echo(f"hybrid: {error}", err=True)
    raise typer.Exit(code)


# Settings as flags: each is an option with the help text of ``hybrid.settings.config``, and its group a section.
#
# ``config`` is the one flag here that is no setting: the file that holds settings instead of the user's own.
#
# The law: a command that takes a setting has it with one name, one type and one help text
# (``tests/test_settings.py``). No flag has a default here: what is not given comes from the environment or a file.

Command = TypeVar("Command", bound=Callable[..., None])
Result = TypeVar("Result")
ConfigFlag = Annotated[
    Path | None, typer.Option(help="Read settings from FILE, not from your own hybrid.toml.", metavar="FILE")
]


class Flags(OpenArguments, total=False):
    """What was given on the command line; None where it was not."""

    config: Path | None


def takes_flags(*uses: SettingScope, usual: Mapping[str, str] | None = None) -> Callable[[Command], Command]:
    """Let a command's signature name the settings of these uses as options, where it has ``**flags``.

    ``usual``: what the command's help says of a setting that it takes another default of.

    Typer reads signatures. The options stand after the arguments and before those that are the command's own, which
    are keyword-only.
    """
    kinds = {
        name: option(name, title, (usual or {}).get(name))
        for title, group in GROUPS.items()
        for name in Settings.model_fields
        if name in group.model_fields and any(use in setting(name).uses for use in uses)
    } | {"config": ConfigFlag}
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in kinds.items()]

    def named(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        options = [each for each in own if each.kind is keyword]
        command.__signature__ = inspect.Signature([*arguments, *shared, *options])  # type: ignore[attr-defined]
        return command

    return named


def option(name: str, title: str, usual: str | None = None) -> Any:
    """Return the annotation of a setting's option, in the help's section ``title``; ``usual`` as in ``help_of``."""
    said, kind = setting(name), _kind(Settings.model_fields[name].annotation)
    words = [f"--{_dashed(name)}/--no-{_dashed(name)}" if kind is bool else f"--{_dashed(name)}"]
    words += [said.flag] if said.flag else []
    kind = list[str] if said.several else kind
    told = typer.Option(*words, help=help_of(name, usual), metavar=said.metavar, rich_help_panel=title)
    return Annotated[kind | None, told]


def words_of(flags: Mapping[str, object]) -> list[str]:
    """Return the words of a command line that give these flags; what was not given (None) has none."""
    words = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{_dashed(name)}")
        elif value is not None:
            several = value if isinstance(value, list | tuple) else (value,)
            words += [word for each in several for word in (f"--{_dashed(name)}", str(each))]
    return words


def help_of(name: str, usual: str | None = None) -> str:
    """Return a setting's sentence, with what stands where nothing is said: a command's ``usual``, or its default."""
    default = usual or setting(name).default or _shown(Settings.model_fields[name].default)
    return f"{setting(name).help} ({default})." if default else f"{setting(name).help}."


def _shown(default: object) -> str:
    """Return a field's default for a help text; empty where it says nothing more than that the flag was not given."""
    if isinstance(default, bool):
        return "on" if default else ""
    return f"{default:g}" if isinstance(default, int | float) else default if isinstance(default, str) else ""


def _kind(annotation: Any) -> Any:
    """Return the type that an option is read as: a list for several, text where a number or a word may stand."""
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    if get_origin(annotation) in {tuple, Mapping}:
        return list[str]
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    return str if any(each is str or get_origin(each) is Literal for each in kinds) else kinds[0]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group: plain text, in a pipe as on a terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, a section for each group, and last what belongs to the command itself."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *GROUPS, "Options")}
        for param in self.get_params(ctx):
            own = "Arguments" if param.param_type_name == "argument" else "Options"
            if record := param.get_help_record(ctx):
                sections[getattr(param, "rich_help_panel", None) or own].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
