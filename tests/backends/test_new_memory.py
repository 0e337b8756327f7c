"""Large results lie in memory that earlier ones have left: never in that of one that is still alive."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import ropewalk as rw
from ropewalk import compiled

pytestmark = pytest.mark.skipif(compiled.kernels is None or compiled.kernels.new_result(1, (4,), (1,)) is None,
                                reason="no such memory on this system")  # fmt: skip
ROWS = 4 << 20 >> 9  # rows of 512 bytes that just fill the size from which memory is kept


@pytest.fixture(autouse=True)
def _nothing_kept():
    gc.collect()
    compiled.kernels.release_memory()
    yield
    compiled.kernels.release_memory()


def large(rows: int = ROWS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(1, rows, 1, 512 // dtype.itemsize, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_as_empty_like(dtype):
    """Shape, dtype, device and strides of empty_like; at the start of a page; NaN where torch fills fresh memory."""
    x = torch.zeros(2, 3, 8, 8 * ROWS, dtype=dtype)
    for like in (x, x.transpose(1, 2), x.permute(3, 0, 2, 1), x[:1].expand(2, -1, -1, -1)):
        new, expected = compiled.new_like(like), torch.empty_like(like)
        assert (new.shape, new.stride(), new.dtype, new.device) == (
            expected.shape, expected.stride(), expected.dtype, expected.device
        )  # fmt: skip
        assert new.data_ptr() % (2 << 20) == 0
        assert new.isnan().all()
        assert not new.requires_grad


def test_only_what_is_free_is_used_again():
    """The memory of a tensor, or of a view of it, is taken when the last of them is gone."""
    first = compiled.new_like(large())
    view, place = first[:, 5:], first.data_ptr()
    del first
    second = compiled.new_like(large())
    assert second.data_ptr() != place
    del view
    assert compiled.new_like(large()).data_ptr() == place


def test_no_more_than_256_mib_is_kept():
    """The oldest is given back first; a larger one is never kept."""
    tensors = [compiled.new_like(large(30 * ROWS)) for _ in range(3)]  # 120 MiB each
    last = tensors[-1].data_ptr()
    while tensors:
        del tensors[0]
    assert compiled.new_like(large(30 * ROWS)).data_ptr() == last
    assert compiled.kernels.release_memory() == 240 << 20
    assert compiled.kernels.release_memory() == 0
    huge = compiled.new_like(large(70 * ROWS))
    del huge
    assert compiled.kernels.release_memory() == 0


def test_a_capsule_that_nobody_takes_is_freed():
    """Its memory is kept for the next; one that became a tensor is freed once, with the tensor."""
    capsule = compiled.kernels.new_result(1, (1 << 20,), (1,))
    del capsule
    assert compiled.kernels.release_memory() == 4 << 20
    capsule = compiled.kernels.new_result(1, (1 << 20,), (1,))
    tensor = torch.utils.dlpack.from_dlpack(capsule)
    del capsule
    tensor.fill_(1.0)
    assert compiled.kernels.release_memory() == 0
    del tensor
    assert compiled.kernels.release_memory() == 4 << 20


def test_results_are_tensors_like_any_other(tmp_path):
    """They are saved, copied, shared, viewed and trained through."""
    x = torch.randn(1, ROWS, 1, 128)
    angle = torch.rand(ROWS, 64)
    y = rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)
    torch.save(y, tmp_path / "y.pt")
    assert torch.equal(torch.load(tmp_path / "y.pt"), y)
    assert torch.equal(y.clone().share_memory_(), y)
    leaf = x.clone().requires_grad_()
    rw.rotate(leaf, angle.cos(), angle.sin(), interleaved=False).square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * x, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        z = rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)
    assert torch.equal(z, y)


def test_threads_never_share_memory():
    """Many threads that take, fill and free at the same time each find their own numbers."""
    wrong = []

    def work(seed: int) -> None:
        for turn in range(30):
            tensor = compiled.new_like(large())
            tensor.fill_(seed + turn)
            if not bool((tensor == seed + turn).all()):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(1000 * seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
