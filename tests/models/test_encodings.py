"""Each encoding against its paper's formula and transformers; in a decoder files change nothing."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, LlamaConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import ropewalk as rw
from ropewalk import encodings
from ropewalk.encodings import ENCODINGS, Places, Sizes
from ropewalk.models.encodings import alibi_slopes, sinusoidal_table, t5_bucket
from tests import oracle
from tests.models.forms import make_decoder

SIZES = Sizes(hidden_size=12, num_attention_heads=3, head_dim=4)
QUERIES, KEYS = [3, 9, 10, 250], [0, 3, 4, 11, 249, 700]


def built(config, *, causal=True):
    """The module in float64 with every learned number drawn anew, and the same numbers in numpy."""
    module = config.build(SIZES._replace(causal=causal)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.9, 0.9)
    return module, {name: value.detach().numpy() for name, value in module.named_parameters()}


def bias_of(module, q=None):
    """Its bias for all QUERIES and KEYS, `[heads, queries, keys]`."""
    q = torch.zeros(1, len(QUERIES), 3, 4, dtype=torch.float64) if q is None else q
    _, bias = module.biased(q, Places(torch.tensor(QUERIES), torch.tensor(KEYS)))
    return (bias if bias.ndim == 3 else bias[0]).detach().numpy()


def by_formula(formula):
    return np.array([[[formula(h, m, n) for n in KEYS] for m in QUERIES] for h in range(3)])


def test_sinusoidal():
    """PE(m, 2i) = sin(m / theta^(2i/d)), PE(m, 2i+1) = cos; embeddings times sqrt(d) before, by default."""
    ids = torch.tensor([0, 1, 77, 100_000])
    expected = [[f(m / 10_000 ** (2 * i / 12)) for i in range(6) for f in (math.sin, math.cos)] for m in ids.tolist()]
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    for scaled in (True, False):
        got = encodings.Sinusoidal(scale_embeddings=scaled).build(SIZES).embedded(x, ids).numpy()
        np.testing.assert_allclose(got, x.numpy() * (math.sqrt(12) if scaled else 1) + expected, atol=1e-10)
    np.testing.assert_allclose(sinusoidal_table(ids, 12), expected, atol=1e-10)


def test_learned():
    """Row m of the table, and no other."""
    module, numbers = built(encodings.LearnedAbsolute(8))
    got = module.embedded(torch.zeros(1, 3, 12, dtype=torch.float64), torch.tensor([7, 0, 2])).detach().numpy()
    assert (got[0] == numbers["positions.weight"][[7, 0, 2]]).all()


def test_what_is_published():
    """Where learned numbers start: as in the code of KERPLE, FIRE and Transformer-XL; defaults: BERT's and T5's."""
    kinds, many = (encodings.KERPLE, encodings.FIRE, encodings.TransformerXL), SIZES._replace(num_attention_heads=9999)
    kerple, fire, xl = (kind().build(many) for kind in kinds)
    for logarithm, most in ((kerple.log_r1, 2.0), (kerple.log_r2, 1.0)):
        assert logarithm.min().exp() < 0.02
        assert most - 0.01 < logarithm.max().exp() <= most
    assert (fire.c.item(), fire.threshold.item(), len(fire.inner.weight)) == (pytest.approx(0.1), 1.0, 32)
    assert (xl.u.std().item(), xl.v.std().item()) == (pytest.approx(0.02, rel=0.05),) * 2
    t5, bert = T5Config(), BertConfig().max_position_embeddings
    assert encodings.T5Bias() == encodings.T5Bias(t5.relative_attention_num_buckets, t5.relative_attention_max_distance)
    assert encodings.RelativeBias.max_distance == t5.relative_attention_max_distance
    assert encodings.LearnedAbsolute.max_position_embeddings == rw.models.TextClassifierConfig.max_length == bert
    assert rw.models.DecoderConfig.initializer_range == LlamaConfig().initializer_range


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (64, 1000), (4, 9)])
def test_t5_buckets_are_transformers(causal, buckets, far):
    """The same bucket for every distance, both ways."""
    distance = torch.arange(-3 * far, 3 * far + 1)
    theirs = T5Attention._relative_position_bucket(
        -distance, bidirectional=not causal, num_buckets=buckets, max_distance=far
    )
    assert torch.equal(t5_bucket(distance, buckets, far, causal=causal), theirs)


def relative(w, h, m, n, least):
    """A number for each clipped distance; if causal, none for later keys."""
    assert w["bias.weight"].shape == (6 - least, 3)
    return w["bias.weight"][min(max(m - n, least), 5) - least, h]


def t5(w, h, m, n, least):
    """The table's entry of the bucket of the distance."""
    return w["bias.weight"][t5_bucket(torch.tensor(m - n), 32, 128, causal=least == 0), h]


