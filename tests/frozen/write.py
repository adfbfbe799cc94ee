"""Record today's behaviour, for work that moves code and changes none: ``test_frozen.py`` compares it byte for byte.

    python tests/frozen/write.py            record all but the experiment, some minutes
    python tests/frozen/write.py --bench    record the experiment of ``hybrid bench auto``, ten minutes of one core
    python tests/frozen/write.py --compare  record nothing: print what differs, exit 1 if anything does

Whoever changes behaviour on purpose compares first, sees nothing else in the differences, and records in the same
commit. ``scripted.xz`` and ``traces.xz`` hold on every machine, but for numbers with a point; these, ``models.xz`` and
``bench.xz`` where numpy and llama.cpp compute to the last bit as here (``frozen_text.fingerprint``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTED, TRACES, MODELS, BENCH = (HERE / f"{name}.xz" for name in ("scripted", "traces", "models", "bench"))


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", action="store_true", help="the experiment, and nothing else")
    parser.add_argument("--compare", action="store_true", help="record nothing, print what differs")
    args = parser.parse_args()
    sys.path += [str(HERE.parent), *(str(HERE.parent / folder) for folder in ("oracles", "end_to_end"))]
    import conftest  # noqa: F401  (no file of the user's is read, and nothing is learned)
    import frozen_models
    import frozen_scripted
    from frozen_text import compared, keep, kept

    if args.bench:
        recorded = {BENCH: {"bench": frozen_models.bench()}}
    else:
        answered = frozen_models.answers()
        traces = kept(TRACES)["traces"] if args.compare else frozen_models.traces(answered)
        recorded = {
            TRACES: {"traces": traces},
            SCRIPTED: frozen_scripted.scripted(traces),
            MODELS: {"answers": answered, "calibrations": frozen_models.calibrations()},
        }
    found = []
    for path, corpus in recorded.items():
        if args.compare:
            found += compared(path, corpus)
        else:
            keep(path, corpus)
            items = sum(map(len, corpus.values()))
            print(f"{path.name}: {items} items, {path.stat().st_size / 1024:.0f} KiB")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
