"""Every example is run as a user runs it: a process of its own, in another folder, on the bundled pair and real HTTP.

The example is asked for what it promises to show; that it merely ends would say nothing.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from cases import each, each_of

import hybrid

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = Path(hybrid.__file__).parent / "models"
MAX_LINES = 60
USD = r"(\d+(?:\.\d+)?) USD"
ALONE = '{"tool": "timer", "minutes": 12, "seconds": 30}'  # the small model never saw that a timer can have a name
RIGHT = '{"tool": "timer", "minutes": 12, "seconds": 30, "label": "tea"}'
NOBODY_LISTENS = "http://127.0.0.1:9"


@pytest.fixture
def run(tmp_path):
    """Run an example by its name in the test's own folder."""
    return running_in(tmp_path)


def running_in(folder: Path):
    """Run an example by its name, away from the repository and from settings of this machine."""

    def start(name: str, *args: str) -> subprocess.CompletedProcess:
        kept = {"HYBRID_LEDGER", "HYBRID_PRICES"}  # a test's own: the user's are not touched
        environment = {k: v for k, v in os.environ.items() if k in kept or not k.startswith("HYBRID_")}
        command = [sys.executable, str(EXAMPLES / name), *args]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return start


@pytest.fixture(scope="module")
def endpoint(start_server):
    """The large model behind an address of one's own."""
    return start_server(model=MODELS / "large.gguf").url


@pytest.fixture(scope="module")
def provenance(tmp_path_factory):
    """The lines of that example, run once for all that is asked of them."""
    run = running_in(tmp_path_factory.mktemp("provenance"))
    return finished(run("provenance.py"))


def finished(done: subprocess.CompletedProcess) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def one_sentence(done: subprocess.CompletedProcess) -> str:
    """The last word of an example that cannot answer: nothing shown, no traceback."""
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith(".")
    return sentence


@pytest.mark.slow
def test_both_ways_of_asking_write_the_same_text_and_gathered_questions_get_their_own_answers(run):
    lines = finished(run("ask.py"))
    asked = [(line.split()[0], lines[i + 1].strip()) for i, line in enumerate(lines) if line[:1].strip()]
    assert [label for label, _ in asked] == ["blocking", "async", "gathered", "gathered", "gathered"]
    texts = [text for _, text in asked]
    assert texts[0] == texts[1] == RIGHT
    assert texts[2].endswith("Answer: 17 23 42 68 99.")
    assert texts[3].endswith("Answer: 5x^6 + 3x^4 + 2.")
    assert texts[4] == "April 24, 1978, 7:12 am"


@pytest.mark.slow
def test_the_tokens_of_provenance_are_the_answer_and_each_says_who_wrote_it_and_why(provenance):
    tokens = [line for line in provenance if re.match(r" *\d+ ['\"]", line)]
    parts = [re.fullmatch(r" *(\d+) (['\"].*?['\"]) +(local|cloud) +(\w+) +KL (.*)", line) for line in tokens]
    assert [int(part[1]) for part in parts] == list(range(len(parts)))
    assert "".join(ast.literal_eval(part[2]) for part in parts) == provenance[-2]
    assert {("local", "accepted"), ("cloud", "recovered"), ("cloud", "written")} <= {
        (part[3], part[4]) for part in parts
    }
    for part in each_of(parts):
        lower, upper = re.match(r"([\d.]+) to ([\d.]+|inf)", part[5]).groups()
        assert float(lower) <= float(upper)
        assert part[4] != "accepted" or float(lower) <= 0.5
        assert part[4] != "recovered" or (float(lower) > 0.5 and part[5].endswith("nats, above 0.5"))
    assert f"{sum(part[3] == 'cloud' for part in parts)} of {len(parts)} tokens by the cloud" in provenance[-1]


