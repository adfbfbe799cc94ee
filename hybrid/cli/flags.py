"""Settings as flags: each is an option with the help text of ``hybrid.settings.config``, and its group a section.

``config`` is the one flag here that is no setting: the file that holds settings instead of the user's own.

The law: a command that takes a setting has it with one name, one type and one help text
(``tests/test_settings.py``). No flag has a default here: what is not given comes from the environment or a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from hybrid.settings.config import GROUPS, OpenArguments, Settings, setting
from hybrid.settings.setting_info import SettingPlace

Command = TypeVar("Command", bound=Callable[..., None])
ConfigFlag = Annotated[
    Path | None, typer.Option(help="Read settings from FILE, not from your own hybrid.toml.", metavar="FILE")
]


class Flags(OpenArguments, total=False):
    """What was given on the command line; None where it was not."""

    config: Path | None


def takes_flags(*uses: SettingPlace, usual: Mapping[str, str] | None = None) -> Callable[[Command], Command]:
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
    return str if any(get_origin(each) is Literal for each in kinds) else kinds[0]


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
