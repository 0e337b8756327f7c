"""`load` and `save`: folders of decoders and text classifiers, in safetensors files, and the dtype to load them in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.atomic_io import as_path, read_json, whole_folder, write_json
from ropewalk.checkpoints.sources import CLASSIFIER, NATIVE, find, no_safetensors
from ropewalk.errors import RopeError, check_kind, library_errors
from ropewalk.imports import need
from ropewalk.precision import is_slow, memory_for, name_of, slow_dtype, warn_if_slow
from ropewalk.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from ropewalk.models.classifier import TextClassifier
    from ropewalk.models.decoder import Decoder

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_FILES = frozenset((_SINGLE, "config.json", "generation_config.json", *_TOKENIZER_FILES))
_ANGLES = "rotary_emb.inv_freq"  # a buffer of old Llama checkpoints; the config is more exact
_CURE = "Use config and weights of one model, and fetch the file again if it is damaged."


def load(source: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Any:
    """Load a `Decoder` or `TextClassifier` in eval mode, with its tokenizer.

    **Arguments:**
    - `source`: a folder in Llama's layout (config.json and model.safetensors, single or sharded), a folder that `save`
      wrote, a model of the hub as OWNER/NAME, or the built-in "tiny". transformers loads all others.
    - `dtype`: of the weights. None keeps what a folder stores (the widest, if it stores several), except that float32
      replaces bfloat16 and float16 if this CPU multiplies them slowly; a warning names both. A slow dtype that you
      name is kept, with a warning.

    Weights are half-split as in Hugging Face's files. They are memory-mapped by safetensors: a tensor that needs no
    conversion is never copied, and others are converted one by one. Do not overwrite a file in place while it is
    mapped; `save` never does. Nothing is unpickled, and a checkpoint's own code (`auto_map`) is never run.

    **Raises:** `RopeError`, with the name of the file or tensor, if it is missing, truncated, unexpected or of a wrong
    shape, or if the architecture is unknown.

    >>> load("no/such/folder")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: load: no such file or folder.
    """
    path = find(source)
    if dtype not in (None, *FLOATS):
        raise RopeError(
            "load: `dtype` must be a floating dtype of torch, or None.",
            facts={"dtype": dtype},
            cure="Pass for example torch.bfloat16, or None to keep the stored dtype.",
        )
    if path.is_file() and path.suffix != ".json":
        raise RopeError(
            "load: rw.Decoder reads folders, and this is a file.",
            facts={"file": str(path)},
            cure="transformers computes it: ropewalk.checkpoints.opening.load_gguf(path) returns model and tokenizer.",
        )
    from ropewalk.checkpoints.decoder_config import classifier_from_json, config_from_hf
    from ropewalk.models.classifier import TextClassifier
    from ropewalk.models.decoder import Decoder

    file = path if path.is_file() else path / "config.json"
    content = read_json(file)
    classifies = content.get("model_type") == CLASSIFIER
    config = (classifier_from_json if classifies else config_from_hf)(content, str(file))
    chosen = fast_dtype_or_warn(path, "load") if dtype is None else dtype
    stored = {name.removeprefix("model."): tensor for name, tensor in stored_tensors(file.parent).items()}
    head, embedding = stored.get("lm_head.weight"), stored.get("embed_tokens.weight")
    if content.get("tie_word_embeddings") and head is not None:
        if embedding is not None and not torch.equal(head, embedding):
            raise RopeError(
                "load: the config ties the head to the embedding, but the checkpoint contains a separate head.",
                facts={"folder": str(path), "tensor": "lm_head.weight"},
                cure="Set tie_word_embeddings to false in config.json to use that head.",
            )
        del stored["lm_head.weight"]
    model = _filled(TextClassifier if classifies else Decoder, config, stored, chosen, str(path))
    if dtype is not None:
        warn_if_slow(model, "load")
    if (file.parent / "tokenizer.json").is_file():
        model.tokenizer = TextTokenizer.from_folder(file.parent)
    return model


def save(
    model: Decoder | TextClassifier,
    folder: str | os.PathLike[str],
    *,
    tokenizer: TextTokenizer | None = None,
) -> None:
    """Write a model as a folder for `load`, atomically. transformers also loads a decoder's folder.

    **Arguments:**
    - `folder`: created, or replaced in one step if it contains only a checkpoint.
    - `tokenizer`: saved in the same folder; defaults to `model.tokenizer`.

    A decoder's interleaved heads are written half-split, as in Llama: the same function with its
    rows in a different order. A decoder that Llama cannot express (windows, two thetas, partial
    rotary, a rope without a Hugging Face form) is written unchanged with `model_type` "ropewalk", which `load` supports
    and transformers does not. Weights keep their dtype.

    **Raises:** `RopeError` if the folder contains other files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(load("tiny"), folder + "/copy")
    ...     sorted(path.name for path in Path(folder, "copy").glob("*.safetensors"))
    ['model.safetensors']
    """
    from ropewalk.checkpoints.decoder_config import classifier_to_json
    from ropewalk.models.classifier import TextClassifier

    place = as_path(folder, "save")
    check_kind("save", torch.nn.Module, "Pass the model first: save(model, folder).", model=model)
    chosen: TextTokenizer | None = model.tokenizer if tokenizer is None else tokenizer
    if isinstance(model, TextClassifier):
        content, weights = classifier_to_json(model.config), model.state_dict()
    else:
        content, weights = hugging_face_form(model, chosen)
    with whole_folder(place, _FILES) as staging:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        need("safetensors.torch").save_file(plain, staging / _SINGLE, metadata={"format": "pt"})
        write_json(staging / "config.json", content)
        if chosen is not None:
            chosen.save(staging)
            ids = {key: content[key] for key in ("bos_token_id", "eos_token_id") if key in content}
            if ids:
                write_json(staging / "generation_config.json", ids)


def hugging_face_form(model: Decoder, tokenizer: TextTokenizer | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the weights by their names in a file: of Llama if it can express the model.

    Interleaved heads are re-ordered to half-split for that. Special ids are null where there are none: transformers
    would use its family's defaults.
    """
    from ropewalk.checkpoints.decoder_config import config_to_hf, half_split
    from ropewalk.rope.pairing import convert_pairing

    config, weights = model.config, dict(model.state_dict())
    half = half_split(config)
    if half != config and config_to_hf(half)["model_type"] != NATIVE:
        for layer, (old, new) in enumerate(zip(config.ropes, half.ropes, strict=True)):
            if old != new and old is not None:
                start = f"layers.{layer}.self_attn."
                own = {name: tensor for name, tensor in weights.items() if name.startswith(start)}
                weights |= convert_pairing(own, to="half", config={"model_type": "llama", "head_dim": old.head_dim})
        config = half
    content, ends = config_to_hf(config), [] if tokenizer is None else list(tokenizer.eos_ids)
    content |= {
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": None,
        "dtype": name_of(model.embed_tokens.weight.dtype),
    }
    prefix = "" if content["model_type"] == NATIVE else "model."
    return content, {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in weights.items()}


