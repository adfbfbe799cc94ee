"""Several local models as settings: which source names them, and who drafts for whom."""

from __future__ import annotations

from pathlib import Path

from hybrid.sources import load


def test_of_several_local_models_each_drafts_for_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.toml"
    own.write_text('local = ["a.gguf", "b.gguf", "c.gguf"]\n')
    settings = load(config=own)
    assert (settings.local, settings.drafters) == (Path("c.gguf"), (Path("a.gguf"), Path("b.gguf")))
    assert load(config=own, local=["d.gguf"]).drafters == (), "who names local models names all of them"
    assert (load(config=own, experts=["e", "f"]).local, load(config=own, experts=["e", "f"]).drafters) == (None, ())
    monkeypatch.setenv("HYBRID_DRAFTERS", "x, y")
    assert load(config=own).drafters == (Path("x"), Path("y")), "a variable stands above a file"
