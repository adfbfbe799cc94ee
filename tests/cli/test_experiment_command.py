"""``hybrid experiment``: what it refuses, says beforehand, keeps and writes; the records are made by hand."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import EngineError, UsageError
from hybrid.lab.experiments import grid
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, arms_to_json
from hybrid.lab.study import running
from hybrid.lab.study.design import Power, read_design
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.running import Study, power_lines
from hybrid.lab.study.section import Section
from hybrid.report import Text
from hybrid.spend import Price
from hybrid.types import Message

DESIGN = """
sections = ["made"]
seeds = [0, 1]
tariffs = ["1/0.1/4 U"]
[pairs.bundled]
local = "small"
cloud = "large"
[questions]
split = "test"
n = 30
[[arms]]
policy = "kl"
threshold = [0.3, 3.0]
[power]
half_width = 0.2
"""
MANUAL = Path(__file__).parents[2] / "hybrid" / "cli" / "MANUAL.md"
CHARGES = DESIGN.replace('cloud = "large"', 'cloud = "http://127.0.0.1:1/v1"\nprice = "1/0.1/4"')


async def answer_nothing(*_):
    raise AssertionError("the records are made by hand")


def made_grids(design):
    arms = (CLOUD, LOCAL, *design.arms)
    asked = {pair: design.questions[pair] for pair in design.pairs}
    more = (answer_nothing, (arms_to_json(arms),), len(arms), arms)
    return tuple(Grid(pair, pair, each, *more) for pair, each in asked.items())


NO_RUN = "hybrid: . holds no run of hybrid experiment (the same command as before begins it again)\n"
MADE = Section(
    "made",
    "A made section",
    made_grids,
    lambda design, grids, found: {"n": sum(map(len, found)), "summary": ["A *made* sentence."]},
    lambda told: [Text(f"{told['n']} records")],
    needs_rows=False,
)


def made_record(number):
    """Return what is kept of a question: of three, the cloud is right in two, and others in every second of these."""
    spent = {"cloud": 5_000 + number, "local": 0, "kl:0.3": 7, "kl:3.0": 0}
    right = {"cloud": number % 3 > 0, "local": number % 6 in {1, 2}, "kl:0.3": number % 3 > 0, "kl:3.0": False}
    requests = {"cloud": [("write", 20, 0, 0, 30)], "local": [], "kl:0.3": [("check", 40, 20, 0, 1)], "kl:3.0": []}
    arms = {name: {"right": right[name], "requests": requests[name], "tokens": 30} for name in right}
    arms = {name: arms[name] | {"nanousd": spent[name]} for name in right}
    return {
        "text": f"{number}?",
        "arms": arms,
        "checked": [{"arm": "cloud", "text": True, "requests": True, "bill": True}],
    }


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Run a command in a folder of its own; questions are answered by hand-made records, ``most`` of them at a time."""
    monkeypatch.setattr(running, "sections_of", lambda design: (MADE,))
    monkeypatch.chdir(tmp_path)

    def write(run, report_progress):
        lines = [json.dumps({"key": run.key((g, q))} | made_record(q)) for g, q in run.units]
        (run.folder / "part-1.jsonl").write_text("\n".join(lines) + "\n")
        return [[made_record(q) for q in range(len(grid.questions))] for grid in run.grids]

    monkeypatch.setattr(grid, "run_grids", write)

    def command(*words, design=None):
        if design is not None:
            Path("my.toml").write_text(design)
        return CliRunner().invoke(app, ["experiment", *words])

    return command


def test_a_run_says_beforehand_what_it_takes_and_leaves_a_report_in_three_forms(study):
    ran = study("run", "my.toml", "--out", "kept", design=DESIGN)
    assert ran.exit_code == 0, ran.output
    assert re.search(r"60 questions: 240 answers of \d+ tokens at most, about [\d.]+ min", ran.stderr)
    assert (
        "107 graded questions of a pair are needed to know the recovered share (RPI) to 0.2 either way (assumed: a"
        in ran.stderr
    )
    assert {"report.html", "report.md", "report.json", "my.toml"} <= {path.name for path in Path("kept").iterdir()}
    report = json.loads(Path("kept/report.json").read_text())
    assert report["command"] == "hybrid experiment run my.toml --out kept"
    assert (report["seeds"], report["questions"]) == ([0, 1], {"bundled": 60})
    assert {each["file"]: len(each["sha256"]) for each in report["models"]} == {"large.gguf": 64, "small.gguf": 64}
    assert report["against_the_client"]["same"] == 60
    for text in (Path("kept/report.html").read_text(), Path("kept/report.md").read_text(), ran.output):
        plain = " ".join(text.replace("\\", "").split())
        assert ("A made section" in plain) == (text != ran.output)
        assert "A *made* sentence." in plain
        assert "60 of 60 answers that the client" in plain


