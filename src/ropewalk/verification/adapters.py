"""The engines for `verify`: transformers, llama.cpp, or a server at a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.checkpoints.load import fast_dtype_or_warn
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.layers.precision import warn_if_slow
from ropewalk.layers.tokenizer import TextTokenizer
from ropewalk.verification.engine import TOP, Engine, NextTokens, TokenTexts, TooLong
from ropewalk.verification.openai_engine import OpenAIEngine

CONTEXT = 8192  # tokens of a llama.cpp server's context


def open_engine(
    engine: object, model: str | Path, token_texts: TokenTexts | TextTokenizer, *, served_name: str | None = None
) -> AbstractContextManager[Engine]:
    """Open an engine for a `with` block.

    **Arguments:**
    - `engine`: a URL ("http://localhost:8000", with or without "/v1"), "transformers", "llama.cpp", a live transformers
      model, or an `Engine`.
    - `model`: the checkpoint for "transformers" and "llama.cpp".
    - `token_texts`: texts of the model's tokens, for servers that return only text.
    - `served_name`: the model's name on the server. Defaults to the first in its list.

    **Raises:** `RopeError` for an unknown engine, or if the engine cannot be opened.
    """
    if isinstance(engine, str) and engine.lower().startswith(("http://", "https://")):
        return nullcontext(OpenAIEngine(engine, token_texts, model=served_name))
    if engine == "transformers":
        return nullcontext(TransformersEngine.load(model))
    if engine == "llama.cpp":
        return llama_cpp_server(model, token_texts)
    if isinstance(engine, nn.Module) and hasattr(getattr(engine, "config", None), "to_dict"):
        warn_if_slow(engine, "verify: the engine")
        return nullcontext(TransformersEngine(engine))
    if isinstance(engine, Engine):
        return nullcontext(engine)
    raise RopeError(
        "verify: unknown engine.",
        facts={"engine": engine},
        cure='Pass the URL of a server ("http://localhost:8000"), "transformers" or "llama.cpp".',
    )


class TransformersEngine:
    """A causal language model of transformers in this process; see `ropewalk.verification.engine.Engine`.

    **Arguments:**
    - `model`: in eval mode, in its own dtype and on its own device.
    - `tokenizer`: transformers' own, or None.
    """

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str | Path) -> TransformersEngine:
        """Load a Hugging Face folder in the dtype of its weights, or in float32 if this CPU multiplies that slowly.

        Nothing is downloaded.

        **Raises:** `RopeError` for a file, or if transformers cannot load the folder.
        """
        path = find(source)
        transformers = need("transformers", extra="transformers")
        if not path.is_dir():
            raise RopeError(
                "verify: transformers needs a Hugging Face folder.",
                facts={"model": str(path)},
                cure="Pass the folder, or --engine llama.cpp for a .gguf file.",
            )
        from ropewalk.checkpoints.opening import load_live, quietly

        model, _ = load_live(path, fast_dtype_or_warn(path, "verify: the engine"), "cpu")
        with quietly():
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            except Exception:  # each class raises its own
                tokenizer = None
        return cls(model, tokenizer)

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids from transformers' tokenizer; None if there is no tokenizer."""
        if self.tokenizer is None:
            return None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens, from one forward pass without a cache."""
        ids = torch.tensor([list(input_ids)], device=self.model.device)
        try:
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        except torch.OutOfMemoryError as error:
            raise TooLong(
                "verify: the prompt does not fit the device's memory.",
                facts={"tokens": len(input_ids)},
                cure="Pass a smaller --max-tokens.",
            ) from error
        return NextTokens(_likeliest(logits), len(input_ids))

    @torch.inference_mode()
    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the likeliest tokens from the model's own `generate`, with its cache."""
        ids = torch.tensor([list(input_ids)], device=self.model.device)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, num_beams=1,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        new = out.sequences[0, ids.shape[1] :].tolist()
        return [NextTokens(_likeliest(logits[0]), token=token) for token, logits in zip(new, out.logits, strict=False)]


def _likeliest(logits: Tensor) -> dict[int, float]:
    """Return the log-probabilities of the likeliest tokens."""
    likely = logits.double().log_softmax(-1).topk(min(TOP, len(logits)))
    return dict(zip(likely.indices.tolist(), likely.values.tolist(), strict=True))


@contextmanager
def llama_cpp_server(
    source: str | Path,
    token_texts: TokenTexts | TextTokenizer,
    *,
    context: int = CONTEXT,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Engine]:
    """Start a llama.cpp server (of the package `xllamacpp`) with a .gguf file, on a free port.

    **Arguments:**
    - `token_texts`: the texts of the model's tokens, or its tokenizer.
    - `context`: tokens.
    - `threads`: defaults to torch's number.
    - `options`: further fields of llama.cpp's parameters, such as `rope_freq_base`, `rope_freq_scale`,
      `yarn_orig_ctx`. Defaults to the file's own rope.

    **Raises:** `RopeError` if the model is no .gguf file, if the package is missing, or if the server does not start.
    """
    path = find(source)
    if path.suffix != ".gguf":
        raise RopeError(
            "verify: llama.cpp needs a .gguf file.",
            facts={"model": str(path)},
            cure="Pass the file, or --engine transformers for a Hugging Face folder.",
        )
    xllamacpp = need("xllamacpp", extra="llama-cpp")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_parallel, settings.port = context, 1, 0
    settings.warmup, settings.verbosity = False, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads or torch.get_num_threads()
    for name, value in (options or {}).items():
        setattr(settings, name, value)
    try:
        server = xllamacpp.Server(settings)
    except RuntimeError as error:
        raise RopeError(
            "verify: llama.cpp does not start with this file.",
            facts={"model": path.name, "error": str(error)},
            cure="Check that this version of llama.cpp supports the architecture.",
        ) from error
    try:
        yield OpenAIEngine(server.listening_address, token_texts, name="llama.cpp", key="")
    finally:
        del server  # stops it
