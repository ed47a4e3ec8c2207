"""How much of a traceback newcomers see, and the notes on errors about inputs."""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loopwright
from loopwright import ConfigurationError, DataError, Trainer

from .loops import build_linear

HERE = str(Path(__file__))
PACKAGE = str(Path(loopwright.__file__).parent)
sgd = partial(torch.optim.SGD, lr=0.1)


def build(model: Any = None, **options: Any) -> Trainer:
    model = build_linear() if model is None else model
    return Trainer(model, sgd, nn.functional.cross_entropy, **({"progress": "silent"} | options))


def frames_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def ours(files: list[str]) -> list[str]:
    return [file for file in files if file.startswith(PACKAGE)]


def test_an_error_of_the_package_shows_the_call_and_one_frame_of_the_package(points):
    with pytest.raises(DataError) as caught:
        build().train(["not", 3], 1, batch_size=None, eval_data={"a": 1})
    files = frames_of(caught.value)
    assert files[0] == HERE
    assert len(ours(files)) == 1


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs).no_such_method()


def test_a_mistake_in_a_model_ends_in_the_line_of_the_model(points):
    with pytest.raises(AttributeError) as caught:
        build(Mine()).train(points, 1)
    files = frames_of(caught.value)
    assert files[0] == files[-1] == HERE
    assert len(ours(files)) == 2  # the call, and the line that called the model


def test_a_mistake_in_a_callback_keeps_every_line_of_the_user(points):
    def helper(trainer: Trainer) -> None:
        trainer.log({"image": torch.zeros(4)})

    def report(trainer: Trainer, metrics: Any) -> None:
        helper(trainer)

    with pytest.raises(ConfigurationError) as caught:
        build(callbacks=[report]).train(points, 1)
    names = [
        frame.name
        for frame in traceback.extract_tb(caught.value.__traceback__)
        if frame.filename == HERE
    ]
    assert names[-2:] == ["report", "helper"]
    assert len(ours(frames_of(caught.value))) == 2


def test_all_frames_are_there_on_request_and_the_traceback_says_how(points, monkeypatch):
    with pytest.raises(AttributeError) as short:
        build(Mine()).train(points, 1)
    assert "LOOPWRIGHT_TRACEBACK=full" in "".join(traceback.format_exception(short.value))
    monkeypatch.setenv("LOOPWRIGHT_TRACEBACK", "full")
    with pytest.raises(AttributeError) as full:
        build(Mine()).train(points, 1)
    assert len(ours(frames_of(full.value))) > 8


def test_an_error_inside_the_package_that_is_none_of_its_own_keeps_every_frame(points, monkeypatch):
    """It may be our mistake, and then the frames are what is needed."""
    monkeypatch.setattr("loopwright.training.steps.monotonic", None)
    monkeypatch.setattr("loopwright.training.evaluate.monotonic", None)
    with pytest.raises(TypeError) as caught:
        build().train(points, 1)
    assert len(ours(frames_of(caught.value))) > 4


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x6 and 5x3)"), True),
        (TypeError("forward() missing 1 required positional argument: 'mask'"), True),
        (ValueError("not enough values to unpack (expected 2, got 1)"), True),
        (IndexError("index out of range in self"), True),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_note_about_inputs_is_not_on_errors_about_memory(points, error, is_noted):
    class Failing(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            raise error

    # the end of a worker has words of its own
    with pytest.raises((type(error), DataError)) as caught:
        build(Failing(6, 3)).train(points, 1)
    assert any("split_batch" in note for note in getattr(caught.value, "__notes__", ())) == is_noted