# safetensors files


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raise `RopeError` with its name if it is damaged, also from reading in the block."""
    rule = "load: a safetensors file cannot be read: it is truncated or damaged."
    with library_errors(rule, facts={"file": str(path), "bytes": path.stat().st_size}, cure="Fetch the file again."):
        yield need("safetensors").safe_open(path, framework="pt")


def check_layers(layers: object, tensors: int, where: str) -> None:
    """Raise `RopeError` for more layers than tensors, before a damaged number of layers is built."""
    if isinstance(layers, int) and layers > tensors:
        facts = {"checkpoint": where, "tensors": tensors, "num_hidden_layers": layers}
        raise RopeError("load: tensors are missing from the checkpoint.", facts=facts, cure=_CURE)


def check_weights(folder: Path, layers: object) -> None:
    """Raise `RopeError` for a damaged index or header, and for fewer tensors than layers, before a library fails."""
    count = 0
    for path, wanted in _shards(folder).items():
        with open_safetensors(path) as file:
            count += len(_names(path, file, wanted))
    check_layers(layers, count, str(folder))


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files, without tables of angles: views of the mapped files."""
    stored, ours = dict[str, Tensor](), set[str]()
    for path, wanted in _shards(folder).items():
        with open_safetensors(path) as file:
            for name in _names(path, file, wanted):
                if name.removeprefix("model.") in ours:
                    facts, cure = {"file": str(path), "tensor": name}, "Keep the files of one checkpoint in the folder."
                    raise RopeError("load: a tensor is stored twice.", facts=facts, cure=cure)
                ours.add(name.removeprefix("model."))
                if not name.endswith(_ANGLES):
                    stored[name] = file.get_tensor(name)
    return stored


