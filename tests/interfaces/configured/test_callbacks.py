"""What callbacks are given: the user's own trainer, with all that callbacks use on it."""

from __future__ import annotations

from loopwright import Callback
from loopwright.callback import hook_names
from loopwright.callbacks import (
    EarlyStopping,
    OfflineLoss,
)
from loopwright.run import RunDirectory

from ...loops import assert_same_model
from .parts import CustomTrainer, build_trainer


class Mine(CustomTrainer):
    """Has something that its callbacks want."""

    def __init__(self, trainer_config, **kwargs):
        super().__init__(trainer_config, **kwargs)
        self.temperature = 0.5
        self.window = "a name of the core's too"


EVENTS = [name for name in hook_names(Callback) if name not in ("on_exception", "on_rewind")]


class Everything(Callback):
    """Notes which trainer each event and each other method was given."""

    def __init__(self):
        self.given = {}

    def eval_streams(self, trainer):
        self.given["eval_streams"] = trainer
        return {}

    def write_before_save(self, trainer):
        self.given["write_before_save"] = trainer
        return ()


for event in EVENTS:

    def hook(self, trainer, *args, event=event):
        self.given[event] = trainer

    setattr(Everything, event, hook)


def test_every_event_gives_the_users_trainer(tmp_path):
    seen = Everything()
    callbacks = [seen, OfflineLoss("test"), EarlyStopping("test_loss")]
    trainer = build_trainer(Mine, callbacks=callbacks, run_dir=tmp_path)
    trainer.log_text("notes", "for on_media")
    trainer.train()
    assert seen.given.keys() == {*EVENTS, "eval_streams", "write_before_save"}
    assert all(given is trainer for given in seen.given.values())


class Using(Callback):
    """Uses what there is."""

    def on_train_start(self, trainer):
        assert trainer.models == {"model": trainer.model}
        assert trainer.optimizers == {"optimizer": trainer.optimizer}
        assert trainer.device == next(trainer.model.parameters()).device
        assert isinstance(trainer.run.files.directory, RunDirectory)
        assert trainer.runtime.is_main
        assert set(trainer.datasets) == {"train", "test"}
        assert trainer.config.max_epochs == 3
        assert sum(p.numel() for p in trainer.parameters()) > 0

    def on_train_step_end(self, trainer, batch, result):
        trainer.log_step({"temperature": trainer.temperature})

    def on_epoch_end(self, trainer, metrics):
        assert trainer.history.epochs[-1] == metrics
        self.measured = trainer.evaluate("test"), trainer.evaluate(trainer.datasets["test"])
        assert trainer.progress.epoch == len(trainer.history)
        if trainer.progress.epoch == 2:
            trainer.save(self.path)
            trainer.stop("enough")

    def on_train_epoch_end(self, trainer):
        trainer.log({"twice": 2 * trainer.temperature})

    def on_train_end(self, trainer):
        assert trainer.stop_reason == "enough"


def test_all_that_callbacks_use_is_there(tmp_path):
    using = Using()
    using.path = tmp_path / "saved"
    trainer = build_trainer(Mine, max_epochs=3, callbacks=[using], run_dir=tmp_path / "run")
    history = trainer.train()
    assert history["twice"] == [1.0, 1.0]
    assert set(history.steps["temperature"]) == {0.5}
    assert using.measured[0] == using.measured[1]
    again = build_trainer(Mine, max_epochs=3, run_dir=tmp_path / "other")
    again.load(using.path)
    assert_same_model(again.model, trainer.model)
