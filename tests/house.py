"""The figures of the house, so that it can be compared before and after a change.

    python tests/house.py            a line a figure
    python tests/house.py --json     one JSON object, with the names behind some of the numbers
    python tests/house.py --cases    also collect the test cases, which takes a while
    python tests/house.py --ceilings what ``house.json`` bounds, measured; exit 1 where a ceiling does not hold
    python tests/house.py --write    set the ceilings to what is measured

Measured is the tree that ``import hybrid`` finds, so one script measures two trees.

A warm check: how many functions of ``hybrid/``, in how many of its files, one check passes once everything is warm.
The bundled pair answers over real HTTP in vLLM's shapes. A first answer warms everything up; in a second one each check
is counted by itself, from where the loop yields its ``Check`` to where it is sent the reply; the median check is told.
``warm_check_functions`` and ``_files``: every distinct function, method and property that is called, overlap off. Not
counted are lambdas, comprehensions and special methods (a dataclass generates its own), what waits for the check (the
client's and the driver's coroutines), and what listens to events in the client's file, with what that calls.
``warm_check_all_functions`` and ``_all_files``: the same with overlap, in any thread, and with all that is left out.

The walks of the ceilings count all of that, overlap off, but no comprehensions, which are no functions from Python 3.12
on. ``check``: a warm check. ``question``: a warm question under ``kl``, from ``generate`` to its loop's first request.
``post``: a warm streamed question to the app of ``hybrid serve`` under ``auto``, to the last byte, through ASGI. A room
is a sub-package of ``hybrid/``, the files on its top, or ``server_stub``. A file's header is its docstring and imports.

The pages: the lines of the first one, the words of the longest README of a room, and how many words 95 % of their
sentences have at most. Their limits in ``house.json`` are fixed: ``--write`` leaves them.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import hybrid
from hybrid.policy import decode
from hybrid.serve.app_state import ServeOptions

ROOT = Path(hybrid.__file__).parent.parent
CHECKOUT = Path(__file__).parent.parent  # the pages are not installed
HOUSE = f"{ROOT / 'hybrid'}/"
CEILINGS = Path(__file__).with_name("house.json")
Entered: TypeAlias = Counter[tuple[str, str, bool]]
Measured: TypeAlias = dict[str, dict[str, float]]
INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}  # no functions any more, from Python 3.12 on
# So much above what is measured a ceiling may be, beside 3 %: lines are rounded up to the next 10, and a walk may take
# another turn on another processor (who writes the next token hangs on the last digits of a row).
SLACK = {"lines": 10, "functions": 5}
SHARE = 0.03
CODE = ("hybrid", "server_stub", "tests", "examples")
LINES_OF_A_FUNCTION, LINES_OF_A_FILE = 60, 400  # the most there should be
# Short spans: several checks in an answer of 64 tokens.
SETTINGS = {"policy": "greedy-exact", "span": 8, "max_tokens": 64, "price": "1/0.1/4", "ledger": "none", "seed": 0}
WARM_UP, QUESTION = "Sort 42 17 99 23 68.", "Sort 91 17 55 23 68 12 77."


class ServerObserver:
    """Notes what is entered while a ``Check`` is answered: files, names, and whether the check itself called them."""

    def __init__(self) -> None:
        """Watch nothing yet. A thread is watched if it starts later, or is the one that calls this."""
        self.checks: list[Entered] = []
        self.whole = False
        """Whether what is watched goes on when the loop asks for something."""
        self._entered: Entered | None = None
        self._waiting: list[FrameType] = []
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def begin(self, *, whole: bool = False) -> Entered:
        """Watch from here on: ``whole``, or to the first request of the next loop."""
        self.whole, self._waiting, self._entered = whole, [], Counter()
        return self._entered

    def end(self) -> None:
        """Watch nothing any more."""
        self.whole, self._entered = False, None

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        entered, code = self._entered, frame.f_code
        inside = entered is not None and code.co_filename.startswith(HOUSE) and code.co_name not in INLINED
        if event == "call" and entered is not None and inside:
            special = code.co_name.startswith(("<", "__"))
            called = not special and frame not in self._waiting and not self._listens(frame)
            entered[code.co_filename.removeprefix(HOUSE), code.co_qualname, called] += 1

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
                if not self.whole:
                    self.end()
                    if type(request).__name__ == "Check":
                        self.checks.append(self.begin())
                        self._waiting = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
                reply = yield request
                if not self.whole:
                    self.end()

        return watched

    def watch_loops(self) -> None:
        """Have every loop of the product pass through ``around``."""
        watched = self.around(decode)
        for module in [module for name, module in sys.modules.items() if name.startswith("hybrid.")]:
            vars(module).update({name: watched for name, value in vars(module).items() if value is decode})

    def median_check(self) -> Entered:
        """Return the check in the middle by the number of its functions."""
        return sorted(self.checks, key=len)[len(self.checks) // 2]


def warm_check() -> dict[str, Any]:
    """Count what a warm check passes."""
    watch = ServerObserver()
    watch.watch_loops()

    async def median_check(*, overlap: bool) -> Entered:
        async with hybrid.open(overlap=overlap, **SETTINGS) as client:
            await client.generate(WARM_UP)
            watch.checks.clear()
            await client.generate(QUESTION)
        return watch.median_check()

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


def walks() -> Measured:
    """Count what a check, a question to its first request and a POST to its end pass, each of them warm."""
    from asgi_caller import Endpoint

    watch = ServerObserver()

    async def walk() -> tuple[Entered, Entered, Entered]:
        async with hybrid.open(overlap=False, **SETTINGS) as client:
            served = Endpoint(argparse.Namespace(client=client), ServeOptions())
            ask = partial(served.chat, model="hybrid:auto", stream=True, temperature=0, max_tokens=64)
            for question in (WARM_UP, QUESTION):
                watch.checks.clear()
                await client.generate(question)
                check = watch.median_check()
                to_request = watch.begin()
                await client.generate(question, policy="kl")
                post = watch.begin(whole=True)
                heard = await ask(messages=[{"role": "user", "content": question}])
                watch.end()
                assert heard.status == 200, heard.body
        return check, to_request, post

    watch.watch_loops()
    check, to_request, post = asyncio.run(walk())
    sys.setprofile(None)
    threading.setprofile(None)
    figures: Measured = {}
    for name, entered in (("check", check), ("question", to_request), ("post", post)):
        names = {(path, function) for path, function, _ in entered}
        figures[f"walk {name}"] = {"functions": len(names), "files": len({path for path, _ in names})}
    figures["walk post"]["policy_of calls"] = sum(n for (_, name, _), n in post.items() if name == "policy_of")
    return figures


def rooms() -> Measured:
    """Measure each room's lines and files, and which share of all lines is headers."""
    counted: Measured = {}
    headers = lines = 0
    for path in sources("hybrid", "server_stub"):
        parts, text = path.relative_to(ROOT).parts, path.read_text(encoding="utf-8")
        room = parts[0] if parts[0] == "server_stub" else "/".join(parts[:2]) if len(parts) > 2 else "hybrid/*.py"
        figures = counted.setdefault(room, {"lines": 0, "files": 0})
        figures["lines"] += len(text.splitlines())
        figures["files"] += 1
        for number, node in enumerate(ast.parse(text).body):
            if isinstance(node, ast.Import | ast.ImportFrom) or (number == 0 and isinstance(node, ast.Expr)):
                headers += (node.end_lineno or 0) - node.lineno + 1
        lines += len(text.splitlines())
    return dict(sorted(counted.items())) | {"headers": {"percent of lines": round(100 * headers / lines, 1)}}


