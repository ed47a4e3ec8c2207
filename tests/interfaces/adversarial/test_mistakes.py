"""The mistakes that users of this interface make most often, and the message of each: in its words,
with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.errors import CheckpointError, ConfigurationError, DataError, NonFiniteLossError
from loopwright.interfaces.adversarial import (
    LossManager,
    Pix2pixTrainer,
    Schedule,
    Tester,
    Trainer,
    load_config,
)

from .runs import SIZE, continued, tiny, train

SECTION = "Interface: adversarial"
FOREIGN = (
    "runtime=",
    "clip_norm=",
    "NonFiniteGuard",
    "configure_optimizers",
    "accumulate",
    "run_dir",
    "resume=",
)
ones = torch.ones(2)


class Wrong(Pix2pixTrainer):
    """Pix2pix with one thing done wrongly in its step."""

    def __init__(self, config: Any, step: Callable[..., Any]) -> None:
        super().__init__(config)
        self.step = step

    def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> Any:
        return self.step(self, x, y)


def with_settings(group: str, **values: Any) -> Callable[[dict[str, Any]], Any]:
    """Making a trainer from a config with some settings of a group changed."""
    return lambda config: Pix2pixTrainer(config | {group: config.get(group, {}) | values})


def steps_wrongly(step: Callable[..., Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda config: Wrong(config, step).train_paired(0)


def called_with(**arguments: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda config: Pix2pixTrainer(config).train_paired(**({"epoch": 0} | arguments))


def prepared(**attributes: Any) -> Callable[[dict[str, Any]], Any]:
    """Training after something was assigned to the trainer."""

    def start(config: dict[str, Any]) -> None:
        trainer = Pix2pixTrainer(config)
        vars(trainer).update(attributes)
        trainer.train_paired(0)

    return start


def lost(config: dict[str, Any]) -> Any:
    """A constructor that forgets the base's."""

    class Forgetful(Trainer):
        def __init__(self, config: Any) -> None:
            self.net = nn.Conv2d(3, 3, 1).to(self.device)

    return Forgetful(config)


def lacking(config: dict[str, Any]) -> Any:
    class NoOptimizer(Pix2pixTrainer):
        def _init_generator(self) -> None:
            self.gen = nn.Conv2d(3, 3, 1)

    return NoOptimizer(config)


def batch_alone(config: dict[str, Any]) -> Any:
    class OneBatch(Pix2pixTrainer):
        def train_step(self, batch: Any, idx: int) -> None:  # type: ignore[override]
            pass

    return OneBatch(config).train_paired(0)


def function_with_self(config: dict[str, Any]) -> Any:
    def step(self: Any, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
        pass

    return Pix2pixTrainer(config).train_paired(0, train_step=step)


def without_an_end(config: dict[str, Any]) -> Any:
    """Two of the three hooks: nothing is trained before the third is missed."""

    class NoEnd(Trainer):
        def on_epoch_start(self, **kwargs: Any) -> None:
            raise AssertionError("the epoch has begun")

        def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
            pass

    trainer = NoEnd(config)
    trainer.train_loader = DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)))
    return trainer.train_paired(0)


def without_keywords(config: dict[str, Any]) -> Any:
    class NoKeywords(Pix2pixTrainer):
        def on_epoch_start(self) -> None:  # type: ignore[override]
            pass

    keywords = {"on_epoch_start": {"print_train_start": True}}
    return NoKeywords(config).train_paired(0, callback_kwargs=keywords)


def leaking(trainer: Any, x: Any, y: Any) -> None:
    y_fake = trainer.gen(x)
    trainer.forward_G(x, y, y_fake).backward()
    trainer.opt_gen.step()
    trainer.update(trainer.forward_D(x, y, y_fake)["loss_D"], trainer.opt_disc)


def spoiling(trainer: Any, x: Any, y: Any) -> None:
    trainer.opt_gen.zero_grad()
    (trainer.gen(x).mean() * float("nan")).backward()
    trainer.opt_gen.step()


def loss_of(trainer: Any, x: Any, y: Any) -> Any:
    return trainer.loss_manager.compute_loss_xy("G_L1", trainer.gen(x), y)


def bare(config: dict[str, Any]) -> Any:
    trainer = Trainer(config)
    trainer.train_loader = DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)))
    trainer.train_paired(0, on_epoch_start=lambda: None)


