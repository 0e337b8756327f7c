"""The decoder: chunks equal the whole, packed and padded rows equal themselves alone, logits are transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ropewalk import RopeError
from ropewalk.rope.scaling import DynamicNTK
from ropewalk.rotation.embedding import RotaryEmbedding
from tests.layers.small_decoders import DIM, LONG, RULES, TRAINED, VOCAB, close, ids, in_chunks, make, rope


@pytest.mark.parametrize(
    ("rule", "window"), [*((rule, (None, 4, 1)) for rule in RULES), ("default", None), ("default", 5), ("nope", 5)]
)
def test_chunks_equal_the_whole(rule: str, window: Any) -> None:
    """Under every rule, uneven chunks and single tokens through the cache are the full forward at its seq_len."""
    ropes, seq_len = RULES[rule]
    model, count = make(ropes, sliding_window=window), 24 if seq_len == 40 else 12
    tokens, uneven = ids(2, count), [7, 1, 2, 1, 1, 12][: 6 if count == 24 else 5]
    full = model(tokens, seq_len=seq_len)
    assert full.std() > 0.3
    close(in_chunks(model, tokens, uneven, seq_len=seq_len), full)
    close(in_chunks(model, tokens, [1] * count, seq_len=seq_len), full)
    model = model.double()  # where a wrong angle cannot hide behind rounding
    full = model(tokens, seq_len=seq_len)
    close(in_chunks(model, tokens, uneven, seq_len=seq_len), full, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "window"), [*((rule, (None, 4, None)) for rule in RULES), ("default", None), ("default", 4), ("nope", 4)]
)
def test_left_padded_batches_equal_rows_alone(rule: str, window: Any) -> None:
    """Rows of unequal length, padded left, right or inside, each with its own seq_len: every row is as it is alone."""
    ropes, seq_len = RULES[rule]
    model = make(ropes, sliding_window=window)
    lengths, more = [11, 4, 7], 5 if seq_len == 40 else 1
    each = torch.tensor([seq_len, seq_len + 30, seq_len]) if seq_len == 40 else torch.tensor([seq_len] * 3)
    rows = [ids(1, n + more) for n in lengths]
    alone = [model(row, seq_len=int(n)) for row, n in zip(rows, each, strict=True)]
    tokens, mask = torch.zeros(3, 13, dtype=torch.long), torch.zeros(3, 13, dtype=torch.long)
    for r, (row, n, begin) in enumerate(zip(rows, lengths, (2, 9, 0), strict=True)):  # left, left, right
        tokens[r, begin : begin + n], mask[r, begin : begin + n] = row[0, :n], 1
    whole = model(tokens, attention_mask=mask, seq_len=each)
    cache = model.new_cache(3, seq_len=each)
    chunks = zip(tokens.split([6, 1, 6], 1), mask.split([6, 1, 6], 1), strict=True)
    parts = [model(part, attention_mask=real, cache=cache) for part, real in chunks]
    assert cache.lengths.tolist() == lengths
    cached = torch.cat(parts, 1)
    for r, n in enumerate(lengths):
        close(whole[r, mask[r].bool()], alone[r][0, :n])
        close(cached[r, mask[r].bool()], alone[r][0, :n])
    for step in range(more):
        new = model(
            torch.cat([row[:, n + step : n + step + 1] for row, n in zip(rows, lengths, strict=True)]), cache=cache
        )
        for r, n in enumerate(lengths):
            close(new[r, 0], alone[r][0, n + step])
    assert whole.isfinite().all()
    assert cached.isfinite().all()


def test_packed_documents_are_separate() -> None:
    """Packed documents give the logits of each alone; under dynamic NTK at the same seq_len."""
    for ropes in (rope(), rope(DynamicNTK(2.0)), (rope(), None, rope(theta=30.0))):
        model = make(ropes, sliding_window=(None, 3, None))
        documents = [ids(1, n) for n in (5, 1, 9)]
        marks = torch.tensor([[3] * 5 + [1] + [3] * 9])
        packed = model(torch.cat(documents, 1), document_ids=marks, seq_len=30)
        for part, document in zip(packed.split([5, 1, 9], 1), documents, strict=True):
            close(part, model(document, seq_len=30))


def test_position_ids_and_mask_are_separate() -> None:
    """Other position ids turn keys and queries, and leave the causal rule alone: also through the cache."""
    model, tokens = make(rope()), ids(2, 12)
    close(model(tokens, position_ids=torch.arange(12) + 500), model(tokens))
    close(model(tokens, position_ids=torch.arange(12).flip(0)), model(tokens, position_ids=900 - torch.arange(12)))
    positions = torch.stack([torch.arange(12) * 2, torch.randperm(12)])
    cache = model.new_cache(2)
    parts = [model(tokens[:, a:b], position_ids=positions[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 12))]
    close(torch.cat(parts, 1), model(tokens, position_ids=positions))
    assert (model(tokens, position_ids=positions) - model(tokens)).abs().max() > 0.01


def test_rotation_matters() -> None:
    """Every rule gives other logits than the default does: none of the equalities above is of rules that do nothing."""
    tokens, plain = ids(1, 37), make(rope())
    for name, (ropes, seq_len) in RULES.items():
        if name in ("default", "dynamic within", "longrope short"):
            continue
        other = plain.with_positions(rope=ropes)
        assert (other(tokens, seq_len=seq_len) - plain(tokens)).abs().max() > 1e-3, name


def test_tables_are_built_once_per_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward builds cos and sin once for each distinct config."""
    made = []
    original = RotaryEmbedding.cos_sin

    def counting(self: RotaryEmbedding, *args: Any, **kwargs: Any) -> Any:
        made.append(self.config.theta)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RotaryEmbedding, "cos_sin", counting)
    make((rope(), rope(theta=30.0), rope()))(ids(1, 4))
    assert made == [1000.0, 30.0]


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "relu"])
def test_the_other_family(act: str) -> None:
    """LayerNorm with a plain feed-forward runs, chunks equal the whole, and the activation is the one named."""
    model = make(rope(), hidden_act=act, norm="layernorm", mlp_bias=True, tie_word_embeddings=False)
    tokens = ids(2, 12)
    close(in_chunks(model, tokens, [5, 1, 6]), model(tokens))
    x = torch.randn(3, 32)
    mlp = model.layers[0].mlp
    wanted = {
        "gelu": torch.nn.GELU(), "gelu_tanh": torch.nn.GELU(approximate="tanh"), "relu": torch.nn.ReLU(),
    }[act]  # fmt: skip
    close(mlp(x), mlp.down_proj(wanted(mlp.up_proj(x))))


