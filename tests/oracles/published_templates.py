"""All chat templates of llama.cpp's tree, out of the source package of llama-cpp-python, put to six conversations.

``python tests/oracles/published_templates.py`` prints the table. The package is looked for in a kept cache and loaded
there once, with pip, which asks its build for the metadata; here it is read as an archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from chat_templates import CONVERSATIONS, conversation
from platformdirs import user_cache_path

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.template import ChatTemplate
from hybrid.errors import UsageError

FOLDER = "vendor/llama.cpp/models/templates/"
# Beside the environments of servers (tests/end_to_end/server_environments.py), which are kept between runs too.
CACHE = Path(os.environ.get("HYBRID_SERVERS") or user_cache_path("hybrid-llm", appauthor=False) / "servers") / "sources"


class Unavailable(Exception):
    """The source package is not here and cannot be loaded."""


def templates(cache: Path = CACHE) -> dict[str, str]:
    """Return the templates by their file's name. Raises Unavailable."""
    wanted = f"llama_cpp_python-{version('llama-cpp-python')}.tar.gz"
    if not (cache / wanted).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        package = f"llama-cpp-python=={version('llama-cpp-python')}"
        load = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-python"]
        command = [*load, "-q", "-d", str(cache), package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if not (cache / wanted).is_file():
            msg = f"{package} cannot be loaded: {done.stderr.strip()[-200:]}"
            raise Unavailable(msg)
    with tarfile.open(cache / wanted) as archive:
        files = [each for each in archive if FOLDER in each.name and each.name.endswith(".jinja")]
        return {Path(each.name).stem: archive.extractfile(each).read().decode() for each in files}


def outcome(name: str, source: str, roles: str) -> str:
    """Say what a template does with a conversation: rendered, or refused and for which role."""
    turns = conversation(roles)
    try:
        pieces = ChatRenderer(ChatTemplate(source, "<bos>", "<eos>"), name).pieces(turns, {}, apart=False)
    except UsageError as refused:
        said = str(refused)
        named = said.startswith(f"the chat template of {name} has no place for a turn of role ")
        return (
            f"refused: {said.split('of role ')[1].split(maxsplit=1)[0]}" if named else f"REFUSED WITHOUT A ROLE: {said}"
        )
    text = "".join(piece.text for piece in pieces)
    spoken = [text.find(turn.content) for turn in turns if turn.role not in {"system", "developer"}]
    lost = [turn.role for turn in turns if turn.content not in text]
    is_open = turns[-1].role != "assistant" or text.endswith(turns[-1].content)
    return "rendered" if not lost and spoken == sorted(spoken) and is_open else f"DROPPED: {', '.join(lost)}"


def table(found: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return each template's outcomes by the name of the conversation."""
    return {
        name: {told: outcome(name, source, roles) for told, roles in CONVERSATIONS.items()}
        for name, source in sorted(found.items())
    }


def main() -> None:
    """Print the table and what it adds up to."""
    rows = table(templates())
    for name, outcomes in rows.items():
        print(f"{name[:48]:48}", *(f"{each[:24]:16}" for each in outcomes.values()))
    for told in CONVERSATIONS:
        print(f"{told:24}", dict(Counter(row[told] for row in rows.values())))


if __name__ == "__main__":
    main()
