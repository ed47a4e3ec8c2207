"""The arguments, attributes and events of other frameworks that people type first, and what to write
instead. Imported only for errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from .errors import CallError, MissingAttributeError
from .text import near_names

EPOCHS = "write `num_epochs=`"
EVAL = "write `eval_data=`"
DATA = "the data is the first argument, `data`"
PAIR = "pass inputs and targets as one argument: `data=(x, y)`"
IN_TRAIN = "data and limits are arguments of `train`: `trainer.train(data, num_epochs, eval_data)`"
IN_INIT = "pass it to the constructor: `Trainer(model, optimizer, loss_fn, ...)`"
RATE = "the learning rate belongs to the optimizer: `optimizer=partial(torch.optim.Adam, lr=1e-3)`"
PRECISION = "write `precision='bf16'` (or 'fp16', 'fp32')"
METRIC = "write `metric=`, such as `metric='eval_loss'`"
SHOWN = "write `Trainer(progress='silent')` (or 'bar', 'lines')"
LOADER = "pass a DataLoader, which has it, instead of the data set"
OFTEN = (
    "`eval_data` is evaluated after every epoch; for an evaluation every n updates use "
    "`callbacks=[loopwright.callbacks.OfflineLoss('eval', every_n_updates=n)]`"
)
KEYWORDS: dict[str, dict[str, str]] = {
    "Trainer.train": {
        **dict.fromkeys(("epochs", "max_epochs", "n_epochs"), EPOCHS),
        **dict.fromkeys(
            ("steps", "max_steps"), "write `num_updates=`; an update is one optimizer step"
        ),
        **dict.fromkeys(("validation_data", "val_data", "val_loader", "val_dataloaders"), EVAL),
        **dict.fromkeys(("train_data", "train_loader", "train_dataloaders", "dataset"), DATA),
        **dict.fromkeys(("x", "y"), PAIR),
        **dict.fromkeys(("optimizer", "loss_fn", "callbacks", "device"), IN_INIT),
        **dict.fromkeys(("num_workers", "collate_fn", "shuffle"), LOADER),
        **dict.fromkeys(("eval_steps", "val_check_interval"), OFTEN),
        "verbose": SHOWN,
        "ckpt_path": "a run with `Trainer(run_dir=...)` continues by itself; `resume='path'` "
        "starts from a checkpoint of another run",
    },
    "Trainer.__init__": {
        **dict.fromkeys(("loss", "criterion"), "write `loss_fn=`"),
        **dict.fromkeys(("lr", "learning_rate"), RATE),
        **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "batch_size"), IN_TRAIN),
        **dict.fromkeys(("data", "train_data", "train_dataset", "eval_dataset"), IN_TRAIN),
        **dict.fromkeys(("gradient_clip_val", "max_grad_norm"), "write `clip_norm=`"),
        **dict.fromkeys(
            ("accumulate_grad_batches", "gradient_accumulation_steps"),
            "write `accumulate=`, the number of batches per update",
        ),
        **dict.fromkeys(("amp", "fp16", "bf16", "mixed_precision"), PRECISION),
        **dict.fromkeys(
            ("accelerator", "devices", "gpus"),
            "one GPU is used by itself if there is one (`device='cpu'` or 'cuda:1' to choose); for "
            "several, start the program with `torchrun --nproc-per-node 4`",
        ),
        "strategy": "write `runtime='ddp'` or `runtime='fsdp'`, and start the program with "
        "`torchrun --nproc-per-node 4`",
        "compute_metrics": "write `Trainer(..., metrics={'accuracy': function})`, with a function "
        "of (outputs, targets)",
        "logger": "metrics are recorded in `run_dir=`; trackers are callbacks, such as "
        "`callbacks=[loopwright.trackers.TensorBoard()]`",
        "val_check_interval": OFTEN,
        **dict.fromkeys(
            ("default_root_dir", "output_dir"),
            "write `run_dir=`, where metrics and checkpoints go",
        ),
        "verbose": SHOWN,
    },
    "EarlyStopping.__init__": {
        "monitor": METRIC,
        "restore_best_weights": "leave it out, and add `BestModel('eval_loss', restore=True)` to "
        "the callbacks",
    },
    "BestModel.__init__": {
        "monitor": METRIC,
        "save_top_k": "write `keep=`, the number of models to keep",
        "dirpath": "files go to the `run_dir` of the trainer",
    },
}
CALLS = {
    "Trainer.log": "pass a dict: `trainer.log({'accuracy': value})`",
    "Trainer.evaluate": "it is called as `evaluate(data, batch_size=)`, with inputs and targets as "
    "one `(x, y)`",
    "Trainer.predict": "it is called as `predict(data, batch_size=)`",
}
ATTRIBUTES = {
    "fit": "`trainer.train(data, num_epochs)`",
    "compile": "`Trainer(model, optimizer, loss_fn)`, which needs no such call; `Trainer(..., "
    "compile='step')` is torch.compile",
    **dict.fromkeys(("validate", "test"), "`trainer.evaluate(data)`"),
    "save_checkpoint": "`trainer.save(path)`, or `trainer.export(path)` for weights",
    **dict.fromkeys(("load_checkpoint", "load_from_checkpoint"), "`trainer.load(path)`"),
    **dict.fromkeys(("log_dict", "log_metrics"), "`trainer.log({name: value})`"),
    "current_epoch": "`trainer.progress.epoch`",
    "global_step": "`trainer.progress.update`",
    "callback_metrics": "`trainer.history.last('eval_loss')`",
    **dict.fromkeys(("should_stop", "stop_training"), "`trainer.stop(reason)`"),
    "device": "`trainer.runtime.device`",
    **dict.fromkeys(("backward", "manual_backward"), "`self.update(loss)` in `train_step`"),
    "accelerator": "`self.update(loss)` in `train_step`, in place of `accelerator.backward(loss)` "
    "and `optimizer.step()`; devices and processes are the trainer's own",
    **dict.fromkeys(("to", "cuda"), "`Trainer(device='cuda')`, which moves models and batches"),
    "save_hyperparameters": "`Trainer(config={...})`; optimizer, data and arguments are recorded "
    "by themselves",
    "checkpoint_callback": "`trainer.load_weights(trainer.run_dir)`, which loads the best kept "
    "model",
}
EVENTS = {  # events of other frameworks, and those at the same moment here
    "on_train_begin": "on_train_start",
    "on_fit_start": "on_train_start",
    "on_fit_end": "on_train_end",
    "on_epoch_begin": "on_epoch_start",
    "on_train_epoch_start": "on_epoch_start",
    "on_train_batch_start": "on_train_step_start",
    "on_batch_begin": "on_train_step_start",
    "on_train_batch_end": "on_train_step_end",
    "on_batch_end": "on_train_step_end",
    "on_step_end": "on_train_step_end",
    "on_before_optimizer_step": "on_optimizer_start",
    "on_validation_start": "on_eval_start",
    "on_validation_batch_end": "on_eval_step_end",
    "on_validation_end": "on_eval_end",
    "on_validation_epoch_end": "on_eval_end",
    "on_evaluate": "on_eval_end",
}
# of methods that users know as the trainer's
_OWNER = re.compile(r"\bMediaMethods\.")


def explain_call(
    error: TypeError, function: Callable[..., Any], keywords: Iterable[str] = ()
) -> CallError:
    """Return the error with advice for each unknown argument among `keywords`, or with the
    signature."""
    name = _OWNER.sub("Trainer.", function.__qualname__)
    said = _OWNER.sub("Trainer.", str(error))
    known = list(inspect.signature(function).parameters)
    unknown = [keyword for keyword in keywords if keyword not in known]
    if "unexpected keyword argument" not in said or not unknown or name == "Trainer.log":
        advice = CALLS.get(name, f"it is called as {call_of(function)}")
        if "multiple values for argument 'num_epochs'" in said:
            advice = f"{PAIR}, then `num_epochs=`"
        return CallError("wrong-arguments", f"{said}: {advice}.")
    advice = "; ".join(f"{keyword}: {_keyword_hint(name, keyword, known)}" for keyword in unknown)
    start = said.partition(" got an unexpected")[0]
    many = f"the unknown argument{'s' * (len(unknown) > 1)}"
    call = f" It is called as {call_of(function)}." if "it is unknown" in advice else ""
    return CallError("unknown-argument", f"{start} got {many} {advice}.{call}")


def _keyword_hint(name: str, keyword: str, known: Iterable[str]) -> str:
    """What to write in place of an unknown argument: the name that it has here, or a similar one."""
    hint = KEYWORDS.get(name, {}).get(keyword)
    if hint is None:
        near = near_names(keyword, known, cutoff=0.6)
        hint = f"did you mean `{near[0]}=`?" if near else "it is unknown"
    return hint


def call_of(function: Callable[..., Any]) -> str:
    """ "train(data, num_epochs, eval_data, *, num_updates, ...)"."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = [f"{p.name}" for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = [f"{p.name}=" for p in parameters if p.kind is p.KEYWORD_ONLY]
    label = _OWNER.sub("", function.__qualname__).removesuffix(".__init__").removeprefix("Trainer.")
    return f"`{label}({', '.join([*names, *named])})`"


def explain_attribute(owner: object, name: str) -> None:
    """Raise with advice for an attribute of other frameworks; do nothing if a property of that name
    failed."""
    if "callbacks" not in vars(owner) and not name.startswith("_"):
        raise MissingAttributeError(
            "trainer-not-set-up",
            f"{type(owner).__name__} has no attribute {name!r}, because the trainer was never set "
            "up: call `super().__init__(...)` first in your `__init__`.",
            name=name,
            obj=owner,
        )
    if name in ATTRIBUTES and (
        not hasattr(type(owner), name) or name in ("should_stop", "stop_training")
    ):
        raise MissingAttributeError(
            "unknown-attribute",
            f"{type(owner).__name__} has no attribute {name!r}: write {ATTRIBUTES[name]}.",
            name=name,
            obj=owner,
        )
