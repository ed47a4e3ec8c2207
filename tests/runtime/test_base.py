"""One process on one device: placement, precision, and what is refused."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch
from torch import nn

from loopwright import Runtime, Trainer
from loopwright.runtime.base import move_to, resolve_runtime
from tests.mistakes import raises


def test_a_device_may_be_given_by_name_as_an_object_or_not_at_all():
    assert resolve_runtime("cpu", "fp32").device == torch.device("cpu")
    assert resolve_runtime(torch.device("cpu"), "bf16").precision == "bf16"
    runtime = Runtime("cpu", "fp16")
    assert resolve_runtime(runtime, "fp32") is runtime
    assert resolve_runtime(None, "fp32").device.type in ("cpu", "cuda", "mps")


def test_an_unknown_device_is_refused_by_name():
    with raises("unknown-device", "'gpu'"):
        Trainer(nn.Linear(1, 1), runtime="gpu")


def test_an_unknown_precision_is_refused_with_the_known_ones():
    with raises("unknown-precision", "'half'"):
        Trainer(nn.Linear(1, 1), precision="half")


def test_two_precisions_are_refused_rather_than_one_of_them_ignored():
    with raises("given-twice", "'bf16'", "'fp32'"):
        Trainer(nn.Linear(1, 1), runtime=Runtime("cpu"), precision="bf16")


def test_only_fp16_needs_a_scaler_and_each_asks_for_its_own():
    assert Runtime("cpu").build_scaler() is None
    assert Runtime("cpu", "bf16").build_scaler() is None
    runtime = Runtime("cpu", "fp16")
    assert runtime.build_scaler() is not runtime.build_scaler()


def test_autocast_may_be_nested_and_ends_with_the_outermost():
    runtime = Runtime("cpu", "bf16")
    with runtime.autocast:
        with runtime.autocast:
            assert torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
        with runtime.no_autocast:
            assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_moving_keeps_containers_and_passes_other_things_through():
    Pair = namedtuple("Pair", "left right")
    meta = torch.device("meta")
    value = {
        "tensor": torch.ones(2),
        "pair": Pair(torch.ones(1), "text"),
        "ordered": OrderedDict(a=torch.ones(1)),
        "list": [torch.ones(1), (torch.ones(1), 3)],
    }
    moved = move_to(value, meta)
    assert moved["tensor"].device == meta
    assert type(moved["pair"]) is Pair
    assert (moved["pair"].left.device, moved["pair"].right) == (meta, "text")
    assert type(moved["ordered"]) is OrderedDict
    assert moved["ordered"]["a"].device == meta
    assert type(moved["list"]) is list
    assert moved["list"][1][0].device == meta
    assert moved["list"][1][1] == 3


def test_a_batch_on_the_host_stays_the_object_it_is():
    batch = {"a": [torch.ones(1)]}
    assert Runtime("cpu").move(batch) is batch
