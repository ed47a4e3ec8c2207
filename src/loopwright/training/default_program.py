"""The core's own implementation of the points in `Program`: building, epochs, evaluation mode, checks, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..runtime.modes import evaluating
from . import assembly
from .program import Program

if TYPE_CHECKING:
    from .program import EpochChecks
    from .run import TrainingRun
    from .update import OptimizerUpdate


class DefaultProgram(Program):
    """What a run of `Trainer` calls, unless a door replaces it."""

    # Building

    def setup(self) -> None:
        """Build what `configure_*` describe, once: models first, then optimizers, which need their parameters.

        `train`, `evaluate`, `predict`, `save` and `load` call it; call it yourself to look at models and optimizers
        before them.
        """
        if not self._components.are_built:
            self._components.replaced = assembly.assemble_models(self)
            self._components.are_built = True
        assembly.adopt_replaced(self)
        if not self.optimizers and any(True for _ in self._components.parameters()):  # a frozen model can be evaluated
            assembly.assemble_optimizers(self, self._components.replaced)

    def _setup_training(self) -> None:
        """Work out everything that is needed once per `train` call."""
        self.setup()
        self._check_defaults()
        assembly.assemble_training(self)

    def _adopt_replaced(self) -> None:
        """Continue with a model or optimizer that a hook has assigned in place of another, or say why it cannot."""
        is_training = not self.run.is_evaluating and bool(self._components.trained)
        (assembly.adopt_in_training if is_training else assembly.adopt_replaced)(self)

    # Epochs and steps

    def _train_epoch(self) -> None:
        """One epoch as the loop runs it; a door puts around it what its document has there."""
        from .steps import train_epoch

        train_epoch(self.run)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Eval mode for the models, and every mode as it was afterwards."""
        assembly.adopt_replaced(self)
        run = self.run
        before, run.is_evaluating = run.is_evaluating, True
        try:
            with evaluating(self.modules.values(), self.optimizers.values()):
                yield
                assembly.adopt_replaced(self)  # a model put in for the evaluation alone is out again
        finally:
            run.is_evaluating = before
        self.runtime.reshard()

    def _eval_without_samples(self, batch: Any) -> None:
        """Take part in an evaluation step of which this process has no sample; `batch` is a part of another's."""
        from .evaluate import eval_without_samples

        if self.runtime.forwards_together:
            eval_without_samples(self.run, batch)

    # Checks

    def _watch_steps(self) -> EpochChecks | None:
        """What checks the steps of an epoch, where they are not the default ones."""
        if self._has_default_step:
            return None
        from .step_checks import StepWatch

        return StepWatch(self)

    def _check_own_step(self, update: OptimizerUpdate) -> None:
        """Refuse an optimizer step that a `train_step` takes without `update`, where it would be a wrong one."""
        from .step_checks import refuse_own_step

        refuse_own_step(self, update)

    def _check_trained(self) -> None:
        """Look, at the end of the first epoch, for optimizers that have trained nothing."""
        from .step_checks import check_trained

        check_trained(self.run)

    def _check_update(self, loss: Any, count: Any = None) -> None:
        """Refuse an update that is made in an evaluation, or with something that is no loss."""
        from .step_checks import refuse_update

        refuse_update(self, loss, count)

    # Checkpoints

    def _capture(self, run: TrainingRun, *, has_history: bool) -> dict[str, Any]:
        """The state of a run of this trainer as a tree."""
        from .state import capture

        return capture(run, has_history=has_history)

    def _return_to(self, run: TrainingRun, state: Mapping[str, Any], source: str) -> None:
        """Take a run of this trainer to the moment of a state."""
        from .state import return_to

        return_to(run, state, source)
