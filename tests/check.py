"""Everything that must hold before a change lands, in one command.

    python tests/check.py              format, lint, types, floors, weight, README, the quick tests
    python tests/check.py --all        the slow tests as well; then vLLM and real clients are installed, and theirs run
    python tests/check.py --rest       as --all, where a plain pytest has just passed without the extra `real`
    python tests/check.py --servers    after everything else every other real server is installed, and its tests run;
                                       so do the tests of rows, over llama.cpp compiled for a processor without AVX2

Each run of tests says what it skipped, and fails on a reason that tests/skips.toml does not list.

Tests of real servers run last and one after the other: such a server takes every core and gigabytes of memory, and
tests beside it would wait for it. Prints a line per check and the lines of code per room; exits non-zero if any check
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_MIB = 30
# What must not stand in the code: open ends, and paths of some machine.
OPEN_ENDS = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
MACHINE = re.compile(r"(?<![\w.])/(home|work|root|Users)/")
CLIENTS = ["openai2", "openai3", "browser"]
OTHER_SERVERS = ["vllm-v2", "sglang", "litellm"]
OTHER_PROCESSOR = "llama-avx"
ABSENT = 3  # as server_environments.py ends where pip has no such package
# Who holds a tolerance of llama.cpp's: by an import, or by a fixture of a conftest.py.
TOLERANCE = re.compile(r"^(?:from|import) arithmetic\b", re.MULTILINE)
ROW_FIXTURES = r"\b(?:agree|oracles?)[,)]"
# Many slow tests wait for a server or a deadline: meanwhile one more process has the core.
MORE_PROCESSES_THAN_CORES = 1


def main() -> int:
    """Run all checks, the cheap ones first, and report every one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="crash tests, full counts and vLLM's server as well")
    parser.add_argument("--rest", action="store_true", help="--all, less the quick tests that passed without `real`")
    parser.add_argument("--servers", action="store_true", help="the tests of the other real servers as well")
    args = parser.parse_args()
    checks = {
        "format": command("ruff", "format", "--check", "-q"),
        "lint": command("ruff", "check", "-q"),
        "types": command("mypy"),
        "floors": command("importlinter.cli", "--no-cache", script="lint-imports"),
        "words": words,
        "weight": weight,
        "readme": command("pytest", "-q", "tests/readme.py"),
        "tests": slow_tests(rest=args.rest) if args.all or args.rest else tests("not slow"),
        **real_servers(vllm=args.all or args.rest or args.servers, others=args.servers),
    }
    failed = []
    for name, check in checks.items():
        began = time.monotonic()
        trouble = check()
        print(f"{'FAIL' if trouble else 'ok':4} {name} ({time.monotonic() - began:.1f} s)", flush=True)
        if trouble:
            failed.append(name)
            print(trouble, flush=True)
    for room, lines in rooms().items():
        print(f"{lines:6} lines  {room}")
    print(f"{len(checks) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def tests(marked: str, *more: str, **variables: str):
    """Return a check that runs the tests with these marks."""
    return command("pytest", "-q", "-p", "no:cacheprovider", "--durations=20", "-m", marked, *more, **variables)


def slow_tests(*, rest: bool):
    """Return a check that runs every test but those of real servers; ``rest``: those that have not just run in full."""
    processes = str(MORE_PROCESSES_THAN_CORES + (os.cpu_count() or 1))
    marked = "not vllm and not clients and not servers" + " and (slow or packaged or hypothesis)" * rest
    return tests(marked, "--hypothesis-profile=ci", "--numprocesses", processes, "--maxprocesses", processes)


def real_servers(*, vllm: bool, others: bool) -> dict[str, Callable[[], str]]:
    """Return the checks that install real servers and run their tests, in one process."""
    if not vllm:
        return {}
    marked = "vllm or clients or servers" if others else "(vllm or clients) and not servers"
    return {
        "servers": servers([*CLIENTS, "vllm", *([*OTHER_SERVERS, OTHER_PROCESSOR] if others else [])]),
        "tests of real servers": tests(marked, "-n", "0"),
        **({"rows without AVX2": rows_without_avx2} if others else {}),
    }


def rows_without_avx2() -> str:
    """Run every test of rows over the other llama.cpp. Where that is missing, `servers` fails, or said it is absent."""
    sys.path.append(str(ROOT / "tests/end_to_end"))
    from server_environments import Unavailable, shadowed_by

    try:
        shadows = shadowed_by(OTHER_PROCESSOR)
    except Unavailable as error:
        print(f"{OTHER_PROCESSOR}: {error}")
        return ""
    marked = "not vllm and not clients and not servers"
    return tests(marked, "--hypothesis-profile=ci", *row_tests(), **shadows)()


def row_tests() -> list[str]:
    """Return the test files that hold llama.cpp to a tolerance."""
    oracles = [path.stem for path in (ROOT / "tests/oracles").glob("*.py") if TOLERANCE.search(path.read_text())]
    touching = re.compile(rf"^(?:from|import) (?:{'|'.join(['arithmetic', *oracles])})\b|{ROW_FIXTURES}", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if touching.search(path.read_text())]


def command(*words: str, script: str | None = None, **variables: str):
    """Return a check that runs a tool of this environment and gives its output if it fails."""

    def run() -> str:
        head = [str(Path(sys.executable).parent / script)] if script else [sys.executable, "-m", words[0]]
        line, environment = [*head, *words[1:]], os.environ | variables
        done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if words[0] == "pytest":
            lines = done.stdout.splitlines()
            print(*(line for line in lines[:-24] if line.startswith("skipped ")), *lines[-24:], sep="\n")
        return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit {done.returncode}"

    return run


def servers(names: list[str]):
    """Return a check that installs real servers, and fails where one cannot be made of what pip can have.

    Where pip has no such package (there is no network, say) the reason is told, and the server's tests skip.
    """

    def run() -> str:
        script = ROOT / "tests/end_to_end/server_environments.py"
        code = subprocess.run([sys.executable, script, *names], cwd=ROOT, check=False).returncode
        return "" if code in {0, ABSENT} else "an environment could not be made; why stands above"

    return run


def tracked() -> list[Path]:
    """Return the files that belong to the project."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def words() -> str:
    """Find open ends and machine paths."""
    found = []
    for path in tracked():
        if path.suffix not in {".py", ".md", ".toml", ".json", ".jsonl"} or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if MACHINE.search(line) or (path.suffix == ".py" and OPEN_ENDS.search(line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return "\n".join(found)


def weight() -> str:
    """Weigh the tree."""
    total = sum(path.stat().st_size for path in tracked()) / 2**20
    return "" if total <= MAX_MIB else f"the tree weighs {total:.1f} MiB, more than {MAX_MIB}"


def rooms() -> dict[str, int]:
    """Count the lines of code per room."""
    counted: dict[str, int] = {}
    for path in tracked():
        if path.suffix == ".py":
            parts = path.relative_to(ROOT).parts
            deep = parts[0] in {"hybrid", "tests"} and len(parts) > 2
            room = "/".join(parts[: 2 if deep else 1])
            counted[room] = counted.get(room, 0) + len(path.read_text().splitlines())
    return dict(sorted(counted.items()))


if __name__ == "__main__":
    sys.exit(main())
