"""`loopwright export`: the weights of a run, and its model as ONNX."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from loopwright import ConfigurationError
from loopwright.checkpoint import load_weights
from loopwright.checkpoint.onnx import export_module
from loopwright.cli import main
from loopwright.run import Run, find_runs
from tests.cli.helpers import flip


@pytest.mark.parametrize(("form", "suffix"), [("safetensors", ".safetensors"), ("torch", ".pt")])
def test_weights_of_the_best_model_are_written_to_a_file_called_as_the_run(
    gallery, tmp_path, monkeypatch, capsys, form, suffix
):
    monkeypatch.chdir(tmp_path)
    run = gallery / "runs/finished"
    assert main(["export", str(run), "--format", form]) == 0
    out = tmp_path / f"finished{suffix}"
    written = load_file(out) if form == "safetensors" else torch.load(out, weights_only=True)
    expected = load_weights(run / "kept/update-00000012")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert "2 tensors of kept/update-00000012 (eval_loss " in capsys.readouterr().out


def test_a_damaged_best_model_is_not_exported(gallery, tmp_path, capsys):
    path = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    flip(path / "kept/update-00000012/model.safetensors")
    assert main(["export", str(path), "--output", str(tmp_path / "x.safetensors")]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "x.safetensors").exists()


MISTAKES = {
    "an unknown checkpoint": (
        ["--checkpoint", "update-3"],
        "it has: checkpoints/update-00000008, ",
    ),
    "another suffix": (["--output", "x.pt"], "the name must end in .safetensors. [output-suffix]"),
    "no folder": (["--output", "nowhere/x.safetensors"], "there is no folder nowhere"),
    "no config": (
        ["--format", "onnx", "--output", "x.onnx"],
        "not from a run file, so this command cannot build its model and data.",
    ),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_be_exported_is_refused(
    gallery, tmp_path, monkeypatch, capsys, options, message
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(gallery / "runs/finished"), *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_onnx_of_a_run_computes_what_its_model_does(configured, tmp_path, capsys):
    path = find_runs(configured / "runs")[0]
    out = tmp_path / "points.onnx"
    assert main(["export", str(path), "--format", "onnx", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "for any batch size" in printed
    assert "Its outputs agree with those of torch: the largest difference is " in printed
    weights = load_weights(Run(path).checkpoints()[-1].path)
    width = weights["body.0.bias"].numel()
    # no dropout
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Identity(), nn.Linear(width, 1))
    model.load_state_dict({name.removeprefix("body."): tensor for name, tensor in weights.items()})
    inputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": inputs.numpy()})
    torch.testing.assert_close(
        torch.as_tensor(output), model(inputs).detach(), rtol=1e-4, atol=1e-5
    )
    assert [file.name for file in tmp_path.iterdir()] == ["points.onnx"]


class Named(nn.Module):
    """Gives a dict, nested, in an order that is not that of its names, with a name that is an
    input's too."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        y = self.line(x)
        return {
            "velocity": y,
            "parts": {"b": y.exp(), "a": [y[:, :1], y.sum(1)]},
            "x": x + 1,
            "note": None,
        }


@pytest.mark.parametrize(
    "inputs", [torch.randn(4, 4), {"x": torch.randn(4, 4)}], ids=["positional", "keyword"]
)
def test_outputs_that_a_model_gives_by_name_keep_their_names(tmp_path, inputs):
    model, path = Named(), tmp_path / "x.onnx"
    assert export_module(model, inputs, path).is_close
    session = onnxruntime.InferenceSession(str(path))
    names = [entry.name for entry in session.get_outputs()]
    assert names == ["velocity", "parts.b", "parts.a.0", "parts.a.1", "x_out"]
    x = inputs["x"] if isinstance(inputs, dict) else inputs
    found = dict(zip(names, session.run(None, {"x": x.numpy()}), strict=True))
    expected = model(x)
    assert torch.allclose(torch.from_numpy(found["velocity"]), expected["velocity"], atol=1e-5)
    assert torch.allclose(torch.from_numpy(found["parts.b"]), expected["parts"]["b"], atol=1e-5)
    assert torch.allclose(torch.from_numpy(found["x_out"]), expected["x"])


def test_a_model_that_cannot_be_exported_says_so_and_leaves_nothing(tmp_path):
    class Stubborn(nn.Module):
        def forward(self, x):
            raise RuntimeError("not like this")

    with pytest.raises(ConfigurationError, match=r"cannot be exported to ONNX: .*not like this"):
        export_module(Stubborn(), torch.randn(4, 4), tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []
