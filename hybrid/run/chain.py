"""Which local models draft for one another in an answer: their names, their spans, and their cursors in a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.engine import Cursor, CursorContext
from hybrid.errors import UsageError
from hybrid.run.contexts import LocalModel
from hybrid.run.schedule import SPANS

# Tokens that a level has drafted below before it reads them, where nothing was measured.
STAGE_SPAN = 4


@dataclass(frozen=True)
class Chain:
    """Local models by name, the one that drafts first; ``spans`` are those of the others, in the same order."""

    models: tuple[str, ...]
    spans: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return how ``--chain`` names it, with its spans.

        >>> str(Chain(("small", "mid", "big"), (4, 2)))
        'small*4>mid*2>big'
        """
        spans = [f"*{span}" for span in self.spans]
        return ">".join(f"{name}{span}" for name, span in zip(self.models, [*spans, ""], strict=True))


def whole_chain(local: LocalModel) -> Chain:
    """Return the chain of all that are loaded, each with the span of a pair of which nothing is known."""
    return Chain((*local.drafters, local.name), (STAGE_SPAN,) * len(local.drafters))


def chain_of(text: str, local: LocalModel) -> Chain:
    """Read what ``--chain`` names: ``small>mid``, with the span of each draft where one is chosen: ``small*4>mid``.

    Raises UsageError for a model that is not loaded, for one out of order, for a span that is none, and
    for one of the last model.
    """
    known, models, spans = (*local.drafters, local.name), list[str](), list[int]()
    for part in text.split(">"):
        name, star, span = part.strip().partition("*")
        if name not in known:
            msg = f"--chain {text}: of the local models that are loaded ({', '.join(known)}) none is called {name!r}"
            raise UsageError(msg)
        if models and known.index(name) <= known.index(models[-1]):
            msg = f"--chain {text}: {name} does not stand above {models[-1]}: the order is {'>'.join(known)}"
            raise UsageError(msg)
        if star and not (span.isdecimal() and int(span) in SPANS):
            msg = f"--chain {text}: {span!r} is no number of tokens between {SPANS[0]} and {SPANS[-1]}"
            raise UsageError(msg)
        models.append(name)
        spans.append(int(span) if star else STAGE_SPAN)
    if star:
        msg = f"--chain {text}: {name} is the last and drafts for no other model, so it has no *{span}"
        raise UsageError(msg)
    return Chain(tuple(models), tuple(spans[:-1]))


def cursors_of(chain: Chain, local: str, context: CursorContext) -> Sequence[Cursor]:
    """Return the cursors of a chain's models in a context, in its order; ``local`` names the context's own model."""
    return [context.cursor if name == local else context.others[name] for name in chain.models]
