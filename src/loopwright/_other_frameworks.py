"""The arguments and attributes of other frameworks that people type first, and what to write instead.
Imported only for errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .errors import CallError, MissingAttributeError
from .text import near_names

EPOCHS = "`trainer.train(data, num_epochs=...)`"
EVAL = "`trainer.train(data, eval_data=...)`"
RATE = "`optimizer=partial(torch.optim.Adam, lr=...)`"
ACCUMULATE = "`accumulate=`, the number of batches per update"
DEVICES = "`device='cuda:1'`; for several GPUs, start the program with `torchrun`"
KEYWORDS = {
    "epochs": EPOCHS,
    "max_epochs": EPOCHS,
    "max_steps": "`trainer.train(data, num_updates=...)`",
    "validation_data": EVAL,
    "val_data": EVAL,
    "x": "inputs and targets as one argument, `data=(x, y)`",
    "criterion": "`loss_fn=`",
    "lr": RATE,
    "learning_rate": RATE,
    "gradient_clip_val": "`clip_norm=`",
    "max_grad_norm": "`clip_norm=`",
    "gradient_accumulation_steps": ACCUMULATE,
    "accumulate_grad_batches": ACCUMULATE,
    "fp16": "`precision='fp16'` (or 'bf16', 'fp32')",
    "gpus": DEVICES,
    "accelerator": DEVICES,
    "monitor": "`metric=`",
}
ATTRIBUTES = {
    "fit": "`trainer.train(data, num_epochs)`",
    "validate": "`trainer.evaluate(data)`",
    "save_checkpoint": "`trainer.save(path)`, or `trainer.export(path)` for weights",
    "load_checkpoint": "`trainer.load(path)`",
    "current_epoch": "`trainer.progress.epoch`",
    "global_step": "`trainer.progress.update`",
    "device": "`trainer.runtime.device`",
    "backward": "`self.update(loss)` in `train_step`",
    "accelerator": "`self.update(loss)` in `train_step`",
    "cuda": "`Trainer(device='cuda')`",
}


def explain_call(
    error: TypeError, function: Callable[..., Any], keywords: Mapping[str, Any]
) -> CallError:
    """Return the error with what to write in place of each unknown argument, and with the call."""
    parameters = inspect.signature(function).parameters
    advice = ""
    for keyword in keywords:
        if keyword not in parameters:
            near = near_names(keyword, parameters, cutoff=0.6)
            if keyword in KEYWORDS:
                advice += f" In place of {keyword}, write {KEYWORDS[keyword]}."
            elif near:
                advice += f" {keyword}: did you mean `{near[0]}=`?"
    arguments = [
        f"{name}=" if parameter.kind is parameter.KEYWORD_ONLY else name
        for name, parameter in list(parameters.items())[1:]
    ]
    label = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    called = f"`{label}({', '.join(arguments)})`"
    return CallError("wrong-arguments", f"{error}; it is called as {called}.{advice}")


def explain_attribute(owner: object, name: str) -> None:
    """Raise with advice for an attribute of other frameworks; do nothing if a property of that name
    failed."""
    kind = type(owner).__name__
    if "callbacks" not in vars(owner) and not name.startswith("_"):
        raise MissingAttributeError(
            "trainer-not-set-up",
            f"{kind} has no attribute {name!r}, because the trainer was never set up: call "
            "`super().__init__(...)` first in your `__init__`.",
            name=name,
            obj=owner,
        )
    if name in ATTRIBUTES and not hasattr(type(owner), name):
        raise MissingAttributeError(
            "unknown-attribute",
            f"{kind} has no attribute {name!r}: write {ATTRIBUTES[name]}.",
            name=name,
            obj=owner,
        )