def room_pages() -> list[Path]:
    """Return each room's README. Notes, manuals and cards beside it are for whoever looks something up."""
    rooms = CHECKOUT.glob("hybrid/*/README.md")
    return sorted([*rooms, CHECKOUT / "server_stub/README.md", CHECKOUT / "tests/README.md"])


def sentences(page: str) -> list[str]:
    """Return a page's sentences, those of a list one by one; no code, tables, headings or targets of links."""
    text = re.sub(r"^(```.*?^```|[#|].*?|    .*?)$", "\n", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)
    joined = (" ".join(re.sub(r"^\s*(- |\d+\. )", "", each).split()) for each in paragraphs)
    return [sentence for each in joined for sentence in re.split(r"(?<=[.!?])[*)]* ", each) if sentence]


def pages() -> dict[str, float]:
    """Measure the pages that are read first."""
    texts = [path.read_text(encoding="utf-8") for path in (CHECKOUT / "README.md", *room_pages())]
    lengths = [len(sentence.split()) for text in texts for sentence in sentences(text)]
    return {
        "lines of the first page": len(texts[0].splitlines()),
        "words of the longest README of a room": max(len(text.split()) for text in texts[1:]),
        "words of a sentence, 95 %": statistics.quantiles(lengths, n=20, method="inclusive")[-1],
    }


