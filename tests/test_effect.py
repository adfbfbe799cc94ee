"""A choice that changes nothing in the policy is refused where it was given; what is inherited is ignored."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from cases import each
from scripted_cloud import ScriptedCloud
from scripted_engine import ScriptedEngine
from scripted_house import END, LARGE, SMALL, WORDS
from typer.testing import CliRunner

import hybrid
from hybrid.batch.questions import lines
from hybrid.cli import app
from hybrid.cli.batch_work import answered
from hybrid.engine import Worker
from hybrid.errors import UsageError
from hybrid.policy import PRESETS
from hybrid.run import AsyncClient, Client, LocalModel
from hybrid.run.composition import check_effect, policy_of
from hybrid.settings.config import Settings
from hybrid.settings.sources import CONFIG_FILE, choosing, load
from hybrid.spend import Account, MemoryLedger

# Of each knob a policy that it changes nothing in, and one that it changes.
IDLE = {
    "threshold": (0.25, "greedy-exact", "kl"),
    "entropy": (0.25, "kl", "doubt"),
    "strict": (True, "exact", "kl"),
    "span": (3, "doubt", "kl"),
    "lead": (2, "local", "paper"),
    "hold": (2, "cloud", "doubt"),
    "scope": (2, "local", "kl"),
    "bonus": (False, "kl", "exact"),
}


@pytest.fixture(autouse=True)
def nothing_else_says_anything(tmp_path, monkeypatch):
    """An empty working directory and configuration folder, and no variable."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    for name in [name for name in os.environ if name.startswith("HYBRID_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened():
    """Open a blocking client over scripted models, with settings of its own."""
    workers = []

    def build(portal, **settings):
        engine = ScriptedEngine(WORDS, SMALL, end_ids=frozenset({END}), num_context=100)
        cloud = ScriptedCloud(LARGE, end_ids=frozenset({END}))
        workers.append(Worker("test"))

        async def reach(_):
            return cloud, await cloud.connect("", ())

        chosen = Settings(cloud_top_k=8, max_tokens=4, seed=0, **settings)
        return Client(
            AsyncClient(LocalModel([(engine, workers[-1])]), reach, Account(None, MemoryLedger()), chosen), portal
        )

    with start_blocking_portal() as portal:
        yield lambda **settings: build(portal, **settings)
    for worker in workers:
        worker.close()


def refusal(work, *arguments, **named):
    with pytest.raises(UsageError) as refused:
        work(*arguments, **named)
    said = str(refused.value)
    assert "\n" not in said
    return said


def is_refused(said, name, policy, acting):
    """Whether the sentence names the choice, the policy, and a policy in which it would act."""
    return said.startswith(f"{name} changes nothing in the policy {policy}: it acts in ") and acting in said


def test_every_knob_is_refused_beside_a_policy_that_has_no_use_for_it_and_taken_by_one_that_has():
    for name, (value, policy, acting) in IDLE.items():
        assert is_refused(refusal(hybrid.open, policy=policy, **{name: value}), name, policy, acting), name
        hybrid.open(policy=acting, **{name: value})
    for policy in ("cloud", "local"):
        assert is_refused(refusal(hybrid.open, policy=policy, span="auto"), "span", policy, "kl")


def test_a_choice_without_a_named_policy_is_a_default_for_answers_and_of_one_answer_refused():
    """What a client or a batch is opened with may serve an answer that names its policy; ``ask`` has no such answer."""
    hybrid.open(entropy=0.25)
    for policy, acting in (("kl", "doubt"), ("exact", "doubt")):
        Path(CONFIG_FILE).write_text(f"policy = '{policy}'\n")
        hybrid.open(entropy=0.25)
        done = CliRunner().invoke(app, ["ask", "a", "--entropy", "0.25"])
        assert (done.exit_code, done.stdout) == (2, ""), policy
        assert is_refused(done.stderr.removeprefix("hybrid: "), "entropy", policy, acting)


