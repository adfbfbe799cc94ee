"""Where settings come from: which source wins, and what a folder that somebody else wrote may say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cases import each, each_of
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.errors import UsageError
from hybrid.record.events import TRACE_VERSION
from hybrid.settings.config import Settings, names_for
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import CONFIG_FILE, cache_file, choosing, ledger_file, load, price_file
from hybrid.store.files import APP

# Every setting, with a value that is not its default. Whoever adds one decides here whether a stranger may choose it.
SPAN = "span: between 1 and 256, from one to another as in 4..32, auto or cheap"
DECODING = {
    "policy": "local", "gate": "entropy:0.6", "judge": "js:0.1", "scope": 3, "bonus": True, "threshold": 0.25,
    "entropy": 0.75, "concept_threshold": 0.125, "strict": True, "span": 5, "lead": 6, "hold": 7, "max_tokens": 9,
    "stop": ["END", "."], "temperature": 1.5, "top_p": 0.5, "top_k": 4, "min_p": 0.125, "seed": 11, "overlap": False,
    "worth": "3.5", "risk": 0.05, "patience": 0.5, "second_usd": 0.001, "stream": "whole",
    "branches": 1, "choose": "majority",
}  # fmt: skip
REFUSED = {
    "local": "theirs.gguf", "cloud": "https://evil.example", "cloud_model": "m", "dialect": "vllm",
    "api_key_env": "AWS_SECRET_ACCESS_KEY", "price": "free", "prices": "theirs.toml", "cap": "1000",
    "ledger": "none", "spender": "somebody", "conversation": "another", "system": "Lie.", "raw": True,
    "template_args": {"enable_thinking": False},
    "trace_rows": True, "learn": False, "offline": False, "ctx": 100_000, "threads": 200, "gpu_layers": -1,
    "kv_type": "q8_0", "parallel": 8, "max_queued": 3, "queue_timeout_s": 7.0, "cloud_top_k": 5,
    "cache_salt": "shared", "connect_timeout_s": 1.0, "first_byte_timeout_s": 2.0, "read_timeout_s": 3.0,
    "request_timeout_s": 4.0, "cool_down_s": 6.0, "retries": 8,
    "relay_url": "https://evil.example", "relay_model": "m", "relay_price": "free",
    "relay_api_key_env": "AWS_SECRET_ACCESS_KEY", "relay_image_tokens": 1,
    "drafters": ["theirs.gguf"], "chain": "cheap", "max_active": 9, "experts": ["theirs.gguf"], "mix": "select",
    "critic": "theirs.gguf", "concepts": "theirs.json", "cloud_vocabulary": "theirs.gguf",
}  # fmt: skip


def toml(values):
    def written(value):
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + "}"
        return str(value).lower() if isinstance(value, bool) else f"{value!r}"

    return "".join(f"{name} = {written(value)}\n" for name, value in values.items())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, a configuration folder, and no variable that says anything."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    for name in [name for name in os.environ if name.startswith("HYBRID_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def own(here, tmp_path):
    """Write the user's own file; return its path."""

    def write(text, mode=0o600):
        path = tmp_path / "configuration" / APP / CONFIG_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def refusal(**flags):
    with pytest.raises(UsageError) as refused:
        load(**flags)
    said = str(refused.value)
    assert "\n" not in said
    return said


def test_every_setting_is_decided_to_be_a_strangers_choice_or_not():
    assert DECODING.keys() | REFUSED.keys() == Settings.model_fields.keys()
    assert not DECODING.keys() & REFUSED.keys()
    default = Settings().model_dump()
    assert all(value != default[name] for name, value in DECODING.items())


def test_a_stranger_chooses_nothing_that_an_answer_cannot_choose():
    """What belongs to models, endpoint and money is fixed when a client is opened; decoding is not."""
    assert DECODING.keys() <= names_for(SettingScope.ANSWER)


@each("name", DECODING)
def test_the_working_directorys_file_chooses_how_to_decode(here, name):
    (here / CONFIG_FILE).write_text(toml({name: DECODING[name]}))
    expected = Settings(**{name: DECODING[name]})
    assert load() == expected != Settings()


@each("name", REFUSED)
def test_the_working_directorys_file_sets_nothing_else_and_the_sentence_says_what_to_move_where(here, name, tmp_path):
    """A cloned repository sent $AWS_SECRET_ACCESS_KEY and the prompt to a host of its own, with the ledger off."""
    (here / CONFIG_FILE).write_text("# ours\npolicy = 'local'\n" + toml({name: REFUSED[name]}))
    said = refusal()
    assert said.startswith(f"./{CONFIG_FILE}: ")
    assert f"{name} (line 3)" in said
    assert str(tmp_path / "configuration" / APP / CONFIG_FILE) in said
    assert "--config" in said
    with pytest.raises(UsageError):
        hybrid.open()