def test_a_report_is_written_again_from_the_records_alone(study):
    assert study("run", "my.toml", "--out", "kept", design=DESIGN).exit_code == 0
    before = {path: path.read_text() for path in Path("kept").glob("report.*")}
    for path in before:
        path.unlink()
    Path("my.toml").unlink()
    again = study("report", "kept", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.output) == json.loads(before[Path("kept/report.json")])
    assert {path: path.read_text() for path in before} == before


def test_a_run_that_is_not_whole_has_no_report_and_a_folder_without_one_neither(study):
    assert study("run", "my.toml", "--out", "kept", design=DESIGN).exit_code == 0
    part = Path("kept/part-1.jsonl")
    part.write_text("\n".join(part.read_text().splitlines()[:-2]) + '\n{"key": "torn')
    torn = study("report", "kept")
    assert torn.exit_code == 2
    assert "2 questions of this design have no answers yet" in torn.output
    none = study("report", ".")
    assert (none.exit_code, none.output) == (2, NO_RUN)


def test_quick_is_few_questions_of_the_first_seed(study):
    ran = study("run", "my.toml", "--out", "kept", "--quick", "--json", design=DESIGN.replace("n = 30", ""))
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["seeds"] == [0]
    assert report["questions"]["bundled"] < 107 / 2
    assert report["command"].endswith("--quick")
    assert json.loads(study("report", "kept", "--json").stdout)["questions"] == report["questions"]


def test_what_charges_is_refused_without_a_cap_and_says_its_worst_case_beside_one(study):
    refused = study("run", "my.toml", "--out", "kept", design=CHARGES)
    assert refused.exit_code == 2
    assert re.search(r"bundled may charge about [\d.]+ USD, [\d.]+ USD at most: write cap", refused.output)
    assert not Path("kept").exists()
    ran = study("run", "my.toml", "--out", "kept", design=f"cap = 0.01\n{CHARGES}")
    told = r"bundled: about [\d.]+ USD for answers of full length; at most [\d.]+ USD, if every token is a request"
    assert re.search(f"{told}; the cap is 0.01 USD", ran.stderr)
    free = study("run", "my.toml", "--out", "free", design=CHARGES.replace('"1/0.1/4"', '"free"'))
    assert (
        "about 0 USD for answers of full length; at most 0 USD, if every token is a request; no cap is needed"
        in free.stderr
    )


def test_the_worst_case_is_above_every_way_to_spend_an_answer(tmp_path, monkeypatch):
    """Counted by another hand: a check and a write at every token, each with all that stands before."""
    monkeypatch.setattr(running, "sections_of", lambda design: (MADE,))
    path = tmp_path / "my.toml"
    path.write_text(f"cap = 1\n{CHARGES}".replace("n = 30", "n = 2").replace("[0, 1]", "[0]"))
    study = Study(read_design(path), tmp_path)
    told, price = study.plan()["worst_nanousd"]["bundled"], Price.parse("1/0.1/4")
    spent = 0
    for asked in study.design.questions["bundled"]:
        prompt = len(asked.text)  # the small model's tokens are no shorter than a byte
        spent += price.worst_case(prompt, asked.max_tokens)
        spent += 2 * sum(2 * price.worst_case(prompt + at, 1) for at in range(asked.max_tokens))
    assert spent < told < 10 * spent


def test_new_writes_a_design_that_is_read_and_never_overwrites(study):
    listed = study("new", "--list")
    names = re.findall(r"^(\w[\w-]*): ", listed.output, re.MULTILINE)
    assert "own" in names
    for name in each_of(names):
        written = study("new", name)
        assert written.exit_code == 0
        assert ("write its ladders" in written.output) == ("ladders/" in Path(f"{name}.toml").read_text()), name
    assert read_design(Path("own.toml"), most=1).questions["mine"]
    Path("own.toml").write_text("mine")
    again = study("new")
    assert (again.exit_code, Path("own.toml").read_text()) == (2, "mine")
    assert "own.toml is there already" in again.output
    assert study("new", "--out", "nowhere/x.toml").exit_code == 2
    assert "there is no design owm" in study("new", "owm").output


def test_options_that_a_section_cannot_read_are_one_sentence(study, monkeypatch):
    reads = MADE._replace(grids=lambda design: (float(design.options["k"][0]),), options=("k",))
    monkeypatch.setattr(running, "sections_of", lambda design: (reads,))
    ended = study("run", "my.toml", "--out", "kept", design=f'{DESIGN}[options]\nk = ["x"]\n')
    assert ended.exit_code == 2
    assert "hybrid: my.toml: [options] section made cannot read them: could not convert string" in ended.output


