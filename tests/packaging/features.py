"""Run by `smoke.py` in a fresh environment that has the wheel and one extra, or none:
`python features.py [EXTRA]`.

It trains 20 updates, and then uses the feature of every extra. Where the packages of a feature are
there, it has to work; where one is missing, the error has to be a `MissingExtraError` with the
command that installs it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import threading
import urllib.request
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import loopwright
from loopwright import History, MissingExtraError, Trainer, trackers

warnings.simplefilter("ignore", DeprecationWarning)  # those of the packages are not ours
# not in an environment that sees the package of another one
SCRIPT = Path(sysconfig.get_path("scripts"), "loopwright")
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "loopwright"]
inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())


def build(run_dir: str | None = None, **options: object) -> Trainer:
    torch.manual_seed(0)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    arguments: dict[str, object] = {"progress": "silent", "run_dir": run_dir, **options}
    return Trainer(nn.Linear(6, 2), optimizer, nn.CrossEntropyLoss(), **arguments)  # type: ignore[arg-type]


def train(run_dir: str | None = None, **options: object) -> History:
    return build(run_dir, **options).train(data, num_updates=20, eval_data=data, batch_size=10)


def run_command(*words: str) -> str:
    """What a command prints; where it fails because of a missing package, the error that it
    prints."""
    ended = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=600)
    if "pip install 'loopwright[" in ended.stderr:
        raise MissingExtraError(ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# The features


def use_metrics() -> None:
    from torchmetrics.classification import MulticlassAccuracy

    metric = loopwright.callbacks.TorchMetrics({"accuracy": MulticlassAccuracy(2)})
    assert train(callbacks=[metric]).last("eval_accuracy") > 0.5


def use_plots() -> None:
    train().plot("curves.png")
    assert Path("curves.png").read_bytes()[1:4] == b"PNG"
    run_command("plot", "run", "--output", "command.png")
    assert Path("command.png").read_bytes()[1:4] == b"PNG"


def use_frames() -> None:
    train()
    assert len(loopwright.runs(".").table().to_pandas()) >= 1


def use_onnx() -> None:
    from loopwright.checkpoint.onnx import export_module

    assert export_module(nn.Linear(6, 2), inputs, "model.onnx").is_close


def use_pillow() -> None:
    from loopwright.interfaces.adversarial.images import read_image, write_image

    write_image(Path("picture.png"), torch.zeros(3, 8, 8))
    assert read_image(Path("picture.png"), (4, 4), 3).shape == (3, 4, 4)


def use_kornia() -> None:
    from loopwright.interfaces.adversarial.config import PairAugmentation
    from loopwright.interfaces.adversarial.images import pair_changes

    (flip,) = pair_changes(PairAugmentation(h_flip_chance=1.0), 8)
    assert torch.equal(flip(torch.eye(8)[None]), torch.eye(8)[None].flip(-1))


def use_tune() -> None:
    if not Path("project").exists():
        run_command("init", "project")
    values = ("model.width=4,8", "trainer.max_epochs=1")
    printed = run_command(
        "sweep", "project/run.yaml", *values, "--optuna", "--num", "2", "--jobs", "1"
    )
    assert "WIDTH" in printed, printed


def use_hf() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    class LanguageModel(Trainer):
        def train_step(self, batch: tuple[Tensor]) -> dict[str, Tensor]:
            loss = self.model(input_ids=batch[0], labels=batch[0]).loss
            self.update(loss)
            return {"loss": loss}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    tokens = TensorDataset(torch.arange(64).reshape(8, 8) % 11)
    trainer = LanguageModel(model, partial(torch.optim.AdamW, lr=1e-2), progress="silent")
    losses = trainer.train(tokens, num_updates=20, batch_size=4).steps["loss"].values
    assert losses[-1] < losses[0]


def use_ui() -> None:
    ui = subprocess.Popen(
        [*COMMAND, "ui", "."], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = threading.Timer(300, ui.kill)
    limit.start()
    try:
        assert ui.stdout is not None
        words = (word for line in ui.stdout for word in line.split())
        address = next((word for word in words if word.startswith("http://")), None)
        if address is None:
            raise MissingExtraError(ui.communicate()[1])
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"<html" in answer.read()
        ui.send_signal(signal.SIGINT)
        ui.communicate()
    finally:
        limit.cancel()
        ui.kill()


def use_tensorboard() -> None:
    train("tensorboard", callbacks=[trackers.TensorBoard("events")])
    assert any(path.stat().st_size for path in Path("events").rglob("events.out.tfevents.*"))


def use_wandb() -> None:
    train("wandb_run", callbacks=[trackers.WandB("smoke", mode="offline")])
    assert list(Path().rglob("offline-run-*/*.wandb"))


def use_mlflow() -> None:
    train("mlflow_run", callbacks=[trackers.MLflow(uri="sqlite:///tracked.db")])
    assert b"loss" in Path("tracked.db").read_bytes()


def use_trackio() -> None:
    train("trackio_run", callbacks=[trackers.Trackio("smoke")])
    assert list(Path("trackio").rglob("*.db"))


def use_demo() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = TensorDataset(torch.tensor(digits.data).float(), torch.tensor(digits.target))
    trainer = Trainer(nn.Linear(64, 10), torch.optim.Adam, nn.CrossEntropyLoss(), progress="silent")
    losses = trainer.train(images, num_updates=20, batch_size=64).steps["loss"].values
    assert losses[-1] < losses[0]


# The features of each extra, with the modules that each needs, and whether Loopwright imports them:
# where the user
# does, a missing package is the user's own error.
FEATURES: dict[str, list[tuple[Callable[[], None], list[str], bool]]] = {
    "metrics": [(use_metrics, ["torchmetrics"], False)],
    "plots": [(use_plots, ["matplotlib"], True)],
    "frames": [(use_frames, ["pandas"], True)],
    "onnx": [(use_onnx, ["onnx", "onnxscript", "onnxruntime"], True)],
    "images": [(use_pillow, ["PIL"], True), (use_kornia, ["kornia"], True)],
    "tune": [(use_tune, ["optuna"], True)],
    "hf": [(use_hf, ["transformers"], False)],
    "ui": [(use_ui, ["starlette", "uvicorn", "plotly"], True)],
    "tensorboard": [(use_tensorboard, ["tensorboard"], True)],
    "wandb": [(use_wandb, ["wandb"], True)],
    "mlflow": [(use_mlflow, ["mlflow", "sqlalchemy", "alembic"], True)],
    "trackio": [(use_trackio, ["trackio"], True)],
    "demo": [(use_demo, ["sklearn"], False)],
}


def check_feature(extra: str, use: Callable[[], None], modules: list[str], is_ours: bool) -> str:
    """Use a feature; say whether it worked or was refused as it should."""
    missing = [module for module in modules if find_spec(module) is None]
    if not missing:
        use()
        return "works"
    if not is_ours:
        return "no part of Loopwright"
    said = None
    try:
        use()
    except MissingExtraError as error:
        said = str(error)
    assert said is not None, f"{use.__name__} did without {missing}"
    command = f"pip install 'loopwright[{extra}]'"
    assert command in said, f"{use.__name__} does not say {command}: {said}"
    return "refused"


def main(installed: str = "") -> None:
    assert installed or SCRIPT.exists()
    assert "site-packages" in loopwright.__file__, loopwright.__file__
    history = train("run")
    assert len(history.steps["loss"]) == 20
    assert history.last("loss") < history.steps["loss"].values[0]
    assert "20" in run_command("show", "run")
    assert loopwright.__version__ in run_command("--version")
    for extra, features in FEATURES.items():
        for use, modules, is_ours in features:
            result = check_feature(extra, use, modules, is_ours)
            assert extra != installed or result == "works", (
                f"the extra {extra} does not bring {modules}"
            )
            print(f"    {use.__name__.removeprefix('use_'):<12} {result}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
