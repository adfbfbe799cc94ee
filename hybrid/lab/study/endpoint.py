"""An endpoint as the large model: texts, requests and bills of the client itself, and no rows.

The law (``tests/end_to_end/test_experiment.py``): an answer is on the disk before it counts, so a run that was killed
buys none again; what all runs of a folder spend stays below the cap. An answer for which the endpoint failed, or no
money was left, is no answer: the run stops.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hybrid.assemble import ClientOpener
from hybrid.errors import EngineError, UsageError
from hybrid.lab.arms import Arm, fingerprint
from hybrid.lab.experiments.part_files import open_part, read_lines
from hybrid.lab.experiments.world import RecordedRequest, World, WorldAnswer, answer_choices
from hybrid.record.events import SpanDrafted, Started, TokenEmitted
from hybrid.run import AsyncClient, Finished, RequestSent, RequestSettled
from hybrid.settings.config import Settings
from hybrid.settings.sources import ledger_file
from hybrid.spend import Price
from hybrid.store.files import replace_content
from hybrid.types import Ids, Sampling

ANSWERS = "answers"
# Why an answer went on without the cloud, where another try does not change it (``batch.output.LASTING``), or it did.
KEPT = {None, "capability", "context", "charge"}
# What is to be done first where another try alone comes to the same.
MENDS = {"budget": "raise it (cap in the design's file, or by hybrid budget) and ", "refused": "mend that and "}


@dataclass(frozen=True)
class EndpointPair:
    """A local model's file, and the settings of a client over it and an endpoint."""

    local: Path
    settings: Settings
    price: Price

    @property
    def identity(self) -> list[Any]:
        """What answers depend on."""
        files = [fingerprint(Path(path)) for path in (self.local, self.settings.critic) if path]
        return [*files, self.settings.cloud, self.settings.cloud_model]

    def key(self, *of_answer: Any) -> str:
        """Name an answer by all that it depends on, what is the pair's own first."""
        return "-".join(
            hashlib.sha256(json.dumps(each).encode()).hexdigest()[:24] for each in (self.identity, of_answer)
        )

    def spent(self, folder: Path) -> int:
        """Return what the answers that a folder keeps of this pair cost, in nano-dollars."""
        own = self.key().partition("-")[0]
        kept = (each for line in read_lines(folder, ANSWERS) for key, each in line.items() if key.startswith(own))
        return sum(_answer(each).answer.bill.nanousd or 0 for each in kept)

    def spender(self, folder: Path) -> str:
        """Return the name under which all runs of a folder spend, wherever it is moved, in one ledger.

        Made with the first run. Raises UsageError where another ledger would begin the cap anew.
        """
        path, ledger = folder / "spender.json", str(ledger_file(self.settings))
        if not path.exists():
            named = json.dumps({"name": f"experiment {secrets.token_hex(8)}", "ledger": ledger})
            replace_content(path, named.encode())
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["ledger"] != ledger:
            msg = f"what {folder} has spent is in the ledger {kept['ledger']}, and this is {ledger}: choose that one"
            raise UsageError(msg)
        return str(kept["name"])

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncIterator[World]:
        """Open a client that spends under the folder's name. Raises EngineError."""
        settings = self.settings.model_copy(update={"spender": self.spender(folder)})
        async with ClientOpener(settings, shipped_only=True) as client:
            yield EndpointWorld(client, folder, self)


class EndpointWorld(World):
    """A client whose answers are kept in a folder."""

    has_rows = False

    def __init__(self, client: AsyncClient, folder: Path, pair: EndpointPair) -> None:
        """Read the answers that were kept, from all processes."""
        self._client, self._pair = client, pair
        self._file = open_part(folder, ANSWERS)
        self._kept = {key: kept for line in read_lines(folder, ANSWERS) for key, kept in line.items()}

    async def answer(self, question: str, arm: Arm, sampling: Sampling, max_tokens: int) -> WorldAnswer:
        """Answer a question as an arm does. Raises EngineError where the endpoint failed, or has no money left."""
        choices = answer_choices(arm, sampling, max_tokens)
        # Greedily no coin falls, so a question that moved in its file is the same.
        key = self._pair.key(question, choices | {"seed": 0} if sampling.greedy else choices)
        if kept := self._kept.get(key):
            return _answer(kept)
        answered = await self._ask(question, choices)
        if answered.answer.degraded_kind not in KEPT:
            mend = MENDS.get(str(answered.answer.degraded_kind), "")
            msg = f"{answered.answer.degraded}: {mend}run the command again to go on"
            raise EngineError(msg)
        self._kept[key] = base64.b64encode(msgspec.msgpack.encode(answered)).decode()
        self._file.write(json.dumps({key: self._kept[key]}) + "\n")
        self._file.flush()
        return answered

    def forget(self) -> None:
        """Nothing is held."""

    async def _ask(self, question: str, choices: Any) -> WorldAnswer:
        prompt, emitted, span, sent = Ids(), list[int](), Ids(), dict[str, tuple[int, Ids, int]]()
        settled: list[RequestSettled] = []
        async for event in self._client.stream(question, **choices):
            match event:
                case Started():
                    prompt = event.prompt
                case SpanDrafted():
                    span = event.ids
                case TokenEmitted():
                    emitted.append(event.token.id)
                case RequestSent():
                    num = event.num_tokens if event.kind == "check" else 0
                    sent[event.request_id] = event.position, (*prompt, *emitted[: event.position], *span[:num]), num
                case RequestSettled():
                    settled.append(event)
                case Finished():
                    answer = event.answer
        requests: list[RecordedRequest] = []
        for each in settled:
            at, read, num = sent[each.request_id]
            written = emitted[at : at + each.usage.completion_tokens] if each.usage and each.kind == "write" else []
            requests += [RecordedRequest(each.kind, read, num, tuple(written), each.usage)] if each.usage else []
        return WorldAnswer(prompt, answer, tuple(requests))


def _answer(kept: str) -> WorldAnswer:
    """Read an answer of a line."""
    return msgspec.msgpack.decode(base64.b64decode(kept), type=WorldAnswer)
