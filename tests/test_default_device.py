"""A default device other than the tensors': results are theirs, and nothing crashes. In a process of its own."""

from __future__ import annotations

import subprocess
import sys

SET_UP = """
import torch, ropewalk as rw
from contextlib import nullcontext
torch.manual_seed(0)
torch.set_num_threads(1)
F32 = torch.float32
IDS = torch.arange(5)
ROPE = rw.RotaryEmbedding(rw.RopeConfig(16, interleaved=False))
X = torch.randn(2, 5, 4, 16)
K = torch.randn(2, 5, 2, 16)
W = torch.ones(16)
SHORT = {"interleaved": False, "scaling": rw.scaling.DynamicNTK(), "max_position_embeddings": 4}
FIRST = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False, max_position_embeddings=256,
    scaling=rw.scaling.LongRoPE([1.0] * 4, [2.0] * 4, 64)))
AXIAL = rw.RopeConfig(16, interleaved=True, axes=(0, 1) * 4)
LEARNED = rw.rotation.LearnedFrequencies(AXIAL, num_heads=2)
COS, SIN = ROPE.cos_sin(IDS)
PLACES = torch.randint(0, 9, (5, 2))
SLOTS = torch.arange(5)[None]
BUFFERS = torch.zeros(2, 2, 2, 8, 16)

def stored():
    keys, values = BUFFERS.clone()
    store = rw.fused.Store(keys, values, K, SLOTS)
    q, k = rw.fused.qk_norm_rotate(X, K, W, W, COS, SIN, interleaved=False, store=store)
    return q, k, values

def trained(call, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    outs = call(*leaves)
    outs = outs if isinstance(outs, tuple) else (outs,)
    return torch.autograd.grad([out.square().sum() for out in outs], leaves)

def decoder(**changes):
    torch.manual_seed(1)
    config = rw.models.DecoderConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
                              num_attention_heads=2, **changes)
    return rw.Decoder(config).eval()

def decoded(model):
    with torch.no_grad():
        # ten new tokens, the second prompt shorter: padding, a cache, a sampler
        tokens = rw.generate(model, [[1, 2, 3], [4]], max_new_tokens=10, temperature=1.0, seed=3)
        options = {"seq_len": 8} if model.config.needs_seq_len else {}
        return model(TOKENS, **options), torch.tensor([list(map(int, row)) for row in tokens], device="cpu")

TOKENS = torch.tensor([[1, 2, 3, 4]])
MODELS = {"rope": decoder(rope=rw.RopeConfig(16, interleaved=False, max_position_embeddings=64)),
          "dynamic": decoder(rope=rw.RopeConfig(16, **SHORT))}
MODELS |= {name: decoder(encoding=name) for name in ("t5", "relative", "kerple", "fire", "alibi", "sinusoidal")}
CIS = rw.rotation.freqs_cis(COS, SIN)
"""
CASES = {
    "cos_sin": "ROPE.cos_sin(IDS)",
    "cos_sin in float64": "ROPE.cos_sin(IDS, dtype=torch.float64)",
    "cos_sin of first tokens": "FIRST.cos_sin(IDS, seq_len=99)",
    "cos_sin of axes": "rw.RotaryEmbedding(AXIAL).cos_sin(PLACES)",
    "forward": "ROPE(X, K, position_ids=IDS)",
    "forward in place": "ROPE(X.clone(), K.clone(), position_ids=IDS, inplace=True)",
    "gradients": "trained(lambda x, k: ROPE(x, k, position_ids=IDS), X, K)",
    "reference": "ROPE.rotate(X, position_ids=IDS, backend='reference')",
    "norm": "rw.fused.qk_norm_rotate(X, K, W, W, COS, SIN, interleaved=False)",
    "norm's gradients":
        "trained(lambda x, k, w: rw.fused.qk_norm_rotate(x, k, w, w, COS, SIN, interleaved=False), X, K, W)",
    "store": "stored()",
    "learned": "LEARNED.cos_sin(PLACES)",
    "complex": "rw.rotation.apply_rotary_complex(X, CIS)",
    "pairing": "rw.convert_pairing(X, to='half')",
    "frequencies": "rw.inverse_frequencies(ROPE.config).inv_freq",
    "the tutorials' function": "rw.apply_rotary_pos_emb(X, IDS)",
    "text positions": "rw.positions.text_positions(IDS, 2)",
    "packed positions": "rw.positions.positions_from(torch.tensor([0, 3, 5], device='cpu'), offsets=IDS[:2])",
    "mrope positions": "rw.positions.mrope_positions(torch.tensor([0, 1, 1, 0], device='cpu'), images=[(1, 2, 4)])[0]",
    "padded positions": "rw.positions.positions_from(offsets=3, max_seqlen=4)",
    **{f"decoder with {name}": f"decoded(MODELS[{name!r}])"
       for name in ("rope", "dynamic", "t5", "relative", "kerple", "fire", "alibi", "sinusoidal")},
}  # fmt: skip
CHECK = """
import sys
cases = eval(sys.argv[1])
right = {name: eval(code) for name, code in cases.items()}
wrong = []
for way in ("context", "set"):
    if way == "set":
        torch.set_default_device("meta")
    for name, code in cases.items():
        print(way, name, flush=True)
        with torch.device("meta") if way == "context" else nullcontext():
            found = eval(code)
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, right[name])), strict=True):
            if a.device.type != "cpu" or a.dtype != b.dtype or not a.equal(b):
                wrong.append((way, name))
assert not wrong, wrong
"""


def test_results_do_not_depend_on_the_default_device():
    """`with torch.device(...)` and `torch.set_default_device` leave every result of CPU tensors as it is."""
    done = subprocess.run([sys.executable, "-c", SET_UP + CHECK, repr(CASES)], capture_output=True, text=True)
    assert done.returncode == 0, f"exit status {done.returncode} after: {done.stdout[-200:]}{done.stderr[-2000:]}"
