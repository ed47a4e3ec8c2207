"""Parts of documentation pages that are written from the code: `python -m tests.generated` writes
them all.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`; a test compares each with
the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from loopwright import Callback
from loopwright.callback import hook_names
from loopwright.interfaces import adversarial, configured, lifecycle, modular, simple
from loopwright.interfaces.adversarial.images import LiveView
from loopwright.interfaces.simple.config import TrainingSettings

from .tables import (
    arguments,
    attributes,
    call,
    classes,
    events,
    fields,
    methods,
    setting_row,
    settings_of,
    summary,
    table,
)

DOCS = Path(__file__).parent.parent / "docs"
LOGGING = " log_image log_images log_histogram log_text log_table log_figure"

SIMPLE = {  # methods by what they are for; a test says that none is left out
    "called": "train train_epoch train_step eval_step evaluate load_checkpoint" + LOGGING,
    "inside": "_prepare_batch _forward_pass _compute_loss _save_checkpoint state_dict "
    "load_state_dict",
}
LIFECYCLE = {
    "called": "train evaluate save_checkpoint load_checkpoint save_training_state "
    "load_training_state gather get_model print" + LOGGING,
    "setup": "create_train_dataloader get_default_train_dl_kwargs create_eval_dataloader "
    "get_default_eval_dl_kwargs create_scheduler",
    "run": "training_run_start training_run_epoch_end training_run_end evaluation_run_start "
    "evaluation_run_end",
    "training": "train_epoch_start calculate_train_batch_loss backward_step optimizer_step "
    "scheduler_step optimizer_zero_grad train_epoch_end",
    "evaluation": "eval_epoch_start calculate_eval_batch_loss eval_epoch_end",
    "internal": "_prepare_model_optimizer_and_dataloaders _prepare_model_and_optimizer "
    "_prepare_dataloaders _create_run_config _run_training _run_train_epoch "
    "_perform_forward_and_backward_passes _clip_gradients _run_evaluation _run_eval_epoch "
    "_update_loss_tracker _add_epoch_loss_to_run_history",
}
CONFIGURED = {
    "override": "loss_compute train_step eval_step predict_step _split_batch state_dict "
    "load_state_dict",
    "called": "update train evaluate eval predict" + LOGGING,
}
MODULAR = {
    "required": "configure_models configure_optimizers configure_dataloaders training_step "
    "validation_step",
    "optional": "init_weights configure_schedulers configure_metrics training_loop validation_loop "
    "should_validate compute_metrics save_checkpoint load_checkpoint state_dict "
    "load_state_dict",
    "called": "fit setup backward step clip_gradients autocast wrap_model log_metrics stop"
    + LOGGING,
}
PIX2PIX_HOOKS = "on_epoch_start train_step on_epoch_end"
OVERRIDABLE = (
    "_init_lr_scheduling _init_generator _init_discriminator _init_dataloaders "
    "_init_gradscalers _init_losses"
)
EXPLAINED = {
    "Trainer": adversarial.Trainer,
    "Pix2pixTrainer": adversarial.Pix2pixTrainer,
    "LossManager": adversarial.LossManager,
    "LiveView": LiveView,
    "Schedule": adversarial.Schedule,
    "Scheduler": adversarial.Scheduler,
    "TorchScheduler": adversarial.TorchScheduler,
    "Tester": adversarial.Tester,
    "ONNXConverter": adversarial.ONNXConverter,
    "ConfigManager": adversarial.ConfigManager,
}
AUGMENTATIONS = "dataloader.augmentations."


def lifecycle_callbacks() -> tuple[type, ...]:
    """The callbacks that ship, each once, in the order of their names."""
    found = [getattr(lifecycle, name) for name in lifecycle.__all__]
    kinds = {
        one for one in found if isinstance(one, type) and issubclass(one, lifecycle.TrainerCallback)
    }
    return tuple(sorted(kinds - {lifecycle.TrainerCallback}, key=lambda kind: kind.__name__))


def placeholders() -> str:
    rows = (
        (f"`{one.name}`", one.value[0].upper() + one.value[1:] + ".")
        for one in lifecycle.TrainerPlaceholderValues
    )
    return table(("placeholder", "stands for"), rows)


def settings(kind: type) -> str:
    return table(
        ("setting", "type", "default", "meaning"), (setting_row(*one) for one in settings_of(kind))
    )


def adversarial_settings(*, augmentations: bool) -> str:
    """All settings, or those of augmentation, each once with the images that have it."""
    found = [(key, field) for key, field in settings_of(adversarial.Config)]
    if not augmentations:
        rows = [
            setting_row(key, field) for key, field in found if not key.startswith(AUGMENTATIONS)
        ]
        return table(("setting", "type", "default", "meaning"), rows)
    images: dict[str, list[str]] = {}
    by_name = {}
    for key, field in found:
        if key.startswith(AUGMENTATIONS):
            image, _, name = key.removeprefix(AUGMENTATIONS).partition(".")
            images.setdefault(name, []).append(image)
            by_name[name] = setting_row(name, field)
    rows = [(row[0], ", ".join(images[name]), *row[1:]) for name, row in by_name.items()]
    return table(("setting", "of", "type", "default", "meaning"), rows)


def own_methods(public_name: str, kind: type) -> str:
    """The call that makes one, and the methods that a class itself defines, in the order of the
    source."""
    own = vars(kind)
    names = [
        n
        for n, v in own.items()
        if inspect.isfunction(v) and (n[0] != "_" or n in OVERRIDABLE.split())
    ]
    rows = [(f"`{call(public_name, kind)}`", summary(kind))]
    rows += [
        (f"`{call(name, getattr(kind, name))}`", summary(getattr(kind, name))) for name in names
    ]
    return table(("call", "what it does"), rows)


def public_methods(kind: type) -> str:
    """The methods of a class that are not private, in the order of the source."""
    return methods(
        kind, *(n for n, v in vars(kind).items() if inspect.isfunction(v) and n[0] != "_")
    )


Part = Callable[[], str]
NATIVE_EVENTS = partial(events, Callback, hook_names(Callback))
PAGES: dict[str, dict[str, Part]] = {
    "trainer.md": {"events": NATIVE_EVENTS},
    "simple.md": {
        "constructor": partial(arguments, simple.Trainer),
        **{
            f"methods {name}": partial(methods, simple.Trainer, *names.split())
            for name, names in SIMPLE.items()
        },
        "train arguments": partial(arguments, simple.Trainer.train),
        "attributes": partial(attributes, simple.Trainer),
        "settings": partial(fields, TrainingSettings, "training."),
    },
    "lifecycle.md": {
        "constructor": partial(arguments, lifecycle.Trainer),
        "train arguments": partial(arguments, lifecycle.Trainer.train),
        "evaluate arguments": partial(arguments, lifecycle.Trainer.evaluate),
        **{
            f"methods {name}": partial(methods, lifecycle.Trainer, *names.split())
            for name, names in LIFECYCLE.items()
        },
        "events": partial(
            events, lifecycle.TrainerCallback, hook_names(lifecycle.TrainerCallback), whole=True
        ),
        "run config": partial(fields, lifecycle.TrainerRunConfig),
        "callbacks": lambda: classes(*lifecycle_callbacks()),
        "history": partial(public_methods, lifecycle.RunHistory),
        "placeholders": placeholders,
        "schedulers": partial(classes, lifecycle.CosineLrScheduler, lifecycle.WSDLrScheduler),
    },
    "configured.md": {
        "constructor": partial(arguments, configured.BaseTrainer),
        **{
            f"methods {name}": partial(methods, configured.BaseTrainer, *names.split())
            for name, names in CONFIGURED.items()
        },
        "attributes": partial(attributes, configured.BaseTrainer),
        "result": partial(fields, configured.TrainerResult),
        "events": NATIVE_EVENTS,
        "settings": partial(settings, configured.BaseTrainerConfig),
    },
    "modular.md": {
        **{
            f"methods {name}": partial(methods, modular.DreamTrainer, *names.split())
            for name, names in MODULAR.items()
        },
        "attributes": partial(attributes, modular.DreamTrainer),
        "events": partial(events, modular.Callback, hook_names(modular.Callback)),
        "settings": partial(fields, modular.DreamTrainerConfig),
    },
    "adversarial.md": {
        "constructor": partial(arguments, adversarial.Pix2pixTrainer),
        "train_paired": partial(arguments, adversarial.Trainer.train_paired),
        "events": partial(events, adversarial.Pix2pixTrainer, PIX2PIX_HOOKS.split()),
        "settings": partial(adversarial_settings, augmentations=False),
        "augmentations": partial(adversarial_settings, augmentations=True),
        **{name: partial(own_methods, name, kind) for name, kind in EXPLAINED.items()},
    },
}
PARTS: dict[tuple[str, str], Part] = {
    (page, name): part for page, parts in PAGES.items() for name, part in parts.items()
}


def pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- generated: {name} -->\n.*?<!-- end: {name} -->", re.S)


def current(page: str, name: str) -> str:
    """The part as the page has it."""
    found = pattern(name).search((DOCS / page).read_text())
    assert found is not None, f"docs/{page} has no part {name!r}"
    return found[0]


def expected(page: str, name: str) -> str:
    return f"<!-- generated: {name} -->\n\n{PARTS[page, name]()}\n<!-- end: {name} -->"


if __name__ == "__main__":
    for page, name in PARTS:
        path = DOCS / page
        path.write_text(path.read_text().replace(current(page, name), expected(page, name)))
