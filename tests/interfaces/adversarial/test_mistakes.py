"""The mistakes that users of this interface make most often: each is an error with a code, in the
words of the interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from loopwright.errors import ConfigurationError
from loopwright.interfaces.adversarial import Pix2pixTrainer, Schedule, Tester, Trainer
from tests.mistakes import raises

from .runs import continued, tiny, train

FOREIGN = r"runtime=|clip_norm=|NonFiniteGuard|configure_optimizers|accumulate|run_dir|resume="
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
        "tiny_v1",
        lambda config: Pix2pixTrainer(continued(config)),
    ),
    "a misspelt schedule": (
        "unknown-schedule",
        "did you mean linear?",
        lambda config: Schedule("linaer"),
    ),
    "keywords for a misspelt hook": (
        "unknown-hook",
        "did you mean train_step?",
        called_with(callback_kwargs={"train_steps": {}}),
    ),
    "an epoch in a hook": ("already-training", "train_paired", in_hook),
    "a loss returned and not trained": (
        "epoch-without-update",
        "opt_gen, opt_disc",
        steps_wrongly(loss_of),
    ),
    "testing an epoch that was not saved": (
        "no-saved-epoch",
        "epoch 7",
        lambda config: Tester(experiment_dir=saved(config).experiment_dir, load_epoch=7),
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