def test_what_is_said_of_an_endpoint_is_refused_where_none_is_named(monkeypatch):
    """It had been taken without a word, and the bundled server asked. What is inherited waits for an endpoint."""
    monkeypatch.setenv("MY_KEY", "canary")
    Path("prices.toml").write_text("")
    for name, value in (("dialect", "ollama"), ("api_key_env", "MY_KEY"), ("prices", "prices.toml")):
        said = f"{name} changes nothing without an endpoint: name one with --cloud"
        assert refusal(hybrid.open, **{name: value}) == refusal(hybrid.open, cloud="mid", **{name: value}) == said
        done = CliRunner().invoke(app, ["ask", "a", f"--{name.replace('_', '-')}", value])
        assert (done.exit_code, done.stderr) == (2, f"hybrid: {said}\n")
        hybrid.open(local="small", cloud="http://gpu:8000", **{name: value})
        with monkeypatch.context() as patched:
            patched.setenv(f"HYBRID_{name.upper()}", value)
            hybrid.open()


def test_a_chain_of_one_model_is_refused_and_one_that_is_inherited_waits(monkeypatch):
    for name, value in (("chain", "small>mid"), ("max_active", 2)):
        said = f"{name} changes nothing without a second local model: give --local again, the smallest model first"
        assert refusal(hybrid.open, **{name: value}) == refusal(hybrid.open, local="mid", **{name: value}) == said
        assert refusal(hybrid.open, experts=["numbers", "words"], **{name: value}) == said
        hybrid.open(local=["small", "mid"], **{name: value})
        with monkeypatch.context() as patched:
            patched.setenv(f"HYBRID_{name.upper()}", str(value))
            hybrid.open()


def test_what_files_and_variables_say_is_ignored_by_a_policy_that_has_no_use_for_it(monkeypatch):
    said = {name: value for name, (value, *_) in IDLE.items()}
    Path(CONFIG_FILE).write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items()))
    for policy in ("local", "cloud"):
        hybrid.open(policy=policy)
        with monkeypatch.context() as patched:
            patched.setenv("HYBRID_POLICY", policy)
            patched.setenv("HYBRID_HOLD", "5")
            hybrid.open()
    assert is_refused(refusal(hybrid.open, policy="local", hold=3), "hold", "local", "kl"), "but not what a flag says"


def test_a_line_or_a_call_is_held_against_its_own_choices_and_ignores_the_clients(opened):
    client = opened(policy="kl", threshold=0.25, span=3)
    for policy in ("local", "cloud", "doubt", "exact"):
        client.generate("a b", policy=policy)
        for name, value in {"span": 3, "threshold": 0.25}.items():
            try:
                client.generate("a b", policy=policy, **{name: value})
            except UsageError as error:
                said = str(error)
                assert is_refused(said, name, policy, "kl"), said
    assert is_refused(refusal(client.generate, "a b", policy="local", span=3), "span", "local", "kl")
    assert is_refused(refusal(client.generate, "a b", entropy=0.25), "entropy", "kl", "doubt")
    assert is_refused(refusal(lambda: list(client.stream("a b", entropy=0.25))), "entropy", "kl", "doubt")
    assert is_refused(refusal(lambda: list(client.text("a b", entropy=0.25))), "entropy", "kl", "doubt")
    assert client.spent.requests > 0


def test_a_line_of_a_batch_is_refused_alone(opened):
    client = opened(policy="kl", span=3)
    asked = [{"prompt": "a", "policy": "local"}, {"prompt": "a", "policy": "local", "span": 3}, {"prompt": "a"}]
    Path("in").write_text("".join(f"{json.dumps(each)}\n" for each in asked))
    with Path("in").open("rb") as file:
        found = [asyncio.run(answered(line, partial(asyncio.to_thread, client.generate))) for line in lines(file)]
    assert ["error" in line for line in found] == [False, True, False]
    assert is_refused(found[1]["error"], "span", "local", "kl")


def test_commands_refuse_flags_as_the_front_door_does(tmp_path):
    Path("in").write_text('"a"\n')
    for command in (["ask", "a"], ["batch", "in", "out"]):
        done = CliRunner().invoke(app, [*command, "--policy", "local", "--hold", "3"])
        assert (done.exit_code, done.stdout) == (2, ""), command
        assert is_refused(done.stderr.removeprefix("hybrid: "), "hold", "local", "kl")
    assert not Path("out").exists()


