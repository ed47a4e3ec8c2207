"""What several interfaces need in order to translate their interface to the core's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch.optim import Optimizer

from ..errors import ConfigurationError, check_arguments
from ..trainer import Trainer as CoreTrainer
from ..training.media_log import MediaMethods
from ..training.program import MessageNames, OwnState

if TYPE_CHECKING:
    from ..runtime import Runtime
    from ..trackers import Track
    from ..training.run import TrainingRun

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceNames:
    """The table of an interface: its names for what the core does, in one form for all interfaces.

    The module of an interface's core adapter has it as `NAMES`, the adapter (an `InterfaceCore`)
    as its class attribute `names`, from which the core reads the words of its messages.
    The user's trainer calls `NAMES.check_trainer(self)` first of all, and `NAMES.check_callback`
    for every callback. What an interface names as the core does, it leaves out.

    Args:
        interface: The interface, as the manifest of a run names it.
        messages: The user's methods and arguments in messages of the core.
        step_methods: The user's methods that compute a step, which the fingerprint describes.
            None: those of the core.
        methods: The methods that a user may replace, each with the arguments of its calls; one
            that is passed by name ends with "=". Only these are checked.
        methods_elsewhere: Names of methods in the published system and in other frameworks, each
            with the one to write here.
        events: The core's events, each with the interface's events at the same moment, which have
            the same arguments.
        events_elsewhere: Names of events in the published system, each with the one to write here,
            or with a sentence about it.

    Example:
        >>> names = InterfaceNames(
        ...     interface="mine",
        ...     methods={"training_step": ("batch", "batch_idx"), "loss": ("outputs", "targets=")},
        ...     methods_elsewhere={"compute_loss": "loss"},
        ...     events={"on_epoch_start": ("on_epoch_start", "on_train_epoch_start")},
        ...     events_elsewhere={"after_epoch": "on_epoch_end"},
        ... )
    """

    interface: str
    messages: MessageNames = field(default_factory=MessageNames)
    step_methods: tuple[str, ...] | None = None
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods_elsewhere: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    events_elsewhere: Mapping[str, str] = field(default_factory=dict)

    def check_trainer(self, trainer: object) -> None:
        """Refuse methods of a subclass that nothing calls, or not with the arguments they take."""
        if type(trainer).__module__.startswith("loopwright."):
            return
        from .._overrides import check_method_names  # only classes of users need it

        known = {*self.methods, *self.methods_elsewhere.values()}
        check_method_names(trainer, known or None, self.methods_elsewhere)
        for name, arguments in self.methods.items():
            wanted = ", ".join(["self", *(argument.rstrip("=") for argument in arguments)])
            label = f"{type(trainer).__name__}.{name}"
            advice = f" Write `def {name}({wanted})`."
            check_arguments(getattr(trainer, name), arguments, label, advice)

    def check_callback(self, callback: object) -> None:
        """Refuse a callback, or a trainer, with an event by its name in the published system."""
        for name, meant in self.events_elsewhere.items():
            if callable(getattr(type(callback), name, None)):
                here = meant if " " in meant else f"here that event is {meant}"
                raise ConfigurationError(
                    "event-elsewhere",
                    f"{type(callback).__name__}.{name} would never be called; {here}.",
                )


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether a subclass of `base`, or an assignment to this object, replaced the method that
    `base` has."""
    method = getattr(owner, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


def check_idle(is_training: bool, call: str) -> None:
    """Refuse to begin training inside of training, as in a callback."""
    if is_training:
        raise ConfigurationError(
            "already-training",
            f"{call} was called while this trainer is training: call it after training has ended.",
        )


class NotInitialisedError(ConfigurationError, AttributeError):
    """A trainer's subclass is used before its base is initialised."""


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
def tracked(
    run: TrainingRun, trackers: Sequence[Track], *, ignored: tuple[str, ...] = ("on_epoch_end",)
) -> Iterator[None]:
    """Let trackers follow a run in this block; the interface calls their `log_epoch` with the
    metrics that it names, and does what `ignored` events would."""
    for tracker in trackers:
        tracker.ignored_events = ignored
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

    _init_arguments: ClassVar[str] = "config"  # for the message where a subclass has not called it

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """Only for what is not there: often all of it, since the constructor was replaced."""
            kind = type(self).__name__
            if "_core" in vars(self) or name.startswith("__"):
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise NotInitialisedError(
                "no-super-init",
                f"{kind}.__init__ has not called `super().__init__({self._init_arguments})`: call "
                "it first.",
            )


class InterfaceCore(CoreTrainer):
    """The core trainer behind an interface; the one adapter of an interface is a subclass.

    Its user may have optimizers of their own beside the components.
    """

    names: ClassVar[InterfaceNames]
    interface: Any  # the user's trainer
    _leaves_schedules = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Tell the core the words of the interface."""
        super().__init_subclass__(**options)
        if "names" in vars(cls):
            cls._interface = cls.names.interface
            cls._message_names = cls.names.messages
            if cls.names.step_methods is not None:
                cls._step_methods = cls.names.step_methods

    @property
    def _other_optimizers(self) -> Iterable[Optimizer]:
        return other_optimizers(self.interface, self.optimizers.values()).values()
