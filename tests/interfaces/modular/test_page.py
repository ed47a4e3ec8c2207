"""The events of the modular interface: those of a callback are those of the trainer."""

from __future__ import annotations

import inspect

from loopwright.interfaces.modular import Callback, DreamTrainer


def test_the_events_of_a_callback_are_those_of_the_trainer_without_the_trainer() -> None:
    for name in (name for name in vars(Callback) if name.startswith("on_")):
        ours = list(inspect.signature(getattr(DreamTrainer, name)).parameters)
        theirs = list(inspect.signature(getattr(Callback, name)).parameters)
        assert ours == [parameter for parameter in theirs if parameter != "trainer"], name
