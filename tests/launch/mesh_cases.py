"""What each process of a mesh does: one decoder, cut over the mesh, beside the same decoder whole."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from ropewalk.attention.sequence_shard import SequenceShard
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.distributed.mesh import Mesh
from ropewalk.distributed.meta import built
from ropewalk.distributed.settings import MeshSettings
from ropewalk.distributed.sharding import clip_gradients, local_part
from ropewalk.errors import RopeError
from ropewalk.extend.tunable import TunableDecoder
from ropewalk.extend.tuning import TuningRecipe, tune_reader
from ropewalk.methods import Reach
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import DynamicNTK, Llama3, YaRN
from ropewalk.training import Housekeeping, train
from ropewalk.training.data import Batch
from ropewalk.training.language_model import LanguageModelTask
from ropewalk.training.objective import next_token_loss
from tests.training.material import small

VOCAB, WINDOWS, SEQ = 50, 8, 16
BAR = 1e-5  # of logits and gradients, absolute; losses are about 4 and gradients about 0.1
SCALINGS: dict[str, Any] = {
    "default": None,
    "llama3": Llama3(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8),
    "yarn": YaRN(factor=4.0, original_max_position_embeddings=8),
    "dynamic": DynamicNTK(factor=2.0),
}


def make(scaling: str, *, tied: bool = True) -> Callable[[], Decoder]:
    """A decoder of grouped queries whose second layer has a window; the same weights in every process, float64."""
    rope = RopeConfig(8, interleaved=False, theta=100.0, scaling=SCALINGS[scaling], max_position_embeddings=8)
    config = DecoderConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rope=rope, tie_word_embeddings=tied, qk_norm=True, initializer_range=0.2,
        sliding_window=(None, 6),
    )  # fmt: skip

    def built_anew() -> Decoder:
        return Decoder(config)

    return built_anew


@contextmanager
def float64() -> Iterator[None]:
    """Models are built in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def batch_of(packed: bool) -> Batch:
    """Windows of random tokens; where packed, of documents that begin at different places, some within a part."""
    random = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCAB, (WINDOWS, SEQ + 1), generator=random)
    documents = (torch.rand(WINDOWS, SEQ, generator=random) < 0.2).long().cumsum(1) if packed else None
    return Batch(tokens[:, :-1], tokens[:, 1:], documents)


def mine(batch: Batch, mesh: Mesh) -> Batch:
    """This process's windows, and its tokens of them."""
    count = WINDOWS // mesh.dp
    rows = batch.rows(list(range(mesh.dp_rank * count, (mesh.dp_rank + 1) * count)))
    shard = mesh.shard(SEQ)
    return rows if shard is None else rows.part(shard)


def logits_of(model: Decoder, batch: Batch) -> Tensor:
    """`[windows, seq, vocab]`."""
    found: Tensor = model(
        batch.inputs,
        position_ids=batch.position_ids,
        document_ids=batch.document_ids,
        seq_len=batch.seq_len or batch.inputs.shape[1],
        shard=batch.shard,
    )
    return found


def share(loss: Tensor, batch: Batch, mesh: Mesh) -> Tensor:
    """This process's share of the mean of all."""
    return loss * (batch.tokens / mesh.sum(batch.tokens)[0])


def mine_of(expected: Tensor, beside: Tensor) -> Tensor:
    """The part of a whole tensor that this process has of one that is cut; nothing is sent."""
    if not isinstance(beside, DTensor):
        return expected
    part = distribute_tensor(expected.detach(), beside.device_mesh, beside.placements, src_data_rank=None)
    return part.to_local()


def far(cut: Iterable[Any], plain: Iterable[Any]) -> float:
    """The largest difference of tensors that are cut from whole ones, of this process's parts."""
    pairs = [(local_part(part), mine_of(expected, part)) for part, expected in zip(cut, plain, strict=True)]
    return max(float((part - expected).abs().max()) for part, expected in pairs if part.numel())


