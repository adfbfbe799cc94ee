"""The committed reports of studies: of the models and designs that ship, and what pages say of them."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from cases import each_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted(ROOT.glob("examples/results/*.md"))
DESIGNS = ROOT / "hybrid" / "lab" / "study" / "designs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("hybrid/**/*.md"))]
LINK = re.compile(r"\]\([^)]*examples/results/(\w+)\.(?:md|html)\)")
FIGURE = re.compile(r"[-+]?\d+\.\d+ \([-+]?\d+\.\d+ to [-+]?\d+\.\d+\)")
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="the pages are not installed")


def told():
    """The paragraphs, items and rows of pages that point to a report, with its name and their figures."""
    for page in PAGES:
        for part in re.split(r"\n\s*\n|\n(?=[-|])", page.read_text(encoding="utf-8")):
            joined = " ".join(part.split())
            for name in dict.fromkeys(LINK.findall(joined)):
                yield page.relative_to(ROOT), name, FIGURE.findall(joined)


def test_a_figure_with_an_interval_beside_a_link_to_a_report_stands_in_it():
    known = {path.stem: path.read_text(encoding="utf-8") for path in RESULTS}
    every = [(page, name, figure) for page, name, figures in told() for figure in figures]
    for page, name, figure in each_of(every):
        assert figure.replace("+", "") in known[name], f"{page}: {figure} is not in {name}.md"


def test_the_first_page_points_to_a_report():
    assert any(str(page) == "README.md" and figures for page, _, figures in told())


def test_a_report_says_how_it_was_made_of_a_design_and_models_that_ship():
    models = {path.name: path.read_bytes() for path in (ROOT / "hybrid" / "models").glob("*.gguf")}
    for path in each_of(RESULTS):
        report = path.read_text(encoding="utf-8").replace("\\_", "_")
        design = tomllib.loads((DESIGNS / f"{path.stem}.toml").read_text())
        made = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", report.partition("## How it was made")[2], re.MULTILINE))
        assert made["command"] == f"hybrid experiment run {path.stem}.toml --out {path.stem}-study"
        assert made["seeds"] == ", ".join(map(str, design["seeds"]))
        assert path.with_suffix(".html").exists()
        bundled = {pair["local"] for pair in design["pairs"].values()} & {name.removesuffix(".gguf") for name in models}
        real = all(pair["local"].startswith("real") for pair in design["pairs"].values())
        for name in each_of(sorted(bundled), least=not real):
            assert hashlib.sha256(models[f"{name}.gguf"]).hexdigest() in report, f"{path.name}: another {name}"
