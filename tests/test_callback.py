"""Which functions an event calls, in which order, and what is refused when it is registered."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from torch import nn

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callback import Dispatch, TrainerHooks, as_callback, check_hooks, hook_names

from .loops import build_linear, build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)
EVENTS = hook_names(Callback)


def listening(log: list[str], label: str, base: type, names=EVENTS) -> type:
    """A subclass that notes every event under a label."""

    def note(name: str):
        arguments = list(inspect.signature(getattr(base, name)).parameters)[1:]
        source = f"def {name}(self, {', '.join(arguments)}): log.append({f'{label}.{name}'!r})"
        scope = {"log": log}
        exec(source, scope)
        return scope[name]

    return type(label, (base,), {name: note(name) for name in names})


def test_trainer_and_callbacks_share_one_vocabulary():
    assert hook_names(TrainerHooks) == EVENTS
    for name in EVENTS:
        of_callback = list(inspect.signature(getattr(Callback, name)).parameters.values())
        of_trainer = list(inspect.signature(getattr(TrainerHooks, name)).parameters.values())
        assert [p.name for p in of_callback[:2]] == ["self", "trainer"], name
        assert of_callback[2:] == of_trainer[1:], name


def test_every_event_is_documented():
    assert all(getattr(Callback, name).__doc__ for name in EVENTS)


def run(points, log, *, eval_data=None, callbacks=1, **options):
    trainer_class = listening(log, "trainer", Trainer)
    listeners = [
        listening(log, f"callback{number}", Callback)() for number in range(1, callbacks + 1)
    ]
    trainer = trainer_class(
        build_net(), sgd, cross_entropy, callbacks=listeners, progress="silent", **options
    )
    trainer.train(points, 2, eval_data=eval_data, batch_size=20)


STEP = ["on_train_step_start", "on_optimizer_start", "on_train_step_end", "on_update_end"]
EVALUATION = ["on_eval_start", "on_eval_step_end", "on_eval_step_end", "on_eval_end", "on_eval_log"]
EPOCH = [
    "on_epoch_start",
    *STEP,
    *STEP,
    "on_log",
    "on_train_epoch_end",
    *EVALUATION,
    "on_epoch_end",
]
EXPECTED = ["on_train_start", *EPOCH, *EPOCH, "on_loop_end", "on_train_end"]


@pytest.mark.usefixtures("rare_log_points")
def test_events_come_in_this_order_the_trainers_own_first_then_the_callbacks_in_theirs(points):
    log: list[str] = []
    run(points, log, eval_data=points, callbacks=2)
    expected = [
        f"{label}.{name}" for name in EXPECTED for label in ("trainer", "callback1", "callback2")
    ]
    assert log == expected


@pytest.mark.usefixtures("rare_log_points")
def test_without_evaluation_its_events_are_missing_and_nothing_else_changes(points):
    log: list[str] = []
    run(points, log, callbacks=0)
    assert log == [f"trainer.{name}" for name in EXPECTED if not name.startswith("on_eval")]


@pytest.mark.usefixtures("rare_log_points")
def test_in_a_window_only_the_last_step_reaches_the_optimizer(points):
    log: list[str] = []
    run(points, log, callbacks=0, accumulate=2)
    epoch = log[log.index("trainer.on_epoch_start") : log.index("trainer.on_log")]
    assert [name.removeprefix("trainer.on_") for name in epoch] == [
        "epoch_start",
        "train_step_start",
        "train_step_end",
        "train_step_start",
        "optimizer_start",
        "train_step_end",
        "update_end",
    ]


@pytest.mark.usefixtures("rare_log_points")
def test_an_evaluation_of_its_own_has_its_events_only(points):
    log: list[str] = []
    trainer = listening(log, "trainer", Trainer)(build_net(), sgd, cross_entropy, progress="silent")
    trainer.evaluate(points, batch_size=37)
    names = ["on_eval_start", "on_eval_step_end", "on_eval_end", "on_eval_log"]
    assert log == [f"trainer.{name}" for name in names]


def test_the_gradients_are_whole_when_an_optimizer_starts(points):
    class Look(Callback):
        def on_optimizer_start(self, trainer, optimizer):
            assert optimizer == "optimizer"
            self.norm = nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()])

    look, net, other = Look(), build_linear(), build_linear()
    Trainer(
        net, sgd, cross_entropy, callbacks=[look], accumulate=5, clip_norm=1e-3, progress="silent"
    ).train(points, batch_size=8)
    cross_entropy(other(points.tensors[0]), points.tensors[1]).backward()
    torch.testing.assert_close(
        look.norm, nn.utils.get_total_norm([p.grad for p in other.parameters()])
    )


def test_log_points_pass_on_every_step_once(points):
    class Rows(Callback):
        def __init__(self):
            self.rows = []

        def on_log(self, trainer, rows):
            self.rows += rows

    rows = Rows()
    history = Trainer(
        build_linear(), sgd, cross_entropy, callbacks=[rows], progress="silent"
    ).train(points, 2, batch_size=8)
    assert [row["loss"] for row in rows.rows] == list(history.steps["loss"])


# Registration


def test_a_misspelt_event_is_refused_with_the_nearest():
    class Typo(Callback):
        def on_epoch_ended(self, trainer, metrics):
            pass

    with pytest.raises(
        ConfigurationError, match=r"Typo.on_epoch_ended is not an event.*did you mean on_epoch_end"
    ):
        as_callback(Typo())


def test_a_hook_with_too_few_arguments_is_refused_when_it_is_registered():
    class Short(Callback):
        def on_epoch_end(self, trainer):
            pass

    with pytest.raises(
        ConfigurationError, match=r"Short.on_epoch_end does not take .*\(trainer, metrics\)"
    ):
        Trainer(build_linear(), sgd, cross_entropy, callbacks=[Short()])


def test_a_hook_with_optional_arguments_of_its_own_is_fine():
    class Extra(Callback):
        def on_epoch_end(self, trainer, metrics, verbose=True):
            pass

        def on_train_end(self, *args):
            pass

    assert isinstance(as_callback(Extra()), Extra)


def test_a_misspelt_hook_of_the_trainer_is_refused_too():
    class Typo(Trainer):
        def on_epoch_ends(self, metrics):
            pass

    with pytest.raises(
        ConfigurationError, match=r"Typo.on_epoch_ends is not an event.*did you mean on_epoch_end"
    ):
        Typo(build_linear(), sgd, cross_entropy)


def test_a_trainer_may_have_methods_of_its_own_that_look_like_nothing_known():
    class Own(Trainer):
        def on_device(self, value):
            return value

    Own(build_linear(), sgd, cross_entropy)
    check_hooks(Own(), TrainerHooks, allow_other=True)


def test_a_plain_function_hears_of_the_end_of_epochs(points):
    heard = []
    history = Trainer(
        build_linear(),
        sgd,
        cross_entropy,
        callbacks=[lambda t, m: heard.append((t.progress.epoch, m))],
        progress="silent",
    ).train(points, 2, eval_data=points)
    assert heard == [(1, history.epochs[0]), (2, history.epochs[1])]


def test_a_function_with_other_arguments_is_refused_by_name():
    def report(metrics):
        pass

    with pytest.raises(
        ConfigurationError, match=r"Callback function report does not take .*\(trainer, metrics\)"
    ):
        as_callback(report)


# Errors


def test_a_failing_callback_is_named_with_its_event(points):
    class Broken(Callback):
        def on_train_step_end(self, trainer, batch, result):
            raise RuntimeError("oh no")

    with pytest.raises(RuntimeError, match="oh no") as caught:
        Trainer(build_linear(), sgd, cross_entropy, callbacks=[Broken()], progress="silent").train(
            points
        )
    assert caught.value.__notes__ == ["raised in Broken.on_train_step_end"]


def test_a_failing_function_and_a_failing_hook_of_the_trainer_are_named(points):
    def explode(trainer, metrics):
        raise RuntimeError("boom")

    class Own(Trainer):
        def on_train_start(self):
            raise RuntimeError("at once")

    with pytest.raises(RuntimeError) as caught:
        Trainer(build_linear(), sgd, cross_entropy, callbacks=[explode], progress="silent").train(
            points
        )
    assert caught.value.__notes__ == ["raised in explode.on_epoch_end"]
    with pytest.raises(RuntimeError) as caught:
        Own(build_linear(), sgd, cross_entropy, progress="silent").train(points)
    assert caught.value.__notes__ == ["raised in Own.on_train_start"]


def test_only_what_is_overridden_is_called():
    class One(Callback):
        def on_train_end(self, trainer):
            pass

    hooks = Dispatch(Callback, Trainer(), [One(), Callback()], base=TrainerHooks).hooks
    assert {name: len(found) for name, found in hooks.items() if found} == {"on_train_end": 1}


def test_an_event_that_is_assigned_to_a_callback_or_to_the_trainer_is_called(points):
    seen = []
    callback = Callback()
    callback.on_epoch_end = lambda trainer, metrics: seen.append(
        ("callback", trainer.progress.epoch)
    )
    trainer = Trainer(build_net(), sgd, cross_entropy, callbacks=[callback], progress="silent")
    trainer.on_epoch_end = lambda metrics: seen.append(("trainer", sorted(metrics)))
    trainer.train(points, num_epochs=1)
    assert seen == [("trainer", ["loss"]), ("callback", 1)]