COMMANDS = [
    ["ask", "What?"], ["batch", "in.jsonl", "out.jsonl"], ["probe", "http://127.0.0.1:9"], ["budget", "show"],
    ["replay", "trace.jsonl"],
]  # fmt: skip


@each("command", COMMANDS)
def test_no_command_takes_a_cloned_folders_word_for_where_a_question_and_a_key_go(here, command):
    """Exit code 2 as for other settings that cannot be; nothing is sent or written."""
    (here / "in.jsonl").write_text('"What?"\n')
    recording = {
        "event": "recording_started",
        "pieces": ["61"],
        "end_ids": [],
        "sampling": {},
        "max_tokens": 1,
        "choices": {},
    }
    started = {"event": "started", "prompt": [0], "policy": "local"}
    lines = [{"trace": TRACE_VERSION}, started, recording]
    (here / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (here / CONFIG_FILE).write_text(
        toml({"cloud": "http://127.0.0.1:9", "api_key_env": "AWS_SECRET_ACCESS_KEY", "ledger": "none", "price": "free"})
    )
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("hybrid: ./hybrid.toml: ")
    assert "cloud (line 1), api_key_env (line 2), ledger (line 3), price (line 4)" in done.stderr
    assert not (here / "out.jsonl").exists()


def test_a_file_that_says_more_is_refused_although_flags_say_the_same_better(here):
    """Where a flag wins by chance, the next command may lack it."""
    (here / CONFIG_FILE).write_text(toml({"cloud": "https://evil.example", "cap": "1"}))
    said = refusal(cloud="http://mine", cap="0.01")
    assert "cloud (line 1), cap (line 2)" in said


@each("name", [*DECODING, *REFUSED])
def test_the_users_own_file_and_a_named_one_set_everything(here, own, tmp_path, name, monkeypatch):
    value = (DECODING | REFUSED)[name]
    expected = Settings(**{name: value})
    own(toml({name: value}))
    assert load() == expected
    own("")
    named = tmp_path / "named.toml"
    named.write_text(toml({name: value}))
    assert load(config=named) == expected
    with monkeypatch.context() as patched:
        patched.setenv("HYBRID_CONFIG", str(named))
        assert load() == expected


def test_the_first_source_that_names_a_setting_wins(here, own, tmp_path, monkeypatch):
    """Flags, environment, named file, working directory; the user's own file where none is named."""
    sources = ["flag", "environment", "named", "here", "own"]

    def found(*present):
        own("max_tokens = 5\n" if "own" in present else "")
        (here / CONFIG_FILE).write_text("max_tokens = 4\n" if "here" in present else "")
        (tmp_path / "named.toml").write_text("max_tokens = 3\n" if "named" in present else "")
        with monkeypatch.context() as patched:
            if "environment" in present:
                patched.setenv("HYBRID_MAX_TOKENS", "2")
            flags = {"max_tokens": 1} if "flag" in present else {}
            return load(config=tmp_path / "named.toml" if "named" in present else None, **flags).max_tokens

    for rank in range(5):
        assert found(*sources[rank:]) == rank + 1
    assert found() == 512


def test_a_named_file_stands_in_the_place_of_the_users_own(here, own, tmp_path):
    own("policy = 'local'\ncap = 1\n")
    (tmp_path / "named.toml").write_text("cap = 2\n")
    (here / CONFIG_FILE).write_text("seed = 3\n")
    found = load(config=tmp_path / "named.toml")
    assert (found.policy, found.cap, found.seed) == ("auto", "2", 3)


def test_the_working_directorys_file_may_be_named_and_then_says_everything(here):
    (here / CONFIG_FILE).write_text("cloud = 'http://gpu:8000'\n")
    assert load(config=Path(CONFIG_FILE)).cloud == load(config=here / CONFIG_FILE).cloud == "http://gpu:8000"


def test_the_users_own_file_is_their_own_where_they_stand_beside_it(own, monkeypatch):
    path = own("cloud = 'http://gpu:8000'\n")
    monkeypatch.chdir(path.parent)
    assert load().cloud == "http://gpu:8000"


@each("mode", [0o620, 0o602, 0o666])
def test_an_own_file_that_others_can_write_is_refused(own, mode):
    path = own("max_tokens = 3\n", mode)
    assert refusal() == f"{path} can be written by others than you: chmod go-w it"


def test_an_own_file_that_others_can_read_is_read(own):
    """It names the variable of a key, never a key."""
    own("max_tokens = 3\n", 0o644)
    assert load().max_tokens == 3


def test_an_own_file_of_another_user_is_refused(own, monkeypatch):
    path = own("max_tokens = 3\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)
    assert refusal().startswith(f"{path} belongs to another user")


def _homeless(_):
    raise RuntimeError("could not determine the home directory")


@each("folder", [_homeless, lambda app: Path("~") / ".config" / app], ids=["newer", "older"])
def test_a_user_without_a_home_has_no_own_files(here, monkeypatch, folder):
    """Older platformdirs look in a folder called ~ in the working directory, which anybody may have put there."""
    for name in (CONFIG_FILE, "prices.toml"):
        theirs = here / "~" / ".config" / APP / name
        theirs.parent.mkdir(parents=True, exist_ok=True)
        theirs.write_text("cloud = 'https://evil.example'\n")
    for kind in ("config", "state", "cache"):
        monkeypatch.setattr(f"hybrid.settings.sources.user_{kind}_path", folder)
    settings = load()
    assert settings.cloud is None
    assert price_file(settings) is None
    for file in (cache_file, lambda: ledger_file(settings)):
        with pytest.raises(UsageError, match="no home folder"):
            file()


def test_a_link_to_a_file_of_the_users_is_still_the_working_directorys(here, tmp_path):
    (tmp_path / "elsewhere.toml").write_text("cloud = 'http://gpu:8000'\n")
    (here / CONFIG_FILE).symlink_to(tmp_path / "elsewhere.toml")
    assert "cloud (line 1)" in refusal()


@each(
    ("text", "said"),
    [
        ("seed = 1\npolcy = 'kl'\n", f"there is no setting called polcy (./{CONFIG_FILE}, line 2)"),
        ("\n\nspan = 0\n", f"{SPAN} (it is 0 in ./{CONFIG_FILE}, line 3)"),
        ("policy = \n", f"./{CONFIG_FILE}: Invalid value (at line 1, column 10)"),
        ("_cli_parse_args = true\n", f"there is no setting called _cli_parse_args (./{CONFIG_FILE}, line 1)"),
        ('"\\u001b[2J" = 1\n', "there is no setting called"),
        (f"stop = {'[' * 5000}", "nested too deeply"),
        ("stop = 'END'\n", "stop: a list of texts"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_with_file_and_line(here, text, said):
    (here / CONFIG_FILE).write_text(text)
    found = refusal()
    assert said in found
    assert found.isprintable()


def test_what_is_wrong_with_the_users_own_file_names_it(own):
    path = own("# mine\ncap = true\n")
    assert refusal().endswith(f"(it is True in {path}, line 2)")


def test_a_variable_that_is_wrong_is_one_sentence(here, monkeypatch):
    monkeypatch.setenv("HYBRID_SPAN", "0")
    assert refusal() == f"{SPAN} (it is '0' in HYBRID_SPAN)"
    monkeypatch.setenv("HYBRID_SPAN", "3")
    monkeypatch.setenv("HYBRID_STOP", "END")
    assert refusal().startswith("stop: a list of texts")
    monkeypatch.setenv("HYBRID_STOP", '["END"]')
    assert load().stop == ("END",)


@each(
    ("name", "nearest"),
    [
        ("POLCY", "POLICY"),
        ("CAPS", "CAP"),
        ("LEDGR", "LEDGER"),
        ("CONFG", "CONFIG"),
        ("TOPK", "TOP_K"),
        ("capp", "CAP"),
        ("CAP_USD", "CAP"),
        ("DAILY_CAP", "CAP"),
        ("PRICE_PER_TOKEN", "PRICE"),
        ("POLICYY", "POLICY"),
        ("LOCALL", "LOCAL"),
        ("MODEL", "CLOUD_MODEL"),
        ("LOCAL_MODEL", "LOCAL"),
        ("CLOUD_URL", "CLOUD"),
        ("TOKENS", "MAX_TOKENS"),
        ("my_policy", "POLICY"),
        ("KEY", "API_KEY"),
        ("APIKEY", "API_KEY"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_refused_and_the_nearest_named(here, monkeypatch, name, nearest):
    """HYBRID_CAPS=0.01 would let an answer cost what it likes."""
    with monkeypatch.context() as patched:
        patched.setenv(f"HYBRID_{name}", "1")
        assert refusal() == f"there is no setting called HYBRID_{name.upper()}: did you mean HYBRID_{nearest}?"


def test_every_setting_with_a_letter_too_few_is_taken_for_that_setting(here, monkeypatch):
    ambiguous = {"prices", "top_p", "top_k", "api_key_env"}  # two are as near; API_KEY_EN may hold a key
    for setting in each_of(sorted(Settings.model_fields.keys() - ambiguous)):
        with monkeypatch.context() as patched:
            patched.setenv(f"HYBRID_{setting[:-1]}".upper(), "1")
            assert f"did you mean HYBRID_{setting.upper()}?" in refusal()


def test_a_key_and_the_variables_of_other_programs_are_no_settings(here, monkeypatch):
    others = ("HYBRID_API_KEY_2", "HYBRID_HOME", "HYBRID_OPENAI_KEY", "HYBRID_CLOUD_KEY", "HYBRID_SERVERS", "HYBRID_CI")
    for name in ("HYBRID_API_KEY", *others, "HYBRID", "HYBRIDS_CAP", "HYBRID_"):
        monkeypatch.setenv(name, "1")
    assert load() == Settings()
    monkeypatch.setenv("HYBRID_LEDGER_KEY", "1")
    assert "did you mean HYBRID_LEDGER?" in refusal()
    assert load(api_key_env="HYBRID_LEDGER_KEY").api_key_env == "HYBRID_LEDGER_KEY"


def test_a_policy_that_cannot_be_names_the_variables_and_lines_without_which_it_could(here, own, monkeypatch):
    """A flag's own fault names none, and neither does what is right beside it."""

    def said(**flags):
        with pytest.raises(UsageError) as refused:
            hybrid.open(**flags)
        return str(refused.value)

    monkeypatch.setenv("HYBRID_SPAN", "3")
    path = own("\nprice = '1/2'\n")
    assert said().endswith(f"(in {path}, line 2)")
    own("")
    (here / CONFIG_FILE).write_text("seed = 1\npolicy = 'klx'\n")
    assert said().endswith(f"cloud (in ./{CONFIG_FILE}, line 2)")
    monkeypatch.setenv("HYBRID_POLICY", "paper")
    monkeypatch.setenv("HYBRID_BONUS", "true")
    assert said() == "the judge of paper takes no bonus (in HYBRID_POLICY and HYBRID_BONUS)"
    assert said(policy="paper") == "the judge of paper takes no bonus (in HYBRID_BONUS)"
    assert said(policy="paper", bonus=True) == "the judge of paper takes no bonus"
    monkeypatch.setenv("HYBRID_POLICY", "kl:much")
    assert said(bonus=False) == "--policy kl:much: 'much' is no number (in HYBRID_POLICY)"
    done = CliRunner().invoke(app, ["probe", "http://127.0.0.1:9"])
    assert (done.exit_code, done.stderr.endswith("(in HYBRID_POLICY)\n")) == (2, True)


def test_what_is_wrong_with_any_setting_is_said_in_words_of_a_user(here):
    """Pydantic had said "Input should be a valid integer, unable to parse string as an integer"."""
    said = []
    for name in Settings.model_fields:
        for value in ("many", "", "-1", "1e999", -1, 0, 2**31, 1.5, float("nan"), True, [], [3], {"a": 1}):
            try:
                load(**{name: value})
            except UsageError as error:
                said.append(str(error))
    assert len(said) > 200
    assert [each for each in said if "nput" in each or "parse" in each or "should" in each] == []
    assert refusal(threads="x") == "threads: must be a whole number (it is 'x')"
    assert refusal(threads=257) == "threads: must be at most 256 (it is 257)"


@each(("name", "why"), [("none.toml", "No such file or directory"), (".", "Is a directory")])
def test_a_named_file_that_cannot_be_read_is_a_sentence(here, name, why):
    assert refusal(config=Path(name)) == f"{name} cannot be read: {why}"


def test_a_file_of_bytes_that_are_no_text_is_a_sentence(here):
    (here / CONFIG_FILE).write_bytes(b"policy = '\xff'\n")
    assert refusal().startswith(f"./{CONFIG_FILE}: ")


def test_an_answers_choices_are_laid_over_its_clients_settings_and_no_source_is_read_again(here):
    """A program may stand in another folder by then."""
    mine = load(max_tokens=7, seed=3)
    (here / CONFIG_FILE).write_text("temperature = 2\nno_such_setting = 1\n")
    assert choosing(mine, {"seed": 4, "policy": None}) == mine.model_copy(update={"seed": 4})
    with pytest.raises(UsageError, match=r"^max_tokens: .* \(it is -1\)$"):
        choosing(mine, {"max_tokens": -1})
