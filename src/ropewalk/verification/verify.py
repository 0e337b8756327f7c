"""`verify`: which rotary embedding does an engine apply to a model? Its answers are compared with our own model's."""

from __future__ import annotations

import base64
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import as_path, parse_object
from ropewalk.audit.faults import CHUNKS, Hypothesis, hypotheses, in_decoding
from ropewalk.checkpoints.opening import fast_copy, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.texts import LEAST_BYTES, read_text
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import Reach, main_rope, method_named
from ropewalk.methods.faulty_rules import FaultyPositions
from ropewalk.progress import Progress, SilentProgress, say, shown
from ropewalk.progress import expect as begin_stage
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import check_whole
from ropewalk.verification import check
from ropewalk.verification.adapters import open_engine
from ropewalk.verification.engine import WAIT
from ropewalk.verification.fit import Prediction, PromptQuestion, Verification, distance, first_difference
from ropewalk.version import __version__

LONGEST_DEFAULT = 1024  # tokens: the length that a verdict covers by default
CHECKED = 2000  # characters of the text for which tokens are compared
PLACES = 4  # in the text, of prompts that are sent again without their first tokens
DECODING = 6  # prompts after which tokens are generated
STEPS = 4  # generated tokens, with an answer compared after each: the first follows from the prompt alone
AFTER_CHUNKS = 3  # prompts longer than a chunk, after which one token is generated
SURE, NEXT_SURE = 0.7, 0.3  # nats by which the likeliest token must lead, so that an engine generates it; later ones
KEPT = 400  # likeliest tokens of a prediction that are saved; other tokens get the value of the last one
PAIRS = "<i4,<f4"  # a saved token, and its log-probability in nats


