"""Models by other programs' names: the layouts as they are documented, and nothing beside them.

The trees are made here, and are what Ollama, huggingface_hub, LM Studio and llama.cpp leave behind.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases import each
from model_trees import LAYER, MAIN, MODEL, OTHER, Home, write

from hybrid.cli.models import disk_lines
from hybrid.engine.model_folders import find_model, models_on_disk, parse_name
from hybrid.engine.real_models import check_model_name, model_file
from hybrid.errors import EngineError, UsageError


def refusal(name, kind=EngineError):
    with pytest.raises(kind) as error:
        find_model(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_is_not_called_absent(home, monkeypatch, tmp_path):
    (tmp_path / "mine/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert refusal("mine/model", UsageError).startswith(
        "there is no model mine/model: it is a folder, not a file, and "
    )
    assert refusal("mine/other", UsageError).startswith("there is no model mine/other: no such file, and ")


def test_a_line_feed_in_a_files_name_stays_in_the_sentences_line(home):
    for name in ("a\nb-Q8_0.gguf", "a\u2028b-Q8_0.gguf"):
        write(home.lm_studio / "Org/Repo" / name)
    said = refusal("Org/Repo", UsageError)
    assert "\\nb-Q8_0.gguf" in said
    assert "\\u2028b" in said
    told = dict.fromkeys(("parameters", "bytes", "vocabulary"), 0) | {"source": "LM Studio", "problem": "it\nis"}
    assert disk_lines({"a\nb": told}) == ["a\\nb (LM Studio): it\\nis"]


def test_a_link_to_a_folder_around_it_lists_no_file_twice(home):
    file = write(home.lm_studio / "Org/Repo/m-Q8_0.gguf")
    (home.lm_studio / "Org/Repo/sub").symlink_to("../Repo", target_is_directory=True)
    (home.lm_studio / "Org/Repo/far").symlink_to(home.lm_studio / "Org/Repo", target_is_directory=True)
    assert [model.name for model in models_on_disk()] == ["Org/Repo:Q8_0"]
    assert find_model("Org/Repo:Q8_0") == file


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("qwen2.5:1.5b", "registry.ollama.ai/library/qwen2.5/1.5b"),
        ("llama3", "registry.ollama.ai/library/llama3/latest"),
        ("llama3:latest", "registry.ollama.ai/library/llama3/latest"),
        ("somebody/model:7b", "registry.ollama.ai/somebody/model/7b"),
        ("hf.co/bartowski/Phi-3-GGUF:Q4_K_M", "hf.co/bartowski/Phi-3-GGUF/Q4_K_M"),
    ],
)
def test_a_name_of_ollamas_means_its_manifests_blob(home, name, kept):
    blob = home.pull(kept)
    assert find_model(name) == model_file(name) == blob
    check_model_name(name)


def test_ollamas_folder_is_the_variables_or_the_users_or_the_services(home, monkeypatch, tmp_path):
    mine = home.pull("registry.ollama.ai/library/a/latest")
    services, moved = Home(tmp_path / "s"), Home(tmp_path / "m")
    services.ollama, moved.ollama = tmp_path / "service", tmp_path / "moved"
    theirs = services.pull("registry.ollama.ai/library/b/latest", b"GGUF2")
    there = moved.pull("registry.ollama.ai/library/a/latest", b"GGUF3")
    assert (find_model("a"), find_model("b")) == (mine, theirs)
    monkeypatch.setenv("OLLAMA_MODELS", str(moved.ollama))
    assert find_model("a") == there
    assert "no model b" in refusal("b", UsageError)
    monkeypatch.setenv("OLLAMA_MODELS", "moved")  # a relative folder is whoever's the working directory is
    assert find_model("a") == mine


@each(
    ("name", "file"),
    [
        ("Qwen/Q-GGUF:Q8_0", "q-1.5b-instruct-q8_0.gguf"),
        ("Qwen/Q-GGUF:q4_k_m", "q-1.5b-instruct-Q4_K_M.gguf"),
        ("Qwen/Q-GGUF:q-1.5b-instruct-q8_0", "q-1.5b-instruct-q8_0.gguf"),
        ("Qwen/Q-GGUF/q-1.5b-instruct-q8_0.gguf", "q-1.5b-instruct-q8_0.gguf"),
        ("Qwen/Q-GGUF:bf16", "BF16/q-1.5b.gguf"),
    ],
)
def test_a_repositorys_model_is_chosen_by_its_quantisation(home, name, file):
    files = ["q-1.5b-instruct-q8_0.gguf", "q-1.5b-instruct-Q4_K_M.gguf", "BF16/q-1.5b.gguf", "mmproj-q8_0.gguf"]
    snapshot = home.download("Qwen/Q-GGUF", *files, "README.md")
    assert find_model(name) == snapshot / file
    for path in files:
        write(home.lm_studio / "Other/L-GGUF" / path)
    assert find_model(name.replace("Qwen/Q", "Other/L")) == home.lm_studio / "Other/L-GGUF" / file


def test_a_name_that_several_files_fit_is_refused_by_naming_them(home):
    home.download("Qwen/Q-GGUF", "m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf", "m-mmproj-F16.gguf")
    several = "Qwen/Q-GGUF may mean several models: Qwen/Q-GGUF:m-Q4_K_XL, Qwen/Q-GGUF:Q8_0, Qwen/Q-GGUF:m-UD-Q4_K_XL"
    assert refusal("Qwen/Q-GGUF", UsageError) == several
    assert "m-UD-Q4_K_XL" in refusal("Qwen/Q-GGUF:Q4_K_XL", UsageError)
    assert find_model("Qwen/Q-GGUF:m-q4_k_xl").name == "m-Q4_K_XL.gguf"
    assert "there is no model Qwen/Q-GGUF:Q4_K:" in refusal("Qwen/Q-GGUF:Q4_K", UsageError)


def test_a_part_of_a_quantisation_is_none(home):
    home.download("Qwen/Q-GGUF", "m-IQ4_XS.gguf")
    for quant in ("Q4_XS", "IQ4", "XS"):
        assert "IQ4_XS" in refusal(f"Qwen/Q-GGUF:{quant}", UsageError)
    assert find_model("Qwen/Q-GGUF").name == "m-IQ4_XS.gguf"


def test_one_model_in_two_folders_is_the_first_folders_and_two_models_are_told_apart(home):
    snapshot = home.download("a/b", "m-Q8_0.gguf")
    write(home.lm_studio / "a/b/m-Q8_0.gguf")
    assert find_model("a/b") == snapshot / "m-Q8_0.gguf"
    write(home.lm_studio / "a/b/m-Q4_0.gguf")
    assert refusal("a/b", UsageError) == "a/b may mean several models: a/b:Q8_0, a/b:Q4_0"


def test_the_snapshot_is_that_of_main_or_the_only_one(home):
    newest = home.download("a/b", "m.gguf")
    home.download("a/b", "old.gguf", commit=OTHER, ref="v1")
    assert find_model("a/b") == newest / "m.gguf"
    only = home.download("c/d", "m.gguf", commit=OTHER, ref="v1")
    assert find_model("c/d") == only / "m.gguf"


@pytest.mark.parametrize(
    "variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "LLAMA_CACHE"]
)
def test_the_cache_lies_where_a_variable_says(home, monkeypatch, tmp_path, variable):
    home.hub = tmp_path / "elsewhere" / {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(variable, "")
    there = home.download("a/b", "m.gguf") / "m.gguf"
    assert "no model a/b" in refusal("a/b", UsageError)
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert find_model("a/b") == there


def test_lm_studios_folder_is_todays_the_older_one_or_the_pointers(home, tmp_path):
    old, moved = home.path / ".cache/lm-studio/models", tmp_path / "moved" / "models"
    write(old / "a/b/old.gguf")
    assert find_model("a/b") == old / "a/b/old.gguf"
    write(moved / "c/d/m.gguf")
    (home.path / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'moved'}\n")
    assert find_model("c/d/m.gguf") == moved / "c/d/m.gguf"


def test_llamacpps_older_cache_is_read_by_its_manifests(home):
    """The names of its files alone do not tell where ORG ends."""
    for name in ("a_b_m-Q8_0.gguf", "a_b_c_m-Q4_0.gguf", "manifest=a=b=latest.json", "manifest=a=b_c=Q4_0.json"):
        write(home.flat / name)
    assert find_model("a/b") == home.flat / "a_b_m-Q8_0.gguf"
    assert find_model("a/b_c:q4_0") == home.flat / "a_b_c_m-Q4_0.gguf"
    assert "no model a_b/c" in refusal("a_b/c", UsageError)


def test_a_file_that_exists_wins(home, tmp_path):
    home.pull("registry.ollama.ai/library/model/latest")
    home.download("models/tiny", "m.gguf")
    for name in ("model", "models/tiny"):
        assert find_model(name) != Path(name)
        write(tmp_path / name)
        assert find_model(name) == Path(name)
        (tmp_path / name).unlink()
    assert find_model("models/tiny") == home.hub / f"models--models--tiny/snapshots/{MAIN}/m.gguf"  # a folder is none


@each("path", ["small.gguf", "models/mid.gguf", "/real", "./a", "../a:b", "a/../b", "a//b", "~/a", "a b", "a:b:c", "é"])
def test_what_can_be_no_name_is_a_path(home, path):
    assert parse_name(path) is None
    assert find_model(path) == Path(path)


def test_a_name_that_no_model_has_is_refused_by_the_folders_and_the_names_near_it(home, tmp_path):
    home.pull("registry.ollama.ai/library/qwen2.5/7b")
    home.download("Qwen/Q-GGUF", "m-Q8_0.gguf")
    home.lm_studio.mkdir(parents=True)
    said = refusal("qwen2.5:1.5b", UsageError)
    assert said == (
        f"there is no model qwen2.5:1.5b: no such file, and none of this name in {home.ollama} (Ollama), "
        f"{tmp_path / 'service'} (Ollama, not there), {home.hub} (Hugging Face), {home.lm_studio} (LM Studio), "
        f"{home.path / '.cache/lm-studio/models'} (LM Studio, not there), {home.flat} (llama.cpp, not there); "
        "there is qwen2.5:7b"
    )
    with pytest.raises(UsageError) as at_once:
        check_model_name("qwen2.5:1.5b")
    assert str(at_once.value) == said
    assert refusal("qwen/q-gguf", UsageError).endswith("; there is Qwen/Q-GGUF:Q8_0")
    assert refusal("smal", UsageError).endswith("; there is small")


def test_without_a_home_a_name_is_refused_in_a_sentence(home, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert "there is no model qwen" in refusal("qwen", UsageError)
    assert models_on_disk() == ()


# ---- the list ------------------------------------------------------------------------------------------------------


def fill(home):
    home.pull("registry.ollama.ai/library/qwen2.5/7b", b"GGUF1")
    home.pull("registry.ollama.ai/me/tuned/latest", b"GGUF2")
    home.pull("hf.co/a/b/Q8_0", b"GGUF3")
    home.download("a/several", "m-Q8_0.gguf", "m-q4_k_m.gguf", "x-q4_k_m.gguf", "UD/deep-Q2_K.gguf", "imatrix-m.gguf")
    home.download("a/one", "One.gguf")
    home.download("a/twins", "Q4/m.gguf", "Q8/m.gguf")
    home.download("a/odd", "strange (name).gguf", "other.gguf")
    home.download("a/split", *(f"big-Q4_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)))
    write(home.lm_studio / "pub/repo/file-F16.gguf")
    write(home.flat / "a_b_m-Q6_K.gguf")
    write(home.flat / "manifest=a=b=latest.json")


def test_every_listed_name_means_the_file_that_is_listed(home):
    fill(home)
    listed = models_on_disk()
    assert [model.problem for model in listed] == [""] * len(listed)
    assert {model.name: find_model(model.name) for model in listed} == {model.name: model.path for model in listed}
    odd = home.hub / f"models--a--odd/snapshots/{MAIN}/strange (name).gguf"
    twins = [home.hub / f"models--a--twins/snapshots/{MAIN}/{folder}/m.gguf" for folder in ("Q4", "Q8")]
    names = [
        "a/b:Q6_K", "a/odd:other", "a/one", "a/several:m-q4_k_m", "a/several:Q2_K", "a/several:Q8_0",
        "a/several:x-q4_k_m", "a/split:Q4_0", "hf.co/a/b:Q8_0", "me/tuned:latest", "pub/repo:F16", "qwen2.5:7b",
    ]  # fmt: skip
    assert sorted(model.name for model in listed) == sorted([*names, str(odd), *map(str, twins)])
    assert find_model("a/twins:q8") == twins[1]
    assert {model.source for model in listed} == {"Ollama", "Hugging Face", "LM Studio", "llama.cpp"}


def test_finding_and_listing_write_nothing(home):
    fill(home)

    def tree():
        return {path: path.lstat().st_mtime_ns for path in home.path.rglob("*")}

    before = tree()
    models_on_disk()
    find_model("qwen2.5:7b")
    refusal("nothing:like-it", UsageError)
    assert tree() == before


def test_folders_full_of_other_things_are_no_error(home):
    for place in ("manifests/registry.ollama.ai/library/x", "manifests/h/n/m/t/deeper"):
        (home.ollama / place).mkdir(parents=True)
    write(home.ollama / "manifests/registry.ollama.ai/library/.DS_Store")
    write(home.hub / "models--a--b--c" / "snapshots" / MAIN / "m.gguf")
    write(home.hub / "models--gpt2" / "snapshots" / MAIN / "m.gguf")
    write(home.hub / "models--a--empty" / "refs" / "main")
    write(home.lm_studio / "loose.gguf")
    write(home.flat / "manifest=a=b.json")
    assert models_on_disk() == ()


# ---- what is damaged -----------------------------------------------------------------------------------------------

DAMAGED = {
    "no JSON": (b"{", "is damaged"),
    "no text": (b"\xff\xfe\xfd", "is damaged"),
    "a list": ([], "is damaged"),
    "a number": (7, "is damaged"),
    "no layers": ({}, "is damaged"),
    "layers that are a number": ({"layers": 3}, "is damaged"),
    "layers that are texts": ({"layers": ["x"]}, "is damaged"),
    "a layer without digest": ({"layers": [{"mediaType": MODEL}]}, "is damaged"),
    "nested beyond reason": (b'{"layers":' + b"[" * 200_000, "is damaged"),
    "longer than any": (b" " * (2**22 + 1), "is damaged: it is longer than"),
    "a digest in capitals": ({"layers": [LAYER | {"digest": "sha256:" + "A" * 64}]}, "digest of its weights is none"),
    "a digest that climbs": ({"layers": [LAYER | {"digest": "sha256:../../../secret"}]}, "digest of its weights"),
    "a digest with more behind": ({"layers": [LAYER | {"digest": "sha256:" + "1" * 64 + "\n"}]}, "digest of its"),
    "a digest that is absolute": ({"layers": [LAYER | {"digest": "/etc/passwd"}]}, "digest of its weights is none"),
    "a digest with a NUL": ({"layers": [LAYER | {"digest": "sha256:\0" + "1" * 63}]}, "digest of its weights is none"),
    "a digest that is a list": ({"layers": [LAYER | {"digest": [1]}]}, "digest of its weights is none"),
    "a blob that is not there": ({"layers": [LAYER]}, "is missing, or a link to nothing"),
    "an adapter": ({"layers": [LAYER, LAYER | {"mediaType": MODEL[:-5] + "adapter"}]}, "it is a model with an adapter"),
    "several blobs": ({"layers": [LAYER, LAYER]}, "its weights lie in 2 blobs"),
    "single tensors": ({"layers": [{"mediaType": MODEL[:-5] + "tensor", "digest": ""}]}, "keeps no GGUF file of it"),
    "in the cloud": ({"layers": []}, "are not on this disk"),
}


@each("what", DAMAGED)
def test_a_manifest_that_cannot_be_used_is_a_sentence(home, what):
    content, said = DAMAGED[what]
    home.manifest(content)
    assert said in refusal("odd")
    (model,) = models_on_disk()
    assert (model.name, model.path) == ("odd:latest", None)
    assert said in model.problem
    assert len(str(model.problem)) < 400


def test_a_blob_that_is_no_gguf_file_is_told(home):
    blob = home.pull("registry.ollama.ai/library/odd/latest", b"PK\3\4")
    assert refusal("odd") == f"odd (Ollama) cannot be used: {blob} is not a GGUF file"


def test_a_pipe_is_not_waited_for(home):
    home.ollama.mkdir(parents=True)
    os.mkfifo(path := home.manifest(b"").with_name("pipe"))
    assert refusal("odd:pipe") == f"odd:pipe (Ollama) cannot be used: {path} is not a file"
    os.mkfifo(write(home.lm_studio / "a/b/x.txt").with_name("m.gguf"))
    assert "m.gguf is not a file" in refusal("a/b")


def test_a_split_model_with_a_missing_file_is_refused_by_naming_it(home):
    names = [f"big-Q4_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    snapshot = home.download("a/b", *names)
    for name in names:
        assert find_model(f"a/b/{name}") == snapshot / names[0]
    (snapshot / names[1]).resolve().unlink()
    assert f"of its 3 files {names[1]} is missing" in refusal("a/b:Q4_0")
    (snapshot / names[0]).unlink()
    assert f"of its 3 files {names[0]}, {names[1]} are missing" in refusal("a/b")
