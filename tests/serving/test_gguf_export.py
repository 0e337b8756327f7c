"""Copies of GGUF files: weights bit for bit, keys that say the method, and refusals."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import pytest
import torch

from ropewalk.checkpoints.opening import load_gguf
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.serving import apply
from ropewalk.version import __version__
from tests.models.material import write_gguf
from tests.serving.material import LENGTHS, LOW_THETA, TARGET, checkpoint, extended, token_ids

KINDS = gguf.GGMLQuantizationType
SAID = [name for name, method in METHODS.items() if method.config is not None and name != "dynamic"]


def written(source: Path | str, out: Path, **settings: Any) -> Path:
    """The file that `extend apply` writes."""
    how = {"method": "yarn", "target": TARGET, **settings}
    apply(source, out / "longer.gguf", **how)
    return out / "longer.gguf"


def fields(path: Path) -> dict[str, Any]:
    """A file's metadata as gguf's own reader has it."""
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if name[:5] != "GGUF."}


def source_file(
    folder: Path, kind: KINDS = KINDS.Q4_1, finetuned: bool = False, said: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}), **more: Any,
) -> Path:  # fmt: skip
    """A GGUF file of transformers' random Llama, with metadata of every type."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint(folder / "source", **changes))
    metadata = {
        "general.name": "näme",
        "general.tags": ["a", "b"],
        "general.numbers": [1.5, 2.5],
        "general.flag": True,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 1.0,
        "llama.rope.scaling.finetuned": finetuned,
        **(said or {}),
    }
    return write_gguf(folder / "source.gguf", model.config, model.state_dict(), kind=kind, metadata=metadata, **more)


@pytest.mark.parametrize("kind", [KINDS.Q4_1, KINDS.Q8_0, KINDS.F16])
def test_weights_are_copied_bit_by_bit(kind: KINDS, tmp_path: Path) -> None:
    """Every tensor's bytes, its name, shape and type, and every key but those of the rope stay as they are."""
    source = source_file(tmp_path, kind)
    made = written(source, tmp_path)
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(made)
    assert [(t.name, t.tensor_type, t.shape.tolist()) for t in new.tensors] == [
        (t.name, t.tensor_type, t.shape.tolist()) for t in old.tensors
    ]
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert before.data.tobytes() == after.data.tobytes()
    kept, changed = fields(source), fields(made)
    ours = {"llama.context_length": 64, "llama.rope.freq_base": 10000.0, "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 16,
            "llama.rope.scaling.finetuned": False, "ropewalk.version": __version__}  # fmt: skip
    assert {key: changed[key] for key in ours} == ours
    assert {key: value for key, value in changed.items() if key not in ours} == {
        key: value for key, value in kept.items() if key not in ours
    }
    types = {name: field.types for name, field in new.fields.items()}
    assert all(types[name] == field.types for name, field in old.fields.items())


def test_strings_that_are_no_utf8_and_another_alignment_are_kept(tmp_path: Path) -> None:
    """Bytes are not decoded on the way."""
    path = tmp_path / "odd.gguf"
    base = source_file(tmp_path)
    old = gguf.GGUFReader(base)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    for key, value in fields(base).items():
        if key.startswith("llama."):
            kinds = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
            kinds[type(value)](key, value)
    writer.add_array("general.odd", [b"\xff\xfe", b"ok"])
    for tensor in old.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    new = gguf.GGUFReader(written(path, tmp_path))
    odd = new.fields["general.odd"]
    assert [bytes(odd.parts[index]) for index in odd.data] == [b"\xff\xfe", b"ok"]
    assert new.alignment == 128
    assert all(a.data.tobytes() == b.data.tobytes() for a, b in zip(old.tensors, new.tensors, strict=True))


