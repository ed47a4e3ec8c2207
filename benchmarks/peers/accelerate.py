"""accelerate: the loop stays the user's; a new user's has a progress bar and sums up the loss, as
the tutorial's."""

from __future__ import annotations

from accelerate import Accelerator
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from workloads import Round, Workload


def _build(work: Workload, *, is_default: bool) -> Round:
    accelerator = Accelerator()
    model = work.build_model()
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())
    model, optimizer, loader = accelerator.prepare(
        model, work.build_optimizer(model.parameters()), loader
    )

    def run(num_steps: int) -> None:
        done, total = 0, 0.0
        bar = tqdm(range(num_steps), disable=not is_default)
        while True:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = work.loss_fn(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                if is_default:
                    total += loss.item()
                    bar.update(1)
                done += 1
                if done == num_steps:
                    return bar.close()

    return run


def off(work: Workload) -> Round:
    return _build(work, is_default=False)


def default(work: Workload) -> Round:
    return _build(work, is_default=True)
