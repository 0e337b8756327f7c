"""The engines for `verify`: a server at a URL, or a program that is started here. The former do not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.engine import WAIT, Engine, TokenTexts
from ropewalk.verification.openai_engine import OpenAIEngine

CONTEXT = 8192  # tokens of a llama.cpp server's context
STARTED = ("mlx", "onnx", "vllm")
"""Engines that run in a process of their own; with @PYTHON in the Python of a different environment."""
NEW = 16  # tokens that may be generated after the longest prompt
LOCAL = ("transformers", "llama.cpp", *STARTED)


def open_engine(
    engine: Any,
    model: str | Path,
    token_texts: TokenTexts | TextTokenizer,
    *,
    served_name: str | None = None,
    wait: float = WAIT,
    max_tokens: int = CONTEXT,
) -> AbstractContextManager[Engine]:
    """Open an engine for a `with` block.

    **Arguments:**
    - `engine`: a URL ("http://localhost:8000", with or without "/v1"), "transformers", "llama.cpp", one of `STARTED`, a
      live transformers model, or an `Engine`.
    - `model`: the checkpoint for engines that are started here.
    - `token_texts`: texts of the model's tokens, for servers that return only text.
    - `served_name`: the model's name on the server. Defaults to the first in its list.
    - `wait`: seconds for which a server that is not reached, or that is loading, is asked again.
    - `max_tokens`: the longest prompt, for an engine that fixes its context when it starts.

    **Raises:** `RopeError` for an unknown engine, or if the engine cannot be opened.
    """
    if isinstance(engine, str) and engine.lower().startswith(("http://", "https://")):
        return nullcontext(OpenAIEngine(engine, token_texts, model=served_name, wait=wait))
    if engine == "llama.cpp":
        return llama_cpp_server(model, token_texts)
    if engine == "transformers" or hasattr(getattr(engine, "config", None), "to_dict"):
        from ropewalk.precision import warn_if_slow
        from ropewalk.verification.transformers_engine import TransformersEngine

        if engine == "transformers":
            return nullcontext(TransformersEngine.load(model))
        warn_if_slow(engine, "verify: the engine")
        return nullcontext(TransformersEngine(engine))
    if isinstance(engine, str) and (name := engine.partition("@")[0]) in STARTED:
        return started_engine(name, model, python=engine.partition("@")[2] or None, max_tokens=max_tokens)
    if isinstance(engine, Engine):
        return nullcontext(engine)
    raise RopeError(
        "verify: unknown engine.",
        facts={"engine": engine},
        cure=f'Pass the URL of a server ("http://localhost:8000"), or one of {", ".join(LOCAL)}.',
    )


@contextmanager
def started_engine(
    name: str, source: str | Path, *, python: str | None = None, max_tokens: int = CONTEXT
) -> Iterator[Engine]:
    """Start an engine of `STARTED` with a Hugging Face folder, in float32.

    **Raises:** `RopeError` if the model is no folder, or if the engine is not installed or does not load it.
    """
    from ropewalk.checkpoints.opening import config_of
    from ropewalk.checkpoints.sources import find
    from ropewalk.rope.model_ropes import ModelRopes
    from ropewalk.verification.started_engine import StartedEngine

    path = find(source)
    if not path.is_dir():
        raise RopeError(
            f"verify: {name} needs a Hugging Face folder.",
            facts={"model": str(path)},
            cure="Pass the folder, or --engine llama.cpp for a .gguf file.",
        )
    config = config_of(path).get_text_config(decoder=True)
    lengths = [rope.scaled_length or max_tokens for rope in ModelRopes.from_hf(config).present_ropes]
    with StartedEngine(name, python) as engine:
        yield engine.load(path, min([max_tokens + NEW, *lengths]))


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
    import torch

    from ropewalk.checkpoints.sources import find

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
