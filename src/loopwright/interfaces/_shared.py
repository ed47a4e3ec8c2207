"""What several interfaces need in order to translate their interface to the core's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from torch.optim import Optimizer

from ..errors import check_arguments
from ..trainer import Trainer as CoreTrainer
from ..training.media_log import MediaMethods
from ..training.program import OwnState
from ..training.step_checks import scheduler_positions

if TYPE_CHECKING:
    from ..runtime import Runtime
    from ..trackers import Track
    from ..training.run import TrainingRun
    from ..training.update import OptimizerUpdate

T = TypeVar("T")
NONE: Mapping[str, str] = MappingProxyType({})


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether a subclass of `base`, or an assignment to this object, replaced the method that
    `base` has."""
    method = getattr(owner, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


def check_method_names(
    trainer: object, known: Iterable[str] | None = None, others: Mapping[str, str] = NONE
) -> None:
    """Refuse a method of a subclass that nothing calls and whose name resembles one to override."""
    if not type(trainer).__module__.startswith("loopwright."):
        from .._overrides import check_method_names

        check_method_names(trainer, known, others)


def other_optimizers(owner: object, known: Iterable[object]) -> dict[str, Optimizer]:
    """The optimizers among the attributes of a user's trainer that are none of the known ones, by
    name."""
    ids = {id(one) for one in known}
    return {
        name: one
        for name, one in vars(owner).items()
        if isinstance(one, Optimizer) and id(one) not in ids
    }


def on_first_process(runtime: Runtime, action: Callable[[], T]) -> T:
    """Run an action on the first process; all processes call this together and get its result or
    its error."""
    own: tuple[Any, Exception | None] = (None, None)
    if runtime.is_main:
        try:
            own = (action(), None)
        except Exception as raised:
            own = (None, raised)
    value: T
    value, error = runtime.broadcast_object(own)
    if error is not None:
        raise error
    return value


def as_tracker(given: object) -> Track | None:
    """The tracker that a list of callbacks has as an object or a class; None where it is something
    else."""
    from ..trackers import Track

    if isinstance(given, type) and issubclass(given, Track):
        check_arguments(given, (), f"The tracker {given.__name__}, passed as a class,")
        return given()  # type: ignore[call-arg]  # a subclass that needs none
    return given if isinstance(given, Track) else None


@contextmanager
def tracked(run: TrainingRun, trackers: Sequence[Track]) -> Iterator[None]:
    """Let trackers follow a run in this block; the interface calls their `log_epoch` with the
    metrics that it names."""
    for tracker in trackers:
        tracker.ignored_events = ("on_epoch_end",)
    run.bind([*run.callbacks, *trackers])
    try:
        yield
    finally:
        run.bind(callback for callback in run.callbacks if callback not in trackers)
        for tracker in trackers:
            tracker.ignored_events = ()


class LoggingTrainer(MediaMethods, OwnState):
    """The trainer of an interface: it logs to the core's run, saves its own state there, and a
    notebook shows it as that."""

    @property
    def _logged_run(self) -> TrainingRun:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """The trainer as a notebook shows it."""
        from ..training.html import trainer_html

        return trainer_html(self, self._logged_run)


class InterfaceTrainer(CoreTrainer):
    """The core trainer behind an interface, whose user may have optimizers of their own beside the
    components."""

    interface: Any
    _leaves_schedules = True

    @property
    def _other_optimizers(self) -> Iterable[Optimizer]:
        return other_optimizers(self.interface, self.optimizers.values()).values()


class StepSchedulers:
    """The schedulers that count updates, stepped when the user's step is over, unless the step has
    stepped them.

    An optimizer that is updated twice in a step has them stepped before its second update.
    """

    def __init__(self) -> None:
        # updates whose schedulers are still to be stepped
        self.due: dict[str, OptimizerUpdate] = {}
        self._before: dict[str, list[Any]] = {}  # positions of schedulers when the step began

    def reset(self) -> None:
        """Forget the step under way."""
        self.due = {}
        self._before = {}

    def begin_step(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Note where the schedulers are."""
        self._before = {
            update.name: scheduler_positions(update) for update in updates if update.schedulers
        }

    def follow(self, update: OptimizerUpdate) -> None:
        """Step the schedulers of an update that is due, unless the user stepped them."""
        del self.due[update.name]
        if not update.schedulers:
            return
        if scheduler_positions(update) == self._before.get(update.name):
            self.step(update)
        self._before[update.name] = scheduler_positions(update)

    def step(self, update: OptimizerUpdate) -> None:
        """Step the schedulers of an update."""
        update.schedule()

    def follow_all(self) -> None:
        """Step all schedulers that are due: the user's step is over."""
        for update in list(self.due.values()):
            self.follow(update)
