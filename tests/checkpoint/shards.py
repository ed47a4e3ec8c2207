"""A state in the shards that several processes hold of it, and what they write together."""

from __future__ import annotations

import torch

from loopwright.checkpoint import Group, TensorShard, new_token, write_checkpoint
from loopwright.checkpoint.layout import Box

NOTHING = Box((0, 0), (0, 0))


def shard(tensor: torch.Tensor, box: Box, *, is_primary: bool = True) -> TensorShard:
    return TensorShard(tensor[box.slices].clone(), box, tuple(tensor.shape), is_primary)


def rows(tensor: torch.Tensor, rank: int, world: int) -> TensorShard:
    """What a process holds of a tensor whose rows are dealt out as torch does: the last ones may
    get none."""
    size = -(-tensor.shape[0] // world)
    start, stop = (min(at, tensor.shape[0]) for at in (rank * size, rank * size + size))
    rest = tuple(tensor.shape[1:])
    return shard(tensor, Box((start, *(0 for _ in rest)), (stop - start, *rest)))


def whole_state() -> dict:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(5, 3, generator=generator)
    return {
        "models": {"default": {"weight": weight, "head": weight, "count": torch.tensor(7)}},
        "optimizers": {
            "default": {"state": {0: {"step": torch.tensor(2.0), "exp_avg": weight * 2}}}
        },
        "others": {
            "complex": torch.randn(5, 2, generator=generator, dtype=torch.complex64),
            "short": torch.arange(6).to(torch.uint16),
            "half": torch.randn(3, 2, generator=generator).bfloat16(),
            "empty": torch.empty(0, 3),
        },
        "history": [float(number) for number in range(300)],
    }


def part_of(state: dict, rank: int, world: int) -> dict:
    """The state as one of several processes has it: matrices in shards, the rest whole."""

    def cut(value):
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items()}
        return (
            rows(value, rank, world)
            if isinstance(value, torch.Tensor) and value.dim() > 0
            else value
        )

    cut_state = cut(state)
    tied = cut_state["models"]["default"]
    tied["head"] = tied["weight"]
    return cut_state


def write_together(path, states: list, meta: dict | None = None) -> None:
    """What the processes do, one after the other; the first is the last, since it waits for the
    others."""
    token = new_token()
    for rank in reversed(range(len(states))):
        write_checkpoint(path, states[rank], meta, group=Group(rank, len(states)), token=token)


def write_parts(path, world: int = 3, meta: dict | None = None) -> dict:
    state = whole_state()
    write_together(path, [part_of(state, rank, world) for rank in range(world)], meta)
    return state


def one_tensor(world: int, boxes: list[Box], shape=(4, 2)) -> list[dict]:
    tensor = torch.arange(8.0).view(shape)
    return [{"weight": shard(tensor, box)} for box in boxes[:world]]
