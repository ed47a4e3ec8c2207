"""When memory runs out: the step again in micro-batches, with the gradients, losses and counts of
the whole."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from loopwright import Callback, StepResult, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.training.out_of_memory import split
from tests.mistakes import raises

Batches = list[tuple[Tensor, Tensor]]


class Small(nn.Module):
    """A model for which memory is enough for so many samples, and which knows how often it ran and
    how it failed."""

    def __init__(self, capacity: int, in_backward: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.capacity = capacity
        self.in_backward = in_backward
        self.num_failures = 0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        if len(inputs) > self.capacity:
            if not self.in_backward:
                self.fail()
            outputs.register_hook(lambda grad: self.fail())
        return outputs

    def fail(self) -> None:
        self.num_failures += 1
        raise torch.OutOfMemoryError("tried to allocate more than there is")


def build_batches(*sizes: int) -> Batches:
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(size, 6, generator=generator, dtype=torch.float64) for size in sizes]
    return [(x, (x.sum(1) > 0).long() + (x[:, 0] > 0.5).long()) for x in inputs]


class Counting(Trainer):
    """Sums over counted items, as for tokens."""

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        counted = targets != 2
        return nn.functional.cross_entropy(
            outputs[counted], targets[counted], reduction="sum"
        ), counted.sum()


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.results: list[StepResult] = []

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self.events.append(("start", len(batch[0])))

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.events.append(
            ("end", len(batch[0]), trainer.run.window.size, trainer.run.window.is_last)
        )
        self.results.append(result)

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self.events.append("optimizer")

    def on_update_end(self, trainer: Trainer) -> None:
        self.events.append("update")


def run(
    capacity: int, batches: Batches, kind: type[Trainer] = Trainer, **options: Any
) -> tuple[Trainer, Recorder]:
    recorder = Recorder()
    model = Small(capacity, in_backward=options.pop("in_backward", False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    settings: dict[str, Any] = {"callbacks": [recorder], "progress": "silent"} | options
    trainer = kind(model, optimizer, nn.functional.cross_entropy, **settings)
    trainer.train(batches, num_epochs=2)
    return trainer, recorder


def assert_same_mathematics(trainer: Trainer, other: Trainer) -> None:
    for param, whole in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(param, whole, rtol=0, atol=1e-12)
    losses, others = (list(t.history.steps["loss"]) for t in (trainer, other))
    assert losses == pytest.approx(others, abs=1e-12)
    for row, whole_row in zip(trainer.history.epochs, other.history.epochs, strict=True):
        assert row == pytest.approx(whole_row, abs=1e-12)
    own, whole_progress = trainer.progress.state_dict(), other.progress.state_dict()
    assert {k: v for k, v in own.items() if "seconds" not in k} == {
        k: v for k, v in whole_progress.items() if "seconds" not in k
    }
    assert _num_updates(trainer) == _num_updates(other)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"clip_norm": 0.2},
    "accumulating": {"accumulate": 2},
    "accumulating more, and clipping": {"accumulate": 3, "clip_norm": 0.2},
}


@pytest.mark.parametrize(
    ("capacity", "kind", "in_backward"),
    [(7, Trainer, False), (4, Counting, True), (1, Trainer, True), (1, Counting, False)],
)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_steps_in_micro_batches_are_the_same_mathematics(settings, capacity, kind, in_backward):
    batches = build_batches(5, 8, 3, 8, 1, 7)
    trainer, heard = run(capacity, batches, kind, in_backward=in_backward, **settings)
    whole, heard_whole = run(8, batches, kind, **settings)
    assert trainer.model.num_failures > 0
    assert whole.model.num_failures == 0
    assert_same_mathematics(trainer, whole)
    assert heard.events == heard_whole.events


def test_what_the_failed_attempt_held_is_freed_before_the_next():
    class Holding(Trainer):
        held: weakref.ref[Tensor] | None = None

        def forward(self, inputs: Any) -> Any:
            assert self.held is None or self.held() is None
            activations = inputs * 2.0
            if len(inputs) > 2:
                self.held = weakref.ref(activations)
            return super().forward(inputs)

    trainer, _ = run(2, build_batches(8), Holding)
    assert trainer.held is not None


def test_callbacks_see_the_outputs_of_the_whole_batch():
    _, heard = run(3, build_batches(8, 5))
    _, heard_whole = run(8, build_batches(8, 5))
    for result, expected in zip(heard.results, heard_whole.results, strict=True):
        assert result.size == expected.size
        assert not result.outputs.requires_grad
        torch.testing.assert_close(result.outputs, expected.outputs.detach(), rtol=0, atol=1e-12)


def test_named_metrics_of_a_step_are_averaged_over_its_samples():
    class Named(Trainer):
        def train_step(self, batch: Any) -> Any:
            result = super().train_step(batch)
            right = (result.outputs.argmax(1) == batch[1]).double()
            return {"loss": result.loss, "accuracy": right.mean(), "share": right.mean().item()}

    trainer, whole = (run(capacity, build_batches(8, 7), Named)[0] for capacity in (3, 8))
    for name in ("accuracy", "share"):
        assert list(trainer.history.steps[name]) == pytest.approx(
            list(whole.history.steps[name]), abs=1e-12
        )


class KilledError(Exception):
    pass


class Killer(Callback):
    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        raise KilledError


def test_a_resumed_run_takes_micro_batches_from_its_first_step(tmp_path):
    batches = build_batches(8, 8, 8)
    with pytest.raises(KilledError):
        run(
            4,
            batches,
            run_dir=tmp_path / "run",
            callbacks=[Killer(), Checkpoints(every_updates=1, asynchronous=False)],
        )
    resumed, _ = run(4, batches, run_dir=tmp_path / "run", callbacks=[Checkpoints(every_updates=1)])
    assert resumed.model.num_failures == 0
    straight, _ = run(4, batches)
    for param, other in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(param, other)


def test_one_sample_that_does_not_fit_is_an_error_with_advice():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(0, build_batches(4, 4))
    assert "a single sample at a time" in "".join(caught.value.__notes__)


def test_memory_that_runs_out_inside_the_optimizer_step_is_not_a_step_to_take_again():
    class Greedy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise torch.OutOfMemoryError("momentum does not fit")

    model = Small(8)
    trainer = Trainer(
        model, Greedy(model.parameters(), 0.1), nn.functional.cross_entropy, progress="silent"
    )
    with pytest.raises(torch.OutOfMemoryError) as caught:
        trainer.train(build_batches(4), num_epochs=1)
    assert "optimizer step had already begun" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", [Trainer, Counting])
def test_several_optimizers_that_are_updated_together_are_taken_in_micro_batches(kind):
    class Together(kind):
        def configure_optimizers(self) -> None:
            self.first = torch.optim.SGD(self.model.net[0].parameters(), 0.1, momentum=0.9)
            self.second = torch.optim.SGD(self.model.net[2].parameters(), 0.1, momentum=0.9)

    batches = build_batches(5, 4, 6)
    trainers = []
    for capacity in (2, 100):
        model = Small(capacity)
        options = {"accumulate": 2, "clip_norm": 0.1, "progress": "silent"}
        trainers.append(Together(model, loss_fn=nn.functional.cross_entropy, **options))
        trainers[-1].train(batches, num_epochs=2)
    assert [trainer.run.num_micro_batches for trainer in trainers] == [4, 1]
    for param, whole in zip(
        trainers[0].model.parameters(), trainers[1].model.parameters(), strict=True
    ):
        torch.testing.assert_close(param, whole, rtol=0, atol=1e-12)
    assert [update.num_updates for update in trainers[0].run.updates.by_name.values()] == [4, 4]


def test_a_step_that_updates_twice_cannot_be_taken_in_micro_batches():
    class Twice(Trainer):
        def train_step(self, batch: Any) -> Any:
            for _ in range(2):
                loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
                self.update(loss)
            return loss

    with raises("several-updates-in-micro-batch", "called `self.update(loss)` 2 times"):
        run(2, build_batches(4), Twice)


def test_a_batch_that_is_not_one_row_a_sample_stays_whole():
    class Graph(Trainer):
        def split_batch(self, batch: Any) -> Any:
            return batch[0], batch[1]

    inputs, targets = build_batches(4)[0]
    with pytest.raises(torch.OutOfMemoryError) as caught:  # which finders of a size look for
        run(2, [(inputs, targets, torch.zeros(2, 9))], Graph)
    assert "one row per sample (4 samples)" in "".join(caught.value.__notes__)


def test_nested_batches_are_cut_everywhere_and_evenly():
    batch = {"x": torch.arange(7), "more": [torch.ones(7, 1), (torch.zeros(7), 2.0)]}
    batch |= {
        "array": np.arange(7),
        "text": list("abcdefg"),
        "name": "train",
        "scale": torch.tensor(2.0),
    }
    micro_batches = split(batch, 7, 3)
    assert [size for _, size in micro_batches] == [2, 2, 3]
    parts = [part for part, _ in micro_batches]
    assert [part["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [part["array"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [part["text"] for part in parts] == [["a", "b"], ["c", "d"], ["e", "f", "g"]]
    assert [len(part["more"][1][0]) for part in parts] == [2, 2, 3]
    assert all((part["name"], part["more"][1][1]) == ("train", 2.0) for part in parts)


def _num_updates(trainer: Trainer) -> int:
    return trainer.run.updates.by_name["optimizer"].num_updates
