"""The best models by a metric."""

import logging
import math
import os

import pytest
import torch

from loopwright.checkpoint import KeepPolicy, KeptModels, read_manifest, update_name


def offer(kept, update, value):
    name = update_name(update)
    is_wanted = kept.wants(name, value, update)
    if is_wanted:
        tree = {"models": {"default": {"w": torch.full((3,), float(update))}}}
        kept.hold(name, tree, {"update": update}, value=value)
        kept.start()
        kept.writer.wait()
    return is_wanted


def offer_all(kept, values):
    return [offer(kept, update, value) for update, value in enumerate(values, start=1)]


def updates(kept):
    return [model.update for model in kept.models()]


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("min", [0.5, 0.3, 0.4, 0.2], [4, 2]),
        ("max", [0.5, 0.3, 0.4, 0.2], [1, 3]),
        ("max", [-5.0, -3.0, -4.0], [2, 3]),
        ("min", [math.nan, 3.0, 2.0], [3, 2]),
        ("min", [math.inf, -math.inf, 1.0], [2, 3]),
        ("min", [1.0, math.nan], [1, 2]),
        ("min", [1.0, 1.0, 1.0], [1, 2]),
    ],
)
def test_the_best_few_are_kept_best_first(tmp_path, mode, values, best):
    kept = KeptModels(tmp_path, KeepPolicy("loss", mode, keep=2))
    offer_all(kept, values)
    assert updates(kept) == best
    assert len(os.listdir(tmp_path)) == 2


def test_a_model_that_is_not_good_enough_is_not_written(tmp_path):
    kept = KeptModels(tmp_path, KeepPolicy("loss"))
    assert offer_all(kept, [0.1, 0.2, 0.05]) == [True, False, True]


def test_the_metric_is_in_the_metadata_and_not_in_the_name(tmp_path):
    kept = KeptModels(tmp_path, KeepPolicy("loss"))
    offer(kept, 120, -0.25)
    assert os.listdir(tmp_path) == ["update-00000120"]
    assert read_manifest(tmp_path / "update-00000120").meta == {
        "update": 120,
        "metric": {"name": "loss", "value": -0.25, "mode": "min"},
    }


def test_what_is_kept_is_known_to_a_new_process_from_the_directory(tmp_path):
    offer_all(KeptModels(tmp_path, KeepPolicy("loss", keep=2)), [0.3, math.nan])
    again = KeptModels(tmp_path, KeepPolicy("loss", keep=2))
    assert updates(again) == [1, 2]
    assert not again.wants("other", math.nan, 3)
    assert again.wants("other", 5.0, 3)


def test_a_damaged_best_is_named_and_the_next_one_given(tmp_path, caplog):
    kept = KeptModels(tmp_path, KeepPolicy("loss", keep=2))
    offer_all(kept, [0.1, 0.2])
    path = tmp_path / update_name(1) / "default.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with caplog.at_level(logging.WARNING, "loopwright"):
        assert kept.best().meta["update"] == 2
    assert update_name(1) in caplog.text


def test_models_after_the_point_of_return_are_discarded(tmp_path):
    kept = KeptModels(tmp_path, KeepPolicy("loss", keep=3))
    offer_all(kept, [0.1, 0.2, 0.3])
    assert sorted(kept.discard(after_update=1)) == [update_name(2), update_name(3)]


def test_a_model_offered_again_under_its_name_takes_its_own_place(tmp_path):
    kept = KeptModels(tmp_path, KeepPolicy("loss", keep=1))
    assert offer(kept, 1, 0.5)
    assert offer(kept, 1, 0.5)
    assert updates(kept) == [1]
