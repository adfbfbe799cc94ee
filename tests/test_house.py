"""The house's own rules: floors, rooms, what may lie at the top."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cases import each_of
from vacuous import bare_loops, shared_bounds

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("hybrid/**/*.py"), *ROOT.glob("server_stub/**/*.py")])
TESTS = [path for path in sorted(ROOT.glob("tests/**/*.py")) if "sglang_without_cuda" not in path.parts]
PAGES = [path for top in ("hybrid", "server_stub", "tests", "examples") for path in sorted((ROOT / top).rglob("*.md"))]
PAGES += [ROOT / "README.md"]
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TOP = {"pyproject.toml", "hybrid", "server_stub", "tests", "examples", "README.md", "LICENSE"}


def anchor(title: str) -> str:
    """Return the name that a page's reader gives a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_a_module_imports_from_its_own_room_or_from_lower_floors(monkeypatch):
    """The layers stand in pyproject.toml; a wall that nobody checks is a drawing."""
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == EXIT_STATUS_SUCCESS


def test_everything_the_front_door_names_is_there_and_loading_it_loads_no_model_library():
    import hybrid

    assert all(getattr(hybrid, name) is not None for name in hybrid.__all__)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = hybrid.nothing
    command = "import sys, hybrid; sys.exit(any(name in sys.modules for name in ('llama_cpp', 'httpx', 'httpx2')))"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_what_threads_run_names_no_part_of_numpy_that_is_loaded_when_it_is_named():
    """Two threads that name one at the same time recurse without end (it ended an answer): import it by name."""
    lazy = re.compile(r"\bnp\.(random|fft|ma|polynomial|ctypeslib)\b")
    alone = ("hybrid/lab/", "hybrid/tasks/", "hybrid/tune/", "hybrid/partitions/")  # one thread
    paths = [path for path in SOURCES if not str(path.relative_to(ROOT)).startswith(alone)]
    assert not [str(path) for path in paths if lazy.search(path.read_text())]


def test_every_example_in_a_docstring_is_true():
    shown = [path for path in SOURCES if ">>> " in path.read_text()]
    assert shown
    for path in each_of(shown):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        done = doctest.testmod(module, extraglobs={"np": np})
        assert done.attempted
        assert not done.failed, path


@pytest.mark.parametrize(
    ("module", "home"),
    [
        ("llama_cpp", "hybrid/engine/native.py"),
        ("httpx", "hybrid/cloud/network.py"),
        ("ot", "hybrid/prob/concepts.py"),
        ("torch", "nowhere"),
    ],
)
def test_only_one_place_imports_what_is_heavy(module, home):
    users = {str(path.relative_to(ROOT)) for path in SOURCES if module in imports(path)}
    assert all(user.startswith(home) for user in users), users


def test_the_room_of_distributions_needs_numpy_and_nothing_else():
    allowed = {"bisect", "collections", "dataclasses", "functools", "hashlib", "hybrid", "numpy", "types", "typing"}
    allowed |= {"__future__"}
    extra = {"ot"}  # for optimal transport, where it is asked for
    assert set().union(*(imports(path) for path in SOURCES if path.parent.name == "prob")) <= allowed | extra


def test_policies_do_no_input_or_output_and_read_no_clock():
    """Nor does money decide by anything but what it is told: only an answer's budget waits, and windows name dates."""
    forbidden = {"asyncio", "time", "datetime", "random", "socket", "os", "httpx", "threading", "uuid"}
    allowed = {"spend/answer_budget.py": {"asyncio"}, "spend/ledger.py": {"datetime"}}
    for path in each_of(SOURCES):
        if path.parent.name in {"policy", "prob", "spend"}:
            assert not imports(path) & forbidden - allowed.get("/".join(path.parts[-2:]), set()), path


# Names that stand for two things. There are none: a reader learns a name once.
SHARED_NAMES: set[str] = set()


def defined_names(path: Path) -> Iterator[str]:
    """Yield the classes and type aliases of a file, private ones too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)


def test_a_class_name_stands_for_one_thing_in_the_whole_house():
    homes: dict[str, list[str]] = {}
    for path in (path for path in SOURCES if path.is_relative_to(ROOT / "hybrid")):
        for name in defined_names(path):
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in homes.items() if len(where) > 1 and name not in SHARED_NAMES} == {}


# Functions that are called by their file's name, or from a table of files: a family of problems, or a dialect, a file.
PROTOCOLS = {
    "hybrid/tasks": {"generate", "grade"},
    "hybrid/cloud": {"chat_route", "read_choice", "read_scores", "score_body", "write_body"},
    "server_stub": {"family"},
}
# Names that still stand for two functions of a room. The list only becomes shorter.
SHARED_FUNCTIONS = {
    "hybrid/cli": {"summary", "with_interval"},
    "hybrid/lab": {"choose_arms", "compare", "draw_problems", "to_json"},
}


def public_functions(text: str) -> Iterator[str]:
    """Yield the names of a file's public functions, but commands: what a user types is the name of one."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_command = any(re.search(r"\.(command|callback)\(", ast.unparse(each)) for each in node.decorator_list)
            yield from () if is_command or node.name.startswith("_") else (node.name,)


def test_a_public_functions_name_stands_for_one_function_of_its_room():
    """Who reads a call looks for one definition."""
    assert [*public_functions("def a(): ...\ndef _b(): ...\n@app.command('c')\ndef c(): ...")] == ["a"]
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path in SOURCES:
        parts = path.relative_to(ROOT).parts
        rooms["server_stub" if parts[0] == "server_stub" else "/".join(parts[:2])].update(
            public_functions(path.read_text())
        )
    shared = {(room, name) for room, names in rooms.items() for name, num in names.items() if num > 1}
    known = {(room, name) for each in (PROTOCOLS, SHARED_FUNCTIONS) for room, names in each.items() for name in names}
    assert not shared - known


