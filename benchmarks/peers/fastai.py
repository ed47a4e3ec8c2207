"""fastai: a `Learner` over plain loaders; a new user has its own Adam, the recorder and a progress
bar.

It validates after every epoch; the loader for that has one batch.
"""

from __future__ import annotations

from functools import cache, partial

# the bar is there once this is imported, as it is by `fastai.*.all`
import fastai.callback.progress  # noqa: F401,
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import Adam, OptimWrapper
from torch.utils.data import DataLoader, TensorDataset

from workloads import Round, Workload

DIFFERS = {"default": "its own Adam, with other constants and weight decay"}


def _build(work: Workload, *, is_default: bool) -> Round:
    made = work.build_optimizer
    optimizer = Adam if is_default else partial(OptimWrapper, opt=made.func)
    loaders = cache(partial(_loaders, work))
    learner = Learner(
        loaders(1), work.build_model(), work.loss_fn, opt_func=optimizer, lr=made.keywords["lr"]
    )

    def run(num_steps: int) -> None:
        learner.dls = loaders(num_steps)
        learner.fit(1)

    def run_silently(num_steps: int) -> None:
        with learner.no_bar(), learner.no_logging(), learner.removed_cbs([learner.recorder]):
            run(num_steps)

    return run if is_default else run_silently


def _loaders(work: Workload, num_steps: int) -> DataLoaders:
    rows = TensorDataset(*work.rows(num_steps))
    few = TensorDataset(*(tensor[: work.batch_size] for tensor in rows.tensors))
    train = DataLoader(rows, batch_size=work.batch_size, shuffle=work.order is None)
    return DataLoaders(train, DataLoader(few, batch_size=work.batch_size))


def off(work: Workload) -> Round:
    return _build(work, is_default=False)


def default(work: Workload) -> Round:
    return _build(work, is_default=True)
