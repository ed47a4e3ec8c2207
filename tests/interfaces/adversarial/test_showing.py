"""What can be looked at: live pictures and curves, example triplets, tests of a generator, ONNX."""

from __future__ import annotations

import json
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from loopwright.interfaces.adversarial import (
    ONNXConverter,
    Pix2pixTrainer,
    Tester,
)
from tests.mistakes import raises

from .runs import SIZE, tiny


def live(data: Path, output: Path, **options: Any) -> dict[str, Any]:
    return tiny(
        data,
        output,
        visualizer={"visdom": {"enable": True, "update_frequency": 1, "image_size": 32} | options},
    )


@pytest.mark.parametrize("multithreaded", [True, False])
def test_pictures_and_curves_are_there_while_training_goes_on(
    data: Path, tmp_path: Path, multithreaded: bool
):
    trainer, sizes = Pix2pixTrainer(live(data, tmp_path)), []
    folder = trainer.experiment_dir / "live"

    def step(x, y, idx, **kw):
        trainer.train_step(x, y, idx)
        wait([trainer.vis._writing] if multithreaded else [])
        with Image.open(folder / "images.png") as image:
            sizes.append(image.size)

    trainer.train_paired(0, train_step=step, multithreaded=multithreaded)
    assert sizes == [(3 * 32, 32)] * 3
    curves = json.loads((folder / "losses.json").read_text())
    assert [x for x, _ in curves["G_L1"]] == pytest.approx([1 / 3, 2 / 3, 1])
    recorded = trainer._core.history.steps["G_L1"]
    assert [y for _, y in curves["G_L1"]] == pytest.approx(list(recorded))
    assert set(curves) == {"G_GAN", "G_L1", "D_real", "D_fake"}


def test_an_error_in_the_thread_ends_the_training(data: Path, tmp_path: Path):
    trainer = Pix2pixTrainer(live(data, tmp_path))
    (trainer.experiment_dir / "live").write_text("a file where the folder should be")
    with pytest.raises(FileExistsError):
        trainer.train_paired(0)
    assert not any(thread.name.startswith("loopwright-live") for thread in threading.enumerate())


def test_examples_are_triplets_of_the_validation_images(data: Path, tmp_path: Path):
    trainer = Pix2pixTrainer(tiny(data, tmp_path, save={"num_examples": 2}))
    trainer.train_paired(0)
    paths = trainer.save_examples()
    assert [path.name for path in paths[:3]] == [
        f"epoch1_1_{part}.png" for part in ("input", "output", "target")
    ]
    assert len(paths) == 6
    inputs = {np.asarray(Image.open(path)).tobytes() for path in paths[::3]}
    dataset = trainer.val_loader.dataset
    images = [np.asarray(Image.open(path))[:, :SIZE].tobytes() for path in dataset.list_files]
    assert inputs == set(images)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Pix2pixTrainer:
    trainer = Pix2pixTrainer(tiny(data, tmp_path_factory.mktemp("trained")))
    for epoch in range(2):
        trainer.train_paired(epoch)
        trainer.save_checkpoint()
    return trainer


def test_a_tester_measures_every_image_of_the_test_split(trained: Pix2pixTrainer, data: Path):
    tester = Tester(experiment_dir=trained.experiment_dir)
    results = tester.run_test()
    assert tester.loaded_epoch == 2
    assert [result.source.name for result in results] == ["00.png", "01.png", "02.png"]
    dataset = trained.build_dataloader("test").dataset
    trained.gen.eval()
    with torch.no_grad():
        for result, (x, y) in zip(results, dataset, strict=False):
            assert result.losses["L1"] == nn.functional.l1_loss(trained.gen(x[None])[0], y).item()
    trained.gen.train()
    assert set(results[0].losses) == {"L1", "Sobel", "Laplacian"}
    log = json.loads((trained.experiment_dir / "test" / "test1" / "log.json").read_text())
    assert [entry["losses"] for entry in log["images"]] == [result.losses for result in results]
    assert all(path.is_file() for result in results for path in result.pictures.values())


def test_a_tester_without_anything_to_load_says_what_is_missing(
    trained: Pix2pixTrainer, tmp_path: Path
):
    with raises("no-config-copy"):
        Tester(experiment_dir=tmp_path)
    with raises("no-saved-epoch", "epoch 9"):
        Tester(experiment_dir=trained.experiment_dir, load_epoch=9)


def test_an_onnx_file_computes_what_the_generator_does(trained: Pix2pixTrainer):
    import onnxruntime

    path = ONNXConverter(trained.experiment_dir, load_epoch=2).convert_model(
        True, 18, False, ["image"], ["picture"]
    )
    assert path.name == "epoch2.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    images = torch.rand(3, 3, SIZE, SIZE) * 2 - 1
    (output,) = session.run(None, {"image": images.numpy()})
    trained.gen.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(output), trained.gen(images), atol=1e-5, rtol=0)
    trained.gen.train()
