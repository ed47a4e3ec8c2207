"""Epochs and runs of replaced methods that change no weight are not silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from .trainer import Trainer


class WeightsWatch:
    """Looks at the optimizer's parameters from here on: whether a step with gradients, or anybody else, changes one."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._updates = trainer._core.progress.update
        self._versions = self._current_versions()

    def check(self, method: str) -> None:
        """Refuse default epochs without a single step; of a method of the user's own, which may mean it, say so."""
        if self.has_trained:
            return
        trainer = self.trainer
        if self.num_updates and not trainer._overrides("_run_train_epoch"):
            raise self._untrained_updates()
        if trainer._overrides(method) and trainer.run_config.num_epochs:
            what = "take batches from `train_dl` and call `self.optimizer.step()` after `loss.backward()`"
            what = what if method == "_run_train_epoch" else "call `self._run_train_epoch(self._train_dataloader)`"
            trainer.print(
                f"`{method}` trained nothing: it is over without an optimizer step that had gradients, and the weights "
                f"are as they were. To train, {what} in it, or leave `{method}` out."
            )

    @property
    def num_updates(self) -> int:
        return self.trainer._core.progress.update - self._updates

    @property
    def has_trained(self) -> bool:
        return self.trainer._core.gradients.has_stepped or self._current_versions() != self._versions

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(id(param), param._version) for param in self.trainer._core.lane.params]

    def _untrained_updates(self) -> ConfigurationError:
        is_step = self.trainer._overrides("optimizer_step")
        name = "optimizer_step" if is_step else "_update_weights"
        call = "self.optimizer.step()" if is_step else "self.optimizer_step()"
        return ConfigurationError(
            f"Nothing was trained: {self.num_updates} updates are over, and `{name}` took no optimizer step that had "
            f"gradients, so the weights are as they were. Call `{call}` or `super().{name}()` in it, and drop the "
            "gradients after that step, as `optimizer_zero_grad` does, not before it."
        )
