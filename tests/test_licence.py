"""The licence: its text, what packages say of it, the front page and the models' card are about the same grant.

Without one nobody may use the code or the models, whatever the README promises.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOLDER = "the hybrid-llm contributors"
BUNDLED = sorted((ROOT / "hybrid" / "models").glob("*.gguf"))
NUMBERS = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}


def section(path, title):
    """The words between a heading and the next of its rank, in one line."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split())


def test_the_file_is_the_mit_licence_of_the_contributors():
    title, copyright_, *text = (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n")
    assert title == "MIT License"
    assert re.fullmatch(rf"Copyright \(c\) \d{{4}} {HOLDER}", copyright_)
    granted, condition, warranty = (" ".join(part.split()) for part in text)
    assert granted.startswith("Permission is hereby granted, free of charge, to any person obtaining a copy")
    assert "use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies" in granted
    assert condition.startswith("The above copyright notice and this permission notice shall be included")
    assert warranty.startswith('THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND')


def test_packages_name_it_carry_it_and_name_its_holder():
    """An expression and a licence's classifier contradict each other for an index (PEP 639)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "MIT"
    assert [name for pattern in project["license-files"] for name in ROOT.glob(pattern)] == [ROOT / "LICENSE"]
    assert project["authors"] == [{"name": HOLDER}]
    assert project["keywords"]
    assert not [each for each in project["classifiers"] if each.startswith("License ::")]


def test_the_front_page_and_the_card_say_of_the_bundled_models_what_the_licence_does():
    """As many as there are; no warranty; and where the weights of each come from."""
    front, card = (
        section(ROOT / "README.md", "Licence"),
        section(ROOT / "hybrid/models/CARD.md", "Licence and origin"),
    )
    assert (
        f"the {NUMBERS[len(BUNDLED)]} bundled models (`hybrid/models/*.gguf`) are under the [MIT licence](LICENSE)"
        in front
    )
    assert "no warranty" in front
    assert card.startswith("MIT, as the code: the file `LICENSE`")
    for text in (front, card):
        assert "began as random numbers and were trained by this project on problems and answers" in text
        assert "examples/train_reference_models" in text
        assert "`alien` and `student`" in text


def test_the_extra_model_is_said_to_be_anothers_and_does_not_ship():
    from hybrid.engine import real_models

    front = section(ROOT / "README.md", "Licence")
    assert real_models.LICENCE in front
    assert "not shipped here" in front
    assert not [path for path in BUNDLED if "smol" in path.name.lower()]
