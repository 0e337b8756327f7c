"""The built-in model: its size, its readers, its English, and what it is there to show.

Nothing here says which extension method is the best on it.
"""

from __future__ import annotations

import json
import runpy
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk
import ropewalk as rw
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.texts import read_text
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.models.training import TextWindows, held_out_windows, loss_by_position

FOLDER = Path(str(files("ropewalk") / "builtin" / "tiny"))
TRAINED = 256
COPY_WARMUP = 1200  # updates


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    """The model, in float32."""
    return load("tiny", dtype=torch.float32)


@pytest.fixture(scope="module")
def moby_dick() -> str:
    """The text that was kept out of training."""
    return read_text(None)[1]


def test_the_folder_is_at_most_8_mb_and_complete() -> None:
    """8,000,000 bytes with log and notes; weights in bfloat16."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000
    names = {path.name for path in FOLDER.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training-log.jsonl", "README.md"}
    assert {p.dtype for p in load("tiny", dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_transformers_reads_it_with_the_same_logits(tiny: Decoder, moby_dick: str) -> None:
    """LlamaForCausalLM and AutoTokenizer: the same tokens; logits within 1e-4 over the trained length.

    Past it transformers' float32 angles show (2.1e-4 at 819 tokens, also in its float64 model, against 2.5e-5 of ours).
    """
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    text = moby_dick[30_000:32_500]
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tiny.tokenizer is not None
    assert ids[0].tolist() == tiny.tokenizer.encode(text)
    assert tokenizer.decode(ids[0]) == text
    assert ids.shape[1] > 2 * TRAINED
    with torch.no_grad():
        ours, exact, logits = tiny(ids), load("tiny", dtype=torch.float64)(ids).float(), theirs(ids).logits
    torch.testing.assert_close(ours[:, :TRAINED], logits[:, :TRAINED], rtol=0, atol=1e-4)
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-3)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-4)


def test_loss_rises_past_twice_the_trained_length(tiny: Decoder, moby_dick: str) -> None:
    """Moby-Dick, six windows of four trained lengths: the blocks past twice it lose at least 0.1 nats more."""
    assert tiny.tokenizer is not None
    assert tiny.config.ropes[0] is not None
    assert tiny.config.ropes[0].trained_length == TRAINED
    windows = held_out_windows([tiny.tokenizer.encode(moby_dick[30_000:])], length=4 * TRAINED, limit=6)
    within, _, third, fourth = loss_by_position(tiny, windows).view(4, TRAINED).mean(1).tolist()
    assert within < 4.8
    assert min(third, fourth) >= within + 0.1


def test_it_finds_facts_within_its_trained_length_and_not_beyond(tmp_path: Path) -> None:
    """At 256 tokens most, in windows of 1,024 of a novel that it never saw no more than chance."""
    found = rw.doctor("tiny", target=4 * TRAINED, methods="dca", windows=4, state=tmp_path, progress=False)
    assert found.evidence.control.share > 0.7
    plain = found.evidence.standings["plain"].beyond
    assert plain is not None
    assert plain.p > 0.01


def test_it_writes_english(tiny: Decoder, moby_dick: str) -> None:
    """Most words that it writes at temperature 0.8 are words of a novel that it never saw."""
    known = set("".join(c.lower() if c.isalpha() else " " for c in moby_dick).split())
    rows = generate(tiny, ["It was", "\u201cMy dear,\u201d said"], max_new_tokens=150, temperature=0.8, seed=0)
    assert tiny.tokenizer is not None
    for row in rows:
        words = "".join(c.lower() if c.isalpha() else " " for c in tiny.tokenizer.decode(row)).split()
        assert len(words) > 60
        assert sum(word in known for word in words) / len(words) > 0.85


# --- the script that makes it

SCRIPTS = Path(ropewalk.__file__).parents[2] / "scripts"
if not (SCRIPTS / "make_tiny.py").is_file():
    pytest.skip("the package is installed without its repository", allow_module_level=True)
WORDS = [[-1], [-2, -3], [-4, -5, -6]]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        return runpy.run_path(str(SCRIPTS / "make_tiny.py"))


def test_the_scripts_recipe_is_the_models(script: dict[str, Any]) -> None:
    """Books, updates, tokens, learning rate and copy warm-up as the log and the config have them."""
    last = json.loads((FOLDER / "training-log.jsonl").read_text().splitlines()[-1])
    assert script["BOOKS"] == ("middlemarch", "bleak_house")  # not Moby-Dick, the doctor's text
    assert (script["STEPS"], script["LENGTH"], script["COPY_WARMUP"]) == (last["step"], TRAINED, COPY_WARMUP)
    assert script["STEPS"] * script["BATCH"] * TRAINED == last["tokens"]
    assert script["LR"] * script["FINAL_LR"] == pytest.approx(last["lr"])
    assert script["VALIDATION_LENGTH"] == last["validation_by_position"][-1][1]


def test_windows_depend_only_on_their_number(script: dict[str, Any]) -> None:
    """In any order; golden sums, so that a run has the windows of earlier versions."""
    weights, text = torch.arange(1, 257), TextWindows([range(100_000)], length=256, seed=0)
    sums = [int((script["batch_of"](step, text, WORDS, 4096).inputs * weights).sum()) for step in (COPY_WARMUP, 0)]
    assert sums == [48395541858, 2186389527]


# --- the quotes and dashes of its texts

# ruff: noqa: RUF001


SCRIPT = Path(__file__).parents[2] / "scripts" / "typographic.py"
typographic = runpy.run_path(str(SCRIPT))["typographic"]


def straight(text: str) -> str:
    """The text as it would be typed: the inverse of what is tested."""
    for printed, typed in (("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"), ("—", "--")):
        text = text.replace(printed, typed)
    return text


@pytest.mark.parametrize(
    "printed",
    [
        "“So,” she said—“what is it?”", "“He said, ‘No,’ and went.”", "‘Dogs’ are dogs’ ‘dogs.’",
        "“‘Tell ’em,’ says he.”", "’Tis the ’prentice o’ the ship—’twas in ’29.",
        "(“Oh!”) cried the captain’s men—“Oh!—”", "“‘Whose?’ he asked—‘mine?’”\n\n“‘Yes.’”",
        "“I—” he stopped. “You—!”", "“‘What runs on\n\n“‘and on?’”", "_“Italics,”_ said the mate; “_so_.”",
    ],
)  # fmt: skip
def test_typed_text_is_printed_as_books_print_it(printed: str) -> None:
    """Straightened and converted, each comes back."""
    assert typographic(straight(printed)) == printed


def test_spaces_after_a_sentence_are_one_and_indents_stay() -> None:
    """As in the text of Moby-Dick."""
    assert typographic("One.  Two.\n    A verse.") == "One. Two.\n    A verse."
