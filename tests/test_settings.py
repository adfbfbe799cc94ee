"""A setting is declared once: what is derived from the declaration, for every setting and each derived place."""

from __future__ import annotations

import ast
from inspect import signature
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import typer.main
from cases import each_of

from hybrid.cli import app
from hybrid.cli.ask import ask
from hybrid.cli.batch import batch
from hybrid.cli.calibrate import calibrate
from hybrid.cli.chat import chat
from hybrid.cli.command import help_of
from hybrid.cli.price import price
from hybrid.cli.probe import probe
from hybrid.cli.trace import replay
from hybrid.errors import UsageError
from hybrid.run import client, composition
from hybrid.settings.config import GROUPS, AnswerChoices, OpenArguments, Settings, names_for, setting
from hybrid.settings.policy_choices import PolicyChoices
from hybrid.settings.setting_info import SettingScope

ROOT = Path(__file__).parent.parent
# Every setting: where it may be chosen (a flag, an answer, the working directory, a replay, a probe, a price, a trace,
# a calibration), and its default. Names, places and defaults are promises to users: whoever changes one changes this.
PROMISED = """
local                 f---p$-- None
ctx                   f------c 0
threads               f------c None
parallel              f------- 1
max_queued            -------- None
queue_timeout_s       -------- None
gpu_layers            f---p--c None
kv_type               f---p--c 'f16'
drafters              -------- ()
chain                 f------- 'auto'
max_active            f------- None
experts               f------- ()
mix                   f------- 'select'
critic                f------c None
cloud                 f----$-c None
cloud_model           f----$-c None
cloud_vocabulary      f---p$-c None
dialect               f---p$-c None
api_key_env           f---p--c 'HYBRID_API_KEY'
offline               fa------ False
cloud_top_k           -------- 20
cache_salt            -------- None
connect_timeout_s     -------- 5.0
first_byte_timeout_s  -------- 20.0
read_timeout_s        -------- 10.0
request_timeout_s     -------- 120.0
cool_down_s           -------- 5.0
retries               -------- 2
relay_url             -------- None
relay_model           -------- None
relay_price           -------- None
relay_api_key_env     -------- None
relay_image_tokens    -------- None
price                 f--rp$-c None
prices                f---p$-c None
cap                   f---p--c None
ledger                f---p--c None
spender               -------- None
conversation          fa--p--c None
policy                fawr-$-- 'auto'
gate                  fawr-$-- None
judge                 fawr-$-- None
scope                 fawr-$-- None
bonus                 fawr-$-- None
threshold             fawr-$-- None
entropy               fawr-$-- None
concept_threshold     fawr-$-- None
strict                fawr-$-- False
span                  fawr-$-- None
lead                  fawr-$-- None
hold                  fawr-$-- None
branches              fawr---- None
choose                fawr---- None
overlap               faw----- True
concepts              f------c None
trace_rows            -a----t- False
worth                 faw--$-- None
risk                  faw--$-- None
learn                 fa------ True
patience              faw--$-- 2.0
second_usd            faw----- 0.0
stream                faw--$-- 'blocks'
system                fa---$-c None
raw                   fa------ False
template_args         fa---$-c {}
max_tokens            fawr-$-c 512
stop                  fawr-$-- ()
temperature           faw----- 0.0
top_p                 faw----- 1.0
top_k                 faw----- 0
min_p                 faw----- 0.0
seed                  faw----- None
"""
ROWS = {name: (uses, ast.literal_eval(default)) for name, uses, default in map(str.split, PROMISED.split("\n")[1:-1])}
LETTERS = {
    "f": SettingScope.FLAG,
    "a": SettingScope.ANSWER,
    "w": SettingScope.PROJECT,
    "r": SettingScope.REPLAY,
    "p": SettingScope.PROBE,
    "$": SettingScope.PRICE,
    "t": SettingScope.TRACE,
    "c": SettingScope.CALIBRATE,
}
# Flags that have a second name.
OTHER_FLAGS = {"hold": ["--handoff"], "template_args": ["--template-arg"], "experts": ["--expert"]}
# What each command has beside the settings. ``probe`` takes two as its own arguments, and ``calibrate`` several models.
COMMANDS = {
    "chat": ("f", {"watch", "thoughts"}),
    "ask": ("ft", {"prompt", "as_json", "explain", "thoughts", "trace"}),
    "batch": ("f", {"source", "out", "again", "allow_degraded", "sort", "as_json"}),
    "replay": ("r", {"trace", "as_json"}),
    "probe": ("p", {"url", "model", "as_json"}),
    "price": ("$", {"question", "as_json", "tariffs"}),
    "calibrate": ("c", {"questions", "num", "local", "judge", "recover", "report", "forget", "use", "back", "as_json"}),
}


def places(letters):
    return {name for name, (uses, _) in ROWS.items() if set(uses) & set(letters)}


def test_every_setting_has_the_places_and_the_default_that_were_promised():
    assert [*Settings.model_fields] == [*ROWS]
    assert {name: field.default for name, field in Settings.model_fields.items()} == {
        n: d for n, (_, d) in ROWS.items()
    }
    for letter, use in LETTERS.items():
        assert names_for(use) == places(letter), use


def test_every_setting_is_in_one_group_and_has_a_sentence():
    for name in each_of(ROWS):
        assert sum(name in group.model_fields for group in GROUPS.values()) == 1, name
        assert setting(name).help[-1] not in ".,;", name
        assert help_of(name).count("(") <= 1, name
    assert help_of("max_tokens") == "Most tokens in the answer; 0: the rest of the context (512)."
    assert help_of("overlap") == "Draft on while a check is waited for (on)."
    assert help_of("offline") == "Send no request."
    assert help_of("span").endswith("(by policy: 8; kl: 32; exact rules: 16..32).")


