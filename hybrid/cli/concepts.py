"""``hybrid concepts``: which tokens of a vocabulary say the same: built, shown, and compared between two models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybrid.cli.command import check_writable, exit_codes, progress, write_whole
from hybrid.errors import UsageError, escape_controls
from hybrid.store.files import make_folder

if TYPE_CHECKING:
    from hybrid.engine.token_table import TokenTable
    from hybrid.partitions.partition_file import PartitionFile

concepts = typer.Typer(
    name="concepts",
    help="Build, show and compare concepts: which tokens of a model's vocabulary are wordings of each other.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

BUILD_EPILOG = """
Tokens are joined by their texts first (case, the leading space, quotes, dashes), as far as the rows of the model's
output matrix agree; then words that are each other's nearest neighbours there. Digits, single letters, brackets,
operators, negations, names and opposites that are known join nothing. The file is kept for every model with this
vocabulary, unless --out names another one. It has a line for each group: delete a group, take a token out or move it.
No model is run; 49,152 tokens take half a minute and less than a gigabyte.

Examples:

  hybrid concepts build --local small

  hybrid concepts build --local real --out concepts.json

  hybrid concepts build --local wordings-large --cosine 0.5 --replace

  hybrid concepts build --local my/model.gguf --texts-only --json

Exit codes: 0 built, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""
SHOW_EPILOG = """
Without WORD: what the file was built from, and how much it joins. With WORD: the groups that hold it in any spelling.

Examples:

  hybrid concepts show --local real

  hybrid concepts show --local real begin

  hybrid concepts show --local real --concepts concepts.json --all

Exit codes: 0 shown, 1 output lost, 2 no file or an unreadable one, 3 model unusable.
"""
COMPARE_EPILOG = """
Words that both vocabularies spell alike are compared, 8,000 at most, drawn with a fixed seed. CKA compares all inner
products of their rows (linear, debiased: 1 for a rotation, 0 for strangers; interval by jackknife). The overlap is the
share of each word's ten nearest neighbours that are the same in both. The models may have different vocabularies.

Examples:

  hybrid concepts compare small large

  hybrid concepts compare real real:q3 --json

Exit codes: 0 compared, 1 output lost, 2 too few shared words, 3 model unusable, 130 interrupted (143 terminated).
"""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Model = Annotated[str, typer.Option("--local", help="A name of `hybrid models list`, or a GGUF file.", metavar="MODEL")]