def hugging_face(kind: str, **changes: Any) -> Any:
    """A tiny random model of transformers."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": DIM, "initializer_range": 0.2,
        "rms_norm_eps": 1e-5, "attn_implementation": "eager",
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [
        ("Llama", {"tie_word_embeddings": False}, {"tie_word_embeddings": False}),
        ("Qwen3", {"tie_word_embeddings": True}, {"qk_norm": True}),
        ("Mistral", {"sliding_window": 6, "tie_word_embeddings": True}, {"sliding_window": 6}),
        ("Qwen2", {"tie_word_embeddings": True}, {"attention_bias": True}),
    ],
)
def test_equals_transformers(kind: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """With transformers' weights the logits are transformers', windows and padding too."""
    reference = hugging_face(kind, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **theirs)
    model = make(rope(), **ours)
    state = {k.removeprefix("model."): v for k, v in reference.state_dict().items()}
    if model.lm_head is None:
        state.pop("lm_head.weight")
    model.load_state_dict(state)
    tokens = ids(2, 20)
    with torch.no_grad():
        close(model(tokens), reference(tokens).logits)
        mask = torch.ones_like(tokens)
        mask[1, :7] = 0
        padded = reference(tokens, attention_mask=mask).logits
        close(model(tokens, attention_mask=mask)[mask.bool()], padded[mask.bool()])


def test_hidden_states_and_logits_are_the_forward() -> None:
    """forward is the head's product with hidden_states, as `head_fn` sees both; a tied head counts once."""
    for tied in (True, False):
        model, tokens = make(rope(), tie_word_embeddings=tied), ids(2, 6)
        hidden, weight = model(tokens, head_fn=lambda hidden, weight: (hidden, weight))
        assert weight is (model.embed_tokens if tied else model.lm_head).weight
        assert torch.equal(model.hidden_states(tokens), hidden)
        assert torch.equal(hidden @ weight.t(), model(tokens))
        assert model.num_parameters() == sum(value.numel() for value in model.state_dict().values())


