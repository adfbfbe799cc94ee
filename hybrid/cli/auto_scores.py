"""The scores of ``hybrid bench auto``: labels from a world, and what is fitted to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

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


def fit_scores(
    labelled: list[LabelledQuestion],
    threshold: float,
    shipped: Calibration | None,
    critic: str | None = None,
    shipped_critic: Calibration | None = None,
) -> Fitted:
    """Fit what is tried to labels; ``shipped`` stands for the trees, where a pair has it. Raises UsageError.

    ``critic``: the identity of the critic that read the labelled drafts; what is shipped of it counts in the same way.
    """
    from hybrid.bench.experiments.auto_suite import Fitted  # noqa: PLC0415
    from hybrid.tune.fit import fit  # noqa: PLC0415

    who = partial(fit, labelled, local="bench", cloud="bench", judge=f"kl:{threshold:g}")
    with_critic = None if critic is None else shipped_critic or who(critic=critic)
    return Fitted(shipped or who(), who(trees=False), labelled, with_critic)


def shipped_calibration(threshold: float, local: Path | None = None, critic: str | None = None) -> Calibration | None:
    """Return what is shipped of the bundled pair, not what the user knows of it; None: nothing.

    ``local``: another model of the ladder in the small one's place. ``critic``: the identity of a critic.
    """
    from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL  # noqa: PLC0415
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.run.calibrations import calibration_for  # noqa: PLC0415

    judge = f"kl:{threshold:g}"
    own = identify(local or BUNDLED_LOCAL)
    found = calibration_for(own, BUNDLED_CLOUD.stem, judge, critic=critic, shipped_only=True)
    return found if found is None or found.critic == critic else None
