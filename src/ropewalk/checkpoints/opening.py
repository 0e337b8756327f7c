"""Open readers: of loaded models, and of checkpoints from safetensors or GGUF, without remote code."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.load import check_tensors, check_weights, fast_dtype_or_warn, hugging_face_form
from ropewalk.checkpoints.reader import Reader, text_tokenizer
from ropewalk.checkpoints.sources import NATIVE, display_name, find
from ropewalk.errors import RopeError, library_errors
from ropewalk.imports import need
from ropewalk.precision import AUTO, computing_device, is_slow, memory_for, name_of, slow_dtype_of
from ropewalk.rope.config import RopeConfig
from ropewalk.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from ropewalk.models.decoder import Decoder


def reader_of(model: object, name: str | None = None) -> Reader:
    """Return the reader of a model of transformers, a pair (model, tokenizer), or a `Decoder`; `name`: in reports.

    A reader is returned unchanged. Raises `RopeError` for any other object.

    >>> from ropewalk.checkpoints.load import load
    >>> reader_of(load("tiny"), "tiny").name
    'tiny'
    """
    if isinstance(model, Reader):
        return model
    given, tokenizer = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
    given = given.get_base_model() if hasattr(given, "get_base_model") else given  # peft's adapters stay in it
    theirs = sys.modules.get("transformers")
    if theirs is None or not isinstance(given, theirs.PreTrainedModel):
        from ropewalk.checkpoints.decoder_config import half_split
        from ropewalk.models.decoder import Decoder

        if isinstance(model, Decoder):
            need("transformers", "transformers")
            return Reader(*as_transformers(model), name or "decoder").under(half_split(model.config).positions)
        raise RopeError(
            "readers: this object cannot be measured.",
            facts={"model": type(model).__name__},
            cure="Pass a model of transformers, a pair of it and its tokenizer, or a Decoder.",
        )
    return Reader(given, tokenizer, name)


def fast_copy(model: object) -> tuple[object, str | None]:
    """Return a float32 copy of a model, or of a pair's model, with a slow dtype on this CPU, and a sentence about it.

    The model itself is not changed. It is returned with None if its dtype is fast, and with a sentence if there is not
    enough memory for the copy.

    >>> from ropewalk.checkpoints.load import load
    >>> fast_copy(load("tiny", dtype=torch.float32))[1] is None
    True
    """
    if isinstance(model, tuple) and len(model) == 2:
        fast, sentence = fast_copy(model[0])
        return (model if fast is model[0] else (fast, model[1])), sentence
    slow = slow_dtype_of(model) if isinstance(model, nn.Module) else None
    if slow is None or not isinstance(model, nn.Module):
        return model, None
    weights = list(model.parameters())
    plain = all(type(weight) is nn.Parameter and weight.device.type == "cpu" for weight in weights)
    missing = memory_for(sum(weight.numel() for weight in weights if weight.is_floating_point()))
    if not plain or missing is not None:
        why = f"; a float32 copy {missing}" if plain else ""
        return model, f"Measured in {name_of(slow)}: {is_slow(slow)}, and float32 is several times faster{why}."
    wide: dict[int, Any] = {  # so that no weight is copied in its own dtype
        id(weight): nn.Parameter(weight.detach().float().clone(), requires_grad=weight.requires_grad)
        for weight in weights
        if weight.is_floating_point()
    }
    wide |= {  # frequencies that a cast has rounded stay as they are: `attach` replaces them by their dtype
        id(buffer): buffer.detach().float().clone()
        for name, buffer in model.named_buffers()
        if buffer.dtype in (torch.bfloat16, torch.float16) and "inv_freq" not in name
    }
    tokenizer = getattr(model, "tokenizer", None)  # shared: not every tokenizer can be copied
    other = copy.deepcopy(model, {**wide, id(tokenizer): tokenizer})
    config: Any = getattr(other, "config", None)
    if hasattr(config, "to_json_string"):  # transformers'
        config.dtype = torch.float32
    return other, f"Measured in a float32 copy: {is_slow(slow)}."


def open_reader(
    source: str | Path,
    *,
    name: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Reader:
    """Return the reader of a checkpoint: a Hugging Face folder, a .gguf file, a model of the hub, or "tiny".

    transformers computes the model, with our exact rotation and our attention kernel attached.

    **Arguments:**
    - `name`: in reports; defaults to that of the file or folder. `dtype`: None is that of `load`.
    - `device`: where to compute. "auto" spreads the layers of a large model over this machine's devices (transformers'
      `device_map`, which needs accelerate).

    **Raises:** `RopeError` for a device that cannot be used, and for a checkpoint as `load_live` does.
    """
    path, spread = find(source), device == AUTO
    if spread and path.is_file():
        raise RopeError(
            "readers: several devices need a Hugging Face folder.",
            facts={"path": str(path), "device": device},
            cure='Pass a folder, or one device, such as "cpu".',
        )
    if computing_device(device).type == "cpu" and dtype is None:
        dtype = fast_dtype_or_warn(path, "open_reader")
    need("transformers", "transformers")
    return reader_of(load_live(path, dtype, device), name or display_name(source, path))


def load_live(path: Path, dtype: torch.dtype | None, device: torch.device | str) -> tuple[Any, TextTokenizer | None]:
    """Return the transformers model of a folder or a GGUF file in eval mode, and its tokenizer, or None.

    `dtype` None: the stored dtype of a folder, and float32 for GGUF. `device`: as for `open_reader`.

    **Raises:** `RopeError` for an architecture that is not in transformers, for the checkpoint's own code, for pickled
    weights, and for missing or misshapen weights, which transformers would replace by random numbers.
    """
    if path.is_file():
        model, tokenizer = load_gguf(path, dtype or torch.float32)
        return model.to(device), tokenizer
    config = config_of(path)
    check_weights(path, getattr(config.get_text_config(decoder=True), "num_hidden_layers", None))
    stored = "auto" if dtype is None else dtype
    options = {"dtype": stored, "use_safetensors": True, **({"device_map": device} if device == AUTO else {})}
    model = _loaded(path, config, str(path), None, **options).eval()
    return model if device == AUTO else model.to(device), _tokenizer_of(path, model)


def load_gguf(source: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> tuple[Any, TextTokenizer | None]:
    """Return the transformers model of a GGUF file in eval mode, with the file's rope, and its tokenizer, or None.

    Raises `RopeError` for an unknown architecture or metadata, and for missing or misshapen tensors.
    """
    from ropewalk.checkpoints.gguf import gguf_config, gguf_tensors, gguf_tokenizer
    from ropewalk.checkpoints.gguf_file import GGUFFile

    with quietly():
        file = GGUFFile(source)
        config = gguf_config(file)
    model = _loaded(None, config, str(file.path), lambda: gguf_tensors(file, config, dtype), dtype=dtype)
    return model.eval(), gguf_tokenizer(file)


def as_transformers(model: Decoder) -> tuple[Any, TextTokenizer | None]:
    """Return a decoder as transformers' Llama, with the same weights, and its tokenizer.

    Positions that no config describes are left out: it has no extension, and one unscaled rope if layers differ.

    Raises `RopeError` for a decoder that no config of Llama's layout describes.
    """
    rope, forms = next((rope for rope in model.config.ropes if rope is not None), None), [model]
    if rope is not None:
        plain = RopeConfig(rope.head_dim, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim,
                           max_position_embeddings=rope.max_position_embeddings)  # fmt: skip
        model = model.with_positions(extension=None)
        forms = [model, model.with_positions(rope=(plain,) * model.config.num_hidden_layers)]
    for form in forms:
        content, tensors = hugging_face_form(form, model.tokenizer)
        if content["model_type"] != NATIVE:
            break
    else:
        config = model.config
        raise RopeError(
            "readers: only decoders in Llama's layout can be measured.",
            facts={"encoding": config.encoding, "sliding_window": config.sliding_window},
            cure="Use one rope, without windows.",
        )
    built = need("transformers", "transformers").CONFIG_MAPPING[content["model_type"]](**content)
    weights = {name: weight.detach() for name, weight in tensors.items()}
    live = _loaded(None, built, "the decoder", lambda: weights, dtype=model.embed_tokens.weight.dtype)
    return live.to(model.embed_tokens.weight.device).eval(), model.tokenizer


def config_of(folder: Path) -> Any:
    """Return the transformers config of a folder; raise `RopeError` if transformers has no such architecture."""
    content, kit = read_json(folder / "config.json"), need("transformers", "transformers")
    model_type = content.get("model_type")
    if not isinstance(model_type, str) or model_type not in kit.CONFIG_MAPPING:
        own = ", and ropewalk never runs the code named in the config" if content.get("auto_map") else ""
        raise RopeError(
            f"load: unknown architecture{own}.",
            facts={"file": str(folder / "config.json"), "model_type": model_type, "transformers": kit.__version__},
            cure="Try a newer transformers: neither ropewalk nor this release supports it.",
        )
    facts = {"file": str(folder / "config.json")}
    with library_errors(
        "load: transformers rejects the config.", facts=facts, cure="Correct it, or download it again."
    ):
        return kit.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _loaded(
    folder: Path | None,
    config: Any,
    where: str,
    tensors: Callable[[], Mapping[str, torch.Tensor]] | None,
    **options: Any,
) -> Any:
    """Return the model from transformers' own loader, with every tensor checked; `where` names it in errors.

    `tensors`: returns the weights, without a copy, if they are not those of the folder.
    """
    kit = need("transformers")
    rule = "load: transformers cannot load this checkpoint as a causal language model."
    cure = "Load it yourself, and pass the model with its tokenizer: rw.doctor(model, tokenizer=...)."
    with quietly(), library_errors(rule, facts={"checkpoint": where, "model_type": config.model_type}, cure=cure):
        options |= {"config": config, "local_files_only": True, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # they are named below
        if tensors is None:
            model, report = kit.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **options)
        else:
            kind = kit.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            model, report = kind.from_pretrained(None, state_dict=tensors(), **options)
    own = tensors is None  # transformers fills the wrong ones with random numbers
    check_tensors(
        where,
        "Download it again, or correct its config.json."
        if own
        else "Fetch the file again, or use the model's Hugging Face folder.",
        **{key: report.get(key, ()) for key in ("missing_keys", "mismatched_keys")},
        unexpected_keys=() if own else report.get("unexpected_keys", ()),
    )
    return model


def _tokenizer_of(folder: Path, model: Any) -> TextTokenizer | None:
    """Return the tokenizer of a folder: from its tokenizer.json, else converted by transformers, else None."""
    if (folder / "tokenizer.json").is_file():
        return TextTokenizer.from_folder(folder)
    kit = need("transformers")
    try:
        made = kit.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each class raises its own
        if any(folder.glob("*token*")):
            reason = f"{type(error).__name__}: {error}".strip()[:400]
            warnings.warn(f"load: transformers cannot load the tokenizer in {folder}: {reason}", stacklevel=2)
        return None
    return text_tokenizer(made, model)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' progress bars and loading reports inside the block; our errors contain the facts."""
    logging = need("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
