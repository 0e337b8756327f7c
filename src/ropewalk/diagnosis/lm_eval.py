"""A model for EleutherAI's lm-evaluation-harness: its tasks on our decoders (extra `lm-eval`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.diagnosis.settings import DTYPES
from ropewalk.errors import RopeError
from ropewalk.models.precision import chosen_dtype
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.readers.adapters import fast_copy, open_reader, reader_of
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig

try:
    import lm_eval.models  # noqa: F401  # the harness's own models are registered before ours is
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError:  # without the extra the class below says what is missing
    TemplateLM = object

_LOG = logging.getLogger(__name__)
_GENERATION = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


class RopewalkLM(TemplateLM):  # type: ignore[misc]
    """Our decoder as lm-eval's `LM`: likelihoods, rolling likelihoods and generation, in batches.

    **Arguments:**
    - `model`: a model or a reader with a tokenizer, or what `rw.load` takes; `dtype` and `device` only for the latter.
    - `batch_size`: rows in a batch. `max_length`: most input tokens (the last token of a continuation is only
      predicted). Longer contexts lose their beginning, and the log contains their number. None: the largest length of
      a rope, `max_position_embeddings` or a rule's factor times its original length. Pass it for rules without such a
      length (position interpolation, NTK, a changed theta, a method in attention).
    - `max_gen_toks`: tokens of a completion if the task does not set them.
    - `add_bos`: whether a text begins with the tokenizer's bos; None: as in the checkpoint.

    **Raises:** `RopeError` if lm-eval is not installed, if the model has no tokenizer or no known length, and for
    unsupported requests. Chat templates are never run.

    Importing this module registers the name "ropewalk" with the harness. `python -m ropewalk.diagnosis.lm_eval` is the
    harness's own command, with this name registered. Rolling likelihood is lm-eval's: disjoint windows of `max_length`
    tokens after bos (or the end of text); the last, shorter one has a full context.

    >>> RopewalkLM("tiny", batch_size=2).max_length  # doctest: +SKIP
    256
    >>> import lm_eval, ropewalk.diagnosis.lm_eval  # doctest: +SKIP
    >>> lm_eval.simple_evaluate(model="ropewalk", model_args={"model": "tiny"}, tasks=["..."])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: object,
        *,
        batch_size: int | str = 8,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos: bool | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        need("lm_eval", extra="lm-eval")
        super().__init__()
        self.reader = _reader(model, dtype, device)
        self.tokenizer = _tokenizer_of(self.reader)
        self.batch_size = _whole("batch_size", batch_size)
        self.max_length = _length_of(self.reader) if max_length is None else _whole("max_length", max_length)
        self.max_gen_toks = _whole("max_gen_toks", max_gen_toks)
        self.add_bos = self.tokenizer.prefix_ids[:1] == [self.tokenizer.bos_id] if add_bos is None else add_bos
        if self.add_bos and self.tokenizer.bos_id is None:
            raise RopeError(
                "RopewalkLM: the tokenizer has no token that begins a text.",
                facts={"add_bos": add_bos},
                cure="Leave out add_bos.",
            )
        self._device = self.reader.device

    @property
    def eot_token_id(self) -> int:
        """Return the token that ends a text. Raises `RopeError` if the tokenizer has none."""
        if not self.tokenizer.eos_ids:
            raise RopeError(
                "RopewalkLM: the tokenizer has no token that begins or ends a text.",
                facts={"vocab_size": self.tokenizer.vocab_size},
                cure="Set the Tokenizer's bos_id or eos_ids.",
            )
        return self.tokenizer.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """Return the token before a text without context: bos, or the end of text."""
        return self.eot_token_id if self.tokenizer.bos_id is None else self.tokenizer.bos_id

    @property
    def tokenizer_name(self) -> str:
        """Return a name for the harness's cache of requests."""
        return f"ropewalk-{self.tokenizer.vocab_size}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the token ids of a text, with bos if `add_special_tokens` (None: the model's `add_bos`) is set."""
        if kwargs:
            raise RopeError(
                "RopewalkLM.tok_encode: unknown settings.", facts=kwargs, cure="Pass only add_special_tokens."
            )
        bos = self.add_bos if add_special_tokens is None else add_special_tokens
        return self.tokenizer.encode_prompt(string, bos=bos)

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Raise `RopeError`: a checkpoint's chat template is a program, which ropewalk does not run here."""
        raise RopeError(
            "RopewalkLM: chat templates are not run.",
            facts={"turns": len(chat_history)},
            cure="Evaluate without apply_chat_template.",
        )

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability in nats of each whole text, window by window of `max_length` tokens."""
        pairs, owners = [], []
        for index, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            for context, continuation in map(make_disjoint_window, windows):
                pairs.append((context, continuation))
                owners.append(index)
        totals = [0.0] * len(requests)
        with _bar(len(pairs), "windows", disable_tqdm) as bar:
            found = self.reader.continuation_log_probs(
                pairs, batch=self.batch_size, done=lambda index, result: bar.update()
            )
        for index, (log_prob, _) in zip(owners, found, strict=True):
            totals[index] += log_prob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return (nats, greedy) of tokenised requests; a context too long for `max_length` loses its beginning."""
        pairs = []
        self._say_cut([len(context) + len(continuation) - 1 for _, context, continuation in requests], self.max_length)
        for _, context, continuation in requests:
            if len(continuation) > self.max_length:
                raise RopeError(
                    "RopewalkLM: a continuation is as long as `max_length`, so no token of its context fits.",
                    facts={"continuation tokens": len(continuation), "max_length": self.max_length},
                    cure="Raise max_length.",
                )
            pairs.append((context[-(self.max_length + 1 - len(continuation)) :], continuation))
        with _bar(len(pairs), "likelihoods", disable_tqdm) as bar:

            def done(index: int, result: tuple[float, bool]) -> None:
                bar.update()
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], result)

            return self.reader.continuation_log_probs(pairs, batch=self.batch_size, done=done)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the completion of each context, cut before the first of its `until` texts."""
        found = [""] * len(requests)
        settings = [_generation(request.args[1], self.max_gen_toks) for request in requests]
        order = sorted(range(len(requests)), key=lambda index: (repr(settings[index]), -len(requests[index].args[0])))
        with _bar(len(requests), "completions", disable_tqdm) as bar:
            while order:
                same = [index for index in order[: self.batch_size] if settings[index] == settings[order[0]]]
                texts = self._complete([requests[index].args[0] for index in same], settings[same[0]])
                for index, text in zip(same, texts, strict=True):
                    found[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
                bar.update(len(same))
                order = order[len(same) :]
        return found

    def _complete(self, contexts: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
        new = settings["max_new_tokens"]
        if new >= self.max_length:
            raise RopeError(
                "RopewalkLM: the completion is as long as `max_length`, so no token of its context fits.",
                facts={"max_gen_toks": new, "max_length": self.max_length},
                cure="Raise max_length, or set max_gen_toks lower.",
            )
        encoded = [self.tok_encode(context) for context in contexts]
        self._say_cut(list(map(len, encoded)), self.max_length - new)
        rows = [ids[new - self.max_length :] or [self.prefix_token_id] for ids in encoded]
        sampling = {name: value for name, value in settings.items() if name != "until"}
        texts = [""] * len(rows)

        def is_done(row: int, tokens: Sequence[int]) -> bool:
            texts[row] = self.tokenizer.decode(tokens)
            return any(stop in texts[row] for stop in settings["until"])

        self.reader.generate(rows, stop_tokens=self.tokenizer.eos_ids, is_done=is_done, **sampling)
        return [_cut(text, settings["until"]) for text in texts]

    def _say_cut(self, tokens: Sequence[int], room: int) -> None:
        """Log how many inputs, with these numbers of tokens, lose their beginning because only `room` tokens fit."""
        longer = [count for count in tokens if count > room]
        if longer:
            _LOG.warning(
                "%d of %d contexts lose their beginning: the longest has %s tokens, and with max_length=%s only %s "
                "fit. If the model supports more, pass max_length=...",
                len(longer), len(tokens), f"{max(longer):,}", f"{self.max_length:,}", f"{room:,}",
            )  # fmt: skip


def _generation(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a task's generation settings as arguments of `stream`. Raises `RopeError` for unknown ones."""
    unknown = {name: value for name, value in given.items() if name not in _GENERATION}
    if unknown:
        raise RopeError(
            "RopewalkLM: unknown generation settings.", facts=unknown, cure=f"Known: {', '.join(sorted(_GENERATION))}."
        )
    until = given.get("until") or ()
    temperature = given.get("temperature")
    temperature = float(bool(given.get("do_sample"))) if temperature is None else float(temperature)
    samples = bool(given.get("do_sample", True)) and temperature > 0
    found: dict[str, Any] = {
        "until": tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        "max_new_tokens": int(given.get("max_gen_toks", most)),
        "temperature": temperature if samples else 0.0,
    }
    if samples:
        found |= {name: given[name] for name in ("top_k", "top_p") if given.get(name)}
    return found


