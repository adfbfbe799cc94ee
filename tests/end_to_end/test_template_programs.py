"""Chat templates in model files, as programs that would run for ever or fill the memory: a sentence, soon and small."""

from __future__ import annotations

from copy import deepcopy

import pytest
from forked_commands import Commands
from gguf_mutants import STRING, Gguf
from template_programs import programs

from hybrid.assemble import BUNDLED_LOCAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# One of forty of two hundred: each is two processes, and all of them are five minutes of two busy cores.
SEED, NUM, EACH = 20261124, 200, 40
# Whoever does not end is killed after so many seconds, which no machine needs for what ends by itself.
ENDLESS_S, MOST_MIB = 100, 400


def test_a_template_program_ends_soon_in_an_answer_or_a_sentence(tmp_path):
    """Peak memory is what comes above that of the process before."""
    path, base, counted = tmp_path / "bomb.gguf", Gguf.read(BUNDLED_LOCAL), 0
    own = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("STATE", "CONFIG", "CACHE")}
    with Commands() as commands:
        for program in ["{{ messages[0].content }}", *programs(SEED, NUM)[::EACH]]:
            path.write_bytes(deepcopy(base).set("tokenizer.chat_template", STRING, program.encode()).dump())
            words = ("ask", "Hi", "--local", str(path), "--offline", "--max-tokens", "1")
            ended = commands.run(*words, cwd=tmp_path, limit_s=ENDLESS_S, **own)
            assert ended.peak_mib <= MOST_MIB, program[-300:]
            assert ended.code == 0 or (ended.code in {2, 3} and ended.sentence), (program[-300:], ended.stderr)
            counted += 1
    assert counted == 1 + NUM / EACH
