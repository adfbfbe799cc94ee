"""Mutants: laws broken by hand, each with the test that sees it.

    python tests/mutants.py                    every mutant; exit 1 unless the named test kills each
    python tests/mutants.py --room policy      those of one room
    python tests/mutants.py --only NAME        one of them
    python tests/mutants.py --list             what there is
    python tests/mutants.py --find NAME        the tests of its room that kill it
    python tests/mutants.py --draw 60 --seed 1 new ones, drawn over every room: what survives is printed

``mutants.toml`` is the table: a file, a text that stands in it once, what takes its place, the law that this breaks and
the test that must then be red. Coverage does not show that a law is held, and fluent output hides a broken one; a red
test shows it. Mutants are made in copies of the tree: the tree itself is never touched. First the named tests must be
green without a mutant. ``test_house.py`` holds that the table fits the tree.

A drawn mutant (``oracles/drawn_mutants.py``) meets the quick tests of its room that speak of its file, the nearest
first. What survives them is equivalent, or changes a text or the speed alone, or wants a test and an entry here:
``tests/NOTES.md`` has the list of what was drawn. A drawn one that no module can be read with is none.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Imported here for the forks' sake: third-party modules, none of the tree's.
import httpx  # noqa: F401
import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import pytest

sys.path.append(str(Path(__file__).with_name("oracles")))
from drawn_mutants import draw

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")
# What pytest says with its exit status: only a test that failed kills; a module that cannot be read is no mutant.
GREEN, RED = 0, 1
# A Hypothesis test that fails need not look for its smallest example.
QUIETLY = ["-q", "-p", "no:cacheprovider", "--tb=no", "--no-header", "--hypothesis-profile=mutants"]
SLOW_TOO = ["-m", ""]  # a named test may be one that a plain run leaves out
OUTPUT = "output.txt"
# A drawn mutant may loop for ever: seconds of a processor, and seconds for a test that waits; and so many test files.
CPU_S, WAIT_S, NEAREST = 150, 60, 6


class Mutant(NamedTuple):
    """A change of one place in one file. ``test``: ``tests/ROOM/FILE.py::NAME``; of a drawn one several files."""

    room: str
    name: str
    law: str
    file: str
    old: str
    new: str
    test: str

    def apply(self, tree: Path) -> bool:
        """Make the change in a tree; False where the old text does not stand there exactly once."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            return False
        shutil.copy2(path, _whole(tree))
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return True

    def restore(self, tree: Path) -> None:
        """Take the change back. The date of the file comes back too, and with it the bytecode of it."""
        shutil.copy2(_whole(tree), tree / self.file)


def _whole(tree: Path) -> Path:
    """Return where a tree's file is kept while it is changed: whoever works on in the tree here disturbs nothing."""
    return tree.with_suffix(".whole")


def mutants() -> list[Mutant]:
    """Read the table."""
    rooms = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [Mutant(room, name, **fields) for room, named in rooms.items() for name, fields in named.items()]


def copy_tree(to: Path) -> Path:
    """Copy what the tests need: all but the history and what other tools keep."""
    ignored = shutil.ignore_patterns(".git", ".*_cache", "runs")
    shutil.copytree(ROOT, to, ignore=ignored, symlinks=True)
    return to


