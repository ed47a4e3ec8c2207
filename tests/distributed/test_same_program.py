"""Processes that were not given the same program find out before the first step, and all of them
end with that."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError, Trainer
from tests.distributed.ranks import run_ranks, start_ranks
from tests.mistakes import Mistakes

SECTION = "Several processes"


def points(length: int = 24, seed: int = 0) -> TensorDataset:
    inputs = torch.randn(length, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def net(width: int = 8, depth: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, width), *hidden, nn.Linear(width, 2))


def train(data: TensorDataset, model: nn.Module, optimizer: Any, runtime: str) -> None:
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), runtime=runtime, progress="silent")
    trainer.train(data, num_epochs=2, batch_size=8)


def disagree(rank: int, about: str, runtime: str) -> None:
    is_odd = rank == 1
    adam, sgd = partial(torch.optim.Adam, lr=0.1), partial(torch.optim.SGD, lr=0.1)
    model = net(16 if is_odd and about == "width" else 8, 2 if is_odd and about == "layers" else 1)
    data = points(
        16 if is_odd and about == "length" else 24, seed=1 if is_odd and about == "samples" else 0
    )
    optimizer: Any = sgd if is_odd and about == "optimizer" else adam
    if about == "order":
        optimizer = torch.optim.Adam([*model.parameters()][:: -1 if is_odd else 1], lr=0.1)
    train(data, model, optimizer, runtime)


EXPECTED = {
    "width": r"model\.0: 'Linear\(in_features=6, out_features=8, .* on ranks 0, 2, .*=16, bias=True\)' on rank 1",
    "layers": r"model\.3: 'Linear\(in_features=8, out_features=2, .* on ranks 0, 2, .*=8, bias=True\)' on rank 1",
    "optimizer": r"optimizer: 'torch\.optim\.adam\.Adam' on ranks 0, 2, 'torch\.optim\.sgd\.SGD' on rank 1",
    "order": r"optimizer\.order: \[0, 1, 2, 3, 4, 5\] on ranks 0, 2, \[5, 4, 3, 2, 1, 0\] on rank 1",
    "length": r"data\.length: 24 on ranks 0, 2, 16 on rank 1",
    "samples": r"data\.samples: '\w+' on ranks 0, 2, '\w+' on rank 1",
}
WHAT = {
    "width": "A layer of another width on one rank",
    "layers": "One more layer on one rank",
    "optimizer": "Another optimizer class on one rank",
    "order": "The parameters of an optimizer in another order on one rank",
    "length": "Less data on one rank",
    "samples": "Data drawn without a seed, so that each rank has its own",
}


@pytest.mark.parametrize("about", EXPECTED)
def test_ranks_that_disagree_are_told_in_what_and_which_they_are(
    mistake: Mistakes, about: str
) -> None:
    ended = start_ranks(disagree, 3, about, "ddp", limit=60.0)
    assert [rank.code for rank in ended] == [1, 1, 1], [rank.stderr for rank in ended]
    for rank in ended:
        assert ConfigurationError.__name__ in rank.error
        assert re.search(EXPECTED[about], rank.error), rank.error
    said = ended[0].error.partition("ConfigurationError: ")[2]
    mistake.said(SECTION, WHAT[about], said, hide=r"(?<=')[0-9a-f]{16}(?=')")


@pytest.mark.parametrize("about", ["width", "order"])
def test_ranks_that_disagree_about_a_sharded_model_end_before_it_is_cut(about: str) -> None:
    ended = start_ranks(disagree, 3, about, "fsdp", limit=60.0)
    assert [rank.code for rank in ended] == [1, 1, 1], [rank.stderr for rank in ended]
    assert all(re.search(EXPECTED[about], rank.error) for rank in ended)


def agree(rank: int) -> int:
    trainer = Trainer(
        net(), partial(torch.optim.Adam, lr=0.1), lambda p, t: nn.functional.cross_entropy(p, t)
    )
    trainer.run.progress_style = "silent"
    with torch.random.fork_rng():
        torch.manual_seed(rank)  # where the generators are is nobody's program
        trainer.train(points(), num_epochs=1, batch_size=8)
    return trainer.progress.update


def test_ranks_with_the_same_program_train() -> None:
    assert run_ranks(agree, 2) == [3, 3]
