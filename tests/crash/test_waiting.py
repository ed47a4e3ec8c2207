"""Signals while a run waits for data, a second signal, long waits, and what a stop waits for on a
slow disk."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loopwright import Callback, Trainer
from loopwright.callbacks import BestModel, Checkpoints
from loopwright.checkpoint import list_checkpoints
from loopwright.runtime import signals
from loopwright.training import waiting
from tests.distributed.ranks import start_ranks
from tests.waiting import wait_for

from ..forked import Ended, call_forked
from ..runs import adam, cross_entropy
from .crashing import Processes, differing
from .programs.parts import Augmented, build_net, points
from .test_group_signals import children, have_ended, state_of
from .test_signals import updates_in

PATIENCE = 120.0
OPTIONS = ["--light", "--accumulate", "2", "--every", "0"]  # nothing is saved but at the end
# The sample that a signal comes in, and the update that is complete then: windows have two batches
# of three samples.
MOMENTS = {
    "sample:20": 0,
    "sample:41": 3,
    "sample:50": 4,
}


def stay() -> None:
    """What never returns by itself."""
    time.sleep(PATIENCE * 10)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_while_a_sample_is_read_leaves_before_that_update_and_continues_exactly(
    moment: str, processes: Processes, other_place: Path
) -> None:
    """Training samples and, with the last moment, those of an evaluation; all three generators
    have moved."""
    run_dir = other_place / f"waiting {moment}"
    ended = processes.run(str(run_dir), *OPTIONS, "--at", f"{moment}=TERM")
    assert (ended.code, state_of(run_dir)) == (143, "interrupted"), ended.output
    assert updates_in(run_dir) == [MOMENTS[moment]]
    expected = processes.run(str(other_place / f"not waiting {moment}"), *OPTIONS).digest
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


@pytest.mark.parametrize("interface", ["lifecycle", "simple"])
def test_the_interfaces_leave_while_a_sample_is_read_and_continue_exactly(
    interface: str, processes: Processes, other_place: Path
) -> None:
    options, run_dir = ["--interface", interface], other_place / f"{interface} waiting"
    ended = processes.run(str(run_dir), *options, "--at", "sample:30=TERM")
    assert ended.code == 143, ended.output
    expected = processes.run(str(other_place / f"{interface} not waiting"), *options).digest
    assert differing(processes.run(str(run_dir), *options).digest, expected) == []


class Moments(Augmented):
    """Samples in which something happens, once, after the second update; in a worker, when all
    batches are trained."""

    def __init__(self, action: Callable[[], None] | None, folder: Path, number: int = 4) -> None:
        super().__init__(24)
        self.action, self.folder, self.number = action, folder, number

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if self.action is not None and index == self.number:
            if get_worker_info() is not None:
                wait_for((self.folder / "trained").exists)
            if (self.folder / "trained").exists():
                action, self.action = self.action, None
                action()
        return sample


class Trained(Callback):
    """Leaves a file after the second update."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == 2:
            (self.folder / "trained").touch()


def train(
    folder: Path,
    data: Any,
    *callbacks: Callback,
    run_dir: Path | None,
    progress: str = "auto",
    num_epochs: int = 2,
    **more: Any,
) -> Any:
    """Epochs of four updates, two batches of three samples each, in the order of the data set."""
    torch.set_num_threads(1)
    trainer = Trainer(
        build_net(),
        adam,
        cross_entropy,
        accumulate=2,
        callbacks=[Trained(folder), Checkpoints(every_epochs=None), *callbacks]
        if run_dir
        else [Trained(folder)],
        run_dir=run_dir,
        progress=progress,
    )
    trainer.train(DataLoader(data, batch_size=3, **more), num_epochs)
    return [parameter.tolist() for parameter in trainer.model.parameters()], trainer.history.epochs


def resumed(folder: Path, **more: Any) -> tuple[Any, Any]:
    """What the interrupted run in `folder` comes to, and what one that nothing interrupts does."""
    return (
        train(folder, Moments(None, folder), run_dir=folder / "run", progress="silent", **more),
        train(folder, Moments(None, folder), run_dir=folder / "whole", progress="silent", **more),
    )


def ask_to_stop_and_stay() -> None:
    """As the user does while a batch does not come; in a worker, the process that trains is
    asked."""
    os.kill(os.getpid() if get_worker_info() is None else os.getppid(), signal.SIGTERM)
    stay()