def test_mistakes_end_in_one_sentence_and_an_interruption_says_how_to_go_on(study, monkeypatch):
    Path("odd/run.lock").mkdir(parents=True)
    for words, told in each_of(
        (
            (("run", "none.toml", "--out", "kept"), "none.toml cannot be read: No such file"),
            (("run", "my.toml", "--out", "my.toml"), "--out my.toml: File exists"),
            (("run", "my.toml", "--out", "odd"), "odd/run.lock: not a file"),
        )
    ):
        ended = study(*words, design=DESIGN)
        assert ended.exit_code in {1, 2}, ended.output
        assert told in ended.output
        assert "Traceback" not in ended.output

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run_grids", interrupt)
    ended = study("run", "my.toml", "--out", "kept")
    assert ended.exit_code == 130
    assert "interrupted; what was answered is kept: hybrid experiment run my.toml --out kept goes on" in ended.output

    def fail(*_):
        raise EngineError("a process ended: run the command again to go on")

    monkeypatch.setattr(grid, "run_grids", fail)
    assert study("run", "my.toml", "--out", "kept").exit_code == 3


def test_a_gap_and_a_discordance_may_come_from_an_earlier_run(study):
    """The made records: 40 of 60 right by the cloud, 20 by the local model, and these among them."""
    assert study("run", "my.toml", "--out", "kept", design=DESIGN).exit_code == 0
    again = study("run", "my.toml", "--out", "new", design=DESIGN + 'records = "kept"')
    assert "73 graded questions of a pair are needed to know" in again.stderr
    measured = "measured in kept: a gap of 0.333 between the models, 0.333 of the questions answered right by one alone"
    assert measured in again.stderr
    none = study("run", "my.toml", "--out", "new", design=DESIGN + 'records = "nothing"')
    assert (none.exit_code, "[power] nothing has 0 graded answers" in none.output) == (2, True)


def test_the_widest_interval_is_told_beside_the_wanted_one():
    shares = [{"low": 0.1, "high": 0.5}, {"low": -0.2, "high": 0.4}, {"low": None, "high": 3.0}]
    part = {"pair": "mine", "questions": 7, "rows": [{"share": {"value": 0.3} | each} for each in shares]}
    lines = power_lines(Power(difference=0.1), {"threshold": {"parts": [part]}})
    assert lines[0].startswith(
        "314 graded questions of a pair are needed to see a difference of 0.1 in right answers in"
    )
    assert lines[1:] == ["mine has 7: the least certain arm's is known to 0.30 either way"]
    assert power_lines(Power(), {}) == []


def test_a_second_run_in_a_folder_is_refused_while_the_first_is_at_work(study, monkeypatch):
    write, second = grid.run_grids, []

    def beside(run, report_progress):
        second.append(study("run", "my.toml", "--out", "kept"))
        return write(run, report_progress)

    monkeypatch.setattr(grid, "run_grids", beside)
    assert study("run", "my.toml", "--out", "kept", design=DESIGN).exit_code == 0
    assert second[0].exit_code == 2
    assert "kept/run.lock: another run is at work in this folder" in second[0].output
    monkeypatch.setattr(grid, "run_grids", write)
    assert study("run", "my.toml", "--out", "kept").exit_code == 0


def test_what_an_endpoint_charged_is_told_at_the_end_and_what_a_file_would_have_is_not(study, monkeypatch):
    """What an answer cost is read where it is kept (``tests/end_to_end/test_experiment.py``)."""
    spent = 307_123
    monkeypatch.setattr(EndpointPair, "spent", lambda pair, folder: spent if folder.name == "kept" else 0)
    ran = study("run", "my.toml", "--out", "kept", design=f"cap = 0.01\n{CHARGES}")
    told = f"bundled: the answers in this folder cost {spent / 1e9:.6f}"
    assert told in " ".join(ran.output.split())
    assert json.loads(Path("kept/report.json").read_text())["spent_nanousd"] == {"bundled": spent}
    assert told in Path("kept/report.md").read_text().replace("\\", "")
    assert "in this folder cost" not in study("run", "my.toml", "--out", "files", design=DESIGN).output


