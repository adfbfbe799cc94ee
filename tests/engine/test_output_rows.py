"""Rows of an output matrix against the ``gguf`` package's, which is the oracle here and unpacks in numpy."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from hybrid.engine.gguf_header import TensorInfo
from hybrid.engine.token_table import TIED, UNTIED, OutputMatrix, _unpacker
from hybrid.errors import EngineError
from hybrid.settings.names import MODELS

PACKED = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "BF16", "F16", "F32")


def write_matrix(path: Path, kind: str, *, name: str = TIED, num_rows: int = 6) -> np.ndarray:
    """Write a file of two matrices, of which the second is the output's, and return what the oracle reads of it."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    kinds = gguf.GGMLQuantizationType
    rows = quantize(rng.normal(size=(num_rows, 64)).astype(np.float32), kinds[kind])
    writer.add_tensor("blk.0.attn_q.weight", rng.normal(size=(3, 5)).astype(np.float32))
    if name == UNTIED:
        writer.add_tensor(TIED, np.zeros((num_rows, 64), dtype=np.float32))
    writer.add_tensor(name, rows, raw_dtype=kinds[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantize(rows, kinds[kind])


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("name", [TIED, UNTIED])
def test_rows_are_those_that_an_independent_reader_unpacks(tmp_path, kind, name):
    wanted = write_matrix(tmp_path / "m.gguf", kind, name=name)
    rows = OutputMatrix(tmp_path / "m.gguf")
    assert (rows.num_rows, rows.width, rows.name) == (6, 64, name)
    np.testing.assert_allclose(rows.read(0, 6), wanted, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(rows.read(2, 5), rows.read(0, 99)[2:5])
    assert rows.read(4, 4).shape == (0, 64)


def test_the_bundled_models_have_as_many_rows_as_tokens():
    rows = OutputMatrix(MODELS / "small.gguf")
    reader = gguf.GGUFReader(MODELS / "small.gguf")
    wanted = next(tensor for tensor in reader.tensors if tensor.name == rows.name)
    np.testing.assert_array_equal(rows.read(0, rows.num_rows), dequantize(wanted.data, wanted.tensor_type))


def test_a_file_without_an_output_matrix_is_refused_in_a_sentence(tmp_path):
    write_matrix(tmp_path / "m.gguf", "F32", name="blk.0.attn_k.weight")
    with pytest.raises(EngineError, match=r"m.gguf has no output matrix: neither output.weight nor token_embd.weight"):
        OutputMatrix(tmp_path / "m.gguf")


def test_a_structure_of_another_layout_is_never_called():
    """Its sizes would not be those of the file's blocks; a function pointer read from it would lead anywhere."""
    eight_bits = TensorInfo((64, 6), 8, 0)
    _unpacker(eight_bits, 6 * 2 * 34)
    for size in (6 * 2 * 36, None):
        with pytest.raises(EngineError, match="have the type 8, which cannot be unpacked"):
            _unpacker(eight_bits, size)
