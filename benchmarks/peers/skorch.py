"""skorch: a `NeuralNet` trained by `partial_fit`, without its default split for validation, which
no other has."""

from __future__ import annotations

from typing import Any

from skorch import NeuralNet

from workloads import Round, Workload


def _build(work: Workload, **options: Any) -> Round:
    optimizer = work.build_optimizer
    net = NeuralNet(
        work.build_model(),
        lambda: work.loss_fn,
        optimizer=optimizer.func,
        lr=optimizer.keywords["lr"],
        batch_size=work.batch_size,
        max_epochs=1,
        train_split=None,
        iterator_train__shuffle=work.order is None,
        **options,
    ).initialize()
    return lambda num_steps: net.partial_fit(*work.rows(num_steps)) and None


def off(work: Workload) -> Round:
    return _build(work, callbacks="disable", verbose=0)


def default(work: Workload) -> Round:
    """The loss and the duration of each epoch are scored and printed as a table."""
    return _build(work)