def test_the_cap_of_a_folder_goes_with_it_and_stays_in_its_ledger(tmp_path, monkeypatch):
    """A folder that was moved, or another ledger, began the cap anew."""
    path, folder = tmp_path / "charges.toml", tmp_path / "first"
    path.write_text(f"cap = 1\n{CHARGES}")
    folder.mkdir()

    def spender(of, ledger):
        monkeypatch.setenv("HYBRID_LEDGER", str(tmp_path / ledger))
        return read_design(path).pairs["bundled"].spender(of)

    name = spender(folder, "ledger.sqlite")
    moved = folder.rename(tmp_path / "moved")
    folder.mkdir()
    assert spender(moved, "ledger.sqlite") == name != spender(folder, "ledger.sqlite")
    with pytest.raises(UsageError, match=r"has spent is in the ledger .*ledger\.sqlite, and this is .*other\.sqlite"):
        spender(moved, "other.sqlite")


def test_the_expected_cost_is_a_write_of_each_answer_and_a_check_of_every_span(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "sections_of", lambda design: (MADE,))
    path = tmp_path / "my.toml"
    path.write_text(
        f"cap = 1\n{CHARGES}".replace("n = 30", "n = 1")
        .replace("[0, 1]", "[0]")
        .replace("[power]", "span = 16\n[power]")
    )
    study, price = Study(read_design(path), tmp_path), Price.parse("1/0.1/4")
    (asked,) = study.design.questions["bundled"]
    with closing(VocabularyFile(BUNDLED_LOCAL)) as words:
        prompt = len(words.render((Message("user", asked.text),)))
    ends = [at for at in range(1, asked.max_tokens + 1) if at % 16 == 0]
    expected = 3 * price.worst_case(prompt, asked.max_tokens) + 2 * sum(price.worst_case(prompt + at, 1) for at in ends)
    plan = study.plan()
    assert plan["expected_nanousd"] == {"bundled": expected}
    assert expected < plan["worst_nanousd"]["bundled"] / 5


def test_what_does_not_fit_a_context_and_a_key_that_is_not_there_are_found_before_the_run(study):
    asked = DESIGN.replace('split = "test"\nn = 30', 'kind = "file"\npath = "long.jsonl"').replace("[0, 1]", "[0]")
    for question, told in each_of(
        (
            (
                {"question": "so long " * 600},
                r"'so long so long so long so long so long ' and its max_tokens take \d{4} tokens",
            ),
            (
                {"question": "Why?", "max_tokens": 9_000},
                r"'Why\?' and its max_tokens take 90\d\d tokens, and small.gguf holds 1024",
            ),
        )
    ):
        lines = [json.dumps(each) for each in ({"question": "What is 6 * 7?"}, question)]
        Path("long.jsonl").write_text("\n".join(lines))
        ended = study("run", "my.toml", "--out", "kept", design=asked)
        assert ended.exit_code == 2, ended.output
        assert re.search(rf"my.toml: bundled: {told}", ended.output), ended.output
    price = 'price = "1/0.1/4"'
    ended = study(
        "run",
        "my.toml",
        "--out",
        "kept",
        design="cap = 1\n" + CHARGES.replace(price, f'{price}\napi_key_env = "NO_SUCH_KEY"'),
    )
    assert (
        ended.exit_code,
        "my.toml: NO_SUCH_KEY, which is named as the key's variable, is not set" in ended.output,
    ) == (2, True)
    assert not Path("kept").exists()


def test_another_design_is_kept_out_of_a_folder_with_records_and_the_same_one_is_not(study):
    assert study("run", "my.toml", "--out", "kept", "--quick", design=DESIGN).exit_code == 0
    before = Path("kept/report.json").read_text()
    Path("other.toml").write_text(DESIGN.replace("3.0", "2.0"))
    other = study("run", "other.toml", "--out", "kept")
    assert other.exit_code == 2
    assert f"--out kept holds the records of {Path('my.toml').resolve()}, and none of this design" in other.output
    assert Path("kept/report.json").read_text() == before
    Path("copy.toml").write_text(f"cap = 1\n{DESIGN}")
    assert study("run", "copy.toml", "--out", "kept").exit_code == 0, "the same questions, and more"
    assert study("run", "copy.toml", "--out", "kept", "--quick").exit_code == 0
    Path("copy.toml").write_text(DESIGN.replace("3.0", "2.0"))
    changed = study("run", "copy.toml", "--out", "kept")
    assert changed.exit_code != 2, "what an endpoint answered to the arms that stay is not bought again"


def test_the_design_of_the_manual_is_one(tmp_path):
    found = re.search(r"```toml\n(sections = .*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "manual.toml").write_text(found[1])
    design = read_design(tmp_path / "manual.toml")
    assert (list(design.pairs), len(design.arms)) == (["mine"], 3)
    assert Study(design, tmp_path / "kept").plan()["questions"] >= 100
