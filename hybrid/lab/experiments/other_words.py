"""A local model of another vocabulary beside one of the cloud's own: right answers, bills, and what was in vain.

All answer the same problems of the test split before one server of the bundled large model; a local model is asked
alone, too. The recovered share is of the gap between a local model alone and the large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybrid.assemble import BUNDLED_CLOUD, ClientOpener, bundled_server
from hybrid.lab.arms import GRADERS, PRICE
from hybrid.record.events import Finished, RecordingStarted, SpanDrafted
from hybrid.run import AsyncClient
from hybrid.settings.config import NO_LEDGER, Settings
from hybrid.tasks import MAX_TOKENS, Problem
from hybrid.tasks.statistics import rpi, wilson


@dataclass(frozen=True)
class TriedAnswer:
    """One answer: whether it is right, its text, its bill, and the bytes that were shown and drafted in vain."""

    right: bool
    text: str
    nanousd: int
    shown: int
    in_vain: int


async def try_policies(
    model: Path, policies: Sequence[str], problems: Sequence[Problem], report_progress: Callable[[str], None]
) -> dict[str, list[TriedAnswer]]:
    """Let a local model answer all problems under each policy; the large model alone is ``cloud``."""
    told: dict[str, list[TriedAnswer]] = {policy: [] for policy in policies}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bundled_server(BUNDLED_CLOUD))
        client = await stack.enter_async_context(ClientOpener(_settings(model, url), shipped_only=True))
        for policy in policies:
            for number, problem in enumerate(problems):
                report_progress(f"{model.stem}, {policy}: problem {number + 1} of {len(problems)}")
                told[policy].append(await _answered(client, policy, problem))
    return told


def _settings(model: Path, url: str) -> Settings:
    """Return settings that are constructed, not loaded: the user's own have no say in a measurement."""
    own: dict[str, Any] = {"local": model, "cloud": url, "cloud_vocabulary": BUNDLED_CLOUD, "api_key_env": ""}
    own |= {"price": PRICE, "ledger": Path(NO_LEDGER), "max_tokens": 2 * MAX_TOKENS, "seed": 0, "learn": False}
    return Settings.model_construct(**own, threads=1)


async def _answered(client: AsyncClient, policy: str, problem: Problem) -> TriedAnswer:
    """Answer one problem, and add up bytes."""
    pieces: tuple[bytes, ...] = ()
    drafted = 0
    async for event in client.stream(problem.question, policy=policy, trace_rows=True):
        match event:
            case RecordingStarted():
                pieces = event.pieces
            case SpanDrafted(ids=ids):
                drafted += sum(len(pieces[token]) for token in ids)
            case Finished(answer=answer):
                kept = sum(len(pieces[token.id]) for token in answer.tokens if token.source == "local")
                right, size = GRADERS[problem.family](problem, answer.text), len(answer.text.encode())
    return TriedAnswer(right, answer.text, answer.bill.nanousd or 0, size, max(0, drafted - kept))


def words_report(tried: dict[str, dict[str, list[TriedAnswer]]]) -> dict[str, Any]:
    """Return what each model's policies came to, beside it alone and beside the large model alone (``cloud``)."""
    report: dict[str, Any] = {}
    for model, told in tried.items():
        alone, large = ([each.right for each in told[policy]] for policy in ("local", "cloud"))
        whole = sum(each.nanousd for each in told["cloud"])
        for policy, answers in told.items():
            right = [each.right for each in answers]
            recovered = rpi(alone, right, large)
            report.setdefault(model, {})[policy] = {
                "num": len(right),
                "right": asdict(wilson(sum(right), len(right))),
                "recovered": None if recovered is None or policy in {"local", "cloud"} else asdict(recovered),
                "bill": sum(each.nanousd for each in answers) / whole,
                "same": sum(a.text == b.text for a, b in zip(answers, told["cloud"], strict=True)),
                "in_vain": sum(each.in_vain for each in answers) / max(1, sum(each.shown for each in answers)),
            }
    return report
