"""The figures of the house, so that it can be compared before and after a change.

    python tests/house.py            a line a figure
    python tests/house.py --json     one JSON object, with the names behind some of the numbers
    python tests/house.py --cases    also collect the test cases, which takes a while

Measured is the tree that ``import hybrid`` finds, so one script measures two trees.

A warm check: how many functions of ``hybrid/``, in how many of its files, one check passes once everything is warm.
The bundled pair answers over real HTTP in vLLM's shapes. A first answer warms everything up; in a second one each check
is counted by itself, from where the loop yields its ``Check`` to where it is sent the reply; the median check is told.
``warm_check_functions`` and ``_files``: every distinct function, method and property that is called, overlap off. Not
counted are lambdas, comprehensions and special methods (a dataclass generates its own), what waits for the check (the
client's and the driver's coroutines), and what listens to events in the client's file, with what that calls.
``warm_check_all_functions`` and ``_all_files``: the same with overlap, in any thread, and with all that is left out.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import json
import re
import statistics
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import hybrid
from hybrid.policy import decode

ROOT = Path(hybrid.__file__).parent.parent
HOUSE = f"{ROOT / 'hybrid'}/"
Entered: TypeAlias = set[tuple[str, str, bool]]
CODE = ("hybrid", "server_stub", "tests", "examples")
LINES_OF_A_FUNCTION, LINES_OF_A_FILE = 60, 400  # the most there should be
# Short spans: several checks in an answer of 64 tokens.
SETTINGS = {"policy": "greedy-exact", "span": 8, "max_tokens": 64, "price": "1/0.1/4", "ledger": "none", "seed": 0}
WARM_UP, QUESTION = "Sort 42 17 99 23 68.", "Sort 91 17 55 23 68 12 77."


class Watch:
    """Notes what is entered while a ``Check`` is answered: files, names, and whether the check itself called them."""

    def __init__(self) -> None:
        """Watch nothing yet. A thread is watched if it starts later, or is the one that calls this."""
        self.checks: list[Entered] = []
        self._entered: Entered | None = None
        self._waiting: list[FrameType] = []
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        entered, code = self._entered, frame.f_code
        if event == "call" and entered is not None and code.co_filename.startswith(HOUSE):
            special = code.co_name.startswith(("<", "__"))
            called = not special and frame not in self._waiting and not self._listens(frame)
            entered.add((code.co_filename.removeprefix(HOUSE), code.co_qualname, called))

    def _listens(self, frame: FrameType | None) -> bool:
        while frame is not None and frame not in self._waiting:
            if frame.f_code.co_filename == inspect.getfile(hybrid.AsyncClient):
                return True
            frame = frame.f_back
        return False

    def around(self, loop_of: Any) -> Any:
        """Return the loop, watched: what it yields and is sent passes through here."""

        def watched(*args: Any) -> Iterator[Any]:
            loop, reply = loop_of(*args), None
            while True:
                try:
                    request = loop.send(reply)
                except StopIteration:
                    return
                if type(request).__name__ == "Check":
                    self._waiting = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
                    self.checks.append(set())
                    self._entered = self.checks[-1]
                reply = yield request
                self._entered = None

        return watched


def warm_check() -> dict[str, Any]:
    """Count what a warm check passes."""
    watch = Watch()
    watched = watch.around(decode)
    for module in [module for name, module in sys.modules.items() if name.startswith("hybrid.")]:
        vars(module).update({name: watched for name, value in vars(module).items() if value is decode})

    async def median_check(*, overlap: bool) -> Entered:
        async with hybrid.open(overlap=overlap, **SETTINGS) as client:
            await client.generate(WARM_UP)
            watch.checks.clear()
            await client.generate(QUESTION)
        return sorted(watch.checks, key=len)[len(watch.checks) // 2]

    called = {(path, name) for path, name, called in asyncio.run(median_check(overlap=False)) if called}
    everything = {(path, name) for path, name, _ in asyncio.run(median_check(overlap=True))}
    sys.setprofile(None)
    return {
        "warm_check_functions": len(called),
        "warm_check_files": len({path for path, _ in called}),
        "warm_check_all_functions": len(everything),
        "warm_check_all_files": len({path for path, _ in everything}),
        "warm_check_by_file": Counter(path for path, _ in sorted(called)),
    }


def sources(*rooms: str, name: str = "*.py") -> list[Path]:
    """Return the Python files of some rooms."""
    return sorted(path for room in rooms for path in (ROOT / room).rglob(name))


def nodes(paths: list[Path], *kinds: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Yield the syntax nodes of some kinds, with their files."""
    for path in paths:
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        yield from ((path, node) for node in tree if isinstance(node, kinds))


