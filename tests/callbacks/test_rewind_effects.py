"""Effects of a rewind on history, counters, other callbacks and messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR

from loopwright import Callback, DataError, Trainer
from loopwright.callbacks import (
    EMA,
    Checkpoints,
    LimitBatches,
    NonFiniteGuard,
    Rewind,
)
from loopwright.checkpoint.compare import compare_trees
from loopwright.training.state import capture

from ..mistakes import raises
from .rewinding import assert_same_run, build, good_batches, poisoned


def test_averages_and_callbacks_go_back_too():
    class Counter(Callback):
        def __init__(self) -> None:
            self.steps = 0

        def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
            self.steps += 1

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state_dict(self, state: Any) -> None:
            self.steps = state["steps"]

    counters, averages = [Counter(), Counter()], [EMA(0.9), EMA(0.9)]
    build([averages[0], Rewind(), counters[0]]).train(poisoned(good_batches(), 6), num_epochs=1)
    build([averages[1], counters[1]]).train(good_batches(), num_epochs=1)
    assert counters[0].steps == counters[1].steps == 10
    for name, value in averages[0].state["model"].items():
        assert torch.equal(value, averages[1].state["model"][name])


def test_after_the_limit_the_next_bad_batch_is_an_error_that_says_so():
    trainer = build([Rewind(max_rewinds=2)])
    with raises("too-many-rewinds", "`max_rewinds`"):
        trainer.train(poisoned(good_batches(), 1, 4, 7), num_epochs=1)


class KilledError(Exception):
    pass


class Killer(Callback):
    def __init__(self, after_update: int) -> None:
        self.after_update = after_update

    def on_log(self, trainer: Trainer, rows: Any) -> None:
        if trainer.progress.update == self.after_update:
            raise KilledError


@pytest.mark.parametrize("every_updates", [2, 50])
@pytest.mark.parametrize("after_update", [3, 5, 6, 8, 14])
def test_a_run_that_is_killed_after_it_went_back_resumes_exactly(
    tmp_path, monkeypatch, every_updates, after_update
):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", 0.0)
    batches = poisoned(good_batches(), 4, 6)

    def start(name: str, *more: Callback) -> Trainer:
        rewind = Rewind(every_updates=every_updates, max_rewinds=4)
        return build([rewind, Checkpoints(every_updates=1), *more], run_dir=tmp_path / name)

    with pytest.raises(KilledError):
        start("run", Killer(after_update)).train(batches, num_epochs=2)
    resumed, straight = start("run"), start("straight")
    for trainer in (resumed, straight):
        trainer.train(batches, num_epochs=2)
    assert compare_trees(capture(resumed.run), capture(straight.run)) == ()
    clean = build()
    clean.train(good_batches(), num_epochs=2)
    assert_same_run(resumed, clean)


def test_checkpoints_of_undone_updates_are_removed(tmp_path):
    class Noting(Callback):
        has_rewound = False
        found: tuple[int, list[str]] = (0, [])

        def on_rewind(self, trainer: Trainer) -> None:
            self.has_rewound = True

        def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
            if self.has_rewound:
                names = (
                    path.name
                    for path in trainer.run.files.directory.checkpoints.iterdir()
                    if path.is_dir()
                )
                self.found, self.has_rewound = (trainer.progress.update, sorted(names)), False

    noting = Noting()
    callbacks = [Rewind(every_updates=4), Checkpoints(every_updates=1, keep=3), noting]
    build(callbacks, run_dir=tmp_path / "run").train(poisoned(good_batches(), 6), num_epochs=1)
    assert noting.found == (4, ["update-00000004"])


def test_a_scheduler_of_epochs_is_stepped_once_an_epoch():
    schedule = {"scheduler": partial(LinearLR, total_iters=4)}
    rewound, clean = build([Rewind()], **schedule), build(**schedule)
    rewound.train(poisoned(good_batches(), 6), num_epochs=2)
    clean.train(good_batches(), num_epochs=2)
    assert_same_run(rewound, clean)


def test_data_that_cannot_be_sought_in_is_refused_before_the_first_step():
    with pytest.raises(DataError):
        build([Rewind()]).train(iter(good_batches()), num_epochs=1)


def test_two_guards_are_refused():
    with raises("two-guards"):
        build([Rewind(), NonFiniteGuard("skip")]).train(good_batches(), num_epochs=1)


def test_the_batch_limit_counts_what_is_left_after_the_bad_one_is_out():
    limits = [LimitBatches(train=8), LimitBatches(train=7)]
    rewound, clean = build([limits[0], Rewind()]), build([limits[1]])
    rewound.train(poisoned(good_batches(), 3), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert_same_run(rewound, clean)
