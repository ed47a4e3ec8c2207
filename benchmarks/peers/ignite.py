"""ignite: an engine made by `create_supervised_trainer`; a new user attaches the average loss and a
progress bar."""

from __future__ import annotations

from ignite.engine import create_supervised_trainer
from ignite.handlers import ProgressBar
from ignite.metrics import RunningAverage
from torch.utils.data import DataLoader

from workloads import Round, Workload


def _build(work: Workload, *, is_default: bool) -> Round:
    model = work.build_model()
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())
    trainer = create_supervised_trainer(
        model, work.build_optimizer(model.parameters()), work.loss_fn
    )
    if is_default:
        RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
        ProgressBar().attach(trainer, ["loss"])
    return lambda num_steps: trainer.run(loader, max_epochs=1, epoch_length=num_steps) and None


def off(work: Workload) -> Round:
    return _build(work, is_default=False)


def default(work: Workload) -> Round:
    return _build(work, is_default=True)
