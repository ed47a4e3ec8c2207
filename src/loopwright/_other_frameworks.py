"""Arguments, attributes and events of other frameworks, and what to write instead. Imported only
for errors."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from .errors import CallError, MissingAttributeError

EPOCHS = "write `num_epochs=`"
UPDATES = "write `num_updates=`; an update is one optimizer step"
EVAL = "write `eval_data=`"
DATA = "the data is the first argument, `data`"
IN_TRAIN = "data and limits are arguments of `train`: `trainer.train(data, num_epochs, eval_data)`"
IN_INIT = "pass it to the constructor: `Trainer(model, optimizer, loss_fn, ...)`"
CLIP = "write `clip_norm=`"
WINDOW = "write `accumulate=`, the number of batches per update"
RATE = "the learning rate belongs to the optimizer: `optimizer=partial(torch.optim.Adam, lr=1e-3)`"
METRICS = (
    "write `Trainer(..., metrics={'accuracy': function})`, with a function of (outputs, targets)"
)
PRECISION = "write `precision='bf16'` (or 'fp16', 'fp32')"
RUN_DIR = "write `run_dir=`, where metrics and checkpoints go"
LOADER = "pass a DataLoader with `{}=` instead of the data set"
EVAL_OFTEN = (
    "`eval_data` is evaluated after every epoch; for an evaluation every n updates use "
    "`callbacks=[loopwright.callbacks.OfflineLoss('eval', every_n_updates=n)]`"
)
METRIC = "write `metric=`, such as `metric='eval_loss'`"
KEEP = "write `keep=`, the number of models to keep"
BEST = "the best models are kept by `BestModel(metric, keep=)`"
WHERE = "files go to the `run_dir` of the trainer"
SHOWN = "write `Trainer(progress='silent')` (or 'bar', 'lines')"
PAIR = "pass inputs and targets as one argument: `data=(x, y)`"
RESUME = (
    "a run with `Trainer(run_dir=...)` continues by itself; `resume='path'` starts from a "
    "checkpoint of another run"
)
KEPT = "leave it out, and add `BestModel('eval_loss', restore=True)` to the callbacks"
BETTER = "leave it out: every epoch is printed, `Trainer(progress='silent')` prints none"

KEYWORDS: dict[str, dict[str, str]] = {
    "Trainer.train": {
        **dict.fromkeys(
            ("epochs", "max_epochs", "n_epochs", "nb_epochs", "num_train_epochs", "epoch"), EPOCHS
        ),
        **dict.fromkeys(
            ("steps", "max_steps", "num_steps", "total_steps", "iterations", "max_iters"), UPDATES
        ),
        **dict.fromkeys(
            (
                "val_data",
                "validation_data",
                "valid_data",
                "test_data",
                "eval_dataset",
                "val_loader",
            ),
            EVAL,
        ),
        **dict.fromkeys(
            ("val_dataloader", "val_dataloaders", "eval_loader", "valid_loader", "test_loader"),
            EVAL,
        ),
        **dict.fromkeys(
            ("train_data", "train_dataset", "dataset", "loader", "dataloader", "train_loader"), DATA
        ),
        **dict.fromkeys(("train_dataloader", "train_dataloaders", "trainloader"), DATA),
        **dict.fromkeys(("x", "y"), PAIR),
        **dict.fromkeys(("lr", "learning_rate"), RATE),
        **dict.fromkeys(
            ("optimizer", "loss", "loss_fn", "criterion", "model", "callbacks", "device", "seed"),
            IN_INIT,
        ),
        **dict.fromkeys(("precision", "clip_norm", "accumulate", "scheduler", "run_dir"), IN_INIT),
        **dict.fromkeys(("verbose", "progress", "progress_bar"), SHOWN),
        **dict.fromkeys(
            ("ckpt_path", "resume_from_checkpoint", "checkpoint", "resume_from", "initial_epoch"),
            RESUME,
        ),
        **dict.fromkeys(
            ("sample_weight", "sample_weights"),
            "put them into the data, and override `compute_loss`",
        ),
        **dict.fromkeys(
            ("validation_batch_size", "eval_batch_size"),
            LOADER.format("batch_size") + ", as `eval_data`",
        ),
        "workers": LOADER.format("num_workers"),
        **dict.fromkeys(
            ("time_limit", "max_seconds", "timeout", "max_minutes"), "write `max_time=`, in seconds"
        ),
        "shuffle": "training data is shuffled (by the seed and the epoch), evaluation data is not; a "
        "DataLoader keeps its own order",
        "validation_split": "split the data with `torch.utils.data.random_split` and pass the second part as "
        "`eval_data=`",
        "metrics": METRICS,
        **{
            name: LOADER.format(name)
            for name in ("num_workers", "collate_fn", "sampler", "pin_memory", "drop_last")
        },
        **dict.fromkeys(
            ("eval_every", "eval_steps", "eval_strategy", "evaluation_strategy"), EVAL_OFTEN
        ),
        **dict.fromkeys(
            ("val_check_interval", "validation_freq", "validation_steps", "eval_interval"),
            EVAL_OFTEN,
        ),
        **dict.fromkeys(
            ("class_weight", "class_weights"),
            "give them to the loss: `nn.CrossEntropyLoss(weight=...)`",
        ),
        **dict.fromkeys(
            ("steps_per_epoch", "limit_train_batches"), "use `callbacks=[LimitBatches(train=)]`"
        ),
    },
    "Trainer.__init__": {
        **dict.fromkeys(
            ("loss", "criterion", "loss_function", "objective", "loss_func"), "write `loss_fn=`"
        ),
        **dict.fromkeys(
            ("optim", "optimizers", "opt"),
            "write `optimizer=`; for several optimizers pass a dict of them by name",
        ),
        **dict.fromkeys(("lr", "learning_rate"), RATE),
        **dict.fromkeys(("lr_scheduler", "schedulers", "sched"), "write `scheduler=`"),
        **dict.fromkeys(
            ("net", "module", "network", "models"),
            "write `model=`; for several models pass a dict of them by name",
        ),
        **dict.fromkeys(
            ("epochs", "max_epochs", "n_epochs", "num_epochs", "num_updates"), IN_TRAIN
        ),
        "max_steps": "write `trainer.train(data, num_updates=)`; an update is one optimizer step",
        "min_epochs": "pass `patience=` to EarlyStopping, the only callback that ends a run early by "
        "itself",
        **dict.fromkeys(
            ("data", "train_data", "train_dataset", "train_loader", "train_dataloader"), IN_TRAIN
        ),
        **dict.fromkeys(
            ("eval_data", "eval_dataset", "val_data", "val_loader", "test_loader", "batch_size"),
            IN_TRAIN,
        ),
        **dict.fromkeys(("max_time", "resume"), IN_TRAIN),
        **dict.fromkeys(
            ("gradient_clip_val", "max_grad_norm", "clip_grad_norm", "grad_clip", "clip"), CLIP
        ),
        **dict.fromkeys(
            ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum"), WINDOW
        ),
        **dict.fromkeys(("amp", "mixed_precision", "fp16", "bf16", "use_amp"), PRECISION),
        **dict.fromkeys(
            ("accelerator", "gpu", "use_gpu", "cuda"),
            "write `device='cuda'` or `device='cpu'`; without it, a GPU is used if there is one",
        ),
        **dict.fromkeys(
            ("gpus", "devices", "num_gpus", "n_gpu"),
            "one GPU is used by itself if there is one (`device='cuda:1'` names another); for "
            "several, start the program with `torchrun --nproc-per-node 4`",
        ),
        **dict.fromkeys(
            ("strategy", "distributed"),
            "write `runtime='ddp'` or `runtime='fsdp'`, and start the program with `torchrun "
            "--nproc-per-node 4`",
        ),
        **dict.fromkeys(("compute_metrics", "metric", "eval_metrics"), METRICS),
        **dict.fromkeys(
            ("logger", "loggers", "report_to"),
            "metrics are recorded in `run_dir=`; trackers are callbacks, such as "
            "`callbacks=[loopwright.trackers.TensorBoard()]`",
        ),
        **dict.fromkeys(
            ("val_check_interval", "check_val_every_n_epoch", "eval_steps", "eval_strategy"),
            EVAL_OFTEN,
        ),
        **dict.fromkeys(
            ("limit_train_batches", "limit_val_batches"),
            "use `callbacks=[LimitBatches(train=, eval=)]`",
        ),
        **dict.fromkeys(("num_nodes",), "start the program with torchrun on each machine"),
        "deterministic": "write `torch.use_deterministic_algorithms(True)` yourself",
        "benchmark": "write `torch.backends.cudnn.benchmark = True` yourself",
        "detect_anomaly": "write `torch.autograd.set_detect_anomaly(True)` yourself",
        "sync_batchnorm": "leave it out: batch norms of several processes are synchronised",
        "gradient_clip_algorithm": "write `clip_norm=` or `clip_value=`",
        "profiler": "use `callbacks=[loopwright.callbacks.Profile()]`",
        "enable_checkpointing": "leave it out: a trainer without `run_dir=` writes no files",
        "enable_model_summary": "leave it out, or use `callbacks=[loopwright.callbacks.ModelSummary()]`",
        "log_every_n_steps": "leave it out: every step is recorded in `run_dir=`",
        **dict.fromkeys(
            ("num_sanity_val_steps", "inference_mode", "use_distributed_sampler", "barebones"),
            "leave it out",
        ),
        **dict.fromkeys(
            ("fast_dev_run", "overfit_batches"), "write `trainer.train(data, num_updates=2)`"
        ),
        **dict.fromkeys(("collate_fn", "data_collator"), LOADER.format("collate_fn")),
        **dict.fromkeys(
            ("tokenizer", "processing_class"),
            "leave it out: tokenise the data first, and pass the data to `train`",
        ),
        **dict.fromkeys(
            ("weight_decay",),
            "it belongs to the optimizer: `partial(torch.optim.AdamW, weight_decay=)`",
        ),
        **dict.fromkeys(
            ("default_root_dir", "output_dir", "save_dir", "log_dir", "logdir", "dir"), RUN_DIR
        ),
        **dict.fromkeys(
            ("verbose", "enable_progress_bar", "progress_bar"), "write `progress='silent'` or 'bar'"
        ),
        **dict.fromkeys(("callback", "hooks"), "write `callbacks=[...]`"),
        **dict.fromkeys(("random_state", "random_seed"), "write `seed=`"),
        "args": "there is no arguments object: pass the arguments one by one",
    },
    "EarlyStopping.__init__": {"monitor": METRIC, "restore_best_weights": KEPT, "verbose": BETTER},
    "BestModel.__init__": {
        "monitor": METRIC,
        "save_best_only": KEEP,
        "save_top_k": KEEP,
        "filepath": WHERE,
        "dirpath": WHERE,
        **dict.fromkeys(("filename", "path"), WHERE),
        "save_weights_only": "leave it out: `loopwright.load_weights(run_dir)` returns the weights alone",
        "verbose": BETTER,
    },
    "Checkpoints.__init__": {
        "monitor": BEST,
        "save_top_k": BEST,
        "dirpath": WHERE,
        "filepath": WHERE,
    },
}
KEYWORDS["Trainer.evaluate"] = KEYWORDS["Trainer.predict"] = {
    **dict.fromkeys(
        ("dataloader", "dataloaders", "loader", "dataset", "test_data", "eval_data", "x"), DATA
    ),
    "y": PAIR,
    "verbose": SHOWN,
    "ckpt_path": "write `trainer.load_weights(path)` before",
}
KEYWORDS["seed_everything"] = {"workers": "leave it out: workers of a DataLoader are seeded too"}
CALLS = {
    "Trainer.log": "pass a dict: `trainer.log({'accuracy': value})`",
    "Trainer.evaluate": "it is called as `evaluate(data, batch_size=)`, with inputs and targets as one `(x, "
    "y)`",
    "Trainer.predict": "it is called as `predict(data, batch_size=)`",
}

ATTRIBUTES = {
    **dict.fromkeys(
        ("fit", "fit_generator", "run", "start", "train_model"), "`trainer.train(data, num_epochs)`"
    ),
    "compile": "`Trainer(model, optimizer, loss_fn)`, which needs no such call; `Trainer(..., "
    "compile='step')` is torch.compile",
    **dict.fromkeys(
        ("validate", "test", "score", "eval", "evaluation_loop"), "`trainer.evaluate(data)`"
    ),
    **dict.fromkeys(("inference", "predict_proba", "forward_all"), "`trainer.predict(data)`"),
    **dict.fromkeys(
        ("save_checkpoint", "save_model"),
        "`trainer.save(path)`, or `trainer.export(path)` for weights",
    ),
    "save_weights": "`trainer.export('weights.safetensors')`",
    **dict.fromkeys(("load_checkpoint", "restore", "load_from_checkpoint"), "`trainer.load(path)`"),
    **dict.fromkeys(("log_dict", "log_metrics"), "`trainer.log({name: value})`"),
    "current_epoch": "`trainer.progress.epoch`",
    "global_step": "`trainer.progress.update`",
    **dict.fromkeys(
        ("callback_metrics", "logged_metrics", "metrics"), "`trainer.history.last('eval_loss')`"
    ),
    **dict.fromkeys(("should_stop", "stop_training"), "`trainer.stop(reason)`"),
    "device": "`trainer.runtime.device`",
    **dict.fromkeys(
        ("backward", "manual_backward", "step", "optimizer_step"),
        "`trainer.update(loss)` in `train_step`",
    ),
    **dict.fromkeys(("training_step", "train_on_batch"), "`trainer.train_step(batch)`"),
    **dict.fromkeys(
        ("layers", "get_weights"),
        "`trainer.model`, your own model with its layers and its state_dict()",
    ),
    "predict_classes": "`trainer.predict(data).argmax(1)`",
    "save_hyperparameters": "`Trainer(config={...})`; optimizer, data and arguments are recorded by themselves",
    "validation_step": "`trainer.eval_step(batch)`",
    **dict.fromkeys(
        ("lr_find", "find_lr"), "`loopwright.tuning.find_learning_rate(trainer, data)`"
    ),
    **dict.fromkeys(("add_callback", "register_callback"), "`Trainer(callbacks=[...])`"),
    "summary": "`loopwright.callbacks.ModelSummary` in `callbacks`",
    **dict.fromkeys(
        ("to", "cuda", "cpu"), "`Trainer(device='cuda')`, which moves models and batches"
    ),
    **dict.fromkeys(
        ("fit_one_cycle", "fine_tune"),
        "`Trainer(scheduler=WarmupCosine())` of loopwright.schedules",
    ),
    "get_preds": "`trainer.predict(data)`",
    "prepare": "`Trainer(model, optimizer, loss_fn)`, which needs no such call",
    "accumulate": "`Trainer(accumulate=4)`",
    "clip_grad_norm_": "`Trainer(clip_norm=1.0)`",
    **dict.fromkeys(
        ("save_pretrained", "push_to_hub"),
        "`trainer.model.save_pretrained(path)`, if the model has it",
    ),
    "is_main_process": "`trainer.runtime.is_main`",
    **dict.fromkeys(("global_rank", "process_index"), "`trainer.runtime.rank`"),
    **dict.fromkeys(("world_size", "num_processes"), "`trainer.runtime.world`"),
    **dict.fromkeys(
        ("all_gather", "gather", "gather_for_metrics"), "`trainer.runtime.gather(tensor)`"
    ),
    "wait_for_everyone": "`trainer.runtime.barrier('name')`",
    "unwrap_model": "`trainer.model`, which is not wrapped",
    "accelerator": "`self.update(loss)` in `train_step`, in place of `accelerator.backward(loss)` and "
    "`optimizer.step()`; devices and processes are the trainer's own",
    **dict.fromkeys(
        ("checkpoint_callback", "checkpoint_callbacks", "best_model_path"),
        "`trainer.load_weights(trainer.run_dir)`, which loads the best kept model, or "
        "`loopwright.load_weights(run_dir)` for its weights alone",
    ),
    "lr_schedulers": "`trainer.schedules`, a dict of them by name",
    **dict.fromkeys(
        ("toggle_optimizer", "untoggle_optimizer"),
        "`self.update(loss, 'name')`, whose gradients go to the parameters of that optimizer only",
    ),
    "clip_gradients": "`Trainer(clip_norm=1.0)`",
    "lr": "`trainer.optimizer.param_groups[0]['lr']`",
    "state": "`trainer.progress` for counters, `trainer.history` for metrics",
}

# of methods that users know as the trainer's
_OWNER = re.compile(r"\bMediaMethods\.")


EVENTS = {  # events of other frameworks, and those at the same moment here
    **dict.fromkeys(("on_train_begin", "on_fit_start", "on_sanity_check_start"), "on_train_start"),
    **dict.fromkeys(("on_fit_end",), "on_train_end"),
    **dict.fromkeys(("on_epoch_begin", "on_train_epoch_start"), "on_epoch_start"),
    **dict.fromkeys(
        ("on_train_batch_start", "on_batch_start", "on_batch_begin", "on_train_batch_begin"),
        "on_train_step_start",
    ),
    **dict.fromkeys(("on_train_batch_end", "on_batch_end", "on_step_end"), "on_train_step_end"),
    **dict.fromkeys(
        ("on_before_optimizer_step", "on_before_zero_grad", "on_after_backward"),
        "on_optimizer_start",
    ),
    **dict.fromkeys(
        ("on_validation_start", "on_validation_epoch_start", "on_test_start", "on_test_begin"),
        "on_eval_start",
    ),
    **dict.fromkeys(
        ("on_validation_batch_end", "on_test_batch_end", "on_prediction_step"), "on_eval_step_end"
    ),
    **dict.fromkeys(
        ("on_validation_end", "on_validation_epoch_end", "on_test_end", "on_evaluate"),
        "on_eval_end",
    ),
}


def explain_call(
    error: TypeError, function: Callable[..., Any], keywords: Iterable[str] = ()
) -> CallError:
    """Return the error with advice for each unknown argument among `keywords`, or with the
    signature."""
    name = _OWNER.sub("Trainer.", function.__qualname__)
    said = _OWNER.sub("Trainer.", str(error))
    known = list(inspect.signature(function).parameters)
    first = re.search(r"unexpected keyword argument '(\w+)'", said)
    unknown = [keyword for keyword in keywords if keyword not in known]
    if first is None:
        pair = (
            f"{PAIR}, then `num_epochs=`"
            if "multiple values for argument 'num_epochs'" in said
            else None
        )
        return CallError(
            f"{said}: {pair or CALLS.get(name, f'it is called as {call_of(function)}')}."
        )
    if name in CALLS and name not in KEYWORDS:
        return CallError(f"{said}: {CALLS[name]}.")
    hints = {keyword: _keyword_hint(function, name, keyword) for keyword in unknown or [first[1]]}
    if len(hints) == 1:
        return CallError(f"{said.split('. Did you mean')[0]}: {_ended(*hints.values())}")
    start = said.partition(" got an unexpected")[0]
    signature = f"it is called as {call_of(function)}"
    lines = [
        f"  - {keyword}: {'it is unknown' if hint == signature else hint}"
        for keyword, hint in hints.items()
    ]
    rest = (
        [_ended(f"{name} {signature}").replace(" it is", " is")]
        if signature in hints.values()
        else []
    )
    return CallError(
        "\n".join(
            [f"{start} got {len(hints)} unexpected keyword arguments:", *map(_ended, lines), *rest]
        )
    )


def _keyword_hint(function: Callable[..., Any], name: str, keyword: str) -> str:
    """What to write in place of an unknown argument: the name that it has here, a similar one, or
    the signature."""
    hint = KEYWORDS.get(name, {}).get(keyword)
    if hint is None:
        near = difflib.get_close_matches(
            keyword, inspect.signature(function).parameters, n=1, cutoff=0.6
        )
        hint = f"did you mean `{near[0]}=`?" if near else f"it is called as {call_of(function)}"
    return hint


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"{sentence}."


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
            f"{type(owner).__name__} has no attribute {name!r}, because the trainer was never set "
            "up: call `super().__init__(...)` first in your `__init__`.",
            name=name,
            obj=owner,
        )
    if name in ATTRIBUTES and (
        not hasattr(type(owner), name) or name in ("should_stop", "stop_training")
    ):
        message = f"{type(owner).__name__} has no attribute {name!r}: write {ATTRIBUTES[name]}."
        raise MissingAttributeError(message, name=name, obj=owner)