def test_a_dial_of_auto_is_refused_beside_another_policy_and_two_for_one_choice_at_one_level():
    """A worth that an answer inherits waits for an answer under auto; --no-learn may be said of all of them."""
    for name, value in {"worth": "2.2", "risk": 0.05, "patience": 1.0, "second_usd": 0.001, "stream": "early"}.items():
        for policy in ("kl", "doubt:0.03", "local"):
            assert is_refused(refusal(hybrid.open, policy=policy, **{name: value}), name, policy, "auto"), name
        Path(CONFIG_FILE).write_text(f"{name} = {json.dumps(value)}\n")
        hybrid.open(policy="kl", learn=False)
    for beside in ({"risk": 0.05}, {"stream": "early"}):
        said = refusal(hybrid.open, policy="auto", second_usd=0.001, **beside)
        assert said.startswith("second_usd changes nothing with risk or stream early")
        hybrid.open(policy="auto", second_usd=0, **beside)
    said = "worth and risk are two dials for one choice: give one of them"
    assert refusal(policy_of, load(worth=1, risk=0.1)) == said
    Path(CONFIG_FILE).write_text("worth = 2\n")
    by_risk = load(risk=0.05)
    assert (by_risk.worth, by_risk.risk) == (None, 0.05)
    by_worth = choosing(by_risk, {"worth": 0.5})
    assert (by_worth.worth, by_worth.risk) == ("0.5", None)


@each(
    ("name", "value", "said"),
    [
        *(("worth", value, "more than 0: multiples") for value in ("0", "-1", "much", "nan", "1eur", "0usd", True)),
        ("risk", 0, "more than 0"), ("risk", 1, "less than 1"), ("risk", 5, "; 5 % is 0.05)"),
        ("patience", 0, "more than 0"), ("patience", float("inf"), "finite"),
        ("second_usd", -0.001, "at least 0"), ("second_usd", float("inf"), "finite"),
        ("stream", "slow", "must be 'blocks', 'whole' or 'early'"),
        ("hold", "priced", "at least 1, or rest"), ("hold", 0, "at least 1, or rest"),
    ],
)  # fmt: skip
def test_a_dial_that_cannot_be_is_one_sentence(name, value, said):
    sentence = refusal(load, **{name: value})
    assert sentence.startswith(f"{name}: "), sentence
    assert said in sentence


def test_parts_that_replace_one_another_are_named():
    said = refusal(hybrid.open, policy="doubt", gate="margin:0.2", entropy=0.25)
    assert said == "entropy changes nothing in the policy doubt with gate margin:0.2: it acts in doubt"


def test_one_grammar_names_a_policy_and_its_number_wherever_a_policy_is_named(opened, monkeypatch):
    """In a flag, a file, a variable, a line and a call; an unknown or impossible number is one sentence."""
    assert str(policy_of(load(policy="kl:0.25"))) == str(policy_of(load(policy="kl", threshold=0.25)))
    Path(CONFIG_FILE).write_text("policy = 'doubt:0.03'\n")
    assert str(policy_of(load())) == str(policy_of(load(policy="doubt", threshold=0.03)))
    with monkeypatch.context() as patched:
        patched.setenv("HYBRID_POLICY", "kl:0.25")
        assert str(policy_of(load())) == str(policy_of(load(policy="kl:0.25")))
    client = opened()
    for text in ("kl:0.25", "doubt:0.03", "paper:0.2"):
        name, number = text.split(":")
        as_numbers = client.generate("a b", policy=name, threshold=float(number))
        assert client.generate("a b", policy=text).tokens == as_numbers.tokens, text
    for text, said in {
        "kl:x": "'x' is no number", "local:1": "local takes no number", "kl:1:2": "NAME or NAME:NUMBER",
        "klx:1": "no policy is called 'klx'", "kl:-1": "kl", "random:2": "random",
    }.items():  # fmt: skip
        assert said in refusal(hybrid.open, policy=text), text
        assert said in refusal(client.generate, "a", policy=text), text


@each(
    ("levels", "threshold", "policy"),
    [
        ([{"policy": "kl:0.1"}, {"threshold": 0.2}], 0.1, "kl"),
        ([{"threshold": 0.2}, {"policy": "kl:0.1"}], 0.2, "kl"),
        ([{"policy": "doubt"}, {"policy": "kl:0.1"}], None, "doubt"),
        ([{"policy": "doubt"}, {"threshold": 0.2}], 0.2, "doubt"),
        ([{}, {"policy": "kl:0.1"}, {"threshold": 0.2}], 0.1, "kl"),
        ([{"threshold": 0.3}, {"policy": "kl:0.1"}, {"threshold": 0.2}], 0.3, "kl"),
        ([{"policy": "kl:0.3"}, {"policy": "paper:0.1"}, {"threshold": 0.2}], 0.3, "kl"),
    ],
)
def test_a_number_and_a_threshold_are_one_choice_and_the_more_specific_wins(levels, threshold, policy):
    """Of a call, flags, and the working directory's file."""
    *above, lowest = levels
    Path(CONFIG_FILE).write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lowest.items()))
    settings = load(**above[-1])
    for level in reversed(above[:-1]):
        settings = choosing(settings, level)
    name, _, number = settings.policy.partition(":")
    assert (name, float(number) if number else settings.threshold) == (policy, threshold)
    policy_of(settings)


