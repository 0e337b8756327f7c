"""Encode and decode text: a typed wrapper of a `tokenizers.Tokenizer` and its special tokens."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ropewalk.atomic_io import read_json, read_text, write_json
from ropewalk.errors import RopeError, library_errors
from ropewalk.imports import need
from ropewalk.rope.values import checked

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


class TextTokenizer:
    """A `tokenizers.Tokenizer` with its bos and eos ids.

    - `tokenizer`: the `tokenizers.Tokenizer`.
    - `bos_id`: the id at the beginning of a text, or None.
    - `eos_ids`: the ids that stop generation; the first is written between documents.
    - `chat_template`: the checkpoint's Jinja template, kept and saved but never run.

    >>> tokenizer = TextTokenizer.bytes()
    >>> tokenizer.encode("né")
    [110, 195, 169]
    >>> tokenizer.decode([110, 195, 169])
    'né'
    """

    @checked
    def __init__(
        self,
        tokenizer: Tokenizer,
        bos_id: int | None = None,
        eos_ids: Sequence[int] = (),
        *,
        chat_template: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.bos_id = bos_id
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.chat_template = chat_template
        for name, token in [("bos_id", bos_id), *(("eos_ids", eos) for eos in self.eos_ids)]:
            if token is not None and not has_token(token, tokenizer):
                raise RopeError(
                    f"TextTokenizer: `{name}` is not in the vocabulary.",
                    facts={name: token, "vocab_size": self.vocab_size},
                    cure="Pass ids of the tokenizer's tokens.",
                )

    @property
    def vocab_size(self) -> int:
        """Return the number of ids: one more than the largest, special tokens included."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @checked
    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Return the ids of `text`; with `add_special`, also the checkpoint's tokens around every text."""
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special).ids)
        except TypeError as error:  # `tokenizers` raises it for lone surrogates, and for anything but text
            raise RopeError(
                "TextTokenizer: the text cannot be encoded as UTF-8.",
                facts={"text": text},
                cure="Decode bytes with errors='replace' first.",
            ) from error

    @property
    def prefix_ids(self) -> list[int]:
        """Return the checkpoint's prefix ids of every text: often only `bos_id`, or none."""
        plain, ids = self.encode("a"), self.encode("a", add_special=True)
        before = next((n for n in range(len(ids)) if ids[n : n + len(plain)] == plain), 0)
        return ids[:before]

    @checked
    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a text to continue: with `prefix_ids`, once, and no end token; of no text `bos_id`, if any.

        >>> tokenizer = TextTokenizer.bytes()
        >>> tokenizer.encode_prompt("a"), tokenizer.encode_prompt("")
        ([97], [256])
        """
        if not text:
            return [] if self.bos_id is None else [self.bos_id]
        ids, begin = self.encode(text), self.prefix_ids
        return ids if ids[: len(begin)] == begin else [*begin, *ids]

    @checked
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` with control tokens; incomplete characters become U+FFFD."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def by_text(self) -> dict[str, int]:
        """Return the ids of tokens by text, without texts that several tokens share or that end inside a character."""
        texts = [self.decode([token]) for token in range(self.vocab_size)]
        times = Counter(texts)
        return {text: token for token, text in enumerate(texts) if times[text] == 1 and "\ufffd" not in text}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and tokenizer_config.json into `folder`; transformers' AutoTokenizer loads them."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",  # loads tokenizer.json unchanged
            "clean_up_tokenization_spaces": False,
            "bos_token": None if self.bos_id is None else self.tokenizer.id_to_token(self.bos_id),
            "eos_token": self.tokenizer.id_to_token(self.eos_ids[0]) if self.eos_ids else None,
        }
        if len(self.eos_ids) > 1:
            config["stop_token_ids"] = list(self.eos_ids)
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        write_json(Path(folder) / "tokenizer.json", json.loads(self.tokenizer.to_str()), indent=None)
        write_json(Path(folder) / "tokenizer_config.json", config)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> TextTokenizer:
        """Load tokenizer.json of a Hugging Face folder.

        eos ids come from generation_config.json, else config.json, else tokenizer_config.json; the bos id comes from
        tokenizer_config.json, else the others. Raises `RopeError` with the name of a missing or damaged file.
        """
        root, cure = Path(folder), "Save the tokenizer by AutoTokenizer...save_pretrained, or fetch it again."
        path = root / "tokenizer.json"
        text = read_text(path, "TextTokenizer", cure)
        with library_errors("TextTokenizer: tokenizer.json cannot be read.", facts={"file": str(path)}, cure=cure):
            tokenizer = need("tokenizers").Tokenizer.from_str(text)
        # Settings of a training run's batches, not a property of the text.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer_config, config, generation = (
            read_json(root / name) if (root / name).is_file() else {}
            for name in ("tokenizer_config.json", "config.json", "generation_config.json")
        )
        begin = ids_of(
            tokenizer, tokenizer_config.get("bos_token"), config.get("bos_token_id"), generation.get("bos_token_id")
        )
        ends = [generation.get("eos_token_id"), config.get("eos_token_id"), tokenizer_config.get("eos_token")]
        end = ids_of(tokenizer, tokenizer_config.get("stop_token_ids"), *ends)
        template, chat = root / "chat_template.jinja", tokenizer_config.get("chat_template")
        if template.is_file():
            chat = read_text(template, "TextTokenizer", cure)
        return cls(tokenizer, begin[0] if begin else None, end, chat_template=chat if isinstance(chat, str) else None)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> TextTokenizer:
        """Train byte-level BPE on `texts`, with one special token, <|endoftext|> (id 0), as bos and eos.

        Each digit is a token and words keep their leading space, as in SmolLM2's tokenizer. `vocab_size` counts the 256
        bytes and the special token, so it is at least 257. The same texts give the same tokenizer.

        >>> tokenizer = TextTokenizer.train(["a rose is a rose is a rose"] * 9, vocab_size=270)
        >>> tokenizer.decode(tokenizer.encode("a rose – 1913")), tokenizer.eos_ids
        ('a rose – 1913', (0,))
        """
        if vocab_size < 257:
            raise RopeError(
                "TextTokenizer.train: `vocab_size` must be at least 257 (256 bytes and one special token).",
                facts={"vocab_size": vocab_size},
                cure="Pass 257 or more; TextTokenizer.bytes() needs no training.",
            )
        kit = need("tokenizers")
        cut, tokenizer = kit.pre_tokenizers, kit.Tokenizer(kit.models.BPE())
        tokenizer.pre_tokenizer = cut.Sequence(
            [cut.Digits(individual_digits=True), cut.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = kit.decoders.ByteLevel()
        trainer = kit.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(cut.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer, bos_id=0, eos_ids=(0,))

    @classmethod
    def bytes(cls) -> TextTokenizer:
        """Return a tokenizer without training: one token per byte of UTF-8 (the id is the byte) and <|endoftext|>."""
        kit = need("tokenizers")
        tokenizer = kit.Tokenizer(kit.models.BPE(vocab=byte_alphabet(), merges=[]))
        tokenizer.pre_tokenizer = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = kit.decoders.ByteLevel()
        tokenizer.add_special_tokens([END_OF_TEXT])
        return cls(tokenizer, bos_id=256, eos_ids=(256,))


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each of GPT-2's printable characters for byte-level tokens."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = count(256)
    return {chr(byte if byte in plain else next(others)): byte for byte in range(256)}


def has_token(number: object, tokenizer: Tokenizer) -> TypeGuard[int]:
    """Return whether the vocabulary has this id; ids of more than 32 bits overflow in `tokenizers`."""
    return isinstance(number, int) and 0 <= number < 2**32 and tokenizer.id_to_token(number) is not None


def ids_of(tokenizer: Tokenizer, *sources: Any) -> list[int]:
    """Return the ids in the first source that has any: an id, a token, an added-token dict, or a list of them."""
    for source in sources:
        ids: list[int] = []
        for item in source if isinstance(source, list | tuple) else [source]:
            token = item.get("content") if isinstance(item, dict) else item
            number = tokenizer.token_to_id(token) if isinstance(token, str) else token
            if has_token(number, tokenizer):
                ids.append(number)
        if ids:
            return ids
    return []