def _cut(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first of the stops.

    >>> _cut("one. two; three", [";", "."])
    'one'
    """
    return text[: min((place for place in map(text.find, stops) if place >= 0), default=len(text))]


def _reader(model: object, dtype: str | None, device: str | None) -> Reader:
    if not isinstance(model, str | Path):
        if dtype is not None or device is not None:
            raise RopeError(
                "RopewalkLM: `dtype` and `device` apply only to a model that is loaded here.",
                facts={"dtype": dtype, "device": device},
                cure="Move it before: model.to(...).",
            )
        model, note = fast_copy(model)
        if note is not None:
            _LOG.warning("RopewalkLM: %s", note)
        return reader_of(model)
    if dtype not in (None, *DTYPES):
        raise RopeError("RopewalkLM: unknown dtype.", facts={"dtype": dtype}, cure=f"Choose from {', '.join(DTYPES)}.")
    chosen, _ = chosen_dtype(dtype or "float32", device or "cpu")
    return open_reader(model, name=str(model), dtype=chosen, device=device or "cpu")


def _tokenizer_of(reader: Reader) -> Tokenizer:
    if reader.tokenizer is None:
        raise RopeError(
            "RopewalkLM: the model has no tokenizer.",
            facts={"model": reader.name},
            cure="Load a checkpoint with its tokenizer.json, or set model.tokenizer.",
        )
    return reader.tokenizer


def _length_of(reader: Reader) -> int:
    stated = [length for rope in reader.positions.present_ropes for length in _stated(rope)]
    if stated:
        return max(stated)
    raise RopeError(
        "RopewalkLM: the longest input of the model is unknown.",
        facts={"ropes": reader.positions.ropes},
        cure="Pass max_length=... (tokens).",
    )


def _stated(rope: RopeConfig) -> list[int]:
    """Return every length of the rope in tokens: the config's, and the length to which its rule extends."""
    found = [rope.max_position_embeddings, rope.trained_length]
    if rope.scaling is not None:
        found.append(rope.scaling.target_length(rope.max_position_embeddings))
    return [length for length in found if length]


def _whole(name: str, value: int | str) -> int:
    if not str(value).isdecimal() or int(value) < 1:
        raise RopeError(
            f"RopewalkLM: `{name}` must be a whole number of at least 1; there is no automatic value.",
            facts={name: value},
            cure="Pass a number.",
        )
    return int(value)


def _bar(total: int, what: str, disable: bool) -> Any:
    """Return a progress bar like the harness's own."""
    return need("tqdm", extra="lm-eval").tqdm(total=total, desc=f"ropewalk: {what}", disable=disable)


if TemplateLM is not object:
    register_model("ropewalk")(RopewalkLM)


if __name__ == "__main__":
    try:
        need("lm_eval.__main__", extra="lm-eval").cli_evaluate()
    except RopeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
