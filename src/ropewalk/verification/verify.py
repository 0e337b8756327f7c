"""`verify`: which rotary embedding does an engine apply to a model?"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path, parse_object
from ropewalk.checkpoints.opening import fast_copy, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.texts import LEAST_BYTES, read_text
from ropewalk.errors import RopeError
from ropewalk.methods import Reach, main_rope, method_named
from ropewalk.methods.faults import CHUNKS, Hypothesis, hypotheses, in_decoding
from ropewalk.progress import Progress, say, shown
from ropewalk.progress import expect as begin_stage
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import check_whole
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.adapters import open_engine
from ropewalk.verification.check import MAX_TOKENS, Check
from ropewalk.verification.engine import WAIT, TokenizerTexts
from ropewalk.verification.outcome import Prediction, Verification
from ropewalk.verification.predictions import Predictions, candidates, choose, stretch
from ropewalk.verification.questions import (
    CONFIRMING,
    LATER_QUESTIONS,
    ONE_TOKEN,
    QUESTIONS,
    SHIFTED,
    SHIFTS,
    PromptQuestion,
    first_difference,
)

LONGEST_DEFAULT = 1024  # tokens: the length that a verdict covers by default
CHECKED = 2000  # characters of the text for which tokens are compared
PLACES = 4  # in the text, of prompts that are sent again without their first tokens
DECODING = 6  # prompts after which tokens are generated
STEPS = 4  # generated tokens, with an answer compared after each: the first follows from the prompt alone
AFTER_CHUNKS = 3  # prompts longer than a chunk, after which one token is generated
SURE, NEXT_SURE = 0.7, 0.3  # nats by which the likeliest token must lead, so that an engine generates it; later ones


def verify(
    model: str | Path | Reader | Any,
    engine: object,
    *,
    expect: str | ModelRopes | None = None,
    up_to: int | None = None,
    max_tokens: int = MAX_TOKENS,
    text: str | Path | None = None,
    served_name: str | None = None,
    wait: float = WAIT,
    trained_length: int | None = None,
    state: str | Path | None = None,
    device_map: str | None = None,
    progress: Progress | bool | None = None,
) -> Verification:
    """Determine from a few log-probabilities which rotary embedding an engine applies to a model.

    The engine's answers are compared with our own forward pass under each hypothesis.

    **Arguments:**
    - `model`: the engine's checkpoint: a folder, a .gguf file, "tiny", a `Decoder` or any `Reader`.
    - `engine`: the URL of a server with OpenAI's `/v1/completions` and `logprobs`; "transformers", "llama.cpp",
      "mlx", "onnx" or "vllm", which are started here ("vllm@PYTHON" in the Python of a different environment); a live
      transformers model; or an `Engine`. The variable OPENAI_API_KEY may contain a key.
    - `expect`: the expected rope: "plain", "METHOD:FACTOR" such as "yarn:4", a JSON block of `rope_parameters`, or
      `ModelRopes`. Defaults to the checkpoint's own config.
    - `up_to`: the longest prompt of the verdict, in tokens. Defaults to the trained length, at most 1,024, or more if
      the expected scaling acts later. The verdict covers less if the answered prompts are shorter.
    - `max_tokens`: the longest prompt to send, in tokens.
    - `text`: a UTF-8 file for prompts. Defaults to the packaged novel.
    - `served_name`: the model's name on the server. Defaults to the first in the server's list.
    - `wait`: seconds for which a server that is not reached, or that is loading, is asked again.
    - `trained_length`: in tokens, if the config does not contain it.
    - `state`: a folder to save our own predictions for the next run. Defaults to none.
    - `device_map`: spreads a model over devices, such as "auto"; see `ropewalk.checkpoints.opening.open_reader`.
    - `progress`: an object with `begin` and `advance`, True or False. None shows a bar on a terminal and in a notebook.

    **Returns:** a `Verification`: `.verdict`, `.exit_status` (0 as expected, 1 other, 3 undecided), `.to_json()`.
    **Raises:** `RopeError` for invalid arguments; `Unreachable`, `Loading` or `EngineError` (all `RopeError`s, in
    `ropewalk.verification.engine`) if the server cannot be reached, is still loading, or refuses what is asked.
    **Numerics:** the answers are projected onto the line from the best hypothesis to each other one. The other one is
    refuted if Student's interval over prompts is nearer to the best. The error is estimated from the answers, so 4-bit
    engines work.

    >>> found = verify("tiny", open_reader("tiny").model, up_to=64)
    >>> found.verdict.kind, found.exit_status
    ('as expected', 0)
    """
    begun = time.monotonic()
    check_whole("verify", max_tokens=max_tokens, optional=False)
    side = our_side(
        model, expect=expect, up_to=up_to, text=text, trained_length=trained_length, state=state, device_map=device_map
    )
    source = model if isinstance(model, str | Path) else side.model
    token_texts = TokenizerTexts(side.tokenizer)
    with (
        open_engine(engine, source, token_texts, served_name=served_name, wait=wait, max_tokens=max_tokens) as opened,
        shown("verify", progress) as bar,
    ):
        verification = Check(side, max_tokens=max_tokens, progress=bar).run(opened)
    return dataclasses.replace(verification, seconds=round(time.monotonic() - begun, 2))


def our_side(
    model: str | Path | Reader | Any,
    *,
    expect: str | ModelRopes | None = None,
    up_to: int | None = None,
    text: str | Path | None = None,
    trained_length: int | None = None,
    state: str | Path | None = None,
    device_map: str | None = None,
) -> OurSide:
    """Return our side of a check; see `verify`.

    It computes in float32, with `device_map` in the dtype of the weights if that is fast.

    **Raises:** `RopeError` for a model without a tokenizer or a trained length.
    """
    check_whole("verify", up_to=up_to, trained_length=trained_length)
    contents = read_text(text, LEAST_BYTES)[1]
    if isinstance(model, str | Path):
        reader = open_reader(model, dtype=None if device_map else torch.float32, device_map=device_map)
    else:
        model, note = fast_copy(model)
        if note is not None:
            warnings.warn(f"verify: {note}", stacklevel=3)
        reader = reader_of(model)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "verify: the model has no tokenizer, which prompts need.",
            facts={"model": reader.name},
            cure="Pass a checkpoint with its tokenizer.",
        )
    trained = trained_length or reader.trained_length
    if trained is None:
        raise RopeError(
            "verify: the config does not contain the trained length.",
            facts={"model": reader.name},
            cure="Pass trained_length=... (--trained-length).",
        )
    predictions = Predictions(reader, None if state is None else as_path(state, "verify"))
    expected = expected_positions(reader.positions, expect, trained)
    return OurSide(predictions, tokenizer, contents, expected, trained, up_to)


@dataclass
class OurSide:
    """Predictions of our own model.

    **Arguments:**
    - `predictions`: of the model.
    - `tokenizer`: of the model. `text`: the source of prompts.
    - `positions`: the positions the engine should apply.
    - `trained`: the trained length in tokens.
    - `longest`: the longest prompt of the verdict, in tokens; None: chosen from the positions.
    """

    predictions: Predictions
    tokenizer: TextTokenizer
    text: str
    positions: ModelRopes
    trained: int
    longest: int | None = None
    rounds: Sequence[tuple[int, int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.model = self.predictions.reader.name
        self.expected = described(self.positions)
        every = {hypothesis.name: hypothesis for hypothesis in hypotheses(self.positions, trained=self.trained)}
        self.first = next(iter(every.values()))
        self.left_out = tuple(name for name, one in every.items() if one is not self.first and not self._supports(one))
        self.all = {name: hypothesis for name, hypothesis in every.items() if name not in self.left_out}
        self.up_to = length_to_verify(self.positions, self.trained) if self.longest is None else self.longest

    def _supports(self, hypothesis: Hypothesis) -> bool:
        """Return whether this reader supports a hypothesis: some libraries lack methods in attention."""
        try:
            self.predictions.under(hypothesis.positions)
        except RopeError:
            return False
        return True

    @cached_property
    def prefix_ids(self) -> list[int]:
        """Return the ids that the checkpoint puts before every text."""
        return self.tokenizer.prefix_ids

    @property
    def sample(self) -> tuple[str, list[int]]:
        """Return a part of the text, and its ids."""
        words = self.text[len(self.text) // 3 :][:CHECKED]
        return words, self.tokenizer.encode(words)

    def single(self, progress: Progress) -> list[PromptQuestion]:
        """Return prompts of one token."""
        ids = list(dict.fromkeys(stretch(self.tokenizer.encode, self.text, 0.5, 64)))[:ONE_TOKEN]
        return [PromptQuestion([token], {"": self._expected([token])}) for token in ids]

    def questions(
        self, number: int, span: tuple[int, int], alive: Collection[str], best: str, progress: Progress
    ) -> list[PromptQuestion]:
        """Predict under the remaining hypotheses, and choose the prompts that distinguish them best."""
        first, last = span
        ids, lengths = self.prompt(0.1 + 0.2 * number, last), candidates(first, last, 24 if number else 8)
        begin_stage(progress, last * len(alive))
        predicted: dict[str, Mapping[int, Prediction]] = {}
        begun = time.monotonic()
        for index, name in enumerate(alive):
            progress.begin(f"our prediction {index + 1} of {len(alive)} for {last:,} tokens: {name}", last)
            predicted[name] = self.predictions.of(self.all[name], ids, lengths)
            progress.advance(last)
            if not index:
                seconds = (time.monotonic() - begun) * len(alive)
                say(progress, f"verify: our predictions for {last:,} tokens take at most about {seconds:,.0f} s")
        chosen = choose(predicted, best, lengths, LATER_QUESTIONS if number else QUESTIONS)
        return [
            PromptQuestion(ids[:length], {name: tops[length] for name, tops in predicted.items()}) for length in chosen
        ]

    def shifted(self, progress: Progress) -> list[PromptQuestion]:
        """Predict for prompts from several places in the text, and without their first tokens."""
        prompts = [self.prompt((place + 0.5) / PLACES, SHIFTED) for place in range(PLACES)]
        later = [ids[start:] for ids in prompts for start in range(SHIFTS)]
        return [PromptQuestion(ids, {self.first.name: self._expected(ids)}) for ids in later]

    def _expected(self, ids: Sequence[int]) -> Prediction:
        return self.predictions.of(self.first, ids, [len(ids)])[len(ids)]

    def confirming(self, last: int, progress: Progress) -> list[PromptQuestion]:
        """Predict for prompts of about `last` tokens."""
        ids, lengths = self.prompt(0.9, last), candidates(last - last // 16, last, CONFIRMING)
        begin_stage(progress, last)
        progress.begin(f"our prediction for {last:,} tokens", last)
        ours = self.predictions.of(self.first, ids, lengths)
        progress.advance(last)
        return [PromptQuestion(ids[:length], {self.first.name: ours[length]}) for length in lengths]

    def decoding(self, progress: Progress) -> list[PromptQuestion]:
        """Predict after each generated token of some prompts, chosen because their likeliest tokens lead clearly."""
        questions, prompts = list[PromptQuestion](), 0
        last = min(64, self.up_to - STEPS)
        if last < 8 or not in_decoding(self.positions, 8):
            return questions
        for index in range(3 * DECODING):
            ids = self.prompt(index / (3 * DECODING + 1), last - 5 * index % (last // 2))
            progress.begin(f"our predictions of generated tokens after {len(ids):,} tokens", len(ids))
            generated = self._generated(ids, STEPS)
            progress.advance(len(ids))
            if len(generated) < 2:
                continue
            try:
                questions += self._after(ids, generated, [self.first, *in_decoding(self.positions, len(ids))])
            except RopeError:  # this reader does not support the extension
                return []
            prompts += 1
            if prompts == DECODING:
                break
        if self.up_to > CHUNKS[0] + 1 and not self.positions.needs_seq_len:
            last = min(self.up_to - 1, CHUNKS[0] + 128)
            ids, lengths = self.prompt(0.5, last), candidates(CHUNKS[0] + 1, last, 24)
            tops = self.predictions.of(self.first, ids, lengths)
            for length in sorted(lengths, key=lambda length: tops[length].lead)[-AFTER_CHUNKS:]:
                progress.begin(f"our prediction of a generated token after {length:,} tokens", length)
                questions += self._after(ids[:length], self._generated(ids[:length], 1), [self.first])
        return questions

    def _generated(self, ids: Sequence[int], most: int) -> list[int]:
        """Return the tokens that follow a prompt, as long as the likeliest one leads clearly."""
        generated: list[int] = []
        while len(generated) < most:
            prediction = self._expected([*ids, *generated])
            if (
                prediction.lead < (NEXT_SURE if generated else SURE)
                or prediction.likeliest[0] in self.tokenizer.eos_ids
            ):
                break
            generated.append(prediction.likeliest[0])
        return generated

    def _after(self, ids: Sequence[int], generated: Sequence[int], under: Sequence[Hypothesis]) -> list[PromptQuestion]:
        """Predict after each generated token."""
        whole = [*ids, *generated]
        lengths = range(len(ids) + 1, len(whole) + 1)
        tops = {one.name: self.predictions.of(one, whole, lengths) for one in under}
        return [
            PromptQuestion(ids, {name: top[length] for name, top in tops.items()}, whole[len(ids) : length])
            for length in lengths
        ]

    def prompt(self, place: float, length: int) -> list[int]:
        """Return a prompt of `length` tokens from a place in the text."""
        return [*self.prefix_ids, *stretch(self.tokenizer.encode, self.text, place, length)][:length]


def expected_positions(own: ModelRopes, expect: str | ModelRopes | None, trained: int) -> ModelRopes:
    """Return the expected positions: the checkpoint's own, or those of `expect`; see `verify`.

    **Raises:** `RopeError` for an unknown method, an invalid factor or an invalid block.

    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256)
    >>> expected_positions(ModelRopes((rope,), (None,), (None,)), "yarn:4", 256).ropes[0].scaling.factor
    4.0
    """
    if expect is None or isinstance(expect, ModelRopes):
        return own if expect is None else expect
    if isinstance(expect, str) and expect.lstrip().startswith("{"):
        return _of_block(own, expect)
    name, _, factor = str(expect).partition(":")
    method = method_named(name)
    try:
        target = math.ceil(trained * float(factor)) if factor else trained
    except (ValueError, OverflowError):
        target = 0
    if target < trained or (method.extends and target == trained):
        raise RopeError(
            "verify: --expect must be a method and a factor above 1, or a block of rope_parameters.",
            facts={"expect": expect},
            cure='Write "plain", "yarn:4", or \'{"rope_type": "yarn", "factor": 4.0, ...}\'.',
        )
    return method.positions(own, Reach(trained, target))


def _of_block(own: ModelRopes, expect: str) -> ModelRopes:
    """Return the positions with the theta and the scaling of a Hugging Face block."""
    rope = main_rope(own.ropes)
    cure = 'Write it as in config.json: {"rope_type": "yarn", "factor": 4.0, ...}.'
    block = parse_object(expect, "--expect", "verify", cure)
    if rope is None:
        raise RopeError("verify: this model has no rope.", facts={"expect": expect}, cure="Omit --expect.")
    read = RopeConfig.from_block(
        {"rope_theta": rope.theta, **block},
        head_dim=rope.head_dim,
        interleaved=rope.interleaved,
        max_position_embeddings=rope.max_position_embeddings,
    )
    return own.mapped(lambda old: dataclasses.replace(old, theta=read.theta, scaling=read.scaling, trained=None))


def length_to_verify(expected: ModelRopes, trained: int) -> int:
    """Return the length in tokens for a verdict: the trained one, at most 1,024, or more if scaling acts later.

    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256, scaling=DynamicNTK(4.0))
    >>> length_to_verify(ModelRopes((rope,), (None,), (None,)), 256)
    384
    """
    usual = min(trained, LONGEST_DEFAULT)
    without = dataclasses.replace(expected.mapped(RopeConfig.unscaled), extensions=(None,) * expected.num_layers)
    begins = first_difference(Hypothesis("as expected", expected), Hypothesis("plain", without))
    return usual if begins is None or begins <= usual else begins + max(64, begins // 2 - 1)


def described(positions: ModelRopes) -> str:
    """Describe the ropes in words.

    >>> described(ModelRopes((RopeConfig(64, interleaved=False),), (None,), (None,)))
    'plain RoPE (theta 10000)'
    """
    rope = main_rope(positions.ropes)
    if rope is None:
        return "no rotation"
    extensions = {type(extension).__name__ for extension in positions.extensions if extension is not None}
    name, numbers = "plain RoPE", []
    if rope.scaling is not None:
        name = rope.scaling.rope_type
        given = {key: getattr(rope.scaling, key, None) for key in ("factor", "original_max_position_embeddings")}
        numbers = [f"{key} {value:g}" for key, value in given.items() if isinstance(value, int | float)]
    if rope.inv_freq is None:
        numbers.append(f"theta {rope.theta:.0f}")
    return name + (f" ({', '.join(numbers)})" if numbers else "") + "".join(f", {name}" for name in sorted(extensions))