@concepts.command("build")
def build(
    local: Model,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write FILE, not the one that is kept.", metavar="FILE")
    ] = None,
    cosine: Annotated[
        float, typer.Option("--cosine", help="Join words from this cosine on.", metavar="C", min=0.3, max=1.0)
    ] = 0.6,
    texts_only: Annotated[bool, typer.Option("--texts-only", help="Join spellings, and no two words.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there, edits and all.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find which tokens of a model's vocabulary say the same, and keep them in a file."""
    with exit_codes(), progress("the model is read", only_on_a_terminal=True) as report:
        from hybrid.partitions.building import JoinRules, build_groups  # noqa: PLC0415  (help needs no numpy)
        from hybrid.partitions.embedding import NUM_REMOVED  # noqa: PLC0415
        from hybrid.partitions.partition_file import PartitionFile, groups_with_text, own_file  # noqa: PLC0415

        table = _table(local)
        path = out or own_file(table.digest)
        if path.exists() and not replace:
            msg = f"{path} is there, and somebody may have edited it: --replace writes it anew"
            raise UsageError(msg)
        if out is None:
            make_folder(path.parent)
        check_writable("--out", path)
        rules = JoinRules.from_cosine(cosine)
        rows = None if texts_only else table.rows
        groups = build_groups(table.pieces, table.special_ids, rows, rules, report)
        how = {"rows": table.rows.name, "removed_components": NUM_REMOVED, **asdict(rules)} if rows else {"rows": None}
        built = {"model": table.name, "program": version("hybrid-llm"), **how}
        made = PartitionFile(table.digest, len(table.pieces), groups_with_text(groups, table.pieces), built)
        write_whole(path, made.dumps())
        _print_summary(path, made, as_json=as_json)


@concepts.command("show")
def show(
    word: Annotated[str | None, typer.Argument(help="A word, in any spelling.", metavar="[WORD]")] = None,
    local: Model = "small",
    file: Annotated[
        Path | None, typer.Option("--concepts", help="Show FILE, not the one that is kept.", metavar="FILE")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every group.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the concepts of a model's vocabulary, or those of a word."""
    with exit_codes():
        from hybrid.partitions.partition_file import find_file  # noqa: PLC0415

        table = _table(local)
        path, found = find_file(file, table.digest, len(table.pieces))
        if word is not None:
            _print_word(word, table, found, as_json=as_json)
        elif every and not as_json:
            for group in found.groups:
                typer.echo(_spelled(group))
        else:
            _print_summary(path, found, as_json=as_json)


@concepts.command("compare")
def compare(
    first: Annotated[str, typer.Argument(help="A name of `hybrid models list`, or a GGUF file.", metavar="A")],
    second: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """Say how alike two models' embeddings are on the words that both have."""
    with exit_codes(), progress("the models are compared", only_on_a_terminal=True):
        from hybrid.partitions.embedding import NEIGHBOURS, compare_embeddings  # noqa: PLC0415

        tables = [_table(name) for name in (first, second)]
        one, other = ((table.rows, table.pieces) for table in tables)
        found = compare_embeddings(one, other)
        if as_json:
            typer.echo(json.dumps({"models": [first, second], "neighbours": NEIGHBOURS, **asdict(found)}))
            return
        alike = "one vocabulary" if tables[0].digest == tables[1].digest else "two vocabularies"
        cka, overlap = found.cka, found.overlap
        typer.echo(f"{alike}, {found.words:,} of {found.shared:,} shared words compared")
        typer.echo(f"CKA {cka.value:.3f} ({cka.low:.3f} to {cka.high:.3f}): 1 for equal embeddings, 0 for strangers")
        share = f"{overlap.value:.1%} ({overlap.low:.1%} to {overlap.high:.1%})"
        typer.echo(f"of {NEIGHBOURS} nearest neighbours {share} are the same in both, by chance {found.chance:.1%}")


for _command, _epilog in ((build, BUILD_EPILOG), (show, SHOW_EPILOG), (compare, COMPARE_EPILOG)):
    _command.__doc__ = f"{_command.__doc__}\n{_epilog}"


def _table(model: str) -> TokenTable:
    """Read a model's tokens. Raises UsageError and EngineError as ``model_file`` and ``read_token_table`` do."""
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.engine.token_table import read_token_table  # noqa: PLC0415

    return read_token_table(model_file(model, lambda _: None))


def _print_summary(path: Path, found: PartitionFile, *, as_json: bool) -> None:
    sizes = sorted(map(len, found.groups), reverse=True)
    told: dict[str, Any] = {
        "file": str(path),
        "vocabulary": found.vocabulary,
        "num_tokens": found.num_tokens,
        "groups": len(sizes),
        "tokens": sum(sizes),
        "largest": sizes[0] if sizes else 0,
        "concepts": found.num_tokens - sum(sizes) + len(sizes),
        "built": dict(found.built),
    }
    if as_json:
        typer.echo(json.dumps(told))
        return
    typer.echo(escape_controls(str(path)))
    share = told["tokens"] / max(1, found.num_tokens)
    typer.echo(
        f"{told['tokens']:,} of {found.num_tokens:,} tokens ({share:.0%}) are in {told['groups']:,} groups of at most "
        f"{told['largest']}: {told['concepts']:,} concepts"
    )
    typer.echo(_line(f"{name} {said}" for name, said in told["built"].items() if said is not None))


def _print_word(word: str, table: TokenTable, found: PartitionFile, *, as_json: bool) -> None:
    """Print the groups that hold a word in any spelling, and say so where nothing may be merged with it."""
    from hybrid.partitions.normal_form import normal_form  # noqa: PLC0415

    form = normal_form(word.encode("utf-8", "replace"))
    groups = [group for group in found.groups if any(_says(text, word, form) for _, text in group)]
    in_any = {token for group in groups for token, _ in group}
    alone = [
        token
        for token, piece in enumerate(table.pieces)
        if token not in in_any and _says(piece.decode("utf-8", "replace"), word, form)
    ]
    if as_json:
        told = {"word": word, "may_merge": form is not None, "alone": alone, "groups": groups}
        typer.echo(json.dumps(told))
        return
    for group in groups:
        typer.echo(_spelled(group))
    if alone:
        spelled = _spelled((each, table.pieces[each].decode("utf-8", "replace")) for each in alone)
        typer.echo(f"says nothing but itself: {spelled}")
    if not groups and not alone:
        typer.echo(escape_controls(f"no token is the word {word}"))
    elif form is None:
        typer.echo("the builder merges nothing with it: a digit, a sign, a negation, a letter alone or no text")


def _says(text: str, word: str, form: object) -> bool:
    from hybrid.partitions.normal_form import normal_form  # noqa: PLC0415

    if form is None:
        return text.strip() == word.strip() or text == word
    own = normal_form(text.encode("utf-8", "replace"))
    return own is not None and own.form == getattr(form, "form", None)


def _spelled(tokens: Iterable[tuple[int, str]]) -> str:
    return _line(f"{json.dumps(text, ensure_ascii=False)} {token}" for token, text in tokens)


def _line(texts: Iterable[str]) -> str:
    return escape_controls(", ".join(texts))


__all__ = ["concepts"]
