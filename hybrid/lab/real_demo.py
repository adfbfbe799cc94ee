"""The demonstration on real text: five questions to an assistant, answered by the real pair in four ways.

The laws (``tests/bench/test_real_demo.py``): the questions are of the test split, the kinds take turns, and one seed
draws the same; excess loss is that of ``experiments.world``, 0 for the reference's own text but for near ties. The look
stands in ``hybrid/cli/demo``.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from hybrid.assemble import bundled_server
from hybrid.engine import Cursor
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import MODEL, REQUIREMENT, ReportBuild, model_file
from hybrid.errors import UsageError
from hybrid.lab.arms import Arm, ReportAnswer, ServedPair, Trial, answer_all, fingerprint
from hybrid.lab.experiments.world import text_loss
from hybrid.record.answer import Answer
from hybrid.tasks.assistant import KINDS, QUESTIONS, AssistantQuestion
from hybrid.types import Ids, Message

LOCAL_MODEL, CLOUD_MODEL = "real:q3", "real"
PACKAGE = f"{MODEL} ({REQUIREMENT}, Apache-2.0)"
LOCAL, KL, EXCESS, CLOUD = Arm("local", "local"), Arm("kl", "kl"), Arm("excess", "excess"), Arm("cloud", "cloud")
HYBRIDS = (KL, EXCESS)
ARMS = (LOCAL, *HYBRIDS, CLOUD)
# With these the demonstration stays under two minutes on two cores, also where they are slow.
NUM_QUESTIONS, MAX_TOKENS = 5, 32
# Question and answer together; the server's two contexts and ours take 47 MiB each, not the 377 of 8192 tokens.
CONTEXT = 1024
# The kinds that are asked first: those that a model of this size can do at all, two of them graded.
FIRST = ("facts", "explanations", "extraction", "code", "lists")


@dataclass(frozen=True)
class RealComparison:
    """What the arms did. ``excess_nats``: by arm, for each answer the excess loss of each token, and of its end."""

    questions: tuple[AssistantQuestion, ...]
    seed: int
    scoring_keeps_cache: bool
    trials: Mapping[str, Trial]
    excess_nats: Mapping[str, tuple[tuple[float, ...], ...]]

    def is_right(self, name: str, number: int) -> bool | None:
        """Tell whether an arm's answer is right; None where no answer is right or wrong."""
        question = self.questions[number]
        return question.grade(self.trials[name].answers[number].text) if question.graded else None

    def bill_ratio(self, name: str) -> float | None:
        """Return an arm's bill over the cloud's own; None where that one is zero."""
        alone = self.trials[CLOUD.name].nanousd
        return self.trials[name].nanousd / alone if alone else None

    def mean_excess_nats(self, name: str) -> float:
        """Return the excess loss of an arm's tokens, each weighing alike; 0 where there is none."""
        losses = [*chain.from_iterable(self.excess_nats[name])]
        return sum(losses) / max(1, len(losses))


async def compare_real(
    num_questions: int, seed: int, *, keep_cache: bool, report_answer: ReportAnswer, report_build: ReportBuild
) -> RealComparison:
    """Let every arm answer the questions, then let the reference read along.

    Raises UsageError without the package or for more questions than there are, EngineError where a model is unusable.
    """
    questions = pick_questions(num_questions, seed)
    local, cloud = [await asyncio.to_thread(model_file, name, report_build) for name in (LOCAL_MODEL, CLOUD_MODEL)]
    flags = ["--scoring-keeps-cache", "--enable-prompt-tokens-details"] if keep_cache else []
    async with bundled_server(cloud, "--ctx", str(CONTEXT), "--parallel", "1", *flags) as url:
        pair = ServedPair(local, url, MAX_TOKENS, CONTEXT)
        texts = [question.text for question in questions]
        trials = {arm.name: Trial(arm, await answer_all(arm, texts, pair, report_answer), ()) for arm in ARMS}
    report_build("the reference reads the answers")
    losses = await asyncio.to_thread(_read_along, questions, trials)
    return RealComparison(questions, seed, keep_cache, trials, losses)


def pick_questions(num_questions: int, seed: int) -> tuple[AssistantQuestion, ...]:
    """Draw questions of the test split, the kinds taking turns. Raises UsageError for none, or more than there are."""
    kinds = dict.fromkeys((*FIRST, *KINDS))
    by_kind: dict[str, list[AssistantQuestion]] = defaultdict(list)
    for question in QUESTIONS:
        if question.split == "test":
            by_kind[question.kind].append(question)
    rng = random.Random(seed)
    drawn = [rng.sample(by_kind[kind], len(by_kind[kind])) for kind in kinds]
    turns = [question for turn in zip_longest(*drawn) for question in turn if question]
    if not 1 <= num_questions <= len(turns):
        msg = f"{num_questions} questions: 1 is the fewest, and {len(turns)} the most"
        raise UsageError(msg)
    return tuple(turns[:num_questions])


def _read_along(
    questions: Sequence[AssistantQuestion], trials: Mapping[str, Trial]
) -> dict[str, tuple[tuple[float, ...], ...]]:
    with closing(Weights(model_file(CLOUD_MODEL))) as weights, closing(weights.context(CONTEXT)) as engine:
        prompts = [engine.render([Message("user", question.text)]) for question in questions]
        reference = Cursor(engine)

        def excess(prompt: Ids, answer: Answer) -> tuple[float, ...]:
            text = tuple(token.id for token in answer.tokens)
            ended = answer.finish_reason == "stop"
            return tuple(text_loss(reference, engine.end_ids, prompt, text, ended=ended).excess.tolist())

        return {name: tuple(map(excess, prompts, trial.answers)) for name, trial in trials.items()}


def real_to_json(found: RealComparison) -> dict[str, Any]:
    """Return plain data for ``json.dumps``."""
    trials = found.trials
    ratios = {arm.name: found.bill_ratio(arm.name) for arm in HYBRIDS}
    return {
        "seed": found.seed,
        "questions": [{"kind": question.kind, "text": question.text} for question in found.questions],
        "answers": {name: [answer.text for answer in trial.answers] for name, trial in trials.items()},
        "right": {name: [found.is_right(name, n) for n in range(len(found.questions))] for name in trials},
        "cloud_token_share": {name: round(trial.cloud_token_share, 4) for name, trial in trials.items()},
        "requests": {name: trial.num_requests for name, trial in trials.items()},
        "bill": {
            **{
                name: {"nanousd": trials[name].nanousd, "ratio": None if ratio is None else round(ratio, 4)}
                for name, ratio in ratios.items()
            },
            "cloud_nanousd": trials[CLOUD.name].nanousd,
        },
        "excess_nats": {name: round(found.mean_excess_nats(name), 4) for name in trials},
        "models": {LOCAL.name: fingerprint(model_file(LOCAL_MODEL)), CLOUD.name: fingerprint(model_file(CLOUD_MODEL))},
        "scoring_keeps_cache": found.scoring_keeps_cache,
        "settings": {arm.name: dict(arm.choices) for arm in HYBRIDS},
        "degraded": {name: trial.num_degraded for name, trial in trials.items()},
    }
