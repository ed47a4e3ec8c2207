"""`AdditionalOutputs` on several processes: all samples of a step, not only those of the first
process."""

import torch
from torch import nn

from loopwright.callbacks import AdditionalOutputs
from loopwright.checkpoint import load_weights
from loopwright.interfaces.configured import TrainerResult
from tests.distributed.ranks import run_ranks

from ..interfaces.configured.parts import CustomTrainer, Points, build_trainer


class Telling(CustomTrainer):
    """Gives what it saw, a mean over its samples, and a matrix whose width is the number of its
    samples."""

    def train_step(self, batch, model):
        loss = nn.functional.mse_loss(
            model(batch["coordinates"], batch["features"]), batch["labels"]
        )
        labels = batch["labels"]
        outputs = {"labels": labels, "mean": labels.mean(), "square": labels[None].repeat(2, 1)}
        return TrainerResult(loss, additional_outputs=outputs)


def kept(rank, folder):
    data = {"train": Points(13)}  # the last batch of 8 is one of 5: 2 samples and 3
    outputs = AdditionalOutputs(every_n_updates=1)
    trainer = build_trainer(
        Telling, max_epochs=1, datasets=data, callbacks=[outputs], run_dir=folder
    )
    trainer.train()
    return {name: value.tolist() for name, value in outputs.latest.items()}, list(
        trainer.history.steps["mean"]
    )


def test_outputs_of_all_processes_are_kept_in_the_order_of_the_samples(tmp_path):
    ((alone, means),) = run_ranks(kept, 1, tmp_path / "one")
    both = run_ranks(kept, 2, tmp_path / "two")
    for latest, together in both:
        assert latest["labels"] == alone["labels"]
        assert torch.allclose(torch.tensor(together), torch.tensor(means))
        assert [len(latest[name][0]) for name in ("square.0", "square.1")] == [2, 3]
    files = sorted((tmp_path / "two" / "artifacts" / "outputs").iterdir())
    assert [len(load_weights(file)["labels"]) for file in files] == [8, 5]
    assert load_weights(files[-1])["labels"].tolist() == alone["labels"]