def test_a_method_that_changes_nothing_keeps_the_keys(tmp_path: Path) -> None:
    """`as-is` of a file with its own scaling and divisors: the same content."""
    divisors = {"rope_freqs.weight": torch.tensor([1.0, 1.0, 3.0, 4.0])}
    source = source_file(tmp_path, finetuned=True, extra=divisors)
    made = written(source, tmp_path, method="as-is")
    assert fields(made) == fields(source) | {"ropewalk.version": __version__}
    apply(made, tmp_path / "again.gguf", method="as-is")
    assert fields(tmp_path / "again.gguf") == fields(made)
    tensors = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(made).tensors}
    assert tensors == {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(source).tensors}


@pytest.mark.parametrize("method", SAID)
def test_every_method_that_a_file_can_say(method: str, tmp_path: Path) -> None:
    """Read back, the file gives the logits of the method, shorter than the trained length and up to the target."""
    read, _ = load_gguf(
        written(source_file(tmp_path, KINDS.F32, changes=LOW_THETA.get(method, {})), tmp_path, method=method)
    )
    model = extended(tmp_path / "source", method)
    with torch.no_grad():
        for tokens in LENGTHS:
            ids = token_ids(tokens)
            torch.testing.assert_close(read(ids).logits, model(ids, seq_len=tokens), rtol=0, atol=2e-4)


def test_longrope_with_two_lists(tmp_path: Path) -> None:
    """Both lists stay llama.cpp's tensors, with the length between them."""
    lists = {"rope_factors_short.weight": (1.0, 1.1, 1.3, 1.6), "rope_factors_long.weight": (1.5, 2.0, 3.0, 4.0)}
    extra = {name: torch.tensor(divisors) for name, divisors in lists.items()}
    said = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.original_context_length": 8}
    source = source_file(tmp_path, finetuned=True, extra=extra, said=said)
    made = gguf.GGUFReader(written(source, tmp_path, method="plain"))
    found = {tensor.name: tensor.data.tolist() for tensor in made.tensors if tensor.name in lists}
    assert found == {name: pytest.approx(divisors) for name, divisors in lists.items()}
    keys = fields(tmp_path / "longer.gguf")
    assert (keys["llama.rope.scaling.type"], keys["llama.rope.scaling.original_context_length"]) == ("longrope", 8)
    assert keys["llama.rope.scaling.finetuned"] is True


@pytest.mark.parametrize(("method", "words"), [("dynamic", "when it starts"), ("rerope", "inside attention")])
def test_what_no_file_can_say_is_refused(method: str, words: str, tmp_path: Path) -> None:
    """Before anything is written."""
    source = source_file(tmp_path)
    with pytest.raises(RopeError, match=words):
        written(source, tmp_path, method=method)
    assert not (tmp_path / "longer.gguf").exists()


def test_a_folder_goes_through_the_converter(tmp_path: Path) -> None:
    """The command is printed. tests/serving/answers.csv has what no file of an architecture expresses."""
    with pytest.raises(RopeError, match=r"(?s)written only as a copy.*convert_hf_to_gguf\.py \S+tiny --outfile"):
        written("tiny", tmp_path)


def test_places(tmp_path: Path) -> None:
    """A file that exists, and the source itself."""
    source = source_file(tmp_path)
    made = written(source, tmp_path)
    with pytest.raises(RopeError, match="exists already"):
        written(source, tmp_path)
    before = made.read_bytes()
    assert b"ropewalk.version" in before[:96]  # the start says who wrote it, however long a tokenizer follows
    apply(source, made, method="pi", target=TARGET, overwrite=True)
    assert made.read_bytes() != before
    with pytest.raises(RopeError, match="is the model itself"):
        apply(source, source, method="pi", target=TARGET, overwrite=True)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """A failure half-way leaves nothing, and an earlier file as it was."""
    source = source_file(tmp_path)
    made = written(source, tmp_path)
    before, names = made.read_bytes(), sorted(path.name for path in tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(RopeError, match="too large"):
            apply(source, made, method="pi", target=TARGET, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert made.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == names
