"""Several measurements at a time, each on its share of the processor's cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder

CACHE_BYTES = 2 * 2**30  # caches of all measurements that go on at one time
JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


class Stopped(Exception):
    """Raised in a worker at its next step once the others are to stop as well."""


def fitting_workers(model: Decoder, target: int, jobs: int) -> int:
    """As many as there are cores, jobs, and room for caches of `target` tokens in 2 GiB; one on an accelerator.

    A worker for each core spends nothing on threads that wait for each other, and finds the same numbers.
    """
    weight, config = model.embed_tokens.weight, model.config
    if weight.device.type != "cpu":
        return 1
    token = 2 * config.num_hidden_layers * config.kv_heads * (config.head_dim or 0) * weight.element_size()
    return max(1, min(torch.get_num_threads(), jobs, CACHE_BYTES // (token * target)))


def each(
    jobs: Sequence[JobT],
    measure: Callable[[JobT], ResultT],
    keep: Callable[[JobT, ResultT], None],
    *,
    workers: int,
    stop: threading.Event,
) -> None:
    """Measure every job and keep each result in this thread, as soon as it is there.

    Whatever stops it (Ctrl-C, an error of one job) sets `stop`, on which `measure` should raise `Stopped` soon; results
    that were ready by then are kept, and what stopped it is raised. Raises `RopeError` for `workers` below 1.
    """
    if workers < 1:
        raise RopeError("doctor: `workers` must be at least 1.", facts={"workers": workers}, cure="Give --workers 1.")
    if workers == 1:
        for job in jobs:
            keep(job, measure(job))
        return
    all_cores = torch.get_num_threads()
    cores = max(1, all_cores // workers)
    waiting: dict[Future[ResultT], JobT] = {}
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores,)) as pool:
            try:
                waiting.update({pool.submit(measure, job): job for job in jobs})
                for done in as_completed(list(waiting)):
                    keep(waiting[done], done.result())
                    del waiting[done]
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BaseException:
        for done, job in waiting.items():
            if done.done() and not done.cancelled() and done.exception() is None:
                keep(job, done.result())
        raise
    finally:
        torch.set_num_threads(all_cores)  # what a worker sets is also where every later thread begins
