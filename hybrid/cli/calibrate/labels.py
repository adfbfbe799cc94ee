"""The labels of a command's pairs: which questions, over which client, at which prices; and what is kept, removed.

The law (``tests/cli/test_calibrate.py``): a line of the user's own is a question or a UsageError that names its number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import hybrid
from hybrid.assemble import BUNDLED_LOCAL, ClientOpener, known_price
from hybrid.batch.questions import lines, object_of, question_of
from hybrid.cloud import Capabilities
from hybrid.defer import Calibration
from hybrid.engine.identity import identify
from hybrid.engine.real_models import model_file
from hybrid.errors import CloudError, ContextOverflow, UsageError
from hybrid.pairs.store import PairStore, calibration_for, is_shipped
from hybrid.run import AsyncClient
from hybrid.settings.config import AnswerChoices, Settings
from hybrid.settings.names import NAMED
from hybrid.settings.sources import cache_file, scores_folder
from hybrid.spend import AskPrices, Price, as_usd, endpoint_id, usd_to_nanousd
from hybrid.tasks import TaskFamily
from hybrid.tune.buying import (
    NUM_QUESTIONS,
    BuyingProgress,
    LabelFile,
    LabelledQuestions,
    LabelRequest,
    PairNames,
    assistant_questions,
    bought_before,
    bundled_questions,
    buy,
    critiqued,
)

Say = Callable[[str], None]
BUNDLED_NAME = "the bundled small model"
# What a line may say of the texts that are bought for it.
_OF_TEXTS = ("system", "raw", "max_tokens")


@dataclass(frozen=True, eq=False)
class PairLabels:
    """A drafter by its name, the pair, what was bought of it, and the prices of its endpoint.

    ``critic``: the identity of the model that has read all drafts; None: none has.
    """

    drafter: str
    names: PairNames
    bought: LabelledQuestions
    prices: AskPrices
    total: int
    critic: str | None = None

    @property
    def told(self) -> str:
        """How many questions have their labels."""
        return f"{len(self.bought.questions)} of {self.total} questions have their labels"


def asked_by(
    path: Path | None, num: int | None, flags: Mapping[str, Any], families: Sequence[TaskFamily] | None
) -> list[LabelRequest]:
    """Return the questions of a command; ``families`` of a bundled pair, None of any other. Raises UsageError."""
    max_tokens = flags.get("max_tokens")
    if path is None and families is None:
        return assistant_questions(num or NUM_QUESTIONS, max_tokens)
    if path is None:
        return bundled_questions(num or NUM_QUESTIONS, max_tokens, families or ())
    try:
        if str(path) == "-" and sys.stdin is not None:
            return own_questions(sys.stdin.buffer, max_tokens)[:num]
        with path.open("rb") as file:
            return own_questions(file, max_tokens)[:num]
    except OSError as error:
        msg = f"--questions {path}: {error.strerror}"
        raise UsageError(msg) from None


def own_questions(file: Any, max_tokens: int | None) -> list[LabelRequest]:
    """Read a question a line. Raises UsageError, naming the line."""
    found = []
    for line in lines(file):
        try:
            prompt, chosen = question_of(object_of(line))
        except UsageError as error:
            msg = f"line {line.number}: {error}"
            raise UsageError(msg) from None
        told = {name: chosen[name] for name in _OF_TEXTS if name in chosen}
        found.append(LabelRequest(prompt, cast(AnswerChoices, told | _stated(max_tokens=max_tokens))))
    if not found:
        raise UsageError("there are no questions")
    return found


async def label_pairs(
    drafters: Sequence[str | None], flags: Mapping[str, Any], asked: Sequence[LabelRequest], tell: Say
) -> list[PairLabels]:
    """Buy the labels of one pair after the other. Raises UsageError, EngineError and CloudRefusal."""
    # What earlier runs for the same models spent counts against --cap, whatever became of them.
    models = " ".join(sorted(str(each) for each in drafters))
    spender = blake2b(f"{models} {flags.get('cloud')}".encode(), digest_size=8).hexdigest()
    return [await _label(each, {**flags, "spender": f"calibrate {spender}"}, asked, tell) for each in drafters]


async def _label(drafter: str | None, flags: Mapping[str, Any], asked: Sequence[LabelRequest], tell: Say) -> PairLabels:
    opener = _opener(drafter, flags)
    settings, name = opener.settings, drafter or BUNDLED_NAME
    if settings.offline:
        raise UsageError("labels are bought from the endpoint: not offline")
    own = [LabelRequest(each.prompt, _with_settings(each.choices, settings)) for each in asked]
    async with opener as client:
        local, endpoint, can = _identity(settings), _endpoint(settings), await client.capabilities()
        names = PairNames(local, endpoint, can.model or settings.cloud_model or "")
        prices = AskPrices.of(
            _price(settings, can),
            keeps_cache=can.keeps_cache,
            in_one_request=can.scoring_method == "one request",
            tells_cache=can.tells_cache is True,
        )
        cap = None if settings.cap is None else usd_to_nanousd(settings.cap, "cap")
        with closing(LabelFile(names.file(labels_folder()), names)) as file:
            missing = list({each.name: each for each in own if file.question(each.name) is None}.values())
            if missing:
                tell(f"{name}: {await _forecast(client, missing, prices, cap)}")
            bought = await buy(client, own, file, _teller(name, cap, tell))
            critic = None if settings.critic is None else _identity_of(settings.critic)
            if critic is not None:
                tell(f"{name}: the critic reads {len(bought.questions)} drafts")
                bought = replace(bought, questions=await critiqued(client, own, file))
        return PairLabels(name, names, bought, prices, len({each.name for each in own}), critic)


async def _forecast(client: AsyncClient, missing: Sequence[LabelRequest], prices: AskPrices, cap: int | None) -> str:
    """Say what buying can cost at the most and how long it takes, before anything is bought.

    The first question is drafted for it, which costs nothing; what the endpoint takes is not known before it is asked.
    """
    most = 0.0
    for each in missing:
        try:
            prompt = await client.count_prompt(each.prompt, **each.choices)
        except ContextOverflow:
            continue
        limit = each.choices.get("max_tokens") or max(1, client.num_context - prompt)
        most += float(prices.check(prompt, limit, 0)) + float(prices.write(prompt, limit, 0))
    charged = "what they cost is not known: no price was stated" if prices.unit != "nanousd" else ""
    charged = charged or f"at most {as_usd(round(most))}" + (
        "" if cap is None else f", of which the cap allows {as_usd(cap)}"
    )
    if prices.unit != "nanousd" and prices.note and prices.note.startswith("nothing is charged"):
        charged = "nothing is charged"
    with suppress(ContextOverflow):
        alone = cast(AnswerChoices, {**missing[0].choices, "policy": "local"})
        first = await client.generate(missing[0].prompt, **alone)
        drafting = _duration(first.timing.total_ms / 1000 * len(missing))
        charged += f"; drafting takes about {drafting} here, beside the endpoint's own time, and the fit some seconds"
    return f"{len(missing)} questions, {2 * len(missing)} requests, {charged}"


async def take_back_pair(drafter: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Put in force what was before the newest calibration of a local model with the endpoint; return what that is."""
    opener = _opener(drafter, flags)
    local, named = _identity(opener.settings), opener.settings.critic
    critic = None if named is None else _identity_of(named)
    told: dict[str, Any] = {"local": drafter or BUNDLED_NAME}
    for model in sorted(await _models_of(opener)):
        changed = PairStore(local, model).take_back(critic)
        told[model] = {"changed": changed, "in_force": in_force(local, model, critic)}
    return told