def too_long(measured: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Say which pages are longer than they may be."""
    return [f"{name}: {measured[name]}, its limit is {most}" for name, most in limits.items() if measured[name] > most]


def trouble(measured: Measured, ceilings: Measured) -> list[str]:
    """Say which measured figures are above their ceilings, and which ceilings are too far above what is measured."""
    told = [
        f"{room}: measured {measured.get(room)}, ceiling {ceilings.get(room)}: python tests/house.py --write"
        for room in sorted(measured.keys() ^ ceilings.keys())
    ]
    for room, figures in measured.items():
        for name, value in figures.items() if room in ceilings else ():
            ceiling = ceilings[room].get(name, 0)
            if value > ceiling:
                told.append(
                    f"{room}: {value} {name}, its ceiling is {ceiling}: raise it only with a reason in the same commit"
                )
            elif ceiling - value > max(SHARE * value, SLACK.get(name, 0)):
                told.append(f"{room}: {value} {name}, its ceiling is still {ceiling}: python tests/house.py --write")
    return told


def write(measured: Measured) -> None:
    """Set the ceilings to what is measured, lines rounded up to the next 10; budgets stay."""
    kept = json.loads(CEILINGS.read_text(encoding="utf-8"))
    kept["ceilings"] = {
        room: {name: math.ceil(value / 10) * 10 if name == "lines" else value for name, value in figures.items()}
        for room, figures in measured.items()
    }
    CEILINGS.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")


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
        "files_in_bench": len(sources("hybrid/lab")),
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
    parser.add_argument("--ceilings", action="store_true", help="what house.json bounds; exit 1 where it does not hold")
    parser.add_argument("--write", action="store_true", help="set the ceilings of house.json to what is measured")
    args = parser.parse_args()
    if args.ceilings or args.write:
        sys.path += [str(Path(__file__).with_name(folder)) for folder in ("oracles", "end_to_end")]
        import conftest  # noqa: F401  (a walk reads no file of the user's, and learns nothing)

        measured = rooms() | walks()
        if args.write:
            write(measured)
        kept = json.loads(CEILINGS.read_text(encoding="utf-8"))
        print(json.dumps(measured | {"pages": pages()}, indent=1))
        sys.exit("\n".join(trouble(measured, kept["ceilings"]) + too_long(pages(), kept["pages"])) or None)
    figures = warm_check() | sizes() | shared_names() | tests(cases=args.cases)
    if args.as_json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        names = ", ".join(f"{each} {number}" for each, number in value.items()) if isinstance(value, dict) else ""
        print(f"{name}: {len(value) if isinstance(value, dict) else value}  {names}".rstrip())


if __name__ == "__main__":
    main()