def _names(path: Path, file: Any, wanted: set[str] | None) -> list[str]:
    """Return the names of the tensors to take from an open file; raise `RopeError` if it lacks one in the index."""
    names = {*file.keys()} if wanted is None else wanted
    missing = sorted(names - {*file.keys()})
    if missing:
        rule = "load: the index names a tensor that is missing from its file."
        raise RopeError(rule, facts={"file": str(path), "tensor": missing[0]}, cure="Fetch the file again.")
    return sorted(names)


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Return the weight files of a folder and the tensors to take from each (None: all)."""
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: None}
    file = folder / _INDEX
    if not file.is_file():
        raise no_safetensors(folder)
    index = read_json(file).get("weight_map")
    if not (isinstance(index, dict) and index and all(isinstance(name, str) for name in index.values())):
        cure = "Download the index file again."
        raise RopeError(
            "load: the index has no `weight_map` of tensors to file names.", facts={"file": str(file)}, cure=cure
        )
    shards: dict[Path, set[str] | None] = {}
    for shard in sorted(set(index.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise RopeError(
                "load: a shard in the index is missing from the folder.",
                facts={"file": str(file), "shard": shard},
                cure="Fetch the file into the folder of its index.",
            )
        shards[folder / shard] = {name for name, place in index.items() if place == shard}
    return shards


def _filled(
    kind: Callable[[Any], nn.Module], config: Any, stored: Mapping[str, Tensor], dtype: torch.dtype | None, where: str
) -> Any:
    """Return a module in eval mode with the stored tensors, all checked before any is converted."""
    check_layers(config.num_hidden_layers, len(stored), where)
    facts: dict[str, Any] = {"checkpoint": where}
    rule = "load: no model has the sizes of the config."
    with library_errors(rule, facts=facts, cure=_CURE), torch.device("meta"), WithoutValues():
        wanted = (model := kind(config)).state_dict()
    shapes = {name: (tuple(stored[name].shape), tuple(wanted[name].shape)) for name in wanted.keys() & stored.keys()}
    check_tensors(
        where,
        _CURE,
        missing_keys=wanted.keys() - stored.keys(),
        mismatched_keys=[(name, *pair) for name, pair in shapes.items() if pair[0] != pair[1]],
        unexpected_keys=stored.keys() - wanted.keys(),
    )
    for name, tensor in stored.items():
        if tensor.dtype not in FLOATS:
            raise RopeError(
                "load: a weight is not stored in a plain floating type.",
                facts={**facts, "tensor": name, "dtype": tensor.dtype},
                cure="Use an unquantised checkpoint, or a GGUF file.",
            )
    dtype = dtype or reduce(torch.promote_types, {tensor.dtype for tensor in stored.values()})
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in stored.items()}, assign=True)
    return model.eval()


def check_tensors(where: str, cure: str, **wrong: Iterable[object]) -> None:
    """Raise `RopeError` for tensors of a checkpoint that are missing, unknown, or of another shape than its model's."""
    named = {key: sorted(map(str, names))[:8] for key, names in wrong.items() if names}
    if named:
        raise RopeError(
            "load: tensors of the checkpoint are missing or unknown, or their shapes differ from its config.",
            facts={"checkpoint": where, **named},
            cure=cure,
        )


