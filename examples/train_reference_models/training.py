"""One model's training: what it is planned to be, and a run that goes on where it was stopped.

The law, tested in ``tests/examples/test_training.py``: a run that was stopped and goes on ends with the very weights of
one that was not, on the same machine and with as many threads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from export import read_gguf, write_gguf
from lessons import IGNORE, AnyModel, Block, Lessons, problems_for
from network import Llama, Shape
from texts import read_texts, write_texts
from torch.nn import functional as F
from vocabulary import ALIEN, COMMON, WHOLE_WORDS, Vocabulary, WordVocabulary

from hybrid.settings.names import MODELS
from hybrid.tasks.families import Model

MUON_LR, ADAMW_LR = 0.02, 3e-3
WARM_UP, LAST_RATE = 50, 0.01  # steps; share of the peak
# What these two models learn last comes more often, what it learns at once less. (Evenly, after 1,650 steps: ordering
# 11 of 40, base 28, arithmetic and sorting 30, the others 34 and more.)
HARD = {"ordering": 2.0, "base": 2.0, "sorting": 1.5, "arithmetic": 1.5} | dict.fromkeys(
    ("integration", "differentiation", "equation", "rewriting"), 0.7
)


@dataclass(frozen=True)
class Revision:
    """Steps after the last: the rate starts again at a share of its peak and falls, families come by other weights.

    ``texts_by``: the model whose texts are learnt in the place of the worked answers (``texts.py``).
    """

    steps: int
    rate: float
    weights: Mapping[str, float] = field(default_factory=dict)
    texts_by: Model | None = None


# What was left: after its steps 35 of 50 commands (a date and some days are added in one go), the others 43 and more.
REVISION = Revision(150, 0.3, {"command": 5.0, "gcd": 1.5, "base": 1.5, "sorting": 1.5})

# What a model of another vocabulary can learn of the large one: its texts.
DISTILLED = Revision(300, 0.4, texts_by="large")


class OtherRecipe(ValueError):
    """A checkpoint was begun with another plan or seed."""


@dataclass(frozen=True)
class Plan:
    """Sizes (width, layers, heads, hidden) and how to train; what each model is given stands in ``tasks.families``.

    The learning rate warms up, is flat until step ``flat_until``, and falls in a straight line until ``first_steps``.
    ``weights``: families that do not come as often as the others (1). ``teacher``: the model whose rows are learnt in
    the place of the answers' tokens.
    """

    name: AnyModel
    size: tuple[int, int, int, int]
    first_steps: int
    flat_until: int
    weights: Mapping[str, float] = field(default_factory=dict)
    revision: Revision | None = None
    vocabulary: Vocabulary | WordVocabulary = COMMON
    tokens_per_step: int = 12_288
    checkpoint_every: int = 50
    teacher: Model | None = None

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self.first_steps + (self.revision.steps if self.revision else 0)

    def rate(self, step: int) -> float:
        """Return the learning rate's share of its peak at a step, counted from 0."""
        if self.revision and step >= self.first_steps:
            return max(LAST_RATE, self.revision.rate * (self.steps - step) / self.revision.steps)
        fall = (self.first_steps - step) / (self.first_steps - self.flat_until)
        return min((step + 1) / WARM_UP, 1.0, max(fall, LAST_RATE))

    def weights_at(self, step: int) -> Mapping[str, float]:
        """Return how often families come at a step."""
        return self.revision.weights if self.revision and step >= self.first_steps else self.weights

    @property
    def shape(self) -> Shape:
        """The network's sizes."""
        return Shape(self.vocabulary.num_tokens, *self.size)


PLANS = {
    plan.name: plan
    for plan in (
        # The longest first, so that the others fit beside it.
        Plan("large", (160, 5, 5, 432), 1_650, 700, HARD, REVISION),
        Plan("mid", (112, 4, 4, 304), 1_100, 550, revision=Revision(200, 0.3, HARD)),
        Plan("small", (64, 3, 4, 176), 1_700, 750),
        Plan("alien", (64, 3, 4, 176), 1_700, 750, revision=DISTILLED, vocabulary=ALIEN),
        Plan("numbers", (64, 3, 4, 176), 1_200, 550),
        Plan("words", (64, 3, 4, 176), 1_200, 550),
        Plan("student", (64, 3, 4, 176), 800, 350, teacher="large"),
        Plan("wordings-large", (128, 4, 4, 352), 700, 350, vocabulary=WHOLE_WORDS),
        Plan("wordings-small", (64, 3, 4, 176), 900, 450, vocabulary=WHOLE_WORDS),
    )
}


def teacher_of(path: Path) -> Llama:
    """Return a trained model whose rows others learn, at rest."""
    shape, weights = read_gguf(path)
    model = Llama(shape)
    model.load_state_dict(weights)
    return model.requires_grad_(requires_grad=False).eval()


@dataclass
class Progress:
    """How far a run has come: steps, tokens read, those of answers among them, and the time it took."""

    step: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0