def fire(w, h, m, n, least):
    """f(log(c|m - n| + 1) / log(c max(L, m) + 1)); keys after the query count from their own position."""
    c, threshold = float(w["c"]), abs(float(w["threshold"]) * 512.0)
    share = math.log(abs(c * abs(m - n)) + 1) / math.log(abs(c * max(threshold, m, n)) + 1)
    hidden = np.maximum(w["inner.weight"][:, 0] * share + w["inner.bias"], 0)
    return w["outer.weight"][h] @ hidden + w["outer.bias"][h]


FORMULAS = {
    "relative": (encodings.RelativeBias(5), relative),
    "t5": (encodings.T5Bias(), t5),
    "alibi": (encodings.ALiBi(), lambda w, h, m, n, least: -alibi_slopes(3)[h] * abs(m - n)),
    "kerple": (encodings.KERPLE(), lambda w, h, m, n, least: (
        -np.exp(w["log_r1"][h]) * math.log(1 + np.exp(w["log_r2"][h]) * abs(m - n)))),
    "fire": (encodings.FIRE(), fire),
}  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_biases(name, causal):
    """By the formula, on either side of a query."""
    config, formula = FORMULAS[name]
    module, numbers = built(config, causal=causal)
    if causal and name == "fire":  # a nearly linear logarithm
        module.c.data.mul_(1e-3)
    expected = by_formula(lambda h, m, n: formula(numbers, h, m, n, 0 if causal else -5))
    np.testing.assert_allclose(bias_of(module), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 40])
