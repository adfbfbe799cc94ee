"""The labels of a command's pairs: which questions, over which client, at which prices; and what is kept, removed.

The law (``tests/cli/test_calibrate.py``): a line of the user's own is a question or a UsageError that names its number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import hybrid
from hybrid.assemble import BUNDLED_LOCAL, ClientOpener, known_price
from hybrid.cli.questions import lines, object_of, question_of
from hybrid.cloud import Capabilities
from hybrid.config import AnswerChoices, Settings
from hybrid.defer.state import forget_outcomes
from hybrid.engine.identity import identify
from hybrid.engine.real_models import model_file
from hybrid.errors import CloudError, UsageError
from hybrid.model_names import NAMED
from hybrid.run.calibrations import forget_calibrations
from hybrid.sources import identities_file, scores_folder
from hybrid.spend import AskPrices, Price, as_usd, endpoint_id, usd_to_nanousd
from hybrid.tasks import TaskFamily
from hybrid.tune.buying import AskedForLabels, Bought, BuyingProgress, buy, critiqued
from hybrid.tune.label_file import LabelFile, PairNames, bought_before
from hybrid.tune.questions import NUM_QUESTIONS, assistant_questions, bundled_questions

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
    bought: Bought
    prices: AskPrices
    total: int
    critic: str | None = None

    @property
    def told(self) -> str:
        """How many questions have their labels."""
        return f"{len(self.bought.questions)} of {self.total} questions have their labels"


def asked_by(
    path: Path | None, num: int | None, flags: Mapping[str, Any], families: Sequence[TaskFamily] | None
) -> list[AskedForLabels]:
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


def own_questions(file: Any, max_tokens: int | None) -> list[AskedForLabels]:
    """Read a question a line. Raises UsageError, naming the line."""
    found = []
    for line in lines(file):
        try:
            prompt, chosen = question_of(object_of(line))
        except UsageError as error:
            msg = f"line {line.number}: {error}"
            raise UsageError(msg) from None
        told = {name: chosen[name] for name in _OF_TEXTS if name in chosen}
        found.append(AskedForLabels(prompt, cast(AnswerChoices, told | _stated(max_tokens=max_tokens))))
    if not found:
        raise UsageError("there are no questions")
    return found


async def label_pairs(
    drafters: Sequence[str | None], flags: Mapping[str, Any], asked: Sequence[AskedForLabels], tell: Say
) -> list[PairLabels]:
    """Buy the labels of one pair after the other. Raises UsageError, EngineError and CloudRefusal."""
    # What earlier runs for the same models spent counts against --cap, whatever became of them.
    models = " ".join(sorted(str(each) for each in drafters))
    spender = blake2b(f"{models} {flags.get('cloud')}".encode(), digest_size=8).hexdigest()
    return [await _label(each, {**flags, "spender": f"calibrate {spender}"}, asked, tell) for each in drafters]


async def _label(
    drafter: str | None, flags: Mapping[str, Any], asked: Sequence[AskedForLabels], tell: Say
) -> PairLabels:
    opener = _opener(drafter, flags)
    settings, name = opener.settings, drafter or BUNDLED_NAME
    if settings.offline:
        raise UsageError("labels are bought from the endpoint: not offline")
    own = [AskedForLabels(each.prompt, _with_settings(each.choices, settings)) for each in asked]
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
            bought = await buy(client, own, file, _teller(name, cap, tell))
            critic = None if settings.critic is None else _identity_of(settings.critic)
            if critic is not None:
                tell(f"{name}: the critic reads {len(bought.questions)} drafts")
                bought = replace(bought, questions=await critiqued(client, own, file))
        return PairLabels(name, names, bought, prices, len({each.name for each in own}), critic)


async def forget_pair(drafter: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Remove what is kept of a local model with the endpoint; return how many things of each kind that were."""
    opener = _opener(drafter, flags)
    settings = opener.settings
    local, endpoint = _identity(settings), _endpoint(settings)
    files = bought_before(labels_folder(), local, endpoint)
    models = {pair.model for pair in files.values()} | {settings.cloud_model or ""} - {""}
    if not models:
        models = await _model_there(opener)
    texts = 0
    for path in files:
        texts += max(0, path.read_bytes().count(b"\n") - 1)
        path.unlink()
    calibrations = sum(forget_calibrations(local, model) for model in models)
    learned = sum(forget_outcomes(scores_folder(), local, model) for model in models)
    return {
        "local": drafter or BUNDLED_NAME,
        "bought texts": texts,
        "calibrations": calibrations,
        "files of what was learned": learned,
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
    return identify(model_file(model), identities_file())


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
