"""A design: what a study runs, as data, read from a file (DESIGN.toml) and checked before anything is loaded.

The law (``tests/bench/test_study_design.py``): whatever a file holds, it is a design or a UsageError of one sentence
that names the file, the table and the key. A list as a setting of an arm means an arm a value; several lists mean all
their combinations. A path is relative to the design's file. How a section is made is not known here.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hybrid.assemble import known_price
from hybrid.engine.real_models import model_file
from hybrid.engine.vocabulary import VocabularyFile, share_words
from hybrid.errors import UsageError, to_one_line
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CacheAssumption, TokenPrices
from hybrid.lab.experiments.grid import CLOUD, LOCAL, GradedQuestion, ModelPair, read_parts
from hybrid.lab.experiments.questions import Half, as_questions, draw_problems, draw_questions, ordered, read_problems
from hybrid.lab.experiments.world import NUM_CONTEXT
from hybrid.lab.study.endpoint import EndpointPair
from hybrid.lab.study.own_questions import read_own_questions
from hybrid.run.composition import check_effect, policy_of
from hybrid.settings.config import NO_LEDGER, Settings, names_for
from hybrid.settings.names import is_address
from hybrid.settings.setting_info import SettingScope
from hybrid.settings.sources import choosing, load, told_fault
from hybrid.spend import usd_to_nanousd
from hybrid.tasks import FAMILIES
from hybrid.tasks.statistics import num_for_difference, num_for_rpi

# So many questions of each pair where neither a number nor a power is given.
NUM_QUESTIONS = 50
# Tokens of a chat template, its system message among them.
TEMPLATE_TOKENS = 128
# What is said once for all arms, or is not of an answer's text.
_NOT_OF_ARMS = {"temperature", "seed", "max_tokens", "offline", "conversation", "trace_rows", "learn"}


# What a section's own number may be.
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pair: TypeAlias = ModelPair | EndpointPair
DrawnQuestions: TypeAlias = Mapping[str, tuple[GradedQuestion, ...]]


@dataclass(frozen=True)
class NamedTariff:
    """A price and what is cached, in prompt tokens; the name stands in the report."""

    name: str
    prices: TokenPrices
    setting: CacheAssumption


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Power(_Table):
    """What is to be seen: a half width of RPI's interval, or a difference of two arms in right answers.

    Assumed: the ``gap`` between the models in right answers, and the share of questions that one of two solves alone;
    or both as the ``records`` of an earlier study's folder have them.
    """

    half_width: Annotated[float, Field(gt=0, lt=1)] | None = None
    difference: Annotated[float, Field(gt=0, lt=1)] | None = None
    gap: Annotated[float, Field(gt=0, le=1)] = 0.3
    discordance: Annotated[float, Field(gt=0, le=1)] = 0.4
    records: Path | None = None

    @model_validator(mode="after")
    def _fits(self) -> Power:
        if self.gap > self.discordance:
            raise ValueError("gap is at most discordance: who is right more often is right alone so often")
        return self

    def measured(self, folder: Path) -> Power:
        """Return it with what the records hold; paths are relative to a folder. Raises UsageError without a gap."""
        if self.records is None:
            return self
        arms = [each.get("arms", {}) for each in read_parts(folder / self.records).values()]
        given = [(each["local"]["right"], each["cloud"]["right"]) for each in arms if "right" in each.get("cloud", {})]
        gains = [cloud - local for local, cloud in given if cloud is not None]
        if sum(gains) <= 0:
            msg = f"{self.records} has {len(gains)} graded answers of both models, and no gap between them"
            raise UsageError(msg)
        seen = {"gap": sum(gains) / len(gains), "discordance": sum(map(abs, gains)) / len(gains)}
        return self.model_copy(update=seen)

    @property
    def num_needed(self) -> int:
        """How many questions that takes; 0: nothing is wanted."""
        width, difference = self.half_width, self.difference
        for_width = num_for_rpi(width, self.gap, self.discordance) if width else 0
        return max(for_width, num_for_difference(difference, self.discordance) if difference else 0)


@dataclass(frozen=True)
class Design:
    """What is run. ``drawn``: by a seed, which all draws have, too, the questions of each pair by its name.

    ``arms``: without the two models alone, which are always run. ``cap``: most nano-dollars for all endpoints; None:
    nothing is bought. ``options``: a section's own numbers.
    """

    name: str
    sections: tuple[str, ...]
    pairs: Mapping[str, Pair]
    drawn: Mapping[int, DrawnQuestions]
    arms: tuple[Arm, ...] = ()
    tariffs: tuple[NamedTariff, ...] = ()
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    cap: int | None = None
    power: Power = field(default_factory=Power)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in their order."""
        return tuple(self.drawn)

    @property
    def questions(self) -> DrawnQuestions:
        """All questions, seed by seed, by the pair's name."""
        return {name: tuple(each for drawn in self.drawn.values() for each in drawn[name]) for name in self.pairs}


