"""Ask real servers what ``tests/oracles/scenes.py`` names, and keep what was said in ``tests/cloud/recorded/servers``.

    python tests/end_to_end/record_servers.py vllm_v1=http://127.0.0.1:8201 ["vLLM 0.32.0 on a CPU, flags"] ...

To be run by hand where the client asks in another way than before, or a newer server shall be met; each server freshly
started, so that its prefix cache is empty. What they are started with stands in the files that are here.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "oracles"))
from exchanges import RECORDED, Exchanges, recording
from scenes import SCENES, play

import hybrid
from hybrid.engine.llama import Weights


def main() -> None:
    """Record each server that is named with its address."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="+", metavar="NAME=URL", help=f"one of {', '.join(SCENES)}")
    parser.add_argument("--source", help="what the server is; by default as in the file that is replaced")
    args = parser.parse_args()
    large = Path(hybrid.__file__).parent / "models" / "large.gguf"
    with closing(Weights(large)) as weights, closing(weights.context(threads=1)) as words:
        for server in args.server:
            name, url = server.split("=", 1)
            record(name, url, args.source, words)


def record(name: str, url: str, source: str | None, words) -> None:
    """Play all scenes of a server, and write its file."""
    there = (RECORDED / f"{name}.json").exists()
    exchanges = Exchanges(source or (Exchanges.load(name).source if there else name))
    with recording(exchanges, url) as between:
        for title, scene in SCENES[name].items():
            played = play(scene, between, words)
            print(f"{name}, {title}: {played.refused or played.can}")
            for asked, answer in zip(scene.asks, played.answers, strict=True):
                print(f"    {asked}: {answer!r:.150}")
    exchanges.save(name)


if __name__ == "__main__":
    main()
