"""The core's implementation of `Program`: building, epochs, evaluation mode, checks, files,
checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import MissingAttributeError, public
from ..runtime.modes import evaluating
from . import assembly
from .program import Program

if TYPE_CHECKING:
    from ..run.manifest import RunFacts
    from .program import EpochChecks
    from .run import TrainingRun
    from .update import OptimizerUpdate


class NotAssigned:
    """A name that other frameworks assign to stop a run; here it would do nothing, so that
    assigning it raises."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, cls: type) -> Any:
        if owner is None:
            return self
        raise AttributeError(self.name)  # the `__getattr__` of the object then raises with advice

    def __set__(self, owner: object, value: object) -> None:
        from .._other_frameworks import explain_attribute

        explain_attribute(owner, self.name)


class NotOfClass:
    """A method that other frameworks call on the class, to raise with advice there as on an
    object."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, cls: type) -> Any:
        if owner is not None:
            # the `__getattr__` of the object then raises with advice
            raise AttributeError(self.name)
        raise MissingAttributeError(
            f"{cls.__name__} has no {self.name!r}: make the trainer as before, `trainer = "
            f"{cls.__name__}(model, ...)`, then write `trainer.load(path)`, or "
            "`trainer.load_weights(path)` for the weights alone. A run with `run_dir=` continues "
            "by itself.",
            name=self.name,
            obj=cls,
        )


class DefaultProgram(Program):
    """The methods that a run of `Trainer` calls, of which interfaces replace some, and the calls
    for files."""

    # Building

    def setup(self) -> None:
        """Call the `configure_*` methods, once: models first, then optimizers, which need their
        parameters.

        `train`, `evaluate`, `predict`, `save` and `load` call it; call it yourself to look at
        models and optimizers before them.
        """
        if not self._components.are_built:
            self._settle_seed()
            with self.run.generators.of_program():
                self._components.replaced = assembly.assemble_models(self)
            self._components.are_built = True
        assembly.adopt_replaced(self)
        # a frozen model can be evaluated
        if not self.optimizers and any(True for _ in self._components.parameters()):
            with self.run.generators.of_program():
                assembly.assemble_optimizers(self, self._components.replaced)

    def _setup_training(self) -> None:
        """Prepare a `train` call."""
        self.setup()
        self._check_defaults()
        assembly.assemble_training(self)

    def _adopt_replaced(self) -> None:
        """Use models and optimizers that a hook has assigned in place of others, or refuse them."""
        is_training = not self.run.is_evaluating and bool(self._components.trained)
        (assembly.adopt_in_training if is_training else assembly.adopt_replaced)(self)

    def _repr_html_(self) -> str:
        """The trainer as a notebook shows it."""
        from .html import trainer_html

        return trainer_html(self, self.run)

    def _use_run(self, run: TrainingRun, compiled: str | None) -> None:
        """Train another run with its components, on its runtime: one of an experiment, or again the
        trainer's own."""
        self.run = run
        self._components = run.components
        self.runtime = run.runtime
        self.compile_mode = compiled

    should_stop = NotAssigned()
    stop_training = NotAssigned()
    load_from_checkpoint = NotOfClass()
    _leaves_schedules = (
        False  # whether schedulers that a step of the user's own steps are left to it
    )

    # Epochs and steps

    def _train_epoch(self) -> None:
        """Train one epoch; an interface adds the events of its document around it."""
        from .steps import train_epoch

        train_epoch(self.run)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Context with the models in eval mode; every module gets its previous mode back."""
        assembly.adopt_replaced(self)
        run = self.run
        before = run.is_evaluating
        run.is_evaluating = True
        try:
            with evaluating(self.modules.values(), self.optimizers.values()):
                yield
                assembly.adopt_replaced(self)  # a model that was assigned for the evaluation only
        finally:
            run.is_evaluating = before
        self.runtime.reshard()

    def _eval_without_samples(self, batch: Any) -> None:
        """Run an evaluation step for its collectives only; `batch` is a part of another
        process's."""
        from .evaluate import eval_without_samples

        if self.runtime.forwards_together:
            eval_without_samples(self.run, batch)

    # Checks

    def _watch_steps(self) -> EpochChecks | None:
        """Return the object that checks the steps of an epoch; None for the default steps."""
        if self._has_default_step:
            return None
        from .step_checks import StepWatch

        return StepWatch(self, {} if self._leaves_schedules else self.schedules)

    def _check_own_step(self, update: OptimizerUpdate) -> None:
        """Refuse an `optimizer.step()` in `train_step` that would be wrong without `update`."""
        from .step_checks import refuse_own_step

        refuse_own_step(self, update)

    def _check_trained(self) -> None:
        """Check after the first epoch that every optimizer has trained something."""
        from .step_checks import check_trained

        check_trained(self.run)

    def _check_update(self, loss: Any, count: Any = None) -> None:
        """Refuse an update in an evaluation, or with a value that is not a loss."""
        from .step_checks import refuse_update

        refuse_update(self, loss, count)

    @contextmanager
    def _keep_schedules(self) -> Iterator[None]:
        """Context in which no scheduler of this trainer may be stepped, since the trainer steps
        it."""
        if not self.schedules:
            yield
            return
        from .step_checks import SchedulerWatch

        watch = SchedulerWatch(self.schedules)
        yield
        watch.check("on_epoch_end")

    # Files

    @public
    def save(self, path: str | Path) -> None:
        """Write the complete state of this trainer to a checkpoint directory, which `load` reads.

        Example:
            >>> trainer.save("checkpoint")
            >>> trainer.load("checkpoint")
        """
        from .state import save_trainer

        self.setup()
        save_trainer(self.run, path)

    @public
    def load(self, path: str | Path) -> None:
        """Load the complete state from a checkpoint. If parts do not fit, they are listed and
        nothing is changed."""
        from .state import load_trainer

        self.setup()
        load_trainer(self.run, path)

    @public
    def load_weights(self, path: str | Path, *, model: str | None = None) -> None:
        """Load the weights of a run's best kept model (or its newest state), of a checkpoint or of
        a file.

        Every name and shape has to fit; a printed line says what was loaded.

        Args:
            path: A run directory, a checkpoint, or a file of weights (safetensors or `.pt`).
            model: The name of the model to load, where there are several.

        Example:
            >>> trainer.export("weights.safetensors")
            >>> trainer.load_weights("weights.safetensors")
        """
        from ..optim.initialize import FromCheckpoint

        self.setup()
        FromCheckpoint(path, use="any", model=model, source_model=model).initialize(cast(Any, self))

    @public
    def export(self, path: str | Path) -> None:
        """Write the weights alone, as safetensors or `.pt`; of several models, with the model's
        name as a prefix."""
        from .state import export_weights

        self.setup()
        export_weights(self.run, path)

    # Checkpoints

    def _capture(self, run: TrainingRun, *, has_history: bool) -> dict[str, Any]:
        """Return the state of a run as a tree."""
        from .state import capture

        return capture(run, has_history=has_history)

    def _return_to(self, run: TrainingRun, state: Mapping[str, Any], source: str) -> None:
        """Restore a state of a run."""
        from .state import return_to

        return_to(run, state, source)

    def _facts(self) -> RunFacts:
        """Describe the run for its manifest."""
        from .facts import collect_facts

        return collect_facts(self.run)