def verify(
    model: str | Path | Reader | Any,
    engine: object,
    *,
    expect: str | ModelRopes | None = None,
    up_to: int | None = None,
    max_tokens: int = check.MAX_TOKENS,
    text: str | Path | None = None,
    served_name: str | None = None,
    wait: float = WAIT,
    trained_length: int | None = None,
    state: str | Path | None = None,
    device: str = "cpu",
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
    - `device`: where our side computes; "auto" spreads the layers of a large model over all devices.
    - `progress`: an object with `begin` and `advance`, True or False. None shows it on a terminal and in a notebook.

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
    side = OurSide(
        model, expect=expect, up_to=up_to, text=text, trained_length=trained_length, state=state, device=device
    )
    source = model if isinstance(model, str | Path) else side.model
    options: dict[str, Any] = {"served_name": served_name, "wait": wait, "max_tokens": max_tokens}
    with open_engine(engine, source, side.tokenizer, **options) as opened, shown("verify", progress) as bar:
        verification = check.Check(side, max_tokens=max_tokens, progress=bar).run(opened)
    return dataclasses.replace(verification, seconds=round(time.monotonic() - begun, 2))


class Predictions:
    """The predictions of our own model, saved under a key of all their inputs.

    Hypotheses that agree on a prompt are computed once. `folder`: for the next run; None: in memory.
    """

    def __init__(self, reader: Reader, folder: Path | None = None) -> None:
        self.reader, key = reader, ""
        if folder is not None:
            key = fingerprint(__version__, KEPT, PAIRS, reader.library, reader.dtype, reader.digest())
            folder = folder / key
        self.ledger = Ledger(folder, kind="verify", key=key)
        self.ledger.open()
        self._known = {key: top for saved in self.ledger.values() for key, top in saved.items()}
        self._copy: Reader | None = None

    def of(self, hypothesis: Hypothesis, input_ids: Sequence[int], lengths: Sequence[int]) -> dict[int, Prediction]:
        """Return the prediction after the first n of these ids, for each n in `lengths`, under a hypothesis.

        One pass over the longest prompt computes all, unless frequencies depend on the length.

        **Raises:** `RopeError` if the model returns no finite numbers.
        """
        ropes = hypothesis.positions
        keys = {  # what agrees at a length has one key
            length: fingerprint(hypothesis.at(length), ropes.sliding_windows, list(input_ids[:length]))
            for length in sorted(lengths)
        }
        due = [length for length, key in keys.items() if key not in self._known]
        new = dict[str, str]()
        for ends in [[length] for length in due] if ropes.needs_seq_len else [due] if due else []:
            tops = self.under(ropes).top_after(input_ids, ends, count=KEPT, seq_len=ends[-1])
            if not all(math.isfinite(nats) for top in tops for _, nats in top):
                raise RopeError(
                    "verify: our own forward pass of this checkpoint returns NaN or infinity.",
                    facts={"model": self.reader.name, "hypothesis": hypothesis.name},
                    cure="Check the checkpoint's weights.",
                )
            for length, top in zip(ends, tops, strict=True):
                new[keys[length]] = base64.b64encode(np.array(top, PAIRS).tobytes()).decode()
        if new:
            self.ledger.add(fingerprint(*new), new)
            self._known |= new
        return {
            length: Prediction(np.frombuffer(base64.b64decode(self._known[key]), PAIRS).tolist())
            for length, key in keys.items()
        }

    def under(self, positions: ModelRopes) -> Reader:
        """Return the reader under these positions: one copy of the model, which the next call changes.

        transformers' layers have one pairing and width, or no rotation. For others, our own attention rotates under an
        extension that does not change positions; layers with a window do not support it.

        **Raises:** `RopeError` if the reader supports neither.
        """
        if positions == self.reader.positions:
            return self.reader
        try:
            return self._moved(positions)
        except RopeError:
            if any(positions.extensions):
                raise
        layers = zip(positions.ropes, positions.sliding_windows, strict=True)
        neutral = (FaultyPositions("shifted", 1) if rope and not window else None for rope, window in layers)
        return self._moved(dataclasses.replace(positions, extensions=tuple(neutral)))

    def _moved(self, positions: ModelRopes) -> Reader:
        if self._copy is None:
            self._copy = self.reader.under(positions)
        else:
            self._copy.move(positions)
        return self._copy


class OurSide:
    """Our side of a check, computed by our own model; see `ropewalk.verification.fit.Side`.

    The options are those of `verify`. The model computes in float32, on several devices in the dtype of the weights if
    that is fast.

    **Raises:** `RopeError` for a model without a tokenizer or a trained length.
    """

    def __init__(
        self,
        model: str | Path | Reader | Any,
        *,
        expect: str | ModelRopes | None = None,
        up_to: int | None = None,
        text: str | Path | None = None,
        trained_length: int | None = None,
        state: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        check_whole("verify", up_to=up_to, trained_length=trained_length)
        self.text = read_text(text, LEAST_BYTES)[1]
        if isinstance(model, str | Path):
            reader = open_reader(model, dtype=None if device == "auto" else torch.float32, device=device)
        elif device != "cpu":
            raise RopeError(
                "verify: `device` does not apply to a model that is passed as an object.",
                facts={"device": device},
                cure="Move it before: model.to(...).",
            )
        else:
            model, note = fast_copy(model)
            if note is not None:
                warnings.warn(f"verify: {note}", stacklevel=3)
            reader = reader_of(model)
        tokenizer, trained = reader.tokenizer, trained_length or reader.trained_length
        if tokenizer is None:
            raise RopeError(
                "verify: the model has no tokenizer, which prompts need.",
                facts={"model": reader.name},
                cure="Pass a checkpoint with its tokenizer.",
            )
        if trained is None:
            raise RopeError(
                "verify: the config does not contain the trained length.",
                facts={"model": reader.name},
                cure="Pass trained_length=... (--trained-length).",
            )
        self.model, self.tokenizer, self.trained = reader.name, tokenizer, trained
        self.predictions = Predictions(reader, None if state is None else as_path(state, "verify"))
        self.positions = expected_positions(reader.positions, expect, trained)
        self.expected = described(self.positions)
        self.up_to = length_to_verify(self.positions, trained) if up_to is None else up_to
        self.first, *others = hypotheses(self.positions, trained=trained)
        self.left_out = tuple(one.name for one in others if not self._supports(one))
        self.all = {one.name: one for one in (self.first, *others) if one.name not in self.left_out}
        self.prefix_ids, words = tokenizer.prefix_ids, self.text[len(self.text) // 3 :][:CHECKED]
        self.sample = words, tokenizer.encode(words)
        self.rounds: Sequence[tuple[int, int]] | None = None
        self.progress: Progress = SilentProgress()

    def _supports(self, hypothesis: Hypothesis) -> bool:
        """Return whether this reader supports a hypothesis: some libraries lack methods in attention."""
        try:
            self.predictions.under(hypothesis.positions)
        except RopeError:
            return False
        return True

    def single(self) -> list[PromptQuestion]:
        """Return prompts of one token, for which no rope matters, with one prediction named ""."""
        ids = list(dict.fromkeys(stretch(self.tokenizer.encode, self.text, 0.5, 64)))[: check.ONE_TOKEN]
        return [PromptQuestion([token], {"": self._expected([token])}) for token in ids]

    def questions(self, number: int, span: tuple[int, int], alive: Collection[str], best: str) -> list[PromptQuestion]:
        """Predict under the remaining hypotheses, and choose the prompts that distinguish them best."""
        first, last = span
        ids, lengths = self.prompt(0.1 + 0.2 * number, last), candidates(first, last, 24 if number else 8)
        begin_stage(self.progress, last * len(alive))
        predicted: dict[str, Mapping[int, Prediction]] = {}
        begun = time.monotonic()
        for index, name in enumerate(alive):
            self.progress.begin(f"our prediction {index + 1} of {len(alive)} for {last:,} tokens: {name}", last)
            predicted[name] = self.predictions.of(self.all[name], ids, lengths)
            self.progress.advance(last)
            if not index:
                seconds = (time.monotonic() - begun) * len(alive)
                say(self.progress, f"verify: our predictions for {last:,} tokens take at most about {seconds:,.0f} s")
        chosen = choose(predicted, best, lengths, check.LATER_QUESTIONS if number else check.QUESTIONS)
        return [
            PromptQuestion(ids[:length], {name: tops[length] for name, tops in predicted.items()}) for length in chosen
        ]

    def shifted(self) -> list[PromptQuestion]:
        """Predict for prompts from several places in the text, and without their first tokens."""
        prompts = [self.prompt((place + 0.5) / PLACES, check.SHIFTED) for place in range(PLACES)]
        later = [ids[start:] for ids in prompts for start in range(check.SHIFTS)]
        return [PromptQuestion(ids, {self.first.name: self._expected(ids)}) for ids in later]

    def _expected(self, ids: Sequence[int]) -> Prediction:
        return self.predictions.of(self.first, ids, [len(ids)])[len(ids)]

    def confirming(self, last: int) -> list[PromptQuestion]:
        """Predict for prompts of about `last` tokens."""
        ids, lengths = self.prompt(0.9, last), candidates(last - last // 16, last, check.CONFIRMING)
        begin_stage(self.progress, last)
        self.progress.begin(f"our prediction for {last:,} tokens", last)
        ours = self.predictions.of(self.first, ids, lengths)
        self.progress.advance(last)
        return [PromptQuestion(ids[:length], {self.first.name: ours[length]}) for length in lengths]

    def decoding(self) -> list[PromptQuestion]:
        """Predict after each generated token of some prompts, chosen because their likeliest tokens lead clearly."""
        questions, prompts = list[PromptQuestion](), 0
        last = min(64, self.up_to - STEPS)
        if last < 8 or not in_decoding(self.positions, 8):
            return questions
        for index in range(3 * DECODING):
            ids = self.prompt(index / (3 * DECODING + 1), last - 5 * index % (last // 2))
            self.progress.begin(f"our predictions of generated tokens after {len(ids):,} tokens", len(ids))
            generated = self._generated(ids, STEPS)
            self.progress.advance(len(ids))
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
                self.progress.begin(f"our prediction of a generated token after {length:,} tokens", length)
                questions += self._after(ids[:length], self._generated(ids[:length], 1), [self.first])
        return questions

    def _generated(self, ids: Sequence[int], most: int) -> list[int]:
        """Return the tokens that follow a prompt, as long as the likeliest one leads clearly."""
        generated: list[int] = []
        while len(generated) < most:
            prediction = self._expected([*ids, *generated])
            token = prediction.likeliest[0]
            if prediction.lead < (NEXT_SURE if generated else SURE) or token in self.tokenizer.eos_ids:
                break
            generated.append(token)
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


def candidates(first: int, last: int, count: int = 8) -> list[int]:
    """Return lengths from `first` to `last` tokens, evenly spaced.

    >>> candidates(10, 40, 4)
    [10, 20, 30, 40]
    """
    return sorted({round(first + (last - first) * step / max(1, count - 1)) for step in range(count)})


def choose(
    predictions: Mapping[str, Mapping[int, Prediction]], reference: str, lengths: Sequence[int], count: int
) -> list[int]:
    """Choose the lengths at which the hypotheses differ most from `reference`; close hypotheses count most.

    The choice is greedy: each length adds most to the sum over hypotheses of the square root of their total distance.
    """
    others = [name for name in predictions if name != reference]
    apart = {
        length: np.array([distance(predictions[reference][length], predictions[name][length]) for name in others])
        for length in lengths
    }
    chosen: list[int] = []
    so_far = np.zeros(len(others))
    while len(chosen) < min(count, len(lengths)):
        best = max((length for length in lengths if length not in chosen),
                   key=lambda length: float(np.sqrt(so_far + apart[length]).sum()))  # fmt: skip
        chosen.append(best)
        so_far = so_far + apart[best]
    return sorted(chosen)


def stretch(encode: Callable[[str], list[int]], text: str, start: float, tokens: int) -> list[int]:
    """Return `tokens` token ids of a text; `start` is the fraction of the text before them. Its start follows its end.

    **Raises:** `RopeError` if the text is too short.
    """
    begin = text.find(" ", int(start * len(text))) + 1 if start else 0
    text, size = text[begin:] + text[:begin], 8 * tokens + 64
    while len(ids := encode(text[:size])) < tokens and size < len(text):
        size *= 2
    if len(ids) < tokens:
        raise RopeError(
            "verify: the text is too short for the prompts.",
            facts={"tokens": len(ids), "needed": tokens},
            cure="Pass a longer --text, or a smaller --max-tokens.",
        )
    return ids[:tokens]
