"""What a notebook shows, in a real kernel: a live table, pictures, HTML, and an interrupt that
leaves in one line."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopwright.metrics.history import History
from loopwright.metrics.html import bar_html, table_html

PROGRAM = """
import threading, time
from functools import partial
import torch
from torch import nn
from loopwright import Trainer

torch.manual_seed(0)
x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
data = torch.utils.data.TensorDataset(x, y)

class Waiting(Trainer):
    "On request, the second step of an epoch and every step of an evaluation wait for an interrupt."
    waits = False

    def train_step(self, batch):
        if self.waits and self.progress.epoch_step == 1:
            print("waiting", flush=True)
            while self.run.stopping.signals.requested is None:
                time.sleep(0.01)
        return super().train_step(batch)

    def eval_step(self, batch):
        if self.waits:
            print("waiting", flush=True)
            threading.Event().wait()
        return super().eval_step(batch)

trainer = Waiting(nn.Linear(4, 3), partial(torch.optim.SGD, lr=0.1), nn.CrossEntropyLoss(), run_dir="runs/<i>first</i>")
"""
Send = Callable[[], None]


@dataclass
class Cell:
    """What the front end got while a cell was run."""

    shown: list[dict[str, Any]] = field(default_factory=list)  # every display and update of one
    result: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    error: list[str] = field(default_factory=list)  # the lines in place of a traceback


class Kernel:
    """A kernel as a notebook starts it."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=str(folder))

    def run(self, code: str, when_waiting: Send | None = None) -> Cell:
        """Run a cell; `when_waiting` is called when it prints that it waits."""
        sent, cell = self.client.execute(code), Cell()
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            if kind in ("display_data", "update_display_data"):
                cell.shown.append(content["data"])
            elif kind == "execute_result":
                cell.result = content["data"]
            elif kind == "stream":
                cell.printed += content["text"]
                if when_waiting is not None and "waiting" in content["text"]:
                    when_waiting()
            elif kind == "error":
                cell.error = content["traceback"]
            elif kind == "status" and content["execution_state"] == "idle":
                return cell

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    pytest.importorskip("ipykernel", reason="a notebook needs a kernel")
    pytest.importorskip("jupyter_client", reason="a kernel needs a client")
    folder = Path(tempfile.mkdtemp())
    kernel = Kernel(folder)
    kernel.run(PROGRAM)
    yield kernel
    kernel.close()
    shutil.rmtree(folder)


def test_a_cell_that_trains_shows_a_table_that_grows(kernel: Kernel):
    cell = kernel.run("history = trainer.train(data, 3, eval_data=data, batch_size=8)")
    first, last = cell.shown[0], cell.shown[-1]
    assert "<progress" in first["text/html"]
    assert "<progress" not in last["text/html"]
    assert last["text/html"].count("<tr>") == 4
    assert last["text/plain"].count("epoch ") == 3
    assert "New run in runs/<i>first</i>: cpu, 15 parameters." in cell.printed
    assert "Finished: 3 epochs, 15 updates" in cell.printed
    assert cell.error == []


def test_history_and_plot_are_shown_as_they_are(kernel: Kernel):
    history = kernel.run("history").result
    assert history["text/html"].count("<tr") == 4
    assert history["text/plain"].startswith("History(3 epochs; loss ")
    assert kernel.run("history.plot()").result.keys() == {"text/plain", "image/png"}


def test_an_interrupt_ends_the_cell_in_one_line_and_the_trainer_goes_on(kernel: Kernel):
    cell = kernel.run(
        "trainer.waits = True\ntrainer.train(data, 3, eval_data=data, batch_size=8)\nprint('not "
        "reached')",
        when_waiting=kernel.interrupt,
    )
    assert cell.error == [
        "Interrupted after update 17, which was saved. The trainer keeps this state: call `train` "
        "to continue."
    ]
    assert "not reached" not in cell.printed
    assert "SIGINT" not in cell.printed
    after = kernel.run(
        "trainer.waits = False\nhistory = trainer.train(data, 1, "
        "batch_size=8)\n(trainer.progress.update, len(history))"
    )
    assert after.error == []
    assert after.result["text/plain"] == "(20, 4)"


# Without a kernel


def test_names_are_escaped_and_colours_are_those_of_the_page():
    history = History()
    history.set_epoch(0, {"<b>loss</b>": 0.5, "eval_loss": float("nan")})
    for text in (
        history._repr_html_(),
        table_html(["<b>"], [["<b>"]]),
        bar_html("<b>", 0.5, "<b>"),
    ):
        assert "<b>" not in text
        assert "color" not in text


def test_of_many_epochs_the_last_are_shown_and_the_others_counted():
    history = History()
    for epoch in range(100):
        history.set_epoch(epoch, {"loss": 1.0 / (epoch + 1)})
    text = history._repr_html_()
    assert "70 rows before these" in text
    assert text.count("<tr") == 32