class Run:
    """One model's training: weights, optimisers, data, progress; saved whole, so that stopping changes nothing."""

    def __init__(self, plan: Plan, checkpoint: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.plan, self.checkpoint, self.seed = plan, checkpoint, seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = plan.vocabulary.tokenizer()
        self.progress = Progress()
        self.lessons = self._lessons(random.Random(seed))
        self.model = Llama(plan.shape).to(self.device)
        self.teacher = None if plan.teacher is None else teacher_of(MODELS / f"{plan.teacher}.gguf").to(self.device)
        named = list(self.model.named_parameters())
        hidden = [p for key, p in named if p.dim() == 2 and key.startswith("blk.")]
        others = [p for key, p in named if not (p.dim() == 2 and key.startswith("blk."))]
        self.optimizers = [
            torch.optim.Muon(hidden, lr=MUON_LR, weight_decay=0.01, momentum=0.95),
            torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        if checkpoint.exists():
            self._load()

    def train(self, report: Callable[[Progress, float], None]) -> None:
        """Train to the end; ``report`` gets the progress and the mean loss at every checkpoint."""
        began = time.monotonic() - self.progress.seconds
        losses: list[float] = []
        while self.progress.step < self.plan.steps:
            losses.append(self._step())
            self.progress.seconds = time.monotonic() - began
            if self.progress.step % self.plan.checkpoint_every == 0 or self.progress.step == self.plan.steps:
                self._save()
                report(self.progress, sum(losses) / len(losses))
                losses.clear()

    def export(self, folder: Path) -> Path:
        """Write the model as it stands to ``folder/NAME.gguf``."""
        path = folder / f"{self.plan.name}.gguf"
        said = {**asdict(self.progress), "seconds": round(self.progress.seconds), "seed": self.seed}
        said["weights"] = dict(self.plan.weights)
        if self.plan.teacher is not None:
            said["teacher"] = self.plan.teacher
        said["device"] = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        weights = {key: value.cpu() for key, value in self.model.state_dict().items()}
        name, shape, vocabulary = f"hybrid-{self.plan.name}", self.plan.shape, self.plan.vocabulary
        write_gguf(path, name, shape, weights, self.tokenizer, vocabulary.pre, said)
        return path

    def _lessons(self, rng: random.Random) -> Lessons:
        """Return the lessons as they are from this step on; the generator is all that they carry along."""
        step, revision = self.progress.step, self.plan.revision
        if revision is None or revision.texts_by is None or step < self.plan.first_steps:
            stream = problems_for(self.plan.name, rng, self.plan.weights_at(step))
        else:
            path = self.checkpoint.with_name(f"{revision.texts_by}-texts.jsonl")
            write_texts(path, revision.texts_by)
            stream = read_texts(path, rng)
        return Lessons(stream, self.tokenizer, rng)

    def _step(self) -> float:
        """One step over blocks of rows; return the mean loss in nats per answer token."""
        if self.progress.step == self.plan.first_steps:
            self.lessons = self._lessons(self.lessons.rng)
        scale = self.plan.rate(self.progress.step)
        for optimizer, peak in zip(self.optimizers, (MUON_LR, ADAMW_LR), strict=True):
            optimizer.param_groups[0]["lr"] = peak * scale
            optimizer.zero_grad()
        blocks = self.lessons.step(self.plan.tokens_per_step)
        num_labels = sum(block.num_labels for block in blocks)
        self.progress.answer_tokens += num_labels
        total = 0.0
        for block in blocks:
            loss = self._loss(block) / num_labels
            loss.backward()
            total += loss.item()
            self.progress.tokens += block.num_tokens
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.progress.step += 1
        return total

    def _loss(self, block: Block) -> torch.Tensor:
        """Return the summed cross-entropy of a block's answer tokens, or of the teacher's rows there, in nats."""
        labels, ids = block.labels.to(self.device), block.ids.to(self.device)
        wanted = labels != IGNORE
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.model(ids, wanted)
            with torch.no_grad():
                rows = None if self.teacher is None else self.teacher(ids, wanted).float().softmax(-1)
        return F.cross_entropy(logits.float(), labels[wanted] if rows is None else rows, reduction="sum")

    def _state(self) -> dict[str, Any]:
        return {"plan": repr(self.plan), "seed": self.seed}

    def _save(self) -> None:
        state = self._state() | {
            "progress": asdict(self.progress),
            "rng": self.lessons.rng.getstate(),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def _load(self) -> None:
        saved = torch.load(self.checkpoint, map_location=self.device)
        if {key: saved[key] for key in self._state()} != self._state():
            msg = f"{self.checkpoint} is of another recipe: delete it, or train with the one it was begun with"
            raise OtherRecipe(msg)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.lessons.rng.setstate(saved["rng"])
        self.progress = Progress(**saved["progress"])
        self.lessons = self._lessons(self.lessons.rng)
