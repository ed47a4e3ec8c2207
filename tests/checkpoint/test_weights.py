"""Weights alone: read from checkpoints and foreign files, and no code runs whatever is in them."""

import json
import os
import pickle
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

import loopwright
from loopwright import Trainer
from loopwright.checkpoint import (
    CheckpointStore,
    load_weights,
    read_checkpoint,
    save_weights,
    write_checkpoint,
)
from loopwright.errors import CheckpointError
from tests.checkpoint.helpers import TiedModel, resign, same, training_state
from tests.mistakes import raises


class Bomb:
    def __init__(self, evidence):
        self.evidence = evidence

    def __reduce__(self):
        return (os.mkdir, (str(self.evidence),))


def by_name(state):
    return dict(sorted(state.items()))


@pytest.fixture
def bomb(tmp_path):
    """Pickled bytes that leave evidence when they are loaded, and the place where to look for
    it."""
    evidence = tmp_path / "evidence"
    data = pickle.dumps(Bomb(evidence))
    pickle.loads(data)
    assert evidence.is_dir(), "the bomb must work, or its silence proves nothing"
    evidence.rmdir()
    return data, evidence


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_saved_weights_come_back(tmp_path, suffix):
    state = TiedModel().state_dict()
    save_weights(tmp_path / f"w{suffix}", state)
    assert same(by_name(load_weights(tmp_path / f"w{suffix}")), by_name(state))
    assert os.listdir(tmp_path) == [f"w{suffix}"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_tied_weights_are_tied_again(tmp_path, suffix):
    save_weights(tmp_path / f"w{suffix}", TiedModel().state_dict())
    weights = load_weights(tmp_path / f"w{suffix}")
    assert weights["head.weight"].data_ptr() == weights["embedding.weight"].data_ptr()
    TiedModel().load_state_dict(weights)


def test_saved_weights_load_with_safetensors_own_functions(tmp_path):
    model, other = TiedModel(), TiedModel()
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {"note": "mine"})
    load_model(other, tmp_path / "w.safetensors")
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_files_of_safetensors_own_functions_load_complete(tmp_path):
    model = TiedModel()
    save_model(model, str(tmp_path / "w.safetensors"))
    assert set(load_weights(tmp_path / "w.safetensors")) == set(model.state_dict())


def test_unusual_dtypes_are_read_as_safetensors_reads_them(tmp_path):
    state = {
        str(d): torch.ones(3).to(d)
        for d in (torch.bfloat16, torch.bool, torch.uint16, torch.complex64)
    }
    save_weights(tmp_path / "w.safetensors", state)
    read = load_file(tmp_path / "w.safetensors")
    assert same({name: read[name] for name in state}, state)


def test_one_of_several_models_is_asked_for_by_name(tmp_path):
    models = {"generator": {"w": torch.ones(1)}, "critic": {"w": torch.zeros(1)}}
    write_checkpoint(tmp_path / "a", {"models": models})
    assert load_weights(tmp_path / "a", model="generator")["w"] == 1
    with raises("which-model"):
        load_weights(tmp_path / "a")
    with raises("which-model", "'encoder'"):
        load_weights(tmp_path / "a", model="encoder")


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_state_dict_inside_a_foreign_checkpoint_is_found(tmp_path, key):
    torch.save({key: {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "w.pt")
    assert torch.equal(load_weights(tmp_path / "w.pt")["w"], torch.ones(2))


@pytest.mark.parametrize("how", ["pickle", "torch"])
@pytest.mark.parametrize(
    "name", ["model.pt", "model.pth", "model.bin", "model.safetensors", "model", "data.pkl"]
)
def test_a_foreign_file_with_code_in_it_is_refused_and_does_not_run(tmp_path, bomb, name, how):
    data, evidence = bomb
    path = tmp_path / name
    if how == "pickle":
        path.write_bytes(data)
    else:
        torch.save({"w": torch.ones(1), "bomb": Bomb(evidence)}, path)
    with pytest.raises(CheckpointError, match=r"refused|not a safetensors"):
        load_weights(path)
    assert not evidence.exists()


BAIT = ["state.json", "manifest.json", "state.safetensors", "default.safetensors"]
BAIT += [
    "model.pt",
    "pytorch_model.bin",
    "data.pkl",
    ".metadata",
    "optimizer.pt",
    "__init__.py",
    "state.pkl",
]


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("name", BAIT)
def test_a_bomb_under_any_name_in_a_checkpoint_does_not_run(tmp_path, bomb, name, is_signed):
    data, evidence = bomb
    path = tmp_path / "run" / "update-00000001"
    write_checkpoint(path, training_state(), {"update": 1})
    (path / name).write_bytes(data)
    if is_signed and name != "manifest.json":
        resign(path, files={name: data})
    for load in (
        read_checkpoint,
        lambda place: read_checkpoint(place, verify=False),
        load_weights,
        lambda place: CheckpointStore(place.parent, 1).newest(),
    ):
        with suppress(CheckpointError):
            load(path)
    assert not evidence.exists()


@pytest.mark.parametrize("size", ["1GB", "1KB"], ids=["one file", "several files"])
def test_a_folder_of_hugging_face_loads_by_its_path_tied_weights_included(tmp_path, size, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    saved, fresh = transformers.GPT2LMHeadModel(config), transformers.GPT2LMHeadModel(config)
    saved.save_pretrained(tmp_path / "model", max_shard_size=size)

    weights = loopwright.load_weights(tmp_path / "model")
    assert weights
    assert all(same(saved.state_dict()[name], tensor) for name, tensor in weights.items())
    Trainer(fresh).load_weights(tmp_path / "model")
    assert same(by_name(saved.state_dict()), by_name(fresh.state_dict()))


def test_an_index_that_names_a_file_elsewhere_or_lacks_a_tensor_is_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "part.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    for table, message in [
        ({"weight": "../part.safetensors"}, "not in the same folder"),
        (
            {"weight": "part.safetensors", "bias": "part.safetensors"},
            "names 'bias', which is not in",
        ),
        ({}, "no table `weight_map`"),
    ]:
        index.write_text(json.dumps({"weight_map": table}))
        with pytest.raises(CheckpointError, match=message):
            load_weights(tmp_path)


def test_a_checkpoint_of_lightning_loads_by_its_path(tmp_path):
    """It is a file of torch's with the weights under `state_dict`, beside numbers, texts and
    optimizer states."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    content = {
        "epoch": 4,
        "global_step": 50,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": model.state_dict(),
    }
    torch.save(
        content | {"loops": {}, "optimizer_states": [optimizer.state_dict()]},
        tmp_path / "best.ckpt",
    )
    assert same(
        by_name(loopwright.load_weights(tmp_path / "best.ckpt")), by_name(model.state_dict())
    )
