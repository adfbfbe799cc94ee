"""``hybrid bench auto --real``: the real pairs, and what is known of them; the report is ``routed_report``'s."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid.cli.progress import progress
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.defer import Calibration
    from hybrid.tasks.assistant import QuestionSplit


def routed(
    num: int | None, split: QuestionSplit, seed: int, folder: Path | None, processes: int, *, chat: bool = False
) -> dict[str, Any]:
    """Run what was not run before and return the report. Raises UsageError, EngineError.

    ``chat``: ``route`` over an endpoint that takes messages, beside the others.
    """
    from platformdirs import user_cache_path  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    from hybrid.bench.experiments.chat_section import CHAT, chat_report, half_the_bill  # noqa: PLC0415
    from hybrid.bench.experiments.routed_report import routed_report  # noqa: PLC0415
    from hybrid.bench.experiments.routed_suite import chat_sections, pair_models, routed_sections  # noqa: PLC0415
    from hybrid.bench.experiments.section_run import ModelPair, SectionRun, run_sections  # noqa: PLC0415
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.folders import home_folder  # noqa: PLC0415

    with progress("the models are made ready") as report_progress:
        pairs = {
            pair: ModelPair(*(model_file(name, report_progress) for name in names))
            for pair, names in pair_models().items()
        }
        known = {pair: real_calibration(*names, pairs[pair].local) for pair, names in pair_models().items()}
        place = folder or home_folder(user_cache_path) / "bench-auto"
        if chat:
            planners = {pair: half_the_bill(each) for pair, each in known.items()}
            asked = chat_sections(planners, num, split, seed)
            over = SectionRun(asked, pairs, place, seed, processes, check_share=1.0, dialect=CHAT)
            return chat_report(asked, run_sections(over, report_progress), known)
        sections = routed_sections(num, split, seed)
        run = SectionRun(sections, pairs, place, seed, processes)
        return routed_report(sections, run_sections(run, report_progress), known)


def real_calibration(local: str, cloud: str, model: Path) -> Calibration:
    """Return the shipped calibration of a pair. Raises UsageError where this llama.cpp made another model."""
    from hybrid.engine.identity import identify  # noqa: PLC0415
    from hybrid.engine.real_models import model_file  # noqa: PLC0415
    from hybrid.run.calibrations import calibration_for  # noqa: PLC0415

    found = calibration_for(identify(model), model_file(cloud).stem, shipped_only=True)
    if found is None:
        msg = (
            f"no calibration of {local} beside {cloud} comes with this version: the model was made by another llama.cpp"
        )
        raise UsageError(msg)
    return found
