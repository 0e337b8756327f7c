"""Load a checkpoint with transformers, from safetensors or GGUF, never remote code; and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.gguf import foreign_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_tokenizer import tokenizer_from_metadata
from ropewalk.checkpoints.tokenizer import TextTokenizer, has_token
from ropewalk.errors import RopeError
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need


def text_tokenizer(tokenizer: Any, model: Any) -> Tokenizer | None:
    """A tokenizer of transformers (with a fast backend), of `tokenizers`, or of ours; None stays None.

    Raises `RopeError` for one without a fast backend: its tokenizer.json is what can be read here.
    """
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    kit = need("tokenizers").Tokenizer
    backend = tokenizer if isinstance(tokenizer, kit) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, kit):
        raise RopeError(
            "transformers: this tokenizer has no fast form, and only that is used here.",
            facts={"tokenizer": type(tokenizer).__name__},
            cure="Load it by AutoTokenizer from a folder with a tokenizer.json.",
        )
    own = kit.from_str(backend.to_str())
    own.no_truncation()
    own.no_padding()
    ends = [_first(model, "eos_token_id"), getattr(tokenizer, "eos_token_id", None)]
    begins = [getattr(tokenizer, "bos_token_id", None), _first(model, "bos_token_id")]
    known = [[one for one in _listed(found) if has_token(one, own)] for found in (*ends, *begins)]
    template = getattr(tokenizer, "chat_template", None)
    return TextTokenizer(
        own,
        next((found[0] for found in known[2:] if found), None),
        next((found for found in known[:2] if found), []),
        chat_template=template if isinstance(template, str) else None,
    )


def _first(model: Any, key: str) -> Any:
    """A model's own id, or ids: its generation config's, or else its config's."""
    holders = (getattr(model, "generation_config", None), model.config.get_text_config(decoder=True), model.config)
    return next((found for holder in holders if (found := getattr(holder, key, None)) is not None), None)


def _listed(value: Any) -> list[int]:
    return [int(one) for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]


def load_live(path: Path, dtype: torch.dtype | None, device: torch.device | str) -> tuple[Any, Tokenizer | None]:
    """The transformers model of a folder or a GGUF file in eval mode, and its tokenizer, or None.

    - `dtype`: of the weights; None keeps what a folder stores, and gives float32 for GGUF.

    Raises `RopeError` for an architecture that transformers does not have, code of the checkpoint's own, pickled
    weights, and weights that are missing or of another shape, which transformers would fill with random numbers.
    """
    if path.is_file():
        model = _of_gguf(path, dtype).to(device).eval()
        metadata = GGUFFile(path).metadata
        return model, tokenizer_from_metadata(metadata, str(path)) if "tokenizer.ggml.model" in metadata else None
    model = _of_folder(path, config_of(path), dtype).to(device).eval()
    return model, _tokenizer_of(path, model)


def load_spread(folder: Path, dtype: torch.dtype | None, **options: Any) -> tuple[Any, Tokenizer | None]:
    """As `load_live`, on the devices that `device_map` or `tp_plan` give the model of a folder."""
    model = _of_folder(folder, config_of(folder), dtype, **options).eval()
    return model, _tokenizer_of(folder, model)


def config_of(folder: Path) -> Any:
    """The transformers config of a folder. Raises `RopeError` where transformers has no such architecture."""
    content, kit = read_json(folder / "config.json"), need("transformers", "transformers")
    model_type = content.get("model_type")
    if model_type not in kit.CONFIG_MAPPING:
        own = content.get("auto_map")
        raise RopeError(
            "load: unknown architecture, and the code that the config names for it is never run here."
            if own
            else "load: unknown architecture.",
            facts={"file": str(folder / "config.json"), "model_type": model_type, "transformers": kit.__version__},
            cure="Neither ropewalk nor this release of transformers builds it: a later one may.",
        )
    try:
        return kit.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each class raises its own
        raise RopeError(
            "load: transformers refuses the config.",
            facts={"file": str(folder / "config.json"), "error": str(error)},
            cure="Correct it, or download it again.",
        ) from error


def _of_folder(folder: Path, config: Any, dtype: torch.dtype | None, **options: Any) -> Any:
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        raise RopeError(
            "load: the folder holds pickled weights alone, and pickles are refused: reading one can run any code."
            if pickled
            else "load: the folder holds no weights.",
            facts={"folder": str(folder), "files": pickled},
            cure="Where you trust them: transformers.AutoModelForCausalLM.from_pretrained(FOLDER)"
            ".save_pretrained(NEW_FOLDER)."
            if pickled
            else "Put model.safetensors beside config.json.",
        )
    stored = "auto" if dtype is None else dtype
    return _loaded(folder, config, str(folder), dtype=stored, use_safetensors=True, **options)


def _of_gguf(path: Path, dtype: torch.dtype | None) -> Any:
    with quietly():
        config = foreign_config(path)
    return _loaded(path.parent, config, str(path), dtype=dtype or torch.float32, gguf_file=path.name)


def _loaded(folder: Path, config: Any, where: str, **options: Any) -> Any:
    """The model by transformers' own loader, every tensor from the checkpoint; `where` names it in errors."""
    kit = need("transformers")
    try:
        with quietly():
            model, report = kit.AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except (ValueError, KeyError, TypeError, OSError, RuntimeError, ImportError) as error:
        raise RopeError(
            "load: transformers cannot load this checkpoint as a causal language model.",
            facts={"checkpoint": where, "model_type": config.model_type, "error": str(error).strip()[:400]},
            cure="Load it yourself, and pass the model with its tokenizer: rw.doctor(model, tokenizer=...).",
        ) from error
    refuse_incomplete(report, where)
    return model


def refuse_incomplete(report: Any, where: str) -> None:
    """Raise `RopeError` where weights are missing or of another shape: transformers draws them at random."""
    wrong = {key: sorted(map(str, report.get(key, ())))[:8] for key in ("missing_keys", "mismatched_keys")}
    wrong = {key: names for key, names in wrong.items() if names}
    if wrong:
        raise RopeError(
            "load: tensors are missing from the checkpoint, or have another shape than its config says.",
            facts={"checkpoint": where, **wrong},
            cure="Download it again, or correct its config.json.",
        )


def _tokenizer_of(folder: Path, model: Any) -> Tokenizer | None:
    """By its tokenizer.json; else as transformers makes a fast one; None where there is none."""
    if (folder / "tokenizer.json").is_file():
        return TextTokenizer.from_folder(folder)
    kit = need("transformers")
    try:
        made = kit.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError, ImportError):
        return None
    return text_tokenizer(made, model)


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' own progress bars and reports of loading, which are refused or repeated by ours."""
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