def measured_on(**arguments: Any) -> Callable[[dict[str, Any]], Any]:
    def start(config: dict[str, Any]) -> None:
        trainer = train(Pix2pixTrainer(config), 1)
        trainer.save_checkpoint()
        tester = Tester(
            experiment_dir=trainer.experiment_dir, load_epoch=arguments.pop("load_epoch", None)
        )
        tester.run_test(**arguments)

    return start


def swapped_networks(config: dict[str, Any]) -> None:
    trainer = train(Pix2pixTrainer(config), 1)
    trainer.save_checkpoint()
    trainer.load_checkpoint("G", trainer.disc)


def registered(*arguments: Any, **keywords: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda config: LossManager().register_loss_fn(*arguments, **keywords)


MISTAKES: list[tuple[str, type[Exception], str, Callable[[dict[str, Any]], Any]]] = [
    # configs
    (
        "a config that is a number",
        ConfigurationError,
        "expected the path",
        lambda config: Pix2pixTrainer(3),
    ),
    (
        "a config file that is not there",
        ConfigurationError,
        "nowhere.json",
        lambda config: Trainer("nowhere.json"),
    ),
    (
        "a misspelt setting",
        ConfigurationError,
        r"did you mean train\.generator\.n_downs",
        with_settings("train", generator={"n_down": 4}),
    ),
    (
        "a setting in the wrong group",
        ConfigurationError,
        r"did you mean dataloader\.batch_size",
        lambda config: load_config({"train": {"batch_size": 4}}),
    ),
    (
        "a setting of the wrong type",
        ConfigurationError,
        "it is '4'",
        lambda config: load_config({"dataloader": {"batch_size": "4"}}),
    ),
    (
        "a config for a diffusion model",
        ConfigurationError,
        "it is 'diffusion'",
        lambda config: load_config({"config_type": "diffusion"}),
    ),
    (
        "`dataloader.masking.enable: true`",
        ConfigurationError,
        "masked losses are not supported",
        lambda config: load_config({"dataloader": {"masking": {"enable": True}}}),
    ),
    (
        "`config.train.load.load_epoch = 'last'`",
        ConfigurationError,
        "load_epoch cannot be 'last'",
        lambda config: setattr(load_config().train.load, "load_epoch", "last"),
    ),
    (
        "`common.device: gpu`",
        ConfigurationError,
        "'gpu', which is not a device",
        with_settings("common", device="gpu"),
    ),
    (
        "`common.device: cuda` without one",
        ConfigurationError,
        "use 'cpu'",
        with_settings("common", device="cuda"),
    ),
    (
        "`dataloader.dataroot` left empty",
        ConfigurationError,
        "dataroot is ''",
        with_settings("dataloader", dataroot=""),
    ),
    (
        "`dataloader.dataroot` without images",
        DataError,
        "needs the folders train, val",
        with_settings("dataloader", dataroot="nowhere"),
    ),
    (
        "images too small for the generator",
        ConfigurationError,
        "n_downs of at most 2",
        with_settings("train", generator={"n_downs": 6}),
    ),
    (
        "`crop_size` above `load_size`",
        ConfigurationError,
        "crop_size is 32",
        with_settings("dataloader", load={"load_size": 16, "crop_size": 32}),
    ),
    (
        "a sub-spec that does not exist",
        ConfigurationError,
        "use one of basic",
        lambda config: Pix2pixTrainer(config, "vgg"),
    ),
    (
        "`loss_subspec='basic+vgg'` without weights",
        ConfigurationError,
        "vgg_weights",
        lambda config: Pix2pixTrainer(config, "basic+vgg"),
    ),
    (
        "continuing an experiment that is not there",
        ConfigurationError,
        "existing versions: none",
        lambda config: Pix2pixTrainer(continued(config)),
    ),
    # calls
    ("`train_paired(1.0)`", ConfigurationError, "epoch=1.0", called_with(epoch=1.0)),
    ("`train_paired(-1)`", ConfigurationError, "epoch=-1", called_with(epoch=-1)),
    (
        "`callback_kwargs` without the name of the hook",
        ConfigurationError,
        "as in callback_kwargs={'on_epoch_start'",
        called_with(callback_kwargs={"print_train_start": True}),
    ),
    (
        "`callback_kwargs` for a misspelt hook",
        ConfigurationError,
        "Did you mean 'train_step'",
        called_with(callback_kwargs={"train_steps": {}}),
    ),
    (
        "a hook that was called",
        ConfigurationError,
        "remove the brackets",
        called_with(on_epoch_end={"loss": 1.0}),
    ),
    (
        "`train_step(self, batch, idx)`",
        ConfigurationError,
        r"def train_step\(self, x, y, idx",
        batch_alone,
    ),
    (
        "`on_epoch_start(self)` with `callback_kwargs` for it",
        ConfigurationError,
        r"def on_epoch_start\(self, \*\*kwargs\)",
        without_keywords,
    ),
    ("a hook that is not overridden", NotImplementedError, "must override train_step", bare),
    (
        "`on_epoch_end` that is not overridden",
        NotImplementedError,
        "must override on_epoch_end",
        without_an_end,
    ),
    (
        "`train_paired(0, train_step=step)` with `step(self, x, y, idx)`",
        ConfigurationError,
        r"Write `def train_step\(x, y, idx, \*\*kwargs\)`",
        function_with_self,
    ),
    (
        "`__init__` without `super().__init__(config)`",
        AttributeError,
        r"super\(\)\.__init__\(config\)",
        lost,
    ),
    (
        "`_init_generator` without an optimizer",
        ConfigurationError,
        r"self\.opt_gen = self\.build_optimizer",
        lacking,
    ),
    (
        "no `train_loader`",
        ConfigurationError,
        r"self\.train_loader = ",
        prepared(train_loader=None),
    ),
    (
        "batches of three tensors",
        DataError,
        "a list of 3",
        prepared(train_loader=DataLoader(TensorDataset(*[torch.ones(2, 3, SIZE, SIZE)] * 3))),
    ),
    (
        "`build_optimizer` for SGD",
        ConfigurationError,
        r"torch\.optim\.SGD\(net\.parameters",
        lambda config: Trainer(config).build_optimizer(nn.Linear(1, 1), torch.optim.SGD),
    ),
    (
        "`save_checkpoint('generator')`",
        ConfigurationError,
        "'g', 'd' or 'both'",
        lambda config: Pix2pixTrainer(config).save_checkpoint("generator"),
    ),
    (
        "`save_xyz_examples` with its arguments exchanged",
        ConfigurationError,
        r"save_xyz_examples\(network, dataloader\)",
        lambda config: Trainer(config).save_xyz_examples([], nn.Linear(1, 1)),  # type: ignore[arg-type]
    ),
    # steps
    (
        "`update` with a number",
        ConfigurationError,
        "of type float",
        steps_wrongly(lambda self, x, y: self.update(0.5, self.opt_gen)),
    ),
    (
        "`update` with a detached loss",
        ConfigurationError,
        "has no graph",
        steps_wrongly(lambda self, x, y: self.update(loss_of(self, x, y).detach(), self.opt_gen)),
    ),
    (
        "`update` with a loss for each pixel",
        ConfigurationError,
        r"write loss\.mean\(\)",
        steps_wrongly(lambda self, x, y: self.update((self.gen(x) - y).abs(), self.opt_gen)),
    ),
    (
        "`update` with an optimizer that is not an attribute",
        ConfigurationError,
        "assign it to self",
        steps_wrongly(
            lambda self, x, y: self.update(
                loss_of(self, x, y), torch.optim.Adam(self.gen.parameters())
            )
        ),
    ),
    (
        "a loss that is not finite",
        NonFiniteLossError,
        r"is nan in batch 0 of epoch 1",
        steps_wrongly(
            lambda self, x, y: self.update(loss_of(self, x, y) * float("nan"), self.opt_gen)
        ),
    ),
    (
        "`backward` of one's own, then `update`",
        ConfigurationError,
        r"self\.opt_disc\.zero_grad\(\)",
        steps_wrongly(leaking),
    ),
    (
        "a step of one's own with a loss that is NaN",
        NonFiniteLossError,
        "gradient of 'gen",
        steps_wrongly(spoiling),
    ),
    (
        "`train_step` that returns the loss and trains nothing",
        ConfigurationError,
        "only logged",
        steps_wrongly(loss_of),
    ),
    (
        "`train_step` that returns text",
        ConfigurationError,
        "of type str",
        steps_wrongly(lambda self, x, y: "done"),
    ),
    # losses
    (
        "a loss that is not registered",
        ConfigurationError,
        "none is registered",
        lambda config: LossManager().compute_loss_xy("L1", ones, ones),
    ),
    (
        "a loss class instead of a loss",
        ConfigurationError,
        r"nn\.L1Loss\(\)",
        registered("L1", nn.L1Loss),
    ),
    ("`tags='G'`", ConfigurationError, r"write \['G'\]", registered("L1", nn.L1Loss(), tags="G")),
    (
        "`init_from_spec('basic')`",
        ConfigurationError,
        "expected a function",
        lambda config: LossManager().init_from_spec("basic"),
    ),
    (
        "a misspelt schedule",
        ConfigurationError,
        "Did you mean 'linear'",
        lambda config: Schedule("linaer"),
    ),
    (
        "a schedule that ends before it starts",
        ConfigurationError,
        "swap them",
        lambda config: Schedule("linear", 5, 1),
    ),
    (
        "an exponential schedule through zero",
        ConfigurationError,
        "same sign",
        lambda config: Schedule("exponential", 0, 3, 1.0, -1.0),
    ),
    # afterwards
    (
        "testing an epoch that was not saved",
        CheckpointError,
        "saved epochs: epoch1",
        measured_on(load_epoch=7),
    ),
    ("`run_test(image_count=0)`", ConfigurationError, "image_count=0", measured_on(image_count=0)),
    (
        "`load_checkpoint('G', self.disc)`",
        CheckpointError,
        "does not match this network",
        swapped_networks,
    ),
]


@pytest.mark.parametrize(
    ("what", "kind", "match", "make"), MISTAKES, ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_named_in_the_words_of_this_interface(
    data: Path,
    tmp_path: Path,
    mistake: Any,
    what: str,
    kind: type[Exception],
    match: str,
    make: Callable[[dict[str, Any]], Any],
):
    config = tiny(data, tmp_path)
    with mistake(SECTION, what, kind, match=match) as caught:
        make(config)
    assert not [word for word in FOREIGN if word in str(caught.value)]


def test_an_epoch_that_trained_nothing_is_spoken_of_once(
    data: Path, tmp_path: Path, mistake: Any, caplog: pytest.LogCaptureFixture
):
    trainer = Wrong(
        tiny(data, tmp_path), lambda self, x, y: self.forward_D(x, y, self.gen(x)) and None
    )
    train(trainer, 2)
    lines = [
        record.getMessage() for record in caplog.records if "trained nothing" in record.getMessage()
    ]
    assert len(lines) == 1
    mistake.said(SECTION, "`train_step` that trains nothing", lines[0])


def test_going_back_to_an_earlier_epoch_says_what_is_replaced(
    data: Path, tmp_path: Path, mistake: Any, caplog: pytest.LogCaptureFixture
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
    mistake.said(SECTION, "`load_epoch` before the last one", line)


def test_a_missing_attribute_is_still_named_as_usual(data: Path, tmp_path: Path):
    with pytest.raises(
        AttributeError, match="'Pix2pixTrainer' object has no attribute 'optimiser'"
    ):
        Pix2pixTrainer(tiny(data, tmp_path)).optimiser


FORWARDS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "`forward_D` that returns a tensor": (
        "forward_D",
        torch.sum,
        "forward_D returned a float32 tensor.*'loss_D'",
    ),
    "`forward_D` with another key": (
        "forward_D",
        lambda p: {"loss": p.sum()},
        "forward_D returned {loss: .*'loss_D'",
    ),
    "`forward_D` that returns a tuple": (
        "forward_D",
        lambda p: (p.sum(), p.sum()),
        "forward_D returned a tuple",
    ),
    "`forward_D` without a return": (
        "forward_D",
        lambda p: None,
        "forward_D returned None; return {'loss_D'",
    ),
    "`forward_G` without a return": (
        "forward_G",
        lambda p: None,
        "forward_G returned None; return the loss itself",
    ),
    "`forward_G` that returns a dict": (
        "forward_G",
        lambda p: {"loss_G": p.sum()},
        "forward_G returned {loss_G: ",
    ),
}


@pytest.mark.parametrize("what", FORWARDS)
def test_a_replaced_forward_that_returns_no_loss_is_named(
    data: Path, tmp_path: Path, mistake: Any, what: str
):
    name, give, match = FORWARDS[what]
    kind = type(
        "Mine", (Pix2pixTrainer,), {name: lambda self, x, y, y_fake: give(self.disc(x, y_fake))}
    )
    with mistake(SECTION, what, ConfigurationError, match=match):
        kind(tiny(data, tmp_path)).train_paired(0)