def test_alibi_slopes_are_transformers(heads):
    """BLOOM's slopes, for powers of 2 and other counts."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).view(heads, 2)[:, 1]
    np.testing.assert_allclose(alibi_slopes(heads), theirs.numpy(), rtol=1e-6)


def test_transformer_xl():
    """(q + u) k + (q + v) W R(m - n), over sqrt(head_dim): the paper's four terms."""
    module, numbers = built(encodings.TransformerXL())
    q = torch.randn(1, len(QUERIES), 3, 4, dtype=torch.float64)
    content, _ = module.biased(q, Places(torch.tensor(QUERIES), torch.tensor(KEYS)))
    np.testing.assert_allclose(content.detach().numpy(), q.numpy() + numbers["u"], atol=1e-12)

    def formula(h, m, n):
        sines = [f((m - n) / 10_000 ** (2 * i / 12)) for i in range(6) for f in (math.sin, math.cos)]
        r = (numbers["r_proj.weight"] @ sines).reshape(3, 4)[h]
        return (q[0, QUERIES.index(m), h].numpy() + numbers["v"][h]) @ r / 2

    np.testing.assert_allclose(bias_of(module, q), by_formula(formula), atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_xpos_reaches_as_far_as_scales_are_normal_numbers(dtype):
    """Of the slowest decay, the first pair's; half a percent beyond, the position is refused."""
    module, x = encodings.XPos().build(SIZES), torch.ones(2, 1, 1, 3, 4, dtype=dtype)
    limit = math.log(1 / torch.finfo(dtype).tiny) / math.log(1.4 / 0.4) * 512
    for far in (limit, -limit):
        for turned in module.encoded(*x, torch.tensor([int(0.995 * far)])):
            assert turned.isfinite().all()
        with pytest.raises(rw.RopeError, match="too far"):
            module.encoded(*x, torch.tensor([int(1.005 * far)]))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("center", [0, 300])
def test_xpos(center, interleaved):
    """Scores are RoPE's, each pair's part times zeta^((m - n)/512); the centre cancels."""
    rope = rw.RopeConfig(4, interleaved=interleaved)
    module = encodings.XPos(rope, center=center).build(SIZES)
    q, k = torch.randn(2, 1, 1, 3, 4, dtype=torch.float64)
    for m, n in ((0, 0), (9, 2), (512, 100)):
        turned = module.encoded(q, k, torch.tensor([m]))[0], module.encoded(q, k, torch.tensor([n]))[1]
        got = (turned[0] * turned[1]).sum(-1).flatten().numpy()
        angles = oracle.angles(np.array([m, n]), 1e4, 4)
        a = oracle.rotate(q.numpy(), angles[:1][None, :, None], interleaved=interleaved)
        b = oracle.rotate(k.numpy(), angles[1:][None, :, None], interleaved=interleaved)
        zeta = (np.arange(0, 4, 2) / 4 + 0.4) / 1.4
        pairs = [0, 0, 1, 1] if interleaved else [0, 1, 0, 1]
        expected = (a * b * (zeta ** ((m - n) / 512.0))[pairs]).sum(-1).flatten()
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_axial():
    """The first half of the pairs turns by the first coordinate, the second half by the other, each from theta^0."""
    rope = encodings.resolve("axial", 8)
    x = torch.randn(1, 2, 1, 8, dtype=torch.float64)
    ids = torch.tensor([[3, 5], [70, 2]])
    got = rw.RotaryEmbedding(rope).rotate(x, position_ids=ids).numpy()
    one, two = oracle.angles(ids[:, 0].numpy(), 1e4, 4), oracle.angles(ids[:, 1].numpy(), 1e4, 4)
    expected = oracle.rotate(x.numpy(), np.concatenate((one, two), -1)[None, :, None], interleaved=False)
    np.testing.assert_allclose(got, expected, atol=1e-9)


# --- in a decoder

NAMES = [*ENCODINGS, "rope"]
SEQ = 20


@pytest.fixture(params=NAMES)
def model(request):
    """Three layers with grouped queries in float64, with weights that matter."""
    return make_decoder(encoding=request.param)


@pytest.fixture
def ids():
    return torch.randint(0, 50, (2, SEQ))


def test_saved_and_loaded(model, ids, tmp_path):
    """Through ropewalk's own config, with every setting and learned number."""
    rw.save(model, tmp_path / "model")
    loaded = rw.load(tmp_path / "model")
    assert loaded.config.encoding == model.config.encoding
    torch.testing.assert_close(loaded.double()(ids), model(ids), atol=1e-11, rtol=0)


def test_positions_reach_the_scores(model, ids):
    """Another order of positions changes the logits, and a shift of them only those of absolute encodings."""
    encoding = model.config.encoding
    if model.config.rope is None and encoding is None:
        pytest.skip("NoPE knows order by the causal mask alone")
    plain = model(ids)
    assert (model(ids, position_ids=torch.randperm(SEQ)) - plain).abs().max() > 1e-3
    moved = (model(ids, position_ids=torch.arange(SEQ) + 9) - plain).abs().max()
    absolute = isinstance(encoding, encodings.Sinusoidal | encodings.LearnedAbsolute)
    assert moved > 1e-3 if absolute else moved < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_low_precision(name):
    """Casts do not spoil it: logits stay near float64's."""
    model, ids = make_decoder(encoding=name, initializer_range=0.02), torch.randint(0, 50, (1, 64))
    with torch.no_grad():
        exact = model(ids)
        error = (model.bfloat16()(ids).double() - exact).abs().max()
    assert error < 0.1 * max(1.0, float(exact.abs().max()))


def gradients(model, ids):
    """Of every parameter, and of the positions if they may be real numbers."""
    model.zero_grad()
    places = torch.arange(SEQ, dtype=torch.float64).requires_grad_() if model.config.rope else None
    logits = model(ids, position_ids=places)
    (logits @ torch.linspace(-1, 1, 50, dtype=torch.float64)).sum().backward()
    return [x.grad.clone() for x in (*model.parameters(), places) if x is not None]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_keeps_the_gradients(model, ids, use_reentrant):
    """Each layer runs a second time in the backward pass: its bias is its own, and every gradient is the same.

    Tables of learned positions belong to the graph, so no layer keeps them for the next one.
    """
    wanted = gradients(model, ids)
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=use_reentrant)
    rounding = 1e-12 * max(float(gradient.abs().max()) for gradient in wanted)  # small sums of large terms
    for one, other in zip(gradients(model, ids), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=rounding, rtol=1e-12)
