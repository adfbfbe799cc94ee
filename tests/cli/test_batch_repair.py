"""The command that a batch names at its end is the one that was given, for the lines that may come to more."""

from __future__ import annotations

import re
import shlex
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest
import typer
from cases import each

import hybrid
from hybrid.batch.output import OutputLine
from hybrid.cli import app
from hybrid.cli import tally as batch_repair
from hybrid.cli.batch import batch
from hybrid.cli.tally import RetryRequirements
from hybrid.errors import UsageError
from hybrid.spend import CapStatus
from hybrid.spend.ledger import CAP_LEVELS

BATCH = typer.main.get_command(app).commands["batch"]
OWN = {"again", "allow_degraded", "sort", "as_json", "help"}
SAMPLES, TEXT = {int: "7", float: "0.000012"}, "--it's a $text"


def given(words):
    """The two files and the flags that the command line makes of these words; what was not given is not there."""
    found = BATCH.make_context("batch", list(words)).params
    flags = {name: value for name, value in found.items() if name not in OWN and value is not None}
    return (flags.pop("source"), flags.pop("out")), flags


def every_flag():
    """Words that give each flag of the command, and those that may be given again twice; of a switch, either word."""
    for option in BATCH.params:
        if option.name in OWN or option.param_type_name == "argument":
            continue
        if option.is_flag:
            yield option.name, [option.opts[0]]
            yield option.name, option.secondary_opts[:1]
        else:
            kinds = get_args(get_args(signature(batch).parameters[option.name].annotation)[0])
            sample = next((SAMPLES[kind] for kind in (int, float) if kind in kinds), TEXT)
            yield option.name, [option.opts[-1], sample] * (2 if option.multiple else 1)


def test_the_command_that_repairs_has_every_flag_of_the_run_quoted_for_a_shell(tmp_path):
    """Each flag alone, and all at once; a cap that was in the way must be given anew, and one that was not stays."""
    named = (Path("it's in"), Path("the out"))
    cases = [*every_flag(), ("", [word for _, words in every_flag() for word in words])]
    for kind, why in (("unreachable", "gone"), ("budget", "the cap of 1 USD does not allow another request (0 USD)")):
        needs = RetryRequirements()
        needs.add(OutputLine(1, "", degraded=why, degraded_kind=kind))
        for name, words in cases:
            files, flags = given([*map(str, named), *words])
            assert flags.keys() >= {name} - {""}, "the sample is taken as that flag"
            command = needs.command(*named, flags.copy())
            hybrid_, batch_, *pasted = shlex.split(command)
            again = pasted.index("--again")
            assert [hybrid_, batch_, *pasted[again : again + 2]] == ["hybrid", "batch", "--again", "degraded"]
            if kind == "budget" and "cap" in flags:
                with pytest.raises(UsageError, match="'HIGHER' is not an amount"):
                    hybrid.open(cap=given(pasted)[1]["cap"])
                pasted[pasted.index("HIGHER")] = flags["cap"]
            assert given(pasted) == (files, flags), name
    assert len(cases) > len(BATCH.params) - len(OWN)


@each("level", CAP_LEVELS)
def test_the_cap_that_decided_a_line_is_its_name_and_of_an_older_line_that_in_its_sentence(level):
    """A sentence may be worded anew, and lines that hold the old one stay on people's disks."""
    named = OutputLine(1, "", degraded="reworded", degraded_kind="budget", degraded_cap=level)
    older = OutputLine(1, "", degraded=CapStatus(level, 10**9, 10**9, 0).denial().why, degraded_kind="budget")
    for line in (named, older):
        needs = RetryRequirements()
        needs.add(line)
        assert needs.levels == {level}
    unnamed = RetryRequirements()
    unnamed.add(OutputLine(1, "", degraded="reworded", degraded_kind="budget"))
    assert unnamed.levels == {None}


def test_on_windows_a_line_has_the_quotes_that_both_shells_take(monkeypatch):
    monkeypatch.setattr(batch_repair, "WINDOWS", True)
    words = ["hybrid", r"C:\Users\me\in.jsonl", r"C:\My files\out.jsonl", "http://x/v1?a=1&b=2", "100%", "it's", ""]
    line = batch_repair.shell_line(words)
    assert [each.strip('"') for each in re.findall(r'"[^"]*"|[^ "]+', line)] == words
    assert line.startswith(r'hybrid C:\Users\me\in.jsonl "C:\My files\out.jsonl" "http')
