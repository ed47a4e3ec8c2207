"""What a door changes of the trainer besides its steps: the words of messages, and points where it does otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..callback import Callback, TrainerHooks

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .step_checks import StepWatch
    from .update import OptimizerUpdate


class DoorPoints(TrainerHooks):
    """The defaults of the native trainer."""

    start_over = "resume=False"  # what messages call the way to a new run
    accept_changes = 'changes="accept"'  # and the way to go on with a run although the program has changed
    without_place = "Training without a run directory"  # how the line at the start begins where there is none
    step_name, eval_name = "train_step", "eval_step"
    update_call, accumulate_name = "self.update(loss)", "accumulate"
    nonfinite_advice = (
        "Lower the learning rate, clip gradients (`clip_norm=`) or look for bad samples; `NonFiniteGuard('skip')` goes "
        "on without such updates."
    )
    takes_count = True  # whether a loss may be a sum, trained with the number of its items
    step_methods: tuple[str, ...] = (  # what a user writes that decides what is learnt
        *("train_step", "compute_loss", "forward", "split_batch", "prepare_batch"),
    )
    plateau_metric: str | None = "loss"  # what ReduceLROnPlateau watches; None where only a subclass's user knows

    @property
    def core(self) -> Trainer:
        """The trainer that holds the state of a run; callbacks may have been given a door in front of it."""
        return cast("Trainer", self)

    def trainer_for(self, callback: Callback) -> Any:
        """What a callback is given as its trainer."""
        return self

    @property
    def component_owner(self) -> object:
        """The object whose attributes are the models and optimizers."""
        return self

    def describe_more(self) -> dict[str, Any]:
        """Further entries of what makes this run another one, besides components and data."""
        return {}

    def watch_steps(self) -> StepWatch | None:
        """What looks at the steps of an epoch, where they are not the default ones."""
        trainer = cast("Trainer", self)
        if trainer.has_default_step:
            return None
        from .step_checks import StepWatch

        return StepWatch(trainer)

    def check_own_step(self, update: OptimizerUpdate) -> None:
        """Refuse an optimizer step that a `train_step` takes without `update`, where it would be a wrong one."""
        from .step_checks import refuse_own_step

        refuse_own_step(cast("Trainer", self), update)

    def check_trained(self) -> None:
        """Look, at the end of the first epoch, for optimizers that have trained nothing."""
        from .step_checks import check_trained

        check_trained(cast("Trainer", self))

    def check_update(self, loss: Any, count: Any = None) -> None:
        """Refuse an update that is made in an evaluation, or with something that is no loss."""
        from .step_checks import refuse_update

        refuse_update(cast("Trainer", self), loss, count)

    def predict_step(self, batch: Any) -> Any:
        """What `predict` gives for a batch, in eval mode and without gradients: the model's outputs."""
        trainer = cast("Trainer", self)
        return trainer.forward(trainer.split_batch(batch)[0])

    def stand_in(self, batch: Any) -> None:
        """An evaluation step of which no sample is this process's; `batch` is a part of another's."""
        from . import steps as loop

        trainer = cast("Trainer", self)
        if trainer.runtime.forwards_together:
            loop.stand_in(trainer, batch)