def functions(paths: list[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield each function's place and name, its lines from ``def`` to its end, and these without its docstring."""
    for path, node in nodes(paths, ast.FunctionDef, ast.AsyncFunctionDef):
        lines, first = node.end_lineno - node.lineno + 1, node.body[0]
        docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
        yield f"{path.relative_to(ROOT)}:{node.name}", lines, lines - docstring


def sizes() -> dict[str, Any]:
    """Measure functions and files."""
    files = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*CODE)}
    _, whole, bare = zip(*functions(sources("hybrid")), strict=True)
    figures: dict[str, Any] = {
        "files_in_bench": len(sources("hybrid/bench")),
        "lines_of_driver": files.get("hybrid/run/driver.py"),
        "long_functions": {name: lines for name, lines, _ in functions(sources(*CODE)) if lines > LINES_OF_A_FUNCTION},
        "long_files": {name: lines for name, lines in files.items() if lines > LINES_OF_A_FILE},
        "functions_of_hybrid": len(whole),
    }
    for name, lengths in (("lines_of_a_function", whole), ("lines_without_docstring", bare)):
        figures[f"{name}_median"] = statistics.median(lengths)
        figures[f"{name}_percentile_95"] = round(statistics.quantiles(lengths, n=20, method="inclusive")[-1], 1)
    return figures


def shared_names() -> dict[str, Any]:
    """Find the class names of ``hybrid`` that stand for two or more classes; and these and type aliases together."""
    classes = Counter(node.name for _, node in nodes(sources("hybrid"), ast.ClassDef))
    annotated = [node for _, node in nodes(sources("hybrid"), ast.AnnAssign) if isinstance(node.target, ast.Name)]
    aliases = Counter(node.target.id for node in annotated if ast.unparse(node.annotation) == "TypeAlias")
    return {
        "class_names": len(classes),
        "shared_class_names": {name: number for name, number in sorted(classes.items()) if number > 1},
        "shared_type_names": {name: number for name, number in sorted((classes + aliases).items()) if number > 1},
    }


def tests(*, cases: bool) -> dict[str, int | None]:
    """Count test functions, and collect their cases (None: they cannot be collected)."""
    found = functions(sources("tests", name="test_*.py"))
    counted: dict[str, int | None] = {"test_functions": sum(":test_" in name for name, _, _ in found)}
    if cases:
        collect = ["pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow"]
        done = subprocess.run([sys.executable, "-m", *collect], cwd=ROOT, capture_output=True, text=True, check=False)
        number = re.search(r"(\d+) tests collected", done.stdout)
        counted["test_cases"] = int(number[1]) if number else None
    return counted


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument("--cases", action="store_true", help="also collect the test cases")
    args = parser.parse_args()
    figures = warm_check() | sizes() | shared_names() | tests(cases=args.cases)
    if args.as_json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        names = ", ".join(f"{each} {number}" for each, number in value.items()) if isinstance(value, dict) else ""
        print(f"{name}: {len(value) if isinstance(value, dict) else value}  {names}".rstrip())


if __name__ == "__main__":
    main()