def test_two_numbers_at_one_level_contradict_each_other(opened):
    for work in (hybrid.open, lambda **named: opened().generate("a", **named)):
        assert "two numbers for one policy" in refusal(work, policy="kl:0.1", threshold=0.2)


def test_every_arm_of_the_benchmarks_passes_only_what_acts():
    from hybrid.lab import demo

    assert {arm.policy for arm in demo.ARMS} == {"local", "kl", "doubt", "auto", "cloud"}
    for arm in demo.ARMS:
        check_effect(Settings(policy=arm.policy, **arm.choices), arm.choices)


def test_nothing_is_refused_where_nothing_was_chosen():
    for policy in PRESETS:
        hybrid.open(policy=policy)
        hybrid.open(policy=policy, max_tokens=3, temperature=None, span=None, stop=["a"])


@each("choices", [{"policy": "kl"}, {"policy": "local"}, {"policy": "auto", "stream": "early"}])
def test_a_critic_is_refused_where_nothing_is_weighed_by_what_it_says(choices):
    with pytest.raises(UsageError, match="critic changes nothing"):
        hybrid.open(critic="mid", **choices)
    for policy in ("auto", "route"):
        hybrid.open(critic="mid", policy=policy)
    hybrid.open(critic="mid")  # the answers may name a policy


@each("policy, acts", [("kl", False), ("local", False), ("concepts", True), ("auto", False), ("doubt", False)])
def test_concepts_are_refused_where_nothing_asks_which_tokens_say_the_same(policy, acts):
    given = {"policy": policy, "concepts": "auto"}
    if acts:
        check_effect(Settings(**given), given)
    else:
        with pytest.raises(UsageError, match=f"^concepts changes nothing in the policy {policy}: it acts in concepts"):
            check_effect(Settings(**given), given)
    if acts:
        hybrid.open(**given, offline=True)
    given |= {"policy": "kl", "judge": "concept:0.2"}
    check_effect(Settings(**given), given)


@each(
    ("given", "said"),
    [
        ({"branches": 4, "policy": "kl"}, "policy changes nothing beside branches"),
        ({"branches": 4, "judge": "js:0.1"}, "judge changes nothing beside branches"),
        ({"branches": 4, "worth": 2.0}, "worth changes nothing beside branches"),
        ({"choose": "majority"}, "choose changes nothing without branches"),
    ],
)
def test_branches_are_drawn_under_no_other_choice_of_decoding(given, said):
    settings = choosing(Settings(temperature=1.0), given)
    with pytest.raises(UsageError, match=said):
        check_effect(settings, given)


def test_beside_branches_an_inherited_policy_is_ignored_and_so_is_whether_to_learn():
    inherited = Settings(policy="kl:0.2", span=4, temperature=1.0)
    for given in ({"branches": 4}, {"branches": 4, "choose": "majority", "learn": False, "offline": True}):
        settings = choosing(inherited, given)
        check_effect(settings, given)
        assert policy_of(settings).name == "branches"


def test_a_policy_takes_the_place_of_branches_from_a_lower_level():
    inherited = Settings(branches=4, temperature=1.0)
    for given, num in (({"policy": "kl"}, None), ({"seed": 3}, 4), ({"branches": 2}, 2)):
        settings = choosing(inherited, given)
        check_effect(settings, given)
        assert settings.branches == num
    Path(CONFIG_FILE).write_text("branches = 4\ntemperature = 1.0\n")
    assert load().branches == 4
    assert load(policy="kl").branches is None


def test_what_is_no_way_to_choose_is_refused_and_branches_are_not_quoted():
    with pytest.raises(UsageError, match="choose: logprob or majority; in Python a function of a text, too"):
        load(choose="best")
    done = CliRunner().invoke(
        app, ["price", "--price", "1/0.1/4"], env={"HYBRID_BRANCHES": "2", "HYBRID_TEMPERATURE": "1"}
    )
    assert done.exit_code == 2
    assert "branches are not quoted" in done.stderr