def grads(model: Decoder) -> list[Any]:
    """Of all parameters; and none is left."""
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def both(mesh: Mesh, scaling: str, *, tied: bool) -> tuple[Decoder, Decoder]:
    """The decoder cut over the mesh, and whole: they begin with the same bits."""
    with float64():
        torch.manual_seed(1)
        plain = make(scaling, tied=tied)()
        after = torch.rand(4)
        torch.manual_seed(1)
        cut = built(make(scaling, tied=tied), mesh, "cpu")
        assert torch.equal(torch.rand(4), after)  # the generator goes on as in one process
    assert far(cut.parameters(), plain.parameters()) == 0.0
    return cut, plain


def differences(cut: Decoder, plain: Decoder, mesh: Mesh, *, packed: bool) -> dict[str, float]:
    """The largest differences of logits, of the loss and of gradients from one process's."""
    batch, part = batch_of(packed), mine(batch_of(packed), mesh)
    with torch.no_grad():
        found, expected = logits_of(cut, part), logits_of(plain, batch)
    count = WINDOWS // mesh.dp
    expected = expected[mesh.dp_rank * count :][:count]
    if part.shard is not None:
        expected = expected[:, part.shard.index]
    wanted, loss = next_token_loss(plain, batch), share(next_token_loss(cut, part), part, mesh)
    wanted.backward()
    loss.backward()
    before = far([each.grad for each in cut.parameters()], [each.grad for each in plain.parameters()])
    norm = clip_gradients(cut.parameters(), 0.1, mesh)
    expected_norm = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
    worst = {
        "logits": float((found - expected).abs().max()),
        "loss": abs(mesh.sum(float(loss.detach()))[0] - float(wanted.detach())),
        "gradients": before,
        "norm": abs(norm / expected_norm - 1),
        "clipped": far(grads(cut), grads(plain)),
    }
    every = [dict(zip(worst, row.tolist(), strict=True)) for row in mesh.gathered(torch.tensor([*worst.values()]))]
    return {name: max(row[name] for row in every) for name in worst}


def compare(rank: int, meshes: list[dict[str, Any]], models: list[dict[str, Any]], table: str) -> None:
    """Every model on every mesh, packed and not, held to the bar; rank 0 writes the differences to a file."""
    rows = []
    for sizes in meshes:
        mesh = Mesh(MeshSettings(**sizes))
        for model in models:
            cut, plain = both(mesh, **{"tied": True, **model})
            for packed in (False, True):
                found = differences(cut, plain, mesh, packed=packed)
                rows.append({**mesh.settings.to_json(), **model, "packed": packed, **found})
                assert max(found.values()) < BAR, rows[-1]
    if rank == 0:
        Path(table).write_text(json.dumps(rows))


EVERY_STEP = Housekeeping(log_every=1, validate_every=10, checkpoint_every=20)


def run(text: str, out: str, mesh: MeshSettings | None = None, **changes: Any) -> None:
    """A run of 20 updates, which the log has one by one."""
    settings = small(text, **{"steps": 20, "dropout": 0.0, "batch_size": 8, "heads": 4, "kv_heads": 2, **changes})
    train(settings, out, dtype="float32", mesh=mesh, housekeeping=EVERY_STEP)


def curves(rank: int, text: str, out: str, meshes: list[dict[str, Any]]) -> None:
    """A run on each mesh, in a folder of its own."""
    for number, sizes in enumerate(meshes):
        run(text, os.path.join(out, str(number)), MeshSettings(**sizes))


