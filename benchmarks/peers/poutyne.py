"""Poutyne: `Model.fit_generator`, with and without its progress output."""

from __future__ import annotations

from poutyne import Model
from torch.utils.data import DataLoader

from workloads import Round, Workload


def _build(work: Workload, *, is_default: bool) -> Round:
    network = work.build_model()
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())
    model = Model(network, work.build_optimizer(network.parameters()), work.loss_fn)

    def run(num_steps: int) -> None:
        model.fit_generator(loader, epochs=1, steps_per_epoch=num_steps, verbose=is_default)

    return run


def off(work: Workload) -> Round:
    return _build(work, is_default=False)


def default(work: Workload) -> Round:
    return _build(work, is_default=True)