def test_every_mutant_fits_the_tree():
    """Its old text stands exactly once in its file, and the test that kills it is there: the table cannot rot."""
    rooms = tomllib.loads((ROOT / "tests/mutants.toml").read_text())
    table = {f"{room}.{name}": mutant for room, named in rooms.items() for name, mutant in named.items()}
    assert len(table) >= 60
    for name, mutant in each_of(table.items()):
        path, test, *_ = mutant["test"].split("::")
        assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, name
        assert mutant["old"] != mutant["new"], name
        assert re.search(rf"^(def |class |){test}( =|\(|:)", (ROOT / path).read_text(), re.MULTILINE), name


def test_a_loop_that_asserts_runs_or_says_that_nothing_came():
    """A test of nothing is green. ``cases.each_of`` raises where nothing comes of what may be empty."""
    perhaps = "for x in each_of(a, least=0): assert x"
    for text in ("for x in []: assert x", "for x in a: assert x", perhaps):
        assert len(list(bare_loops(ast.parse(f"def test_a(a):\n    {text}")))) == 1, text
    for text in ("for x in each_of(a): assert x", "for x in zip((1,), 'b'): assert x", f"{perhaps}\n    assert a"):
        assert not list(bare_loops(ast.parse(f"def test_a(a):\n    {text}"))), text
    for path in each_of(TESTS):
        found = bare_loops(parsed(path))
        assert not [f"{name}: for ... in {ast.unparse(loop.iter)}" for name, loop in found], path


def test_no_test_bounds_something_by_the_products_own_number():
    """Whoever changes the number would change both, and see green: a test writes the number that it means."""
    shared = (
        "from hybrid.serve import guard\nfrom hybrid.prob.mixture import FLOOR\nassert 0 < {} and guard.MAX_BODY == 1"
    )
    assert list(shared_bounds(ast.parse(shared.format("FLOOR")))) == [(3, "FLOOR")]
    assert list(shared_bounds(ast.parse(shared.format("2 * guard.MAX_BODY")))) == [(3, "guard.MAX_BODY")]
    assert not list(shared_bounds(ast.parse(shared.format("8"))))
    for path in each_of(TESTS):
        assert not list(shared_bounds(parsed(path))), path


def test_nothing_else_stands_at_the_top_of_the_tree():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split("/")[0] for line in listed.splitlines() if not line.startswith(".")} <= TOP


def test_no_function_is_above_60_lines_and_no_file_above_400():
    """What does not fit is two things."""
    for path in each_of(
        [each for top in ("hybrid", "server_stub", "tests", "examples") for each in (ROOT / top).rglob("*.py")]
    ):
        assert len(path.read_text().splitlines()) <= 400, path
        for node in each_of(ast.walk(parsed(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_rooms_and_walks_keep_their_ceilings_and_a_ceiling_follows_downwards(monkeypatch):
    """A budget without a ceiling is a wish, and one that is far above is none."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    from house import trouble

    ceilings = {"room": {"lines": 2000, "files": 10}, "walk post": {"functions": 100}}
    assert not trouble(ceilings, ceilings)
    assert not trouble({"room": {"lines": 1950, "files": 10}, "walk post": {"functions": 95}}, ceilings)
    above, low, gone = (
        trouble({"room": {"lines": lines, "files": files}, **walk}, ceilings)
        for lines, files, walk in (
            (2001, 10, {"walk post": {"functions": 101}}),
            (1940, 9, {"walk post": {"functions": 94}}),
            (2000, 10, {}),
        )
    )
    assert above == [
        f"{name}, its ceiling is {most}: raise it only with a reason in the same commit"
        for name, most in (("room: 2001 lines", 2000), ("walk post: 101 functions", 100))
    ]
    assert [line.partition(",")[0] for line in low] == ["room: 1940 lines", "room: 9 files", "walk post: 94 functions"]
    assert [line.partition(":")[0] for line in gone] == ["walk post"]
    # In a process of its own, where no other test has filled a cache.
    measure = [sys.executable, ROOT / "tests/house.py", "--ceilings"]
    done = subprocess.run(measure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_are_short_enough_to_be_read(monkeypatch):
    """A first page, a room's page and a sentence have a limit each, and each limit can be exceeded."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    from house import CEILINGS, pages, sentences, too_long

    limits = json.loads(CEILINGS.read_text(encoding="utf-8"))["pages"]
    assert limits == pages() | {name: limits[name] for name in limits}, "a figure has no limit, or a limit no figure"
    assert too_long(limits, limits) == []
    assert len(too_long({name: most + 1 for name, most in limits.items()}, limits)) == 3
    page = (
        "# Not read\n\nOne fact. Another\none!\n- A [link](to/it.md).\n\n| no | table |\n\n```sh\nno. code.\n```\n\nEnd"
    )
    assert sentences(page) == ["One fact.", "Another one!", "A link.", "End"]
    assert too_long(pages(), limits) == []


def test_every_link_of_a_page_leads_to_a_file_and_a_heading():
    """Notes and manuals stand beside a room's page: a heading that is renamed would leave links that lead nowhere."""
    text_of = {path: CODE.sub("", path.read_text(encoding="utf-8")) for path in PAGES}
    links = [(path, target) for path, text in text_of.items() for target in LINK.findall(text)]
    for path, target in each_of(links):
        name, _, heading = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path}: {target}"
        assert not heading or heading in {anchor(title) for title in HEADING.findall(text_of[there])}, (
            f"{path}: {target}"
        )
