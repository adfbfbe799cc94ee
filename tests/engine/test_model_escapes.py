"""Nothing outside a folder of models is found, opened or listed, whatever names, links and manifests say."""

from __future__ import annotations

import json
import os
import string
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_trees import LAYER, MAIN, VARIABLES, Home, stores_with_service, write

from hybrid.engine import model_folders
from hybrid.engine.model_folders import find_model, models_on_disk
from hybrid.errors import HybridError


@contextmanager
def watched():
    """Collect the files that are opened and the folders that are listed, whoever does it and however."""
    seen, _HOOK[:] = [], [True]
    _SEEN[:] = [seen]
    try:
        yield seen
    finally:
        _HOOK[:] = [False]


_HOOK, _SEEN = [False], [[]]


def _audit(event, args):
    if _HOOK[0] and event in {"open", "os.listdir", "os.scandir", "mmap.__new__"} and isinstance(args[0], str):
        _SEEN[0].append(Path(args[0]))


sys.addaudithook(_audit)


def leads_out(home, tmp_path, where):
    """Make a tree in which a name leads to a file outside; return the name."""
    secret = write(tmp_path / "outside" / "m.gguf", b"GGUF secret")
    write(tmp_path / "outside" / "latest", json.dumps({"layers": [LAYER]}).encode())
    write(tmp_path / "outside" / MAIN / "m.gguf")
    blob = home.pull("registry.ollama.ai/library/odd/latest")
    if where == "a blob":
        blob.unlink()
        blob.symlink_to(secret)
    elif where == "the blobs' folder":
        blob.unlink()
        blob.parent.rmdir()
        blob.parent.symlink_to(tmp_path / "outside")
        blob.with_name(blob.name).write_bytes(b"GGUF")
    elif where == "a manifest":
        (path := home.manifest(b"")).unlink()
        path.symlink_to(tmp_path / "outside" / "latest")
    elif where == "a model's folder":
        (path := home.manifest(b"")).unlink()
        path.parent.rmdir()
        path.parent.symlink_to(tmp_path / "outside")
    else:
        return leads_out_of_repositories(home, tmp_path / "outside", where)
    return "odd"


def leads_out_of_repositories(home, outside, where):
    if where == "a snapshot's file":
        (home.download("a/b") / "m.gguf").symlink_to(outside / "m.gguf")
    elif where == "a snapshot":
        (snapshot := home.download("a/b")).rmdir()
        snapshot.symlink_to(outside / MAIN)
    elif where == "a repository":
        home.hub.mkdir(parents=True)
        (home.hub / "models--a--b").symlink_to(outside)
    elif where == "a file of LM Studio's":
        write(home.lm_studio / "a/b/README").with_name("m.gguf").symlink_to(outside / "m.gguf")
    elif where == "a file of a split":
        for number in (1, 3):
            write(home.lm_studio / f"a/b/m-0000{number}-of-00003.gguf")
        (home.lm_studio / "a/b/m-00002-of-00003.gguf").symlink_to(outside / "m.gguf")
    elif where == "a link in a circle":
        (path := write(home.lm_studio / "a/b/m.gguf")).unlink()
        path.symlink_to(path)
    return "a/b"


ESCAPES = (
    "a blob", "the blobs' folder", "a manifest", "a model's folder", "a snapshot's file", "a snapshot", "a repository",
    "a file of LM Studio's", "a file of a split", "a link in a circle",
)  # fmt: skip


@pytest.mark.parametrize("where", ESCAPES)
def test_nothing_outside_a_folder_is_found_or_read(home, tmp_path, where):
    name = leads_out(home, tmp_path, where)
    with watched() as seen:
        with pytest.raises(HybridError) as error:
            find_model(name)
        models = models_on_disk()
    assert seen
    outside = (tmp_path / "outside").resolve()
    assert [path for path in seen if path.resolve().is_relative_to(outside)] == []
    assert all(model.path is None or not model.path.resolve().is_relative_to(outside) for model in models)
    if where in {"a blob", "a manifest", "a snapshot's file", "a file of LM Studio's", "a file of a split"}:
        assert "name the file that is meant by its own path" in str(error.value)


ANY = st.text(st.sampled_from("./:ab-_~\\ \0é" + string.digits[:2]), max_size=12)
TREE = st.lists(
    st.tuples(
        st.sampled_from(["manifest", "hub", "lm", "flat"]),
        st.sampled_from(["a", "b", "a.b", "..", "a--b"]),
        st.sampled_from(["a", "b", "latest", "m-Q8_0"]),
        st.sampled_from(["file", "link out", "link in", "folder out", "loop"]),
    ),
    max_size=5,
)


def plant(home, outside, kind, one, two, how):
    """Put a file, or a link, somewhere into the tree where a name may lead; what cannot be there is left out."""
    places = {
        "manifest": home.ollama / "manifests/registry.ollama.ai/library" / one / two,
        "hub": home.hub / f"models--{one}--{two}" / "snapshots" / MAIN / f"{two}.gguf",
        "lm": home.lm_studio / one / two / "m-Q8_0.gguf",
        "flat": home.flat / f"{one}_{two}_m.gguf",
    }
    place = places[kind]
    if how == "folder out":  # the root itself may be a link: whoever made the folder made it
        place = place if kind == "flat" else place.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):
        return
    content = json.dumps({"layers": [LAYER | {"digest": f"sha256:../../../{one}"}, LAYER]}).encode()
    if how == "file":
        place.write_bytes(content if kind == "manifest" else b"GGUF")
    else:
        targets = {"link out": outside / "m.gguf", "link in": home.path, "folder out": outside, "loop": place}
        place.symlink_to(targets[how])


@given(names=st.lists(ANY, max_size=3), tree=TREE, tag=st.sampled_from(["", ":latest", ":Q8_0", ":..", "/m-Q8_0.gguf"]))
@settings(max_examples=40)
def test_no_name_and_no_tree_lead_outside(names, tree, tag):
    with pytest.MonkeyPatch.context() as patched, TemporaryDirectory() as kept:
        folder = Path(kept).resolve()
        patched.setenv("HOME", str(folder / "home"))
        for name in VARIABLES:
            patched.delenv(name, raising=False)
        patched.setattr(model_folders, "STORES", stores_with_service(folder / "service"))
        patched.chdir(folder)
        home, outside = Home(folder / "home"), folder / "outside"
        for name in ("m.gguf", "latest", "m-Q8_0.gguf", "a/m.gguf"):
            write(outside / name)
        for one in tree:
            plant(home, outside, *one)
        names = [*names, *(f"{one}/{two}{tag}" for _, one, two, _ in tree), *(f"{one}{tag}" for _, one, *_ in tree)]
        with watched() as seen:
            found = [path for name in names if (path := found_or_none(name)) is not None]
            found += [model.path for model in models_on_disk() if model.path is not None]
        assert [path for path in [*found, *seen] if path.resolve().is_relative_to(outside)] == []
        assert all(path.resolve().is_relative_to(home.path.resolve()) for path in found)


def found_or_none(name):
    """Return the file that a name means; None for a refusal, and for a path that is nobody's name."""
    try:
        found = find_model(name)
    except HybridError:
        return None
    return None if str(found) == str(Path(name)) else found