class _QuestionsTable(_Table):
    kind: Literal["problems", "assistant", "ladder", "file"] = "problems"
    path: Path | None = None
    split: Half = "calibration"
    n: Annotated[int, Field(ge=1)] | None = None


class _PairTable(_Table):
    local: str
    cloud: str
    critic: str | None = None
    model: str | None = None
    price: Any = None
    api_key_env: str | None = None
    questions: _QuestionsTable | None = None


class _DesignTable(_Table):
    name: str = ""
    sections: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0,)
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    cap: Any = None
    tariffs: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(f"{PRICES[0]} {e}" for e in ("U", "C", "S", "new"))
    pairs: Annotated[Mapping[str, _PairTable], Field(min_length=1)]
    questions: _QuestionsTable = _QuestionsTable()
    arms: tuple[Mapping[str, Any], ...] = ()
    power: Power = Power()
    options: Mapping[str, PositiveNumber | tuple[PositiveNumber, ...] | tuple[str, ...]] = {}


_TABLES: Mapping[str, type[BaseModel]] = {"questions": _QuestionsTable, "pairs": _PairTable, "power": Power}


def read_design(path: Path, most: int | None = None, folder: Path | None = None) -> Design:
    """Read a design's file. ``most``: no more questions of a pair, the first seed alone. ``folder``: of its paths.

    Raises UsageError.
    """
    try:
        table = _DesignTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    except ValidationError as error:
        inner = told_fault(error, ())[0][:-1]
        owner = next((kind for name, kind in _TABLES.items() if name in inner), _DesignTable)
        where, fault = told_fault(error, owner.model_fields)
        where = where[:2] if where[:1] == ("options",) else where  # the rest says which type was tried
        with within(path, *where[:-1]):
            raise UsageError(" ".join((*where[-1:], fault))) from None
    except (ValueError, RecursionError) as error:
        msg = f"{path} is no TOML: {to_one_line(error)}"
        raise UsageError(msg) from None
    pairs: dict[str, Pair] = {}
    for name, pair in table.pairs.items():
        with within(path, "pairs", name):
            pairs[name] = _pair(folder or path.parent, pair, table.cap)
    with within(path):
        cap = None if table.cap is None else usd_to_nanousd(str(table.cap), "cap")
        tariffs = tuple(map(_tariff, table.tariffs))
    arms = _arms(path, table.arms)
    seeds = tuple(dict.fromkeys(table.seeds))[: None if most is None else 1]
    with within(path, "power"):
        power = table.power.measured(folder or path.parent)
    num = math.ceil((power.num_needed or NUM_QUESTIONS) / len(seeds))
    drawn: dict[int, dict[str, tuple[GradedQuestion, ...]]] = {seed: {} for seed in seeds}
    for seed, (name, pair) in product(seeds, table.pairs.items()):
        asked, before = pair.questions or table.questions, {e.text for of in drawn.values() for e in of.get(name, ())}
        with within(path, *(("pairs", name) if pair.questions else ()), "questions"):
            wanted = min(asked.n or num, most or asked.n or num)
            found = _draw(folder or path.parent, asked, wanted + len(before), seed)
            # A question that two seeds ask would count twice.
            drawn[seed][name] = tuple(e for e in found if e.text not in before)[:wanted]
            if not drawn[seed][name]:
                msg = f"no question is left for seed {seed}: ask fewer with n, or with fewer seeds"
                raise UsageError(msg)
    for name, models in pairs.items():
        if isinstance(models, ModelPair):  # a token is a byte at the least, and a template adds a few
            longest = max(len(e.text.encode()) + e.max_tokens for drawn_of in drawn.values() for e in drawn_of[name])
            pairs[name] = replace(models, num_context=max(NUM_CONTEXT, longest + TEMPLATE_TOKENS))
    more = table.temperature, table.options, cap, power
    return Design(table.name or path.stem, table.sections, pairs, drawn, arms, tariffs, *more)


@contextmanager
def within(path: Path, *table: str) -> Iterator[None]:
    """Say where in a file it is what is refused inside."""
    try:
        yield
    except UsageError as error:
        where = f"[{'.'.join(table)}] " if table else ""
        msg = f"{path}: {where}{error}"
        raise UsageError(msg) from None


def check_known(name: str, known: Iterable[str], what: str) -> str:
    """Return a name that is known. Raises UsageError, with the nearest one, for another."""
    if name not in (names := sorted(known)):
        near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
        msg = f"{name} is no {what}: " + (f"did you mean {near[0]}?" if near else f"{', '.join(names) or 'none'} are")
        raise UsageError(msg)
    return name