class WithoutValues(TorchFunctionMode):
    """A mode that skips random initialization, which has no effect on meta and makes torch import dynamo."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


# The learned tensor of a rotation


def read_alpha(folder: str | os.PathLike[str]) -> tuple[float, ...]:
    """Return LeRoPE's `alpha`, the learned logarithm of each frequency's factor, from a checkpoint's weights.

    **Arguments:** `folder`: with safetensors files, one with the tensor `rotary_emb.alpha` (transformers) or
    `lerope.alpha` (Mistral's own format). Other tensors are not loaded.

    **Returns:** one number for each pair, for `RopeConfig.from_hf(folder, alpha=...)`.
    **Raises:** `RopeError` if there is no such tensor, or more than one.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"model.rotary_emb.alpha": torch.tensor([0.5, -0.25])}, Path(folder) / "model.safetensors")
    ...     read_alpha(folder)
    (0.5, -0.25)
    """
    files, endings = sorted(Path(folder).glob("*.safetensors")), ("rotary_emb.alpha", "lerope.alpha")
    if not files:
        raise no_safetensors(Path(folder))
    found: list[tuple[str, Tensor]] = []
    for path in files:
        with open_safetensors(path) as file:
            found += [(name, file.get_tensor(name)) for name in file.keys() if f".{name}".endswith(endings)]  # noqa: SIM118
    if len(found) != 1:
        raise RopeError(
            "read: a checkpoint with a learned rotation must have exactly one such tensor.",
            facts={"folder": str(folder), "endings": endings, "found": [name for name, _ in found]},
            cure="Fetch every weight file of one checkpoint into one folder.",
        )
    return tuple(found[0][1].double().flatten().tolist())


# The dtype of a folder


def stored_dtype(path: Path) -> torch.dtype | None:
    """Return the dtype of a folder's weights; None for a GGUF file, quantized weights, and files that are damaged.

    For families of other libraries this is the dtype in config.json, which transformers takes, if there is one.

    >>> stored_dtype(find("tiny"))
    torch.bfloat16
    """
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {"quantization_config": None}
    if "quantization_config" in config:
        return None
    named = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
    if config.get("model_type") not in ("llama", NATIVE, CLASSIFIER) and isinstance(named, torch.dtype):
        return named
    plain = {tensor.dtype for tensor in _readable(path)} & {*FLOATS}
    return reduce(torch.promote_types, plain) if plain else None


def fast_dtype_or_warn(path: Path, call: str) -> torch.dtype | None:
    """Return the dtype in which to load a checkpoint: None, the stored one, or float32 in place of a slow one.

    If the CPU multiplies the stored dtype slowly and memory suffices, it is float32. A warning in the name of a call
    states which it is, but for "tiny", an example.
    """
    stored = stored_dtype(path)
    if stored is None or not slow_dtype(stored, "cpu"):
        return None
    missing = memory_for(sum(tensor.numel() for tensor in _readable(path)))
    sentence = f"Computed in float32: {is_slow(stored)}."
    if missing is not None:
        sentence = f"Computed in {name_of(stored)}: float32 is several times faster on this CPU, but {missing}."
    if path != find("tiny"):
        warnings.warn(f"{call}: {path.name}: {sentence} Pass `dtype` to choose.", stacklevel=3)
    return torch.float32 if missing is None else None


def _readable(folder: Path) -> list[Tensor]:
    """Return the tensors of a folder; none if its files are damaged, which the loader reports."""
    try:
        return list(stored_tensors(folder).values())
    except RopeError:
        return []
