"""Train the bundled pair and write the GGUF files.

    pip install '.[train]'
    python examples/train_reference_models/train.py small --out hybrid/models
    python examples/train_reference_models/train.py large --out hybrid/models

Loss on the answer tokens only; Muon on the hidden matrices, AdamW on the rest; warm-up, flat, linear decay; seeded.
A run that was killed goes on from its last checkpoint (``runs/NAME.pt``) when the same command is given again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from export import write_gguf
from network import Llama, Shape
from tokenizers import Tokenizer
from torch.nn import functional as F
from vocabulary import TURN_END, TURN_START, build_tokenizer

from hybrid.bench.tasks.mix import training_stream

# (width, layers, heads, hidden) and steps. What each is given, and what not, stands in ``hybrid.bench.tasks.mix``.
SIZES = {
    "small": ((64, 3, 4, 176), 1_500),
    "mid": ((112, 4, 4, 304), 2_000),
    "large": ((192, 5, 6, 512), 2_600),
}
# The longest answers have about 220 tokens, their questions 40.
BATCH, LENGTH = 43, 288
MUON_LR, ADAMW_LR, WARM_UP, DECAY_FROM = 0.02, 3e-3, 50, 0.55
IGNORE = -100
CHECKPOINT_EVERY = 200


def batches(name: str, tokenizer: Tokenizer, seed: int, skip: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (B, T) inputs and labels for ever; labels outside answers are ignored. ``skip`` reseeds a resumed run."""
    rng = random.Random(f"{seed}/{skip}")
    lessons = training_stream(name, "train", rng)
    start, end = tokenizer.token_to_id(TURN_START), tokenizer.token_to_id(TURN_END)
    user, assistant, newline = (tokenizer.encode(text).ids for text in ("user\n", "assistant\n", "\n"))
    ids: list[int] = []
    labels: list[int] = []
    while True:
        while len(ids) <= BATCH * LENGTH:
            taught = list(islice(lessons, 256))
            questions = tokenizer.encode_batch([problem.question for problem, _ in taught])
            answers = tokenizer.encode_batch([worked for _, worked in taught])
            for question, answer in zip(questions, answers, strict=True):
                asked = [start, *user, *question.ids, end, *newline, start, *assistant]
                ids += [*asked, *answer.ids, end, *newline]
                labels += [IGNORE] * len(asked) + [*answer.ids, end] + [IGNORE] * len(newline)
        x, y = torch.tensor(ids[: BATCH * LENGTH + 1]), torch.tensor(labels[: BATCH * LENGTH + 1])
        del ids[: BATCH * LENGTH], labels[: BATCH * LENGTH]
        yield x[:-1].view(BATCH, LENGTH), y[1:].view(BATCH, LENGTH)


def train(name: str, out: Path, runs: Path, steps: int, seed: int) -> Path:
    """Train one size to the end, or from its checkpoint to the end, and write ``out/NAME.gguf``."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    width, layers, heads, hidden = SIZES[name][0]
    shape = Shape(tokenizer.get_vocab_size(), width, layers, heads, hidden)
    model = Llama(shape)
    hidden_matrices = [p for key, p in model.named_parameters() if p.dim() == 2 and key.startswith("blk.")]
    others = [p for key, p in model.named_parameters() if not (p.dim() == 2 and key.startswith("blk."))]
    optimizers = [
        torch.optim.Muon(hidden_matrices, lr=MUON_LR, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    runs.mkdir(parents=True, exist_ok=True)
    checkpoint, first = runs / f"{name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        if saved["steps"] == steps and saved["seed"] == seed:
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            first = saved["step"]
    data = batches(name, tokenizer, seed, first)
    began = time.monotonic()
    for step in range(first, steps):
        scale = min(1.0, (step + 1) / WARM_UP) * min(1.0, (1 - step / steps) / (1 - DECAY_FROM) + 0.01)
        for optimizer, rate in zip(optimizers, (MUON_LR, ADAMW_LR), strict=True):
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.zero_grad()
        x, y = next(data)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float().view(-1, shape.num_tokens), y.reshape(-1), ignore_index=IGNORE)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == steps:
            rate = (step + 1 - first) * BATCH * LENGTH / (time.monotonic() - began)
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.4f} {rate:,.0f} tokens/s", flush=True)
            state = {"step": step + 1, "steps": steps, "seed": seed, "model": model.state_dict()}
            torch.save(state | {"optimizers": [o.state_dict() for o in optimizers]}, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
    path = out / f"{name}.gguf"
    write_gguf(path, f"hybrid-{name}", shape, model.state_dict(), tokenizer)
    return path


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SIZES))
    parser.add_argument("--out", type=Path, default=Path("hybrid/models"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where checkpoints are kept")
    parser.add_argument("--steps", type=int, help="default: what the size was tuned for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=max(1, torch.get_num_threads() // 2))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(train(args.name, args.out, args.runs, args.steps or SIZES[args.name][1], args.seed))


if __name__ == "__main__":
    main()