def _tariff(name: str) -> NamedTariff:
    """Read "1/0.1/4 C": prices of a read, a cached and a written token, and what is cached. Raises UsageError."""
    amounts, _, cached = name.partition(" ")
    try:
        read, known, written = map(float, amounts.split("/"))
        prices, settings = TokenPrices(known / read, written / read), {each.name: each for each in SETTINGS}
        return NamedTariff(name, prices, settings[cached])
    except (ArithmeticError, ValueError, KeyError):
        msg = f"tariffs: {name!r} is no price with one of {', '.join(e.name for e in SETTINGS)}, such as '1/0.1/4 C'"
        raise UsageError(msg) from None


def _draw(folder: Path, table: _QuestionsTable, num: int, seed: int) -> tuple[GradedQuestion, ...]:
    """Draw questions by a seed, fewer where there are not so many. Raises UsageError."""
    if (table.path is None) == (table.kind in {"ladder", "file"}):
        msg = f"path is {'missing: the file of' if table.path is None else 'not for'} the kind {table.kind}"
        raise UsageError(msg)
    if table.kind == "problems":
        try:
            return as_questions(draw_problems(table.split, math.ceil(num / len(FAMILIES)), seed)[:num])
        except ValueError as error:
            msg = f"n is too much for all seeds: {error}"
            raise UsageError(msg) from None
    if table.kind == "assistant":
        return tuple(draw_questions(table.split, num, seed))
    path = folder / (table.path or "")
    found = read_problems(path, table.split) if table.kind == "ladder" else read_own_questions(path)
    return ordered(found, seed)[:num]


def _pair(folder: Path, table: _PairTable, cap: Any) -> Pair:
    """Find a pair's models. Raises UsageError."""
    local, critic = _model(folder, table.local), None if table.critic is None else _model(folder, table.critic)
    if not is_address(table.cloud):
        if stray := [name for name in ("model", "price", "api_key_env") if getattr(table, name) is not None]:
            msg = f"{stray[0]} is of an endpoint, and cloud names a model's file"
            raise UsageError(msg)
        cloud = _model(folder, table.cloud)
        with closing(VocabularyFile(local)) as ours, closing(VocabularyFile(cloud)) as theirs:
            if not share_words(ours, theirs):
                msg = f"{table.local} and {table.cloud} split the same text into other tokens: no draft can be checked"
                raise UsageError(msg)
        return ModelPair(local, cloud, critic)
    named = {"local": local, "cloud": table.cloud, "cloud_model": table.model, "api_key_env": table.api_key_env}
    user = load()
    kept = None if user.ledger == Path(NO_LEDGER) else user.ledger  # one for all processes and runs, that the cap binds
    # Neither what was learned nor time decides.
    own = {"learn": False, "overlap": False, "threads": 1, "seed": 0, "ledger": kept, "prices": user.prices}
    settings = choosing(Settings(), {**named, **own, "price": table.price, "critic": critic, "cap": cap})
    if (price := known_price(settings)[0]) is None:
        msg = f"price is missing: what {table.cloud} charges, as hybrid ask takes it"
        raise UsageError(msg)
    return EndpointPair(local, settings, price)


def _model(folder: Path, name: str) -> Path:
    """Return a model's file: one of this folder, or of a name. Raises UsageError."""
    found = folder / name if (folder / name).is_file() else model_file(name)
    if not found.is_file():
        msg = f"there is no model {name}"
        raise UsageError(msg)
    return found


def _arms(path: Path, tables: Iterable[Mapping[str, Any]]) -> tuple[Arm, ...]:
    """Return an arm for every combination of listed values. Raises UsageError as a client does, or for a name twice."""
    arms = {LOCAL.name: LOCAL, CLOUD.name: CLOUD}
    for number, table in enumerate(tables, 1):
        with within(path, "arms", str(number)):
            for arm in _combined(table):
                if arms.setdefault(arm.name, arm) is not arm:
                    msg = f"{arm.name} is an arm already (local and cloud always are): give it another name"
                    raise UsageError(msg)
    return tuple(arms.values())[2:]


def _combined(table: Mapping[str, Any]) -> Iterator[Arm]:
    if "policy" not in table:
        raise UsageError("policy is missing")
    for key in table:
        check_known(key, {"name", *names_for(SettingScope.ANSWER) - _NOT_OF_ARMS}, "setting of an arm")
        if table[key] == []:
            msg = f"{key} must not be empty"
            raise UsageError(msg)
    swept = {key: value if isinstance(value, list) else [value] for key, value in table.items() if key != "name"}
    for values in product(*swept.values()):
        choices: dict[str, Any] = dict(zip(swept, values, strict=True))
        settings = choosing(Settings(), choices)
        policy_of(settings)
        check_effect(settings, choices)
        policy = str(choices.pop("policy"))
        told = {key: value for key, value in choices.items() if isinstance(table[key], list)}
        parts = (f":{value}" if key == "threshold" else f" {key} {value}" for key, value in told.items())
        yield Arm("".join((str(table.get("name", policy)), *parts)), policy, choices)  # type: ignore[arg-type]