def in_force(local: str, cloud: str, critic: str | None = None) -> str:
    """Say which calibration of a pair decides now."""
    found = calibration_for(local, cloud, critic=critic)
    return "none: nothing is known of this pair" if found is None else told_calibration(found)


def told_calibration(found: Calibration) -> str:
    """Say whose a calibration is, and by how many questions."""
    owner = "the package's own calibration" if is_shipped(found) else "your calibration"
    return f"{owner} of {len(found.questions):,} questions (judge {found.judge})"


async def _models_of(opener: ClientOpener) -> set[str]:
    """Return the endpoint's models that something of the pair was bought with, or named; else the one that is there."""
    local, endpoint = _identity(opener.settings), _endpoint(opener.settings)
    files = bought_before(labels_folder(), local, endpoint)
    models = {pair.model for pair in files.values()} | {opener.settings.cloud_model or ""} - {""}
    return models or await _model_there(opener)


async def forget_pair(drafter: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Remove what is kept of a local model with the endpoint; return how many things of each kind that were."""
    opener = _opener(drafter, flags)
    settings = opener.settings
    local, endpoint = _identity(settings), _endpoint(settings)
    models, texts = await _models_of(opener), 0
    for path in bought_before(labels_folder(), local, endpoint):
        texts += max(0, path.read_bytes().count(b"\n") - 1)
        path.unlink()
    removed = [PairStore(local, model).forget() for model in models]
    return {
        "local": drafter or BUNDLED_NAME,
        "bought texts": texts,
        "calibrations": sum(num for num, _ in removed),
        "files of what was learned": sum(num for _, num in removed),
    }


async def _model_there(opener: ClientOpener) -> set[str]:
    try:
        async with opener as client:
            return {(await client.capabilities()).model}
    except CloudError:
        return set()


def _with_settings(choices: AnswerChoices, settings: Settings) -> AnswerChoices:
    """Return choices that name all that decides a text, so that another system message is another question."""
    own = _stated(
        system=settings.system, raw=settings.raw or None, template_args=dict(settings.template_args) or None
    ) | {"max_tokens": settings.max_tokens}
    return cast(AnswerChoices, own | choices)


def _stated(**choices: Any) -> dict[str, Any]:
    return {name: value for name, value in choices.items() if value is not None}


def _opener(drafter: str | None, flags: Mapping[str, Any]) -> ClientOpener:
    return hybrid.open(**{**flags, "local": None if drafter is None else Path(drafter)})


def _identity(settings: Settings) -> str:
    if settings.experts:
        raise UsageError("calibrate reads with one local model, which --local names; experts learn as they answer")
    return _identity_of(settings.local or BUNDLED_LOCAL)


def _identity_of(model: Path) -> str:
    return identify(model_file(model), cache_file())


def _endpoint(settings: Settings) -> str:
    if settings.cloud is None or settings.cloud in NAMED:
        return settings.cloud or "bundled"
    return endpoint_id(settings.cloud)


def _price(settings: Settings, can: Capabilities) -> Price | None:
    stated, prices = known_price(settings)
    if stated is None and prices is not None and settings.cloud is not None:
        return prices.price(settings.cloud, can.model)
    return stated


def labels_folder() -> Path:
    """Return the folder of what was bought. Raises UsageError without a home."""
    return scores_folder() / "labels"


def _teller(name: str, cap: int | None, tell: Say) -> Callable[[BuyingProgress], None]:
    """Say how far it is: on a terminal after each question, elsewhere at each tenth of them."""
    every = sys.stderr is not None and sys.stderr.isatty()

    def told(done: BuyingProgress) -> None:
        if every or 10 * done.done // done.total > 10 * (done.done - 1) // done.total:
            tell(f"{name}: {_told(done, cap)}")

    return told


def _told(done: BuyingProgress, cap: int | None) -> str:
    spent = as_usd(done.nanousd) + ("" if cap is None else f" of {as_usd(cap)}")
    left = "" if done.left_s is None else f", {_duration(done.left_s)} left"
    return f"{done.done} of {done.total} questions, {spent}{left}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