def test_a_layer_runs_alone() -> None:
    """Layer by layer, without inputs of a model, is the model; wrong arguments and a missing length are refused."""
    tokens = ids(2, 7)
    for model in (make(encoding="alibi"), make(rope())):
        x = model.embed_tokens(tokens)
        for layer in model.layers:
            x = layer(x)
        close(model.norm(x), model.hidden_states(tokens))
    with pytest.raises(RopeError, match=r"(?s)DecoderLayer: without `inputs`.*x\[None\]"):
        model.layers[0](x[0])
    with pytest.raises(RopeError, match="DecoderLayer: without `inputs`"):
        model.layers[0](x, bias=torch.zeros(1, 1, 7, 7))
    with pytest.raises(RopeError, match="`seq_len` is required"):
        make(rope(DynamicNTK(2.0))).layers[0](x)


def test_a_cache_keeps_no_gradients() -> None:
    """With a cache the logits carry no graph; without one they do."""
    model = make(rope())
    assert not model(ids(1, 3), cache=model.new_cache()).requires_grad
    assert model(ids(1, 3)).requires_grad


def test_outgrown_and_disagreeing_caches_are_refused() -> None:
    """seq_len is required, fixed, and not to be outgrown; a cache of another rope is refused."""
    for scaling in (DynamicNTK(2.0), LONG):
        model = make(rope(scaling))
        with pytest.raises(RopeError, match="`seq_len` is required"):
            model(ids(1, 4))
        with pytest.raises(RopeError, match="`seq_len` is required"):
            model.new_cache()
        cache = model.new_cache(seq_len=12)
        model(ids(1, TRAINED), cache=cache)
        with pytest.raises(RopeError, match="`seq_len` differs"):
            model(ids(1, 1), cache=cache, seq_len=13)
        with pytest.raises(RopeError, match="exceeds the `seq_len`"):
            model(ids(1, 1), cache=cache)
        assert cache.lengths.tolist() == [TRAINED]
        with pytest.raises(RopeError, match="made for a different rope"):
            model.with_positions(rope=rope())(ids(1, 1), cache=cache)
    plain = make(rope())
    with pytest.raises(RopeError, match="`seq_len` differs"):
        plain(ids(1, 1), cache=plain.new_cache(), seq_len=9)


@pytest.mark.rejects
def test_what_is_refused() -> None:
    """Wrong tokens and impossible configurations are named."""
    model = make(rope())
    with pytest.raises(RopeError, match=r"`input_ids` must be integers \[batch, seq\]"):
        model(torch.tensor([1, 2]))
    with pytest.raises(RopeError, match="`input_ids` must be integers"):
        model(torch.ones(1, 2))
    with pytest.raises(RopeError, match=r"outside the vocabulary(.|\n)*highest +50"):
        model(torch.tensor([[0, 50]]))
    for changes, message in (
        ({"hidden_act": "swish"}, "unknown `hidden_act`"),
        ({"norm": "batchnorm"}, "unknown `norm`"),
        ({"ropes": (rope(),)}, "one entry per layer"),
        ({"ropes": 10_000}, "`rope` must be a RopeConfig"),
        ({"sliding_window": (1, 2)}, "one entry per layer"),
        ({"sliding_window": "8"}, "`sliding_window` must be a int"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be a whole number"),
        ({"head_dim": None, "hidden_size": 30}, "`hidden_size` is not a multiple"),
        ({"num_key_value_heads": 3}, "multiple of `num_key_value_heads`"),
    ):
        with pytest.raises(RopeError, match=message):
            make(**changes)


def test_nothing_at_all() -> None:
    """Calls without tokens, or with padding alone, change nothing and stay finite."""
    model, tokens = make(rope(), sliding_window=(None, 2, None)), ids(2, 9)
    assert model(ids(2, 0)).shape == (2, 0, VOCAB)
    assert model(ids(0, 3)).shape == (0, 3, VOCAB)
    cache, empty = model.new_cache(2), torch.zeros(2, 4, dtype=torch.long)
    assert model(ids(2, 4), attention_mask=empty, cache=cache).isfinite().all()
    assert model(ids(2, 4), attention_mask=empty).isfinite().all()
    parts = [model(part, cache=cache) for part in tokens.split([3, 0, 6], 1)]
    assert model(ids(2, 4), attention_mask=empty, cache=cache).isfinite().all()
    close(torch.cat(parts, 1), model(tokens))