def pytest_in(tree: Path, *words: str) -> tuple[int, str]:
    """Run tests in a tree; return pytest's exit status and its output."""
    command = [sys.executable, "-m", "pytest", *QUIETLY, *words]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def fork_pytest(tree: Path, tests: str, *, bounded: bool) -> int:
    """Run tests in a tree, in a fork that need not import pytest and the libraries again; return its process id."""
    if pid := os.fork():
        return pid
    status = -1
    try:
        output = os.open(tree / OUTPUT, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        sys.path[0] = os.environ["PYTHONPATH"] = str(tree)
        # Two mutants of one second and one length could not be told apart.
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
        words = ["-n", "0", "-x", "--tb=line", "-rfE", *tests.split()]
        if not bounded:
            words += SLOW_TOO
        else:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
            words.append(f"--timeout={WAIT_S}")
        # Libraries that are imported already are not rewritten, and pytest would say so.
        status = int(pytest.main([*QUIETLY, "-W", "ignore::pytest.PytestAssertRewriteWarning", *words]))
    except BaseException:  # noqa: BLE001  (a fork that lived on would run the rest of this script)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status & 0xFF)


def results(
    chosen: Sequence[Mutant], trees: list[Path], *, bounded: bool = False
) -> Iterator[tuple[Mutant, bool, str]]:
    """Run each mutant's tests, one in each tree at a time; yield whether it was killed, and what to say of it."""
    waiting, running = list(reversed(chosen)), dict[int, tuple[Mutant, Path, float]]()
    while waiting or running:
        while waiting and trees:
            mutant, tree = waiting.pop(), trees.pop()
            if mutant.apply(tree):
                running[fork_pytest(tree, mutant.test, bounded=bounded)] = mutant, tree, time.monotonic()
            else:
                trees.append(tree)
                yield mutant, False, "the text no longer stands exactly once in its file"
        if running:
            pid, status = os.wait()
            mutant, tree, began = running.pop(pid)
            yield mutant, *verdict(mutant, os.waitstatus_to_exitcode(status), tree, time.monotonic() - began)
            mutant.restore(tree)
            trees.append(tree)


def verdict(mutant: Mutant, status: int, tree: Path, took_s: float) -> tuple[bool, str]:
    """Say what an exit status means."""
    output = (tree / OUTPUT).read_text(encoding="utf-8", errors="replace")
    if status == RED:
        failed = re.search(r"^(FAILED|ERROR) (\S+)( .*)?", output, re.MULTILINE)
        how, test, why = failed.groups(default="") if failed else ("", mutant.test, "")
        return True, f"killed by {test} in {took_s:.1f} s{', in a fixture' * (how == 'ERROR')}{why[:90]}"
    if status == GREEN:
        return False, f"SURVIVED {mutant.test} ({took_s:.1f} s)"
    return False, f"pytest ended with {status}: {output.strip().splitlines()[-1:]}"


def run(chosen: Sequence[Mutant], processes: int) -> bool:
    """Run mutants, and say of each what became of it; return whether every one was killed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first = copy_tree(Path(folder) / "tree-0")
        tests = sorted({mutant.test for mutant in chosen})
        status, output = pytest_in(first, "-n", str(processes), "-rf", *SLOW_TOO, *tests)
        if status != GREEN:
            print(output, "the named tests are not green without a mutant", sep="\n")
            return False
        print(f"{len(tests)} tests are green without a mutant ({time.monotonic() - began:.1f} s)", flush=True)
        others = [Path(folder) / f"tree-{number}" for number in range(1, processes)]
        for tree in others:
            shutil.copytree(first, tree, symlinks=True)
        killed = 0
        for mutant, is_killed, said in results(chosen, [first, *others]):
            killed += is_killed
            print(f"{'ok' if is_killed else 'FAIL':4} {mutant.room} {mutant.name}: {said}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    return killed == len(chosen)


def near_tests(path: Path) -> list[str]:
    """Return the test files of a file's room that speak of it, those first that do most; of none, all of the room."""
    room = ROOT / "tests" / path.relative_to(ROOT / "hybrid" if path.is_relative_to(ROOT / "hybrid") else ROOT).parts[0]
    files = sorted((room if room.is_dir() else ROOT / "tests").glob("test_*.py"))
    definitions = ast.parse(path.read_text(encoding="utf-8")).body
    names = {path.stem} | {node.name for node in definitions if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    hits = Counter(
        {
            str(file.relative_to(ROOT)): len(names & set(re.findall(r"\w+", file.read_text(encoding="utf-8"))))
            for file in files
            if file.name
            not in {"test_house.py", "test_drawn_mutants.py"}  # they read the tree's text, not what it does
        }
    )
    return [file for file, number in hits.most_common(NEAREST) if number] or list(hits)


def drawn(num: int, seed: int) -> Iterator[Mutant]:
    """Draw mutants, of every room as many as of the others; the texts are whole files."""
    rooms = sorted({file.parent for file in (ROOT / "hybrid").glob("*/__init__.py")})
    for path, change in draw([ROOT / "hybrid", *rooms, ROOT / "server_stub"], num, seed):
        source, file = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        old, new = (" ".join(text.split())[:100] for text in (change.old, change.new))
        tests = " ".join(near_tests(path))
        yield Mutant(
            path.parent.name, f"{file}:{change.line}", f"{old} -> {new}", file, source, change.apply(source), tests
        )


def run_drawn(chosen: Sequence[Mutant], processes: int) -> bool:
    """Run drawn mutants and print what became of each; return whether every one was killed by a test that is sound."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / f"tree-{number}") for number in range(processes)]
        killers, left = set(), []
        for mutant, is_killed, said in results(chosen, trees, bounded=True):
            print(f"{'ok' if is_killed else 'LEFT':4} {mutant.name}: {mutant.law}: {said}", flush=True)
            if is_killed:
                killers.add(said.split()[2])
            else:
                left.append(mutant)
        sound = not killers or pytest_in(trees[0], "-n", str(processes), *sorted(killers))[0] == GREEN
    print(f"{len(chosen) - len(left)} of {len(chosen)} killed; the tests that did are green without: {sound}")
    return sound and not left


def find(mutant: Mutant, processes: int) -> bool:
    """Print the tests of a room that a mutant turns red, the quickest of them last; return whether there are any."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder) / "tree")
        if not mutant.apply(tree):
            print(f"{mutant.name}: the text does not stand exactly once in {mutant.file}")
            return False
        words = ["-n", str(processes), "-rf", "--durations=0", "--durations-min=0.01", f"tests/{mutant.room}"]
        status, output = pytest_in(tree, *words)
    print(output)
    return status == RED


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", help="only the mutants of this room")
    parser.add_argument("--only", metavar="NAME", help="only this mutant")
    parser.add_argument("--find", metavar="NAME", help="run all tests of its room against this mutant")
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    parser.add_argument("--draw", metavar="N", type=int, help="draw so many new mutants over every room")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by (default: 0)")
    parser.add_argument("-j", type=int, default=2, dest="processes", help="processes at once (default: 2)")
    args = parser.parse_args()
    if args.draw:
        return 0 if run_drawn(list(drawn(args.draw, args.seed)), args.processes) else 1
    wanted: Callable[[Mutant], bool] = lambda mutant: (  # noqa: E731  (named for the reader)
        args.room in {None, mutant.room} and (args.only or args.find) in {None, mutant.name}
    )
    chosen = [mutant for mutant in mutants() if wanted(mutant)]
    if not chosen:
        parser.error("there is no such mutant: --list names them")
    if args.list:
        for mutant in chosen:
            print(f"{mutant.room:7} {mutant.name}: {mutant.law} ({mutant.file}; {mutant.test})")
        return 0
    done = find(chosen[0], args.processes) if args.find else run(chosen, args.processes)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
