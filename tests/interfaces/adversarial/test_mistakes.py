"""The mistakes that users of this interface make most often: each is an error with a code, in the
words of the interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.errors import ConfigurationError, NonFiniteLossError
from loopwright.interfaces.adversarial import (
    LossManager,
    Pix2pixTrainer,
    Schedule,
    Tester,
    Trainer,
)
from tests.mistakes import raises

from .runs import SIZE, continued, tiny, train

FOREIGN = r"runtime=|clip_norm=|NonFiniteGuard|configure_optimizers|accumulate|run_dir|resume="
ones = torch.ones(2)
Make = Callable[[dict[str, Any]], Any]


class Wrong(Pix2pixTrainer):
    """Pix2pix with one thing done wrongly in its step."""

    def __init__(self, config: Any, step: Callable[..., Any]) -> None:
        super().__init__(config)
        self.step = step

    def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> Any:
        return self.step(self, x, y)


def with_settings(group: str, **values: Any) -> Make:
    """Making a trainer from a config with some settings of a group changed."""
    return lambda config: Pix2pixTrainer(config | {group: config.get(group, {}) | values})


def steps_wrongly(step: Callable[..., Any]) -> Make:
    return lambda config: Wrong(config, step).train_paired(0)


def called_with(**arguments: Any) -> Make:
    return lambda config: Pix2pixTrainer(config).train_paired(**({"epoch": 0} | arguments))


def replaced(**attributes: Any) -> Make:
    """Training with methods replaced, or other attributes, of the class."""
    return lambda config: type("Mine", (Pix2pixTrainer,), attributes)(config).train_paired(0)


def assigned(**attributes: Any) -> Make:
    """Training after something was assigned to the trainer."""

    def start(config: dict[str, Any]) -> None:
        trainer = Pix2pixTrainer(config)
        vars(trainer).update(attributes)
        trainer.train_paired(0)

    return start


def leaking(trainer: Any, x: Any, y: Any) -> None:
    y_fake = trainer.gen(x)
    trainer.forward_G(x, y, y_fake).backward()
    trainer.opt_gen.step()
    trainer.update(trainer.forward_D(x, y, y_fake)["loss_D"], trainer.opt_disc)


def loss_of(trainer: Any, x: Any, y: Any) -> Any:
    return trainer.loss_manager.compute_loss_xy("G_L1", trainer.gen(x), y)


def saved(config: dict[str, Any]) -> Pix2pixTrainer:
    trainer = train(Pix2pixTrainer(config), 1)
    trainer.save_checkpoint()
    return trainer


def run_tester(config: dict[str, Any], load_epoch: Any = None, **arguments: Any) -> None:
    directory = saved(config).experiment_dir
    Tester(experiment_dir=directory, load_epoch=load_epoch).run_test(**arguments)


def in_hook(config: dict[str, Any]) -> Any:
    trainer = Pix2pixTrainer(config)
    trainer.train_paired(0, on_epoch_end=lambda: trainer.train_paired(1))


MISTAKES: dict[str, tuple[str, str, Make]] = {
    "no images": ("no-images", "nowhere", with_settings("dataloader", dataroot="nowhere")),
    "images too small": ("image-size", "16", with_settings("train", generator={"n_downs": 6})),
    "crop_size above load_size": (
        "crop-size",
        "32",
        with_settings("dataloader", load={"load_size": 16, "crop_size": 32}),
    ),
    "a range that is none": (
        "empty-range",
        "gaussnoise_min is 0.5",
        with_settings(
            "dataloader",
            augmentations={"input": {"gaussnoise_chance": 1.0, "gaussnoise_min": 0.5}},
        ),
    ),
    "an unknown sub-spec": (
        "unknown-subspec",
        "'vgg'",
        lambda config: Pix2pixTrainer(config, "vgg"),
    ),
    "+vgg without weights": (
        "no-vgg-weights",
        "vgg_weights",
        lambda config: Pix2pixTrainer(config, "basic+vgg"),
    ),
    "continuing nothing": (
        "no-experiment",
        "versions: none",
        lambda config: Pix2pixTrainer(continued(config)),
    ),
    "an epoch that is no number": ("number", "epoch=1.0", called_with(epoch=1.0)),
    "a negative epoch": ("number", "epoch=-1", called_with(epoch=-1)),
    "keywords for a misspelt hook": (
        "unknown-hook",
        "did you mean train_step?",
        called_with(callback_kwargs={"train_steps": {}}),
    ),
    "no optimizer": (
        "no-network",
        "self.opt_gen",
        replaced(_init_generator=lambda self: setattr(self, "gen", nn.Conv2d(3, 3, 1))),
    ),
    "no train_loader": ("no-train-loader", "self.train_loader", assigned(train_loader=None)),
    "batches of three tensors": (
        "batch-no-pair",
        "list",
        assigned(train_loader=DataLoader(TensorDataset(*[torch.ones(2, 3, SIZE, SIZE)] * 3))),
    ),
    "a mode of saving": (
        "save-mode",
        "'generator'",
        lambda config: Pix2pixTrainer(config).save_checkpoint("generator"),
    ),
    "an epoch in a hook": ("already-training", "train_paired", in_hook),
    "a loss returned and not trained": (
        "returned-loss-untrained",
        "opt_gen, opt_disc",
        steps_wrongly(loss_of),
    ),
    "text returned": ("step-returned", "str", steps_wrongly(lambda self, x, y: "done")),
    "forward_D with a tensor": (
        "no-loss-d",
        "tensor",
        replaced(forward_D=lambda self, x, y, y_fake: self.disc(x, y_fake).sum()),
    ),
    "forward_D with another key": (
        "no-loss-d",
        "'loss'",
        replaced(forward_D=lambda self, x, y, y_fake: {"loss": self.disc(x, y_fake).sum()}),
    ),
    "an unknown loss": (
        "unknown-loss",
        "'L1'",
        lambda config: LossManager().compute_loss_xy("L1", ones, ones),
    ),
    "a loss's class": (
        "loss-class",
        "L1Loss",
        lambda config: LossManager().register_loss_fn("L1", nn.L1Loss),
    ),
    "a misspelt schedule": (
        "unknown-schedule",
        "did you mean linear?",
        lambda config: Schedule("linaer"),
    ),
    "a schedule that ends early": (
        "schedule-ends-early",
        "end_epoch=1",
        lambda config: Schedule("linear", 5, 1),
    ),
    "an exponential through zero": (
        "exponential-through-zero",
        "-1.0",
        lambda config: Schedule("exponential", 0, 3, 1.0, -1.0),
    ),
    "testing an epoch that was not saved": (
        "no-saved-network",
        "epoch1",
        lambda config: run_tester(config, load_epoch=7),
    ),
    "testing no image": (
        "number",
        "image_count=0",
        lambda config: run_tester(config, image_count=0),
    ),
    "another network's weights": (
        "network-mismatch",
        "'G'",
        lambda config: (trainer := saved(config)).load_checkpoint("G", trainer.disc),
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_an_error_in_the_words_of_this_interface(
    data: Path, tmp_path: Path, what: str
):
    code, value, make = MISTAKES[what]
    config = tiny(data, tmp_path)
    with raises(code, value, without=FOREIGN):
        make(config)


def test_gradients_of_another_loss_do_not_go_into_an_update(data: Path, tmp_path: Path):
    with raises("gradients-of-other-loss", "self.opt_disc.zero_grad()"):
        Wrong(tiny(data, tmp_path), leaking).train_paired(0)


@pytest.mark.parametrize("is_own", [True, False], ids=["a step of one's own", "update"])
def test_a_loss_that_is_not_finite_trains_nothing(data: Path, tmp_path: Path, is_own: bool):
    def spoil(trainer: Any, x: Any, y: Any) -> None:
        loss = trainer.gen(x).mean() * float("nan")
        if not is_own:
            trainer.update(loss, trainer.opt_gen)
        loss.backward()
        trainer.opt_gen.step()

    with pytest.raises(NonFiniteLossError, match=r"train\.generator\.learning_rate"):
        Wrong(tiny(data, tmp_path), spoil).train_paired(0)


def batch_alone(self: Any, batch: Any, idx: int) -> None:
    pass


@pytest.mark.parametrize(
    ("attributes", "arguments", "words"),
    [
        ({"train_step": batch_alone}, {}, r"train_step .*\(x, y, idx\)"),
        (
            {"on_epoch_start": lambda self: None},
            {"callback_kwargs": {"on_epoch_start": {"print_train_start": True}}},
            "print_train_start",
        ),
        ({}, {"train_step": lambda self, x, y, idx: None}, r"train_step .*\(x, y, idx\)"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_before_the_epoch(
    data: Path, tmp_path: Path, attributes: Any, arguments: Any, words: str
):
    with pytest.raises(ConfigurationError, match=words):
        type("Mine", (Pix2pixTrainer,), attributes)(tiny(data, tmp_path)).train_paired(
            0, **arguments
        )


def test_a_hook_that_is_not_overridden_is_missed_before_the_epoch(data: Path, tmp_path: Path):
    class NoEnd(Trainer):
        def on_epoch_start(self, **kwargs: Any) -> None:
            raise AssertionError("the epoch has begun")

        def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
            pass

    trainer = NoEnd(tiny(data, tmp_path))
    trainer.train_loader = DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)))
    with pytest.raises(NotImplementedError, match="NoEnd must override on_epoch_end"):
        trainer.train_paired(0)


def test_a_constructor_without_that_of_the_base_is_named(data: Path, tmp_path: Path):
    class Forgetful(Trainer):
        def __init__(self, config: Any) -> None:
            self.net = nn.Conv2d(3, 3, 1).to(self.device)

    with pytest.raises(AttributeError, match=r"super\(\)\.__init__\(config\)"):
        Forgetful(tiny(data, tmp_path))
    with pytest.raises(
        AttributeError, match=r"'Pix2pixTrainer' object has no attribute 'optimiser'$"
    ):
        Pix2pixTrainer(tiny(data, tmp_path)).optimiser


def test_an_epoch_that_trained_nothing_is_spoken_of_once(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    trainer = Wrong(
        tiny(data, tmp_path), lambda self, x, y: self.forward_D(x, y, self.gen(x)) and None
    )
    train(trainer, 2)
    lines = [record for record in caplog.records if "trained nothing" in record.getMessage()]
    assert len(lines) == 1


def test_going_back_to_an_earlier_epoch_says_what_is_replaced(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = tiny(data, tmp_path)
    trainer = Pix2pixTrainer(config)
    for epoch in range(2):
        trainer.train_paired(epoch)
        trainer.save_checkpoint()
    Pix2pixTrainer(continued(config, 2))
    assert caplog.text == ""
    Pix2pixTrainer(continued(config, 1))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the records of steps 4 to 6 will be replaced" in line
