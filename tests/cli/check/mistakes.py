"""What can be wrong with the config of the checked project, and what is well: overrides, the place,
the words."""

from __future__ import annotations


def callback(kind: str, *arguments: str) -> tuple[str, ...]:
    """Overrides that add a callback."""
    return (
        f"+trainer.callbacks.1.kind={kind}",
        *(f"+trainer.callbacks.1.{argument}" for argument in arguments),
    )


def scheduler(kind: str, *arguments: str) -> tuple[str, ...]:
    return (
        f"+model.scheduler.kind={kind}",
        *(f"+model.scheduler.{argument}" for argument in arguments),
    )


MISTAKES: dict[str, tuple[tuple[str, ...], str, str]] = {
    # what is wrong: (overrides, the key that is named, words of the message)
    "shapes that do not fit": (("+model.inputs=5",), "trainer", "shapes cannot be multiplied"),
    "a loss that is nan": (("trainer.kind=checked.Nan",), "trainer", "is nan in update 1"),
    "a loss that is nan and skipped": (
        ("trainer.kind=checked.Nan", "+trainer.skip_nan_loss=true"),
        "trainer",
        "were skipped, since a loss or a gradient was not finite",
    ),
    "a learning rate of zero": (("model.optimizer.lr=0.0",), "model", "no weight has changed"),
    "a learning rate that explodes": (("model.optimizer.lr=1e60",), "", "not finite|is nan|inf"),
    "a metric that is not measured": (
        callback("EarlyStopping", "metric=test_los"),
        "trainer.callbacks.1",
        "watches 'test_los'",
    ),
    "a data set without samples": (("datasets.train.n=0",), "datasets.train", "has no samples"),
    "a warm-up longer than the run": (
        scheduler("WarmupCosine", "warmup_updates=500"),
        "model.scheduler",
        "the schedule changes at update 500, but the run has only 40",
    ),
    "a schedule longer than the run": (
        scheduler("CosineAnnealingLR", "T_max=1000", "every=update"),
        "model.scheduler",
        r"CosineAnnealingLR\(T_max=1000\) counts updates, but the run has only 40",
    ),
    "a schedule shorter than the run": (
        scheduler("OneCycleLR", "max_lr=0.1", "total_steps=30"),
        "model.scheduler",
        "the schedule fails in step 31 of 40",
    ),
    "a schedule that is never stepped": (
        (
            *scheduler("StepLR", "step_size=1"),
            "trainer.max_updates=7",
            "trainer.callbacks.0.every_n_updates=2",
        ),
        "model.scheduler",
        "the run has only 0.875 of one: it would never be stepped",
    ),
    "a learning rate below zero": (
        scheduler("ExponentialLR", "gamma=-1.0", "every=update"),
        "model.scheduler",
        r"the learning rate is \[-0.01\] after step 1 of 40",
    ),
    "an interval longer than the run": (
        ("trainer.callbacks.0.every_n_updates=1000",),
        "trainer.callbacks.0",
        "acts every 1000 updates, but the run has only 40: it would never act",
    ),
    "state that cannot be saved": (
        callback("checked.Unsavable"),
        "trainer.callbacks.1",
        "cannot be saved",
    ),
    "state that cannot be taken back": (
        callback("checked.OneWay"),
        "trainer.callbacks.1",
        "OneWay fails: .*KeyError",
    ),
    "weights that a fresh model does not have": (
        ("model.kind=checked.Growing",),
        "trainer",
        "(?s)that saves and loads fails: .*scale is only",
    ),
    "a model that forgets": (
        ("model.kind=checked.Counting", "~model.width"),
        "trainer",
        r"models\.model\.calls",
    ),
    "a callback that breaks late": (
        callback("checked.Late", "every_n_updates=39"),
        "trainer.callbacks.1",
        "ZeroDivision",
    ),
    "a last sample of another shape": (
        ("datasets.train.kind=checked.OddLast",),
        "datasets.train",
        "its samples cannot be put into one batch",
    ),
    "a length that is too long": (
        ("datasets.test.kind=checked.Short",),
        "datasets.test",
        r"sample 32 \(of 33\) cannot be",
    ),
    "outputs that evaluation lacks": (
        ("model.kind=checked.OtherKeys", "trainer.kind=checked.Auxiliary"),
        "datasets.train",
        "cannot be evaluated: KeyError: 'auxiliary'",
    ),
    "data that reading changes": (
        ("datasets.train.kind=checked.Spoiling",),
        "datasets.train",
        "differs when it is read",
    ),
    "a file where the runs go": (("output_path=checked.py/out",), "output_path", "is a file, so"),
    "an initial checkpoint that is not there": (
        ("+initializer.kind=FromCheckpoint", "+initializer.path=nowhere.safetensors"),
        "initializer",
        "nowhere.safetensors",
    ),
}

NOTES: dict[str, tuple[tuple[str, ...], str, str]] = {
    # what is no mistake, but worth a line: (overrides, the key that is named, words of the note)
    "weights without gradient": (
        ("model.kind=checked.Spare", "~model.width"),
        "model",
        "no gradient reaches spare.weight, spare.bias",
    ),
    "a model that would be compiled": (
        ("+trainer.use_torch_compile=true",),
        "trainer.use_torch_compile",
        "the model was not compiled for this check",
    ),
}

WELL: dict[str, tuple[str, ...]] = {
    "batch norm, averages and a curve": (
        *("model.kind=checked.Normed", "~model.width", "+trainer.num_workers=2"),
        *scheduler("WarmupCosine", "warmup=0.1"),
        *callback("EMA", "decay=0.9"),
        "+trainer.callbacks.2={kind: BestCheckpoint, metric: test_ema_loss, every_n_updates: 10}",
        "+trainer.callbacks.3={kind: Checkpoints, every_updates: 100}",
    ),
    "random data, clocks and a schedule of torch's": (
        *("datasets.train.kind=checked.Noisy", "~trainer.max_updates", "+trainer.max_samples=303"),
        *scheduler("OneCycleLR", "max_lr=0.1", "total_steps=38"),
        "+trainer.callbacks.1={kind: TrainTime}",
        "+trainer.callbacks.2={kind: Throughput}",
        "+trainer.callbacks.3={kind: PeakMemory, every_n_updates: 5}",
        "+trainer.log_every_n_updates=2",
    ),
    "epochs, a plateau and a metric of the epoch": (
        *("~trainer.max_updates", "+trainer.max_epochs=3", "+trainer.precision=bf16"),
        *scheduler("ReduceLROnPlateau", "patience=1"),
        *callback("EarlyStopping", "metric=test_loss", "patience=1"),
    ),
}