def sabotaged(rank: int, text: str, out: str) -> None:
    """What is easily done wrong is refused, not computed: positions, targets, and weights that were never set."""
    mesh = Mesh(MeshSettings(cp=2))
    with float64():
        torch.manual_seed(1)
        model = built(make("dynamic"), mesh, "cpu")
    right = mine(batch_of(True), mesh)
    local = torch.arange(SEQ // 2)
    with pytest.raises(RopeError, match="do not ascend"):
        logits_of(model, replace(right, position_ids=local.expand(WINDOWS, -1)))
    with pytest.raises(RopeError, match="belongs to one process"):
        SequenceShard([local, local], rank, None)
    alone = mine(batch_of(False), mesh)
    for local_length in (SEQ // 2, torch.tensor([SEQ] + [SEQ // 2] * (WINDOWS - 1))):
        with pytest.raises(RopeError, match="`seq_len` is the length of the whole row"):
            model(alone.inputs, position_ids=alone.position_ids, seq_len=local_length, shard=alone.shard)
    with torch.no_grad():
        found, wrong = logits_of(model, right), logits_of(model, replace(right, seq_len=SEQ // 2))
    assert float((found - wrong).abs().max()) > 100 * BAR  # packed, it may be that of the longest document
    _targets_shifted_too_late(text, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "reset_parameters", lambda self: None)
        with pytest.raises(RopeError, match="never given values"):
            built(make("default"), mesh, "cpu")


def _targets_shifted_too_late(text: str, out: str) -> None:
    """A run whose windows are dealt out first is refused at its first batch."""
    part = Batch.part

    def shifted_after(batch: Batch, shard: SequenceShard) -> Batch:
        own = part(batch, shard)
        return replace(own, targets=own.inputs.roll(-1, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "part", shifted_after)
        with pytest.raises(RopeError, match="targets are the next tokens"):
            run(text, out, MeshSettings(cp=2), steps=1)


def stopped(rank: int, text: str, out: str) -> None:
    """SIGTERM on the second process stops both after the same update; the run goes on to the same bits."""
    loss, calls = LanguageModelTask.loss, []

    def loss_with_signal(task: LanguageModelTask, step: int, part: int) -> Tensor:
        calls.append(step)
        if rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(task, step, part)

    mesh, short = MeshSettings(dp=2), {"steps": 6, "dropout": 0.1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModelTask, "loss", loss_with_signal)
        with pytest.raises(KeyboardInterrupt, match="stopped at step 3 of 6"):
            run(text, out + "/stopped", mesh, **short)
    assert calls == [0, 1, 2]
    run(text, out + "/stopped", mesh, **short)
    run(text, out + "/whole", mesh, **short)


def tuned(number: int, text: str, out: str, mesh: MeshSettings, **changes: Any) -> None:
    """Tuning on a mesh, with layers computed again in the backward pass: every process gets one process's weights."""
    rope = RopeConfig(8, interleaved=False, scaling=SCALINGS["yarn"], max_position_embeddings=8)
    torch.manual_seed(1)
    model = Decoder(
        DecoderConfig(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, rope=rope, qk_norm=True, initializer_range=0.2)
    )  # fmt: skip
    model.tokenizer = TextTokenizer.bytes()
    reader, recipe = TunableDecoder(model, "small"), TuningRecipe(
        text=(text,), source="", method="yarn", reach=Reach(8, 32), steps=4, batch_size=4, lr=1e-3, weight_decay=0.1,
        precision="float32", device="cpu", **changes,
    )  # fmt: skip
    alone = tune_reader(reader, recipe, f"{out}/alone-{number}", housekeeping=EVERY_STEP).module
    together = tune_reader(reader, recipe, f"{out}/together", housekeeping=EVERY_STEP, mesh=Mesh(mesh)).module
    moved = 0.0
    for (name, found), expected in zip(together.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=name)
        moved = max(moved, float((found - model.get_parameter(name)).detach().abs().max()))
    assert moved > 1e-3


def of_two(rank: int, text: str, out: str, table: str) -> None:
    """Everything that two processes are asked, in one launch."""
    compare(rank, [{"cp": 2}], [{"scaling": "yarn", "tied": False}], table)
    compare(rank, [{"tp": 2}], [{"scaling": "dynamic"}], table)
    sabotaged(rank, text, out + "/never")
    stopped(rank, text, out)
    tuned(rank, text, out + "/tune", MeshSettings(cp=2))
