"""The callback that drives a tracker: order, failures, the end of a run, resuming."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import threading

import numpy as np
import pytest

import loopwright.trackers.track as background
from loopwright import Callback, ConfigurationError
from loopwright.callbacks import Rewind
from loopwright.trackers import CSV, JSONL, Track
from tests.mistakes import raises

from ..callbacks.rewinding import build as build_rewinding
from ..callbacks.rewinding import good_batches, poisoned
from ..distributed.ranks import run_ranks
from ..forked import call_forked
from ..runs import assert_same_run
from .runs import (
    KillAfter,
    LogMedia,
    Recorded,
    build,
    losses_in_csv,
    points,
    read_csv,
    read_jsonl,
    step_losses,
    train,
)


class OnStep(Callback):
    """Calls a function at the start of a step."""

    def __init__(self, step: int, action) -> None:
        self.step, self.action = step, action

    def on_train_step_start(self, trainer, batch):
        if trainer.progress.step == self.step:
            self.action()


def fail(error: BaseException):
    raise error


def test_a_tracker_is_given_the_run_its_rows_and_its_end():
    tracker = Recorded()
    trainer = train(build([Track(tracker)]))
    (run,) = tracker.runs
    assert (run.name, run.step, run.is_resumed) == ("run", 0, False)
    assert run.config["optimizer"] == "torch.optim.adam.Adam"
    steps = [row for row in tracker.rows if row.kind == "step"]
    assert {row.step: row.values["loss"] for row in steps} == step_losses(trainer)
    assert [(row.step, row.epoch) for row in tracker.rows if row.kind == "epoch"] == [
        (5, 1),
        (10, 2),
    ]
    assert [row.wall for row in steps] == sorted(row.wall for row in steps)
    assert tracker.ends == [("finished", None)]


def test_a_run_with_a_tracker_is_the_same_bit_for_bit_and_leaves_random_generators_alone(tmp_path):
    states = []
    trainers = []
    for trackers in (
        [],
        [CSV(tmp_path / "run.csv"), JSONL(tmp_path / "run.jsonl"), Track(Recorded())],
    ):
        random.seed(3)
        np.random.seed(3)
        trainers.append(train(build([LogMedia(), *trackers])))
        states.append((random.random(), np.random.random()))
    assert_same_run(*trainers)
    assert states[0] == states[1]


def test_media_come_after_the_rows_of_their_step_and_before_those_of_the_next():
    tracker = Recorded()
    train(build([LogMedia(at=3), Track(tracker)]), 1)
    media = [at for at, (kind, _) in enumerate(tracker.order) if kind not in ("step", "epoch")]
    assert [step for _, step in tracker.order] == sorted(step for _, step in tracker.order)
    assert {tracker.order[at][1] for at in media} == {3}
    assert tracker.order[media[0] - 1] == ("step", 3)
    assert tracker.order[media[-1] + 1] == ("step", 4)


@pytest.mark.parametrize("method", ["start", "log", "log_media", "finish"])
@pytest.mark.parametrize("error", [OSError("no space left"), SystemExit(3)], ids=["error", "exit"])
def test_a_tracker_that_fails_is_reported_once_and_the_run_is_the_same(method, error, caplog):
    tracker = Recorded()
    setattr(tracker, method, lambda *arguments: fail(error))
    trainer = train(build([LogMedia(), Track(tracker)]))
    assert_same_run(trainer, train(build([LogMedia()])))
    (record,) = caplog.records
    assert "The tracker Recorded failed" in record.message
    assert f"{type(error).__name__}: {error}" in record.message


def test_a_disk_that_takes_no_more_leaves_complete_lines_and_is_reported_once(tmp_path):
    """The limit on the size of files stands for the end of a disk: a write takes a part of a line,
    the next none."""

    def program():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        trainer = train(build([CSV("run.csv"), JSONL("run.jsonl")]), 10)
        assert trainer.progress.update == 50

    ended = call_forked(program, tmp_path)
    assert ended.code == 0, ended.err
    for name in ("CSV", "JSONL"):
        assert (
            ended.err.count(
                f"The tracker {name} failed and is missing a part of this run; training continues."
            )
            == 1
        )
        assert (tmp_path / f"run.{name.lower()}").read_text().endswith("\n")
    assert [step for step, _ in losses_in_csv(tmp_path / "run.csv")][:5] == [1, 2, 3, 4, 5]
    assert all(line["kind"] for line in read_jsonl(tmp_path / "run.jsonl"))


def test_a_tracker_that_hangs_delays_neither_steps_nor_resume_points_and_the_end_no_longer_than_its_timeout(
    tmp_path, caplog
):
    tracker, release = Recorded(), threading.Event()
    tracker.log = lambda rows: release.wait(300)
    callback = Track(tracker)
    callback.timeout = 0.2
    trainer = train(build([callback], run_dir=tmp_path / "run", every_updates=1))
    release.set()
    assert trainer.progress.update == 10
    (record,) = caplog.records
    assert "Recorded has not finished after 0.2 s" in record.message


def test_rows_for_which_there_is_no_room_are_left_out_and_that_is_said_once(
    monkeypatch, caplog, rare_log_points
):
    """Five rows of steps and one of the epoch wait; there is room for seven, until the last update
    is over."""
    monkeypatch.setattr(background, "MOST_BYTES", 7 * background.ROW_BYTES)
    tracker, is_busy, release, original = (
        Recorded(),
        threading.Event(),
        threading.Event(),
        Recorded.start,
    )

    class Release(Callback):
        def on_train_step_start(self, trainer, batch):
            # rows that the thread took together with `start` would not wait
            assert is_busy.wait(300)

        def on_loop_end(self, trainer):
            release.set()

    tracker.start = lambda run: (is_busy.set(), release.wait(300), original(tracker, run))
    train(build([Track(tracker), Release()]), 2)
    assert tracker.order == [*(("step", step) for step in range(1, 6)), ("epoch", 5), ("epoch", 10)]
    (record,) = caplog.records
    assert "slower than the run" in record.message
    assert "every=10" in record.message


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ZeroDivisionError("no"), "failed", "ZeroDivisionError: no"),
        (KeyboardInterrupt(), "interrupted", "SIGINT"),
    ],
)
def test_an_exception_that_ends_the_run_is_its_end_in_the_tracker_and_nothing_is_lost(
    error, state, reason
):
    tracker = Recorded()
    trainer = build([Track(tracker), OnStep(7, lambda: fail(error))])
    with pytest.raises(type(error)):
        train(trainer)
    assert tracker.ends == [(state, reason)]
    assert [row.step for row in tracker.rows if row.kind == "step"] == list(step_losses(trainer))


def test_a_limit_inside_an_epoch_gives_the_row_of_the_epoch_so_far():
    tracker = Recorded()
    trainer = build([Track(tracker)])
    trainer.train(points(), num_updates=7, eval_data=points(), batch_size=8)
    assert [(row.step, row.epoch) for row in tracker.rows if row.kind == "epoch"] == [
        (5, 1),
        (7, 2),
    ]


class Appending:
    """A tracker as most are: what was written stays written. It is a file of lines."""

    def __init__(self, path) -> None:
        self.path = path

    def start(self, run):
        run.memory.setdefault("id", f"id-{os.getpid()}")
        self._add("start", run.memory["id"], run.step)

    def log(self, rows):
        for row in rows:
            self._add(row.kind, row.step, dict(row.values))

    def log_media(self, media):
        self._add(media.kind, media.step, media.name)

    def finish(self, state, reason):
        self._add("end", state, reason)

    def _add(self, *line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def test_after_sigkill_each_step_is_once_in_files_and_in_trackers_that_take_nothing_back(tmp_path):
    """The resume point is at update 4, and the kill after update 7, when all of it was written."""

    def program(folder, *more):
        trackers = [
            CSV(folder / "run.csv"),
            JSONL(folder / "run.jsonl"),
            Track(Appending(folder / "lines")),
        ]
        return train(build([LogMedia(at=6), *trackers, *more], run_dir=folder / "run"))

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    assert call_forked(lambda: program(killed, KillAfter(7)), tmp_path).code == -signal.SIGKILL
    assert [step for step, _ in losses_in_csv(killed / "run.csv")] == [1, 2, 3, 4, 5, 6, 7]
    resumed, trainer = program(killed), program(whole)
    assert_same_run(resumed, trainer)
    assert losses_in_csv(killed / "run.csv") == list(step_losses(trainer).items())
    for name in ("run.csv", "run.jsonl"):
        read = read_csv if name.endswith("csv") else read_jsonl
        lines, others = (
            [
                (line["kind"], line["step"], line.get("loss"), line.get("eval_loss"))
                for line in read(f / name)
                if line["kind"] not in ("start", "end")
            ]
            for f in (killed, whole)
        )
        assert lines == others
    own, other = (
        [json.loads(line) for line in (f / "lines").read_text().splitlines()]
        for f in (killed, whole)
    )
    assert [line for line in own if line[0] not in ("start", "end")] == [
        line for line in other if line[0] not in ("start", "end")
    ]
    starts = [line[1:] for line in own if line[0] == "start"]
    assert [step for _, step in starts] == [0, 4]
    assert starts[0][0] == starts[1][0], "the resumed run goes on under the same id"
    assert own[-1] == ["end", "finished", None]


def _ranks(rank: int, folder) -> tuple[int, list[int]]:
    tracker = Recorded()
    train(build([Track(tracker)]), 1)
    return len(tracker.runs), [row.step for row in tracker.rows if row.kind == "step"]


def test_only_the_first_of_several_processes_tracks(tmp_path):
    assert run_ranks(_ranks, 2, tmp_path) == [(1, [1, 2, 3, 4, 5]), (0, [])]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("TensorBoard", "tensorboard"),
        ("WandB", "wandb"),
        ("MLflow", "mlflow"),
        ("Trackio", "trackio"),
    ],
)
def test_a_tracker_whose_package_is_missing_says_what_to_install(name, package, monkeypatch):
    import loopwright.trackers

    monkeypatch.setitem(sys.modules, package, None)
    with raises("tracker-extra", f"loopwright[{package}]"):
        getattr(loopwright.trackers, name)()


def test_what_is_no_tracker_is_refused_with_what_a_tracker_has():
    class Half(Recorded):
        log_media = None

    class Wrong(Recorded):
        def log(self, values, step):
            pass

    with raises("not-a-tracker", "log_media"):
        Track(Half())
    with pytest.raises(ConfigurationError, match="rows"):
        Track(Wrong())
    with raises("not-a-tracker", "Recorded", "start(run)"):
        Track(Recorded)
    with raises("not-a-callback", "Recorded", "Track(...)"):
        build([Recorded()])
    with raises("not-a-tracker", "start"):
        Track(CSV())


def test_after_a_rewind_files_have_the_steps_that_count_and_other_trackers_each_step_once(tmp_path):
    """A bad batch stands before the sixth; the run goes back to update 4, leaves it out and goes
    on."""
    batches, tracker = good_batches(), Recorded()
    callbacks = [Rewind(every_updates=2), CSV(tmp_path / "run.csv"), Track(tracker)]
    rewound = build_rewinding(callbacks)
    rewound.train(poisoned(batches, 5), num_epochs=1)
    clean = build_rewinding()
    clean.train(batches, num_epochs=1)
    assert losses_in_csv(tmp_path / "run.csv") == list(step_losses(clean).items())
    steps = [row.step for row in tracker.rows if row.kind == "step"]
    assert steps == sorted(set(steps))
    assert steps[-1] == clean.progress.step