def test_provenance_tells_each_request_when_it_is_asked_and_when_it_is_settled(provenance):
    told = [
        re.match(rf"  ([<>]) (check|write)\b.*?(?:at most|:) {USD}", line)
        for line in provenance
        if line[:3] in {"  >", "  <"}
    ]
    assert [event[1] for event in told] == [">", "<"] * (len(told) // 2), "one request at a time, each settled"
    asked, paid = told[::2], told[1::2]
    assert [event[2] for event in asked] == [event[2] for event in paid]
    assert {event[2] for event in asked} == {"check", "write"}
    assert all(0 < Decimal(after[3]) <= Decimal(before[3]) for before, after in zip(asked, paid, strict=True))
    count, billed = re.search(rf"(\d+) requests, {USD}", provenance[-1]).groups()
    assert int(count) == len(asked)
    assert sum(Decimal(event[3]) for event in paid) == Decimal(billed)


@pytest.mark.slow
def test_a_pair_of_ones_own_answers_over_its_own_address_and_price(run, endpoint):
    model = str(MODELS / "small.gguf")
    done = run("own_models.py", "--local", model, "--cloud", endpoint, "--cloud-model", "large", "--price", "1/0.1/4")
    lines = finished(done)
    assert lines[1] == RIGHT
    bill = rf"{USD} \(the cloud alone: {USD}, with its prompt cached {USD}\)"
    assert re.fullmatch(rf"[1-9]\d* of \d+ tokens by the cloud; {bill}", lines[2])
    assert len(lines) == 3


@pytest.mark.slow
def test_without_arguments_the_bundled_pair_answers_and_is_free(run):
    lines = finished(run("own_models.py"))
    assert lines[1] == RIGHT
    assert "; 0 USD (" in lines[2]
    assert len(lines) == 3


@pytest.mark.slow
def test_what_an_endpoint_without_a_price_costs_is_unknown_not_zero(run, endpoint):
    lines = finished(run("own_models.py", "--local", "small", "--cloud", endpoint))
    assert lines[1] == RIGHT
    assert "cost unknown" in lines[2]
    assert len(lines) == 3


def test_an_endpoint_that_nobody_answers_at_costs_its_help_and_not_the_answer(run):
    lines = finished(run("own_models.py", "--local", "small", "--cloud", NOBODY_LISTENS))
    assert lines[1] == ALONE
    assert lines[2].startswith("0 of ")
    assert "degraded" in lines[3]
    assert f"cannot reach {NOBODY_LISTENS}" in lines[3]


@pytest.mark.slow
def test_a_file_that_is_no_model_is_one_sentence(run, tmp_path):
    (tmp_path / "notes.gguf").write_text("hello")
    assert "notes.gguf is not a GGUF file" in one_sentence(run("own_models.py", "--local", "notes.gguf"))


@pytest.mark.slow
def test_a_model_with_another_vocabulary_is_one_sentence(run, endpoint, tmp_path):
    """The small model with two digits renumbered: it loads and writes, and means something else by what it writes."""
    one, two = ((1).to_bytes(8, "little") + digit for digit in (b"1", b"2"))
    content = (MODELS / "small.gguf").read_bytes()
    assert content.count(one + two) == 1
    (tmp_path / "other.gguf").write_bytes(content.replace(one + two, two + one))
    said = one_sentence(run("own_models.py", "--local", "other.gguf", "--cloud", endpoint))
    assert said.startswith("These two models cannot work together: ")


@pytest.mark.slow
@each(
    ("args", "words"),
    [
        (["--cloud-model", "gpt-9"], "The endpoint refuses: .*gpt-9"),
        (["--price", "cheap"], "A setting cannot be used: .*P/C/O"),
    ],
    ids=["a model it does not serve", "a price that is none"],
)
def test_what_can_never_work_is_one_sentence(run, endpoint, args, words):
    assert re.match(words, one_sentence(run("own_models.py", "--local", "small", "--cloud", endpoint, *args)))


@pytest.mark.slow
def test_a_key_is_read_from_the_variable_that_is_named(run, start_server, monkeypatch):
    url = start_server("--api-key", "canary", model=MODELS / "large.gguf").url
    monkeypatch.setenv("MY_KEY", "canary")
    assert "The endpoint refuses" in one_sentence(run("own_models.py", "--local", "small", "--cloud", url))
    assert len(finished(run("own_models.py", "--local", "small", "--cloud", url, "--api-key-env", "MY_KEY"))) == 3


@pytest.mark.slow
def test_a_cap_is_never_passed_and_the_answers_after_it_say_so(run):
    *lines, total = finished(run("capped.py"))
    answers = [
        (lines[i + 1].strip(), *map(Decimal, re.findall(USD, lines[i + 2])), "".join(lines[i + 3 : i + 4]))
        for i in (i for i, line in enumerate(lines) if not line.startswith(" "))
    ]
    assert all(text for text, *_ in answers)
    paid = [money for _, money, *_ in answers]
    told = ["degraded: the cap of " in rest for *_, rest in answers]
    assert any(money > 0 and not capped for money, capped in zip(paid, told, strict=True))
    assert any(money == 0 and capped for money, capped in zip(paid, told, strict=True))
    spent, cap = map(Decimal, re.match(rf"spent {USD} of ([\d.]+) USD", total).groups())
    assert spent == sum(paid)
    assert 0 < spent <= cap
    assert all(alone > cached > 0 for _, _, alone, cached, _ in answers)


def test_every_example_is_short_says_its_own_command_and_is_run_here():
    run_here = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert {path.name for path in scripts} == run_here
    for path in each_of(scripts):
        assert len(path.read_text().splitlines()) < MAX_LINES, path.name
        assert f"    python examples/{path.name}" in ast.get_docstring(ast.parse(path.read_text())), path.name


@pytest.mark.slow
def test_experts_are_told_beside_one_model_alone(run):
    lines = finished(run("experts.py", "--policy", "once:0.7"))
    parts = [re.fullmatch(rf"(.+): (\d+) of 14 right, {USD}", line).groups() for line in lines]
    sides = ["small, once:0.7", "small, cloud", "small + mid, once:0.7", "small + mid, cloud"]
    assert [name for name, *_ in parts] == sides
    small, cloud, both, again = (Decimal(usd) for *_, usd in parts)
    assert cloud == again > max(small, both) > 0


@pytest.mark.slow
def test_a_tree_of_thoughts_keeps_the_best_states_and_ends_with_a_right_answer(run):
    *lines, text, bill = finished(run("tree_of_thoughts.py"))
    assert text.endswith("Answer: 20 21 31 35 55 95.")
    assert Decimal(re.fullmatch(USD, bill)[1]) > 0
    depths = [(i, int(line.rpartition(" ")[2])) for i, line in enumerate(lines) if not line.startswith(" ")]
    assert [lines[i].split(":")[0] for i, _ in depths] == [str(number) for number in range(1, 7)]
    for i, found in each_of(depths):
        nats = [float(line.split()[0]) for line in lines[i + 1 : i + 3]]
        assert nats == sorted(nats, reverse=True)
        assert len(nats) == min(2, found)
    assert max(found for _, found in depths) > 2, "something was left behind"
