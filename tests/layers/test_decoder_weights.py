"""The decoder's weights: their names, their start, the meta device, other dtypes, and gradients."""

from __future__ import annotations

import torch

from ropewalk.layers.decoder import Decoder
from ropewalk.rope.scaling import DynamicNTK, YaRN
from tests.layers.small_decoders import TRAINED, close, ids, in_chunks, make, rope


def test_state_dict_keys_are_llamas() -> None:
    """Keys are Hugging Face Llama's, without "model."; a tied head has none; gelu has no gate."""
    keys = set(make(rope(), qk_norm=True, attention_bias=True, tie_word_embeddings=False).state_dict())
    of_layer = {key.removeprefix("layers.2.") for key in keys if key.startswith("layers.2.")}
    assert of_layer == {
        "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight", "self_attn.k_proj.bias",
        "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
        "self_attn.k_norm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
        "input_layernorm.weight", "post_attention_layernorm.weight",
    }  # fmt: skip
    assert {k for k in keys if not k.startswith("layers.")} == {"embed_tokens.weight", "norm.weight", "lm_head.weight"}
    plain = make(rope(), hidden_act="gelu", norm="layernorm", mlp_bias=True, output_bias=True)
    assert "lm_head.weight" not in plain.state_dict()
    assert "layers.0.mlp.gate_proj.weight" not in plain.state_dict()
    assert {"layers.0.mlp.up_proj.bias", "layers.0.self_attn.o_proj.bias", "norm.bias"} <= set(plain.state_dict())


def test_built_on_meta() -> None:
    """Built without memory, materialised and filled, it is the same model."""
    source, tokens = make(rope(YaRN(4.0, TRAINED))), ids(1, 9)
    with torch.device("meta"):
        model = Decoder(source.config)
    assert all(parameter.is_meta for parameter in model.parameters())
    model = model.to_empty(device="cpu").eval()
    model.load_state_dict(source.state_dict())
    assert torch.equal(model(tokens), source(tokens))
    with torch.device("meta"):
        other = Decoder(source.config).eval()
    other.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(other(tokens), source(tokens))
    assert not list(source.buffers())


def test_in_bfloat16() -> None:
    """Cast to bfloat16 it stays near, and the cache takes its dtype."""
    model, tokens = make(rope()), ids(2, 30)
    wanted = model(tokens)
    low = make(rope())
    low.load_state_dict(model.state_dict())
    low = low.to(torch.bfloat16)
    out = low(tokens)
    assert out.dtype == torch.bfloat16
    assert (out - wanted).abs().max() < 0.05 * wanted.abs().max()
    close(in_chunks(low, tokens, [9, 1, 20]), out, atol=0.1)
    assert low.new_cache().dtype == torch.bfloat16
    assert low.new_cache(dtype=torch.float32).dtype == torch.float32


def test_in_float64() -> None:
    """In float64 chunks equal the whole to float64 rounding: the tables are float64 too."""
    model, tokens = make(rope(DynamicNTK(2.0))).double(), ids(1, 40)
    close(in_chunks(model, tokens, [13, 1, 26], seq_len=40), model(tokens, seq_len=40), atol=1e-12)


def test_gradients_reach_every_weight() -> None:
    """Every parameter learns, with padding and documents too, and no gradient is NaN."""
    model = make(rope(), qk_norm=True, attention_bias=True, tie_word_embeddings=False, sliding_window=(None, 3, None))
    tokens = ids(2, 10)
    mask, marks = torch.ones(2, 10, dtype=torch.long), torch.tensor([[0] * 4 + [1] * 6] * 2)
    mask[0, :5] = 0
    loss = model.train()(tokens, attention_mask=mask, document_ids=marks)[mask.bool()].logsumexp(-1).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name != "layers.0.self_attn.k_proj.bias":
            assert parameter.grad.abs().max() > 0, name


def test_initial_weights() -> None:
    """Matrices begin with the standard deviation asked for, norms at one, biases at zero; a seed repeats them."""
    torch.manual_seed(5)
    model = make(rope(), hidden_size=256, attention_bias=True, initializer_range=0.03)
    assert abs(model.embed_tokens.weight.std().item() - 0.03) < 0.001
    assert abs(model.layers[1].mlp.up_proj.weight.std().item() - 0.03) < 0.001
    assert model.layers[1].self_attn.q_proj.bias.abs().max() == 0
    assert (model.norm.weight == 1).all()
    torch.manual_seed(5)
    again = make(rope(), hidden_size=256, attention_bias=True, initializer_range=0.03)
    assert torch.equal(again.embed_tokens.weight, model.embed_tokens.weight)
