"""The sections of a study's report: what each runs, and what it makes of the records."""

from __future__ import annotations

from collections.abc import Mapping

from hybrid.errors import UsageError
from hybrid.lab.study.adaptive import ADAPTIVE_SECTION
from hybrid.lab.study.cases import ANSWERS_SECTION, CASES_SECTION
from hybrid.lab.study.chains import CHAINS_SECTION, TREE_SECTION
from hybrid.lab.study.concepts import CONCEPTS_SECTION
from hybrid.lab.study.design import Design, check_known
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.exploration import EXPLORATION_SECTION
from hybrid.lab.study.row_sections import ROW_SECTIONS
from hybrid.lab.study.section import Section
from hybrid.lab.study.threshold import LOSS_SECTION, THRESHOLD_SECTION

SECTIONS: Mapping[str, Section] = {
    section.name: section
    for section in (
        THRESHOLD_SECTION,
        LOSS_SECTION,
        *ROW_SECTIONS,
        CASES_SECTION,
        ANSWERS_SECTION,
        EXPLORATION_SECTION,
        ADAPTIVE_SECTION,
        CHAINS_SECTION,
        CONCEPTS_SECTION,
        TREE_SECTION,
    )
}


def sections_of(design: Design, known: Mapping[str, Section] = SECTIONS) -> tuple[Section, ...]:
    """Return a design's sections. Raises UsageError for one that is not there, or cannot be, and for other options."""
    sections = [known[check_known(name, known, "section")] for name in dict.fromkeys(design.sections)]
    options = [name for section in sections for name in section.options]
    for name in design.options:
        check_known(name, options, "option of these sections")
    of_arms = [section for section in sections if section in {THRESHOLD_SECTION, LOSS_SECTION, CASES_SECTION}]
    if of_arms and not design.arms:
        msg = f"section {of_arms[0].name} compares arms, and there is none beside the two models: write [[arms]]"
        raise UsageError(msg)
    ends = [name for name, pair in design.pairs.items() if isinstance(pair, EndpointPair)]
    for section in sections if ends else ():
        if section.needs_rows:
            msg = f"section {section.name} reads the large model's rows, and {ends[0]} is an endpoint: it shows texts"
            raise UsageError(msg)
    return tuple(sections)