def test_a_command_that_takes_a_setting_takes_it_as_every_other_does():
    """Under one name, with one type, one help text and in one section; and it takes no setting that is not its own."""
    commands = typer.main.get_command(app).commands
    titles = {name: title for title, group in GROUPS.items() for name in group.model_fields}
    named = {
        "ask": ask,
        "batch": batch,
        "chat": chat,
        "replay": replay,
        "probe": probe,
        "price": price,
        "calibrate": calibrate,
    }
    seen = {}
    for command, (letters, own) in COMMANDS.items():
        options = {each.name: each for each in commands[command].params if each.name != "help"}
        assert options.keys() == places(letters) | own | {"config"}, command
        for name in each_of(places(letters)):
            found = options[name]
            flags = [f"--{name.replace('_', '-')}"], [f"--no-{name.replace('_', '-')}"]
            is_switch = Settings.model_fields[name].annotation in {bool, bool | None}
            words = (flags[0] + OTHER_FLAGS.get(name, []), flags[1] if is_switch else [])
            assert (found.opts, found.secondary_opts) == words, (command, name)
            told = (found.help, found.metavar, found.rich_help_panel)
            assert told == (help_of(name), setting(name).metavar, titles[name]), (command, name)
            assert found.default is None, "what is not given comes from elsewhere"
            kind = get_args(signature(named[command]).parameters[name].annotation)[0]
            assert seen.setdefault(name, kind) == kind, (command, name)
    types = {
        "stop": list[str],
        "span": str,
        "cap": str,
        "local": list[str],
        "hold": str,
        "stream": str,
        "top_p": float,
        "strict": bool,
    }
    assert {name: seen[name] for name in types} == {name: kind | None for name, kind in types.items()}


def test_an_answer_may_choose_what_is_its_own_and_nothing_else():
    answering = client.AsyncClient.__new__(client.AsyncClient)
    answering._settings = Settings()

    def choose(name):
        return composition.Decoding.of(answering._settings_with({name: None})).seeded().settings

    for name in each_of(ROWS):
        if name in places("a"):
            assert choose(name).seed is not None
        else:
            with pytest.raises(
                UsageError, match=rf"^{name}: fixed when a client is opened; an answer may choose bonus,"
            ):
                choose(name)
    with pytest.raises(UsageError, match=r"^there is no setting called zzz; an answer may choose bonus,"):
        choose("zzz")


def test_a_choice_that_is_no_setting_at_all_is_told_with_the_nearest():
    answering = client.AsyncClient.__new__(client.AsyncClient)
    answering._settings = Settings()
    with pytest.raises(UsageError, match=r"^there is no setting called polcy: did you mean policy\?$"):
        answering._settings_with({"polcy": "kl"})


def test_the_front_doors_keywords_are_the_settings_and_take_every_type_that_a_setting_has():
    answers, every = get_type_hints(AnswerChoices), get_type_hints(OpenArguments)
    assert answers.keys() == places("a")
    assert every.keys() == ROWS.keys()
    for name, field in each_of(Settings.model_fields.items()):
        kinds = set(get_args(field.annotation)) if NoneType in get_args(field.annotation) else {field.annotation}
        if name not in {"stop", "drafters", "experts"}:  # a sequence there, a tuple here
            assert kinds | {NoneType} <= set(get_args(every[name])), name


# A value for every knob of a policy, none of them its default.
KNOBS = {
    "policy": "doubt", "gate": "entropy:0.6", "judge": "js:0.1", "scope": 3, "bonus": True, "threshold": 0.25,
    "entropy": 0.75, "concept_threshold": 0.125, "strict": True, "span": 5, "lead": 6, "hold": 7,
    "branches": 2, "choose": "majority",
}  # fmt: skip


def test_a_policys_builder_and_a_trace_get_every_knob(monkeypatch):
    built = []

    def watched(name, choices):
        built.append((name, choices))
        return SimpleNamespace(judge=None, branches=None)

    monkeypatch.setattr(composition, "preset", watched)
    assert KNOBS.keys() == PolicyChoices.model_fields.keys()
    assert KNOBS.keys() <= places("r"), "a replay may choose what a trace keeps"
    settings = Settings(**KNOBS, temperature=1.0, max_tokens=9, cloud_top_k=4)
    composition.policy_of(settings)
    name, choices = built[0]
    assert name == "doubt"
    assert {knob: getattr(choices, knob) for knob in KNOBS} == KNOBS
    assert (choices.sampling.temperature, choices.max_tokens, choices.cloud_top_k) == (1.0, 9, 4)
    kept = composition.choices_of(settings, SimpleNamespace(span=5, spans="5"))
    assert kept == {knob: str(value) for knob, value in KNOBS.items()} | {"cloud_top_k": "4", "stop": ()}


def test_nothing_else_lists_settings():
    """Four names of settings in one literal are a list of settings, which somebody would have to keep."""
    listed = {}
    for path in ROOT.glob("hybrid/**/*.py"):
        if {"lab", "cloud", "defer", "serve"} & set(path.relative_to(ROOT).parts):
            continue  # an experiment chooses settings, as a user does; the wires and a calibration have their own names
        if path.name == "bench.py":
            continue  # benchmarks are named after what they measure
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict):
                each = node.keys if isinstance(node, ast.Dict) else node.elts
                names = {x.value for x in each if isinstance(x, ast.Constant)} & ROWS.keys()
                if len(names) > 3:
                    listed[str(path.relative_to(ROOT)), node.lineno] = sorted(names)
    assert listed == {}
