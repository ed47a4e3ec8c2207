"""pytorch-accelerated: its `Trainer`, without callbacks and with those it has by default.

By default it starts as many workers for data as there are cores, whose time would not be counted:
none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytorch_accelerated import Trainer
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS

from workloads import Round, Workload


def _build(work: Workload, callbacks: Sequence[Any]) -> Round:
    model, data = work.build_model(), work.build_data()
    trainer = Trainer(
        model, work.loss_fn, work.build_optimizer(model.parameters()), callbacks=callbacks
    )

    def run(num_steps: int) -> None:
        trainer.train(
            data,
            num_epochs=1,
            per_device_batch_size=work.batch_size,
            max_num_train_steps=num_steps,
            train_dataloader_kwargs={"num_workers": 0, **work.sampling()},
        )

    return run


def off(work: Workload) -> Round:
    return _build(work, ())


def default(work: Workload) -> Round:
    return _build(work, DEFAULT_CALLBACKS)
