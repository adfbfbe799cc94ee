"""The scores of ``hybrid bench auto``: labels from a world, and what is fitted to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid.bench.experiments.auto_suite import Fitted
    from hybrid.bench.experiments.section_run import SectionRun
    from hybrid.defer import Calibration, LabelledQuestion


def label_questions(run: SectionRun, questions: Any, threshold: float, report_progress: Any) -> list[LabelledQuestion]:
    """Label questions as a check of their whole drafts would, in the run's processes and folder."""
    from hybrid.bench.experiments.label_trial import LabelSection, labelled_question  # noqa: PLC0415
    from hybrid.bench.experiments.problem_suite import PAIR  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import run_sections  # noqa: PLC0415

    section = LabelSection("labels", PAIR, tuple(questions), threshold)
    found = run_sections(replace(run, sections=(section,)), report_progress)
    return [labelled_question(found[0, i]) for i in range(len(section.questions))]


def fit_scores(labelled: list[LabelledQuestion], threshold: float, shipped: Calibration | None) -> Fitted:
    """Fit what is tried to labels; ``shipped`` stands for the trees, where a pair has it. Raises UsageError."""
    from hybrid.bench.experiments.auto_suite import Fitted  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    who = partial(fit, labelled, local="bench", cloud="bench", judge=f"kl:{threshold:g}")
    return Fitted(shipped or who(), who(trees=False), labelled)


def shipped_calibration(threshold: float) -> Calibration | None:
    """Return what is shipped of the bundled pair, not what the user knows of it; None: nothing."""
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.run.calibrations import calibration_for  # noqa: PLC0415

    judge = f"kl:{threshold:g}"
    return calibration_for(identify(BUNDLED_LOCAL), BUNDLED_CLOUD.stem, judge, shipped_only=True)
