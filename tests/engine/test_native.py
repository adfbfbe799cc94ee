"""A llama.cpp that does not load: one sentence and exit code 3 in every command that needs it, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

LIBGOMP = "libgomp.so.1: cannot open shared object file: No such file or directory"
# What loaders were seen to say: the __init__.py of a package of that name, and what is told of it.
BROKEN = {
    "libgomp": (
        f"try:\n raise OSError({LIBGOMP!r})\nexcept OSError as e:\n raise RuntimeError('Failed: libllama.so') from e",
        f"llama.cpp cannot be loaded: {LIBGOMP}; build it on this machine: pip install",
    ),
    "glibc": ("""raise RuntimeError("/lib/libc.so.6: version `GLIBC_2.38' not \\x1b[2J found")""", "`GLIBC_2.38' not"),
    "no library": ("raise FileNotFoundError('no libllama.so')", "llama.cpp cannot be loaded: no libllama.so; build it"),
    "another python": ("raise ImportError('undefined symbol: PyX')", "llama.cpp cannot be loaded: undefined symbol"),
    "an older library": ("from ctypes import CDLL\nCDLL(None).llama_new", "undefined symbol: llama_new; build it"),
    "not installed": ("import llama_cpp_that_is_not_there", "llama.cpp is not installed: No module named"),
}
# Nobody can catch it: the processor is given bytes that are no instruction.
ILLEGAL = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes(4) if __import__("platform").machine() == "aarch64" else bytes((15, 11)))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
NEED_IT = [
    ["ask", "What?"], ["ask", "--offline", "What?"], ["batch", "in", "out"], ["probe", "http://127.0.0.1:9"],
    ["price", "--price", "1/0.1/4", "What?"], ["calibrate", "--n", "1"], ["demo", "--n", "1"], ["bench", "check"],
    ["models", "eval", "small", "--n", "1"],
]  # fmt: skip
DO_NOT = [
    ["--help"], ["ask", "--help"], ["--version"], ["policies"], ["tasks", "list"], ["tasks", "show", "gcd"],
    ["budget", "show"], ["budget", "log"], ["replay", "--help"], ["models", "--help"],
]  # fmt: skip
# Every command, and then one of them with every broken package, in a process that has never seen a sound one.
PROGRAM = f"""
import importlib, json, sys
from pathlib import Path
from typer.testing import CliRunner
from hybrid.cli import app

def run(words):
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    return done.exit_code, done.stdout, done.stderr

found = [run(words) for words in {[*NEED_IT, *DO_NOT]!r}]
for text in {[text for text, _ in BROKEN.values()]!r}:
    Path("path/llama_cpp/__init__.py").write_text(text)
    importlib.invalidate_caches()
    found.append(run(["ask", "What?"]))
print(json.dumps(found))
"""


@pytest.fixture
def run(tmp_path):
    """Run a Python of its own in which ``llama_cpp`` is another package."""
    package = tmp_path / "path" / "llama_cpp" / "__init__.py"
    package.parent.mkdir(parents=True)
    (tmp_path / "in").write_text('"What?"\n')

    def run(text, *words):
        package.write_text(text)
        path = os.pathsep.join([str(tmp_path / "path"), *filter(None, sys.path)])
        env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60, check=False)

    return run


@pytest.mark.slow
def test_a_library_that_does_not_load_is_one_sentence_in_every_command_that_needs_it(run):
    """And none in those that need no model. A traceback of ctypes is no help to whoever installed a wheel."""
    done = run(BROKEN["libgomp"][0], "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for words in NEED_IT:
        code, out, err = found.pop(0)
        assert (code, out, err.count("\n"), LIBGOMP in err) == (3, "", 1, True), (words, err)
    for words in DO_NOT:
        code, out, err = found.pop(0)
        assert (code, bool(out.strip()), err) == (0, True, ""), words
    for what, (_, told) in BROKEN.items():
        code, out, err = found.pop(0)
        assert (code, out, err.count("\n")) == (3, "", 1), what
        assert err.startswith("hybrid: llama.cpp "), what
        assert told in err
        assert err.rstrip("\n").isprintable()


def test_a_processor_that_lacks_an_instruction_is_a_sentence(run):
    done = run(ILLEGAL, "-m", "hybrid", "ask", "What?")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith("hybrid: this processor lacks an instruction that llama.cpp was built with: build it")


def test_the_server_says_it_as_well(run):
    done = run(BROKEN["libgomp"][0], "-m", "server_stub", "--model", "small", "--port", "0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"server_stub: llama.cpp cannot be loaded: {LIBGOMP}")