def test_a_sample_that_never_comes_is_left_at_once(tmp_path: Path) -> None:
    data = Moments(ask_to_stop_and_stay, tmp_path, 17)  # in the second batch of the third window
    ended = call_forked(lambda: train(tmp_path, data, run_dir=tmp_path / "run"), tmp_path)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [2]), ended.err
    lines = [line for line in ended.out.splitlines() if "SIGTERM" in line]
    assert (
        lines[0]
        == "SIGTERM: stopping after this update; a second SIGTERM stops at once, without saving."
    )
    assert lines[1].startswith("SIGTERM after update 2: saved;")
    again, whole = resumed(tmp_path)
    assert again == whole


class Forgiving(Moments):
    """Replaces a sample that cannot be read by another one, whatever the reason."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except BaseException:
            return torch.zeros(6), torch.tensor(0)


def test_a_data_set_that_catches_everything_does_not_change_the_batch(tmp_path: Path) -> None:
    ended = call_forked(
        lambda: train(
            tmp_path, Forgiving(ask_to_stop_and_stay, tmp_path, 14), run_dir=tmp_path / "run"
        ),
        tmp_path,
    )
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [2]), ended.err
    again, whole = resumed(tmp_path)
    assert again == whole


def test_a_worker_that_hangs_is_left_at_once_and_ended(tmp_path: Path) -> None:
    def say_and_stay() -> None:
        (tmp_path / "worker").write_text(str(os.getpid()))
        ask_to_stop_and_stay()

    def program() -> None:
        train(
            *(tmp_path, Moments(say_and_stay, tmp_path, 14)),
            run_dir=tmp_path / "run",
            num_workers=1,
            prefetch_factor=1,
            persistent_workers=True,
            timeout=PATIENCE * 10,
        )

    ended = call_forked(program, tmp_path)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [2]), ended.err
    assert have_ended([int((tmp_path / "worker").read_text())])
    again, whole = resumed(tmp_path, num_workers=2)
    assert again == whole


class EvalStays(Dataset[Any]):
    """Evaluation samples of which one never comes, in the second evaluation."""

    def __init__(self, folder: Path) -> None:
        self.points, self.folder = points(6), folder

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if (
            index == 4
            and (self.folder / "trained").exists()
            and not (self.folder / "left").exists()
        ):
            (self.folder / "left").touch()
            ask_to_stop_and_stay()
        return self.points[index]


def test_an_evaluation_that_waits_is_left_at_once_and_repeated(tmp_path: Path) -> None:
    def run(run_dir: Path) -> Any:
        torch.set_num_threads(1)
        trainer = Trainer(
            build_net(),
            adam,
            cross_entropy,
            callbacks=[Trained(tmp_path)],
            run_dir=run_dir,
            progress="silent",
        )
        loader = DataLoader(EvalStays(tmp_path), batch_size=2, num_workers=1)
        trainer.train(DataLoader(Augmented(24), batch_size=6), 2, eval_data=loader)
        return [
            parameter.tolist() for parameter in trainer.model.parameters()
        ], trainer.history.epochs

    ended = call_forked(lambda: run(tmp_path / "run"), tmp_path)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [4]), ended.err
    assert run(tmp_path / "run") == run(tmp_path / "whole")


# A second signal


class Stays(Callback):
    """Asks for a stop in the middle of an update and stays there, with workers that are asked for
    batches."""

    def __init__(self, number: int, times: int, action: Callable[[], None]) -> None:
        self.number, self.times, self.action = number, times, action

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        if trainer.progress.update == 2:
            print("workers", *children(), flush=True)
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
            self.action()


def stopped_twice(
    folder: Path, number: int, times: int, action: Callable[[], None], repeat_seconds: float
) -> Ended:
    def program() -> None:
        signals.REPEAT_SECONDS = repeat_seconds
        data = Moments(stay, folder, 23)  # one worker hangs, too
        train(folder, data, Stays(number, times, action), run_dir=folder / "run", num_workers=2)

    return call_forked(program, folder)


def test_a_second_sigterm_ends_the_process_and_its_workers_at_once(tmp_path: Path) -> None:
    ended = stopped_twice(tmp_path, signal.SIGTERM, 2, stay, repeat_seconds=-1.0)
    assert ended.code == -signal.SIGTERM, ended.err
    workers = re.search("workers ([0-9 ]+)", ended.out)
    assert workers is not None
    assert len(workers[1].split()) == 2
    assert have_ended([int(pid) for pid in workers[1].split()])
    assert not list_checkpoints(tmp_path / "run")


def test_a_sigterm_that_comes_twice_at_once_is_one(tmp_path: Path) -> None:
    """torchrun passes on the signal that its whole process group got."""
    ended = stopped_twice(tmp_path, signal.SIGTERM, 2, lambda: None, repeat_seconds=PATIENCE)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [3]), ended.err


def stay_in_data(rank: int, folder: Path) -> None:
    """Two processes, of which the second one waits for a sample that never comes, and is asked to
    stop twice."""
    signals.REPEAT_SECONDS = -1.0

    def ask_twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        stay()

    class Data(Augmented):
        def __getitem__(self, index: int) -> Any:
            if rank == 1 and (folder / "trained").exists():
                ask_twice()
            return super().__getitem__(index)

    Trainer(
        build_net(),
        adam,
        cross_entropy,
        runtime="ddp",
        callbacks=[Trained(folder)],
        progress="silent",
    ).train(DataLoader(Data(24), batch_size=6), 2)


def test_a_second_sigterm_ends_a_rank_that_waits_for_data_and_then_the_others(
    tmp_path: Path,
) -> None:
    first, second = start_ranks(stay_in_data, 2, tmp_path)
    assert second.code == -signal.SIGTERM
    assert first.code == 1


def test_a_signal_while_a_line_is_printed_prints_its_line_elsewhere(tmp_path: Path) -> None:
    class Terminal(io.RawIOBase):
        """Gets a signal while it writes, as a slow terminal may."""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if b"here" in bytes(data):
                os.kill(os.getpid(), signal.SIGTERM)
            return os.write(1, data)

    class Prints(Callback):
        def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
            if trainer.progress.update == 2:
                print("here", flush=True)

    def program() -> None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(Terminal()))
        train(tmp_path, Moments(None, tmp_path), Prints(), run_dir=tmp_path / "run")

    ended = call_forked(program, tmp_path)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [3]), ended.err
    assert (
        ended.err
        == "SIGTERM: stopping after this update; a second SIGTERM stops at once, without saving.\n"
    )


# A long wait


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_long_wait_is_reported_once_with_what_it_waits_for(
    num_workers: int, tmp_path: Path
) -> None:
    def report() -> str:
        return (tmp_path / "output").read_text()

    def wait_for_report() -> None:
        print("hangs in", os.getpid(), flush=True)
        wait_for(lambda: "No batch" in report())
        looks = threading.Event()
        for _ in range(3 * waiting.LOOKS):  # a second report would come now
            looks.wait(waiting.REPORT_SECONDS / waiting.LOOKS)

    def program() -> None:
        waiting.REPORT_SECONDS = 0.4
        sys.stdout = open(tmp_path / "output", "w", buffering=1)  # noqa: SIM115
        data = Moments(wait_for_report, tmp_path, 14)
        train(tmp_path, data, run_dir=None, num_epochs=1, num_workers=num_workers)

    ended = call_forked(program, tmp_path)
    assert ended.code == 0, ended.err
    pid = re.search("hangs in ([0-9]+)", report())
    assert pid is not None
    lines = [line for line in report().splitlines() if line.startswith("No batch")]
    if num_workers:
        assert lines == [
            f"No batch for 0.4 s: process {pid[1]}, a worker of the loader, has not returned it. "
            f"`py-spy dump --pid {pid[1]}` shows where it is."
        ]
    else:
        (line,) = lines
        assert line.startswith("No batch for 0.4 s: Moments.__getitem__ has not returned (")
        assert line.endswith(f"`py-spy dump --pid {pid[1]}` shows where it is.")


# A slow disk


def syncs_in_a_row(spans: list[tuple[float, float]]) -> int:
    """The longest chain of syncs each of which began after the one before had ended."""
    count, end = 0, 0.0
    for first, last in sorted(spans, key=lambda span: span[1]):
        if first >= end:
            count, end = count + 1, last
    return count


def test_a_stop_waits_for_few_syncs_in_a_row(tmp_path: Path) -> None:
    """Files of a checkpoint at once, then its name; the record of the run meanwhile. A kept model
    comes before."""

    def program() -> None:
        spans: list[tuple[float, float]] = []
        sync = os.fsync

        def slow_sync(descriptor: int) -> None:
            started = time.monotonic()
            sync(descriptor)
            threading.Event().wait(0.5)
            spans.append((started, time.monotonic()))

        best = BestModel("loss")

        class Stop(Callback):
            def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
                if trainer.progress.epoch == 2:  # when the names of all metrics are in run.json
                    best.kept[0].writer.wait()  # for the model of the first epoch
                    os.fsync = slow_sync
                    os.kill(os.getpid(), signal.SIGTERM)

        try:
            train(
                tmp_path,
                Moments(None, tmp_path),
                Stop(),
                best,
                run_dir=tmp_path / "run",
                num_epochs=3,
            )
        finally:
            print(f"{len(spans)} syncs, {syncs_in_a_row(spans)} in a row")

    ended = call_forked(program, tmp_path)
    assert (ended.code, updates_in(tmp_path / "run")) == (143, [8]), ended.err
    assert "15 syncs, 3 in a row" in ended.out
