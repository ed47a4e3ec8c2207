"""Commands as the command line has them: help, arguments, and the name of the function to call.

What a command needs is imported with its own module, when the command is chosen: help and completion
are quick. This module has the commands that take a run file, `run_commands.py` the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = Callable[[argparse.ArgumentParser], None]

ROOT = "runs"
LAST = "last"
PROGRAMS = (".py", ".ipynb")
RUN = "a run: its path, the beginning of its name or id, or `last`"
CHECKPOINT = "a checkpoint, or a run (its path, the beginning of its name or id, or `last`)"
FOLDER = (
    "a run (its path, the beginning of its name or id, or `last`), a folder of checkpoints, "
    "or one checkpoint"
)
WEIGHTS = ".safetensors or .pt file of weights"
WHICH = (
    "`best`, `newest`, the number of an update, or the name or path of a checkpoint (default: the "
    "best kept model; if the run kept none, the newest resume point)"
)
OVERRIDES = "change a value (model.width=32), add one (+model.depth=2) or remove one (~scheduler)"
INTERFACES = {  # of the projects that `init` writes
    "configured": "YAML describes the run; you write model, data and loss",
    "native": "`loopwright.Trainer`, with methods to override",
    "simple": "a model, an optimizer, a loss and loaders",
    "lifecycle": "you pass data sets and override named stages",
    "modular": "several models and optimizers, your own step, many devices",
    "adversarial": "paired image translation with a GAN",
}
SHELLS = ("bash", "zsh", "fish", "tcsh")
COUNTS = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands, which has no function.

    Args:
        name: As it is typed: "train", or "config show" of the group "config".
        function: The module in this package and the function in it that runs the command; imported
            when the command is chosen.
        what: The first sentence of its help.
        more: The paragraphs after it. A line that begins with a space stays as it is.
        example: Its examples, each a line without the word `loopwright`.
        add_arguments: Adds its arguments. The names in `metavar` say how a shell completes them:
            RUN, CONFIG, CHECKPOINT, DIR, FILE.
    """

    name: str
    function: str
    what: str
    more: str
    example: str
    add_arguments: Arguments


def command(
    name: str, function: str, what: str, *, more: str, example: str
) -> Callable[[Arguments], Command]:
    """Make a command of the function that adds its arguments."""

    def decorate(add_arguments: Arguments) -> Command:
        return Command(name, function, what, more, example, add_arguments)

    return decorate


def add_flag(parser: Any, name: str, what: str) -> None:
    parser.add_argument(name, action="store_true", help=what)


def add_option(parser: Any, name: str, metavar: str, what: str, **given: Any) -> None:
    parser.add_argument(name, metavar=metavar, help=what, **given)


def add_config(
    parser: argparse.ArgumentParser, what: str = "a run file (YAML)", nargs: str | None = None
) -> None:
    """Add the arguments CONFIG and KEY=VALUE."""
    parser.add_argument("config", metavar="CONFIG", help=what, nargs=nargs)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=OVERRIDES)


def add_run(parser: argparse.ArgumentParser, dest: str = "name", what: str = RUN) -> None:
    """Add the argument RUN, by default the last run, and --root."""
    parser.add_argument(
        dest, metavar="RUN", nargs="?", default=LAST, help=f"{what} (default: last)"
    )
    add_root(parser)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the folder of runs."""
    what = f"the folder to look for runs in (default: {ROOT})"
    parser.add_argument("--root", metavar="DIR", default=ROOT, help=what)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a checkpoint of the run."""
    parser.add_argument("--checkpoint", metavar="WHICH", help=WHICH)


def parse_count(text: str) -> int:
    """7B as 7000000000, 800M as 800000000."""
    try:
        return int(float(text[:-1]) * COUNTS[text[-1]] if text[-1:] in COUNTS else float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number: write 7B, 800M or 7e9"
        ) from None


def numbers(text: str) -> list[int]:
    """8,64 as [8, 64]; argparse names this function where it fails."""
    return [int(part) for part in text.split(",")]


def parse_names(text: str) -> list[str]:
    """workers,batch-size as the names of settings."""
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]


@command(
    "init",
    "init.init_command",
    "Write a small project that trains right away.",
    more="""\
Writes a small program with synthetic data, a README with the commands, and a .gitignore. Existing files are never
overwritten: README.md and .gitignore stay as they are; if any other file exists, nothing is written.

An interface is a style of writing a training program. All of them use the same trainer inside:

"""
    + "\n".join(f"  {interface:<12} {words}" for interface, words in INTERFACES.items()),
    example="""\
init
init circles --interface modular""",
)
def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default=".",
        help="the folder of the project (default: the current one)",
    )
    parser.add_argument(
        "--interface",
        choices=tuple(INTERFACES),
        default="configured",
        help="the style of the program (default: configured)",
    )


@command(
    "check",
    "check.check_command",
    "Try a run file on a few samples, or simulate several processes of a program.",
    more="""\
A run file (.yaml, .yml, .json): does everything that `train` would do, once, on a few samples of the real data, in a
temporary folder. It checks the config, builds all objects, trains a few updates with accumulation, evaluates and
predicts on every data set, calls every callback, saves and loads a checkpoint, compares a resumed run with an
uninterrupted one, and follows the schedule to the end. It reports all mistakes at once, then the time and memory that
the run will need. KEY=VALUE changes the config.

A program (.py): runs it on the CPU as the first of several processes, with the others simulated, up to the second
update of its first `train` call. Callbacks are not called, and the run directory is not written. It prints the device
mesh, which process holds which parameters, bytes per process, how a batch is divided, and the collectives of an update
beside the estimate of `loopwright scale`.

Exit code 1: a mistake was found, or the program failed before the end of its second update.""",
    example="""\
check run.yaml trainer.max_updates=500
check run.yaml --json
check --processes 8 --runtime fsdp train.py --epochs 3""",
)
def _check(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--processes",
        "N",
        "the number of processes (default: as the program says, or 2)",
        type=int,
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--runtime", choices=("ddp", "fsdp"), help="replace the runtime of the program"
    )
    add_option(
        instead,
        "--mesh",
        "AXES",
        "replace the device mesh of the program: replicate=2,shard=4,tensor=2",
    )
    add_flag(parser, "--all", "list every parameter, and every process separately")
    add_flag(parser, "--json", "print JSON")
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a run file, or a Python program that torchrun could start",
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="KEY=VALUE for a run file; arguments for a program",
    )


@command(
    "train",
    "train.train_command",
    "Train from a run file, or resume a run.",
    more="""\
The run file is checked before anything is built. The run directory is runs/<name>/<id>, or the `output_path` of the run
file.

An unfinished run with the same name and config is resumed exactly where it stopped. A finished run is left alone, and a
new one starts. A new run also starts if the config has changed; --accept-changes resumes the old run with the new
config. If the config is the same but model, optimizer, loss or data have changed, that is an error.

Ctrl-C and SIGTERM finish the current update, save and exit; the same command resumes the run. Ctrl-C twice exits at
once. SIGUSR1 saves without stopping.

On several processes:

  torchrun --nproc-per-node 4 -m loopwright train run.yaml

A Python program is not started with this command but with python or torchrun.""",
    example="""\
train run.yaml
train run.yaml trainer.max_epochs=20 model.width=64 name=wide
train --resume last trainer.max_epochs=40
train run.yaml --new""",
)
def _train(parser: argparse.ArgumentParser) -> None:
    add_config(
        parser, what="a run file (YAML); with --resume the default is that of the run", nargs="?"
    )
    how = parser.add_mutually_exclusive_group()
    add_flag(how, "--new", "start a new run even if there is an unfinished one")
    add_option(
        how,
        "--resume",
        "RUN",
        "resume this run (its path, the beginning of its name or id, or `last`), or start "
        "a new run from this checkpoint",
    )
    add_flag(
        parser,
        "--accept-changes",
        "resume a run even if its config, code or data have changed; run.json records what changed",
    )
    parser.add_argument(
        "--progress",
        choices=("auto", "bar", "lines", "silent"),
        default="auto",
        help="how progress is shown (default: a bar on a terminal, otherwise lines)",
    )
    add_root(parser)


@command(
    "sweep",
    "sweep.sweep_command",
    "Train one run for each combination of values, and compare them.",
    more="""\
The values to try are in the run file under `sweep:`, or on the command line: model.width=8,16,32 or n=range(1,5). The
methods are grid (all combinations), random (`num` of them) and optuna (which chooses values by the results so far, and
stops runs that do worse than others at the same update). Each run is a separate process with a run directory in
runs/<name>/sweep, or in the folder that `output_path` or --output names.

The same command continues a sweep: finished runs are not trained again, unfinished runs are resumed, and failed runs
are tried again. Ctrl-C lets the runs save and exit.
Exit code 1: at least one run failed.""",
    example="""\
sweep run.yaml model.width=8,16,32 model.optimizer.lr=0.1,0.01 --jobs 2
sweep run.yaml --metric test_loss --json
sweep run.yaml --optuna --num 30 --jobs 4""",
)
def _sweep(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_option(
        parser, "--jobs", "N", "the number of runs at a time (default: 1)", type=int, default=1
    )
    add_option(
        parser,
        "--metric",
        "NAME",
        "the metric to compare (default: the evaluation loss, or the loss)",
    )
    parser.add_argument(
        "--direction",
        choices=("minimize", "maximize"),
        help="whether smaller or larger values of the metric are better",
    )
    add_flag(parser, "--optuna", "let Optuna choose the values")
    add_option(parser, "--num", "N", "the number of runs with Optuna (default: 20)", type=int)
    add_flag(parser, "--no-pruning", "do not let Optuna stop runs early")
    parser.add_argument("-o", "--output", metavar="DIR", help="the folder of the runs")
    add_flag(parser, "--list", "list the runs of a grid or random sweep without training")
    add_flag(parser, "--json", "print JSON; progress goes to stderr")


@command(
    "eval",
    "evaluate.eval_command",
    "Evaluate the model of a run that a run file started.",
    more="""\
The model and the data are built from the config and the code that the run directory contains, so the run must have been
started from a run file. With --data KEY the losses on that data set are computed. Without it, the evaluation callbacks
of the run measure once; a run without such callbacks is evaluated on every data set except `train`. The run itself is
not changed.""",
    example="""\
eval
eval digits --data test --checkpoint newest
eval runs/digits/20260102T030405-a1b2c3 --json""",
)
def _eval(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_option(parser, "--data", "KEY", "a data set of the run file, such as test")
    add_checkpoint(parser)
    add_flag(parser, "--json", "print run, checkpoint and metrics as JSON")


@command(
    "predict",
    "evaluate.predict_command",
    "Write the outputs of a model for a data set to a file.",
    more="""\
The model and the data are built from the config and the code that the run directory contains, so the run must have been
started from a run file. Outputs are written for every sample of the data set, in its order. The name of FILE chooses
the format:

  .safetensors  tensors by name: `output`; for a dict its keys; for a tuple
                `output.0`, `output.1` and so on
  .npy          NumPy, for a model with one output
  .npz          NumPy, for a model with several outputs
  .json         lists of numbers; also for outputs that are not tensors""",
    example="""\
predict --data test --output predictions.safetensors
predict digits --data test --checkpoint best -o digits.npy""",
)
def _predict(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_option(parser, "--data", "KEY", "a data set of the run file, such as test", required=True)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    add_checkpoint(parser)
    add_flag(parser, "--force", "replace FILE if it exists")


@command(
    "config",
    "",
    "Show, validate and describe run files.",
    more="A run file describes a run in YAML: model, data, optimizer and trainer.",
    example="config validate run.yaml",
)
def _config(parser: argparse.ArgumentParser) -> None:
    """Its commands follow."""


@command(
    "config show",
    "config.show_command",
    "Print a run file with includes, variables and overrides resolved.",
    more="""\
Includes (`defaults:`), variables and KEY=VALUE are resolved; values from the environment stay ${env:NAME}. The output
is a run file itself. `config validate` checks it.""",
    example="config show run.yaml model.width=64\nconfig show run.yaml --origins",
)
def _config_show(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    form = parser.add_mutually_exclusive_group()
    add_flag(form, "--origins", "add the file and line that each value comes from")
    add_flag(form, "--json", "print JSON instead of YAML")


@command(
    "config schema",
    "config.schema_command",
    "Print a JSON schema, for editors that complete and check run files.",
    more="""\
With CONFIG the schema also describes the classes that this file names, your own included. To use it in an editor:

  VS Code (with the YAML extension), Vim, Emacs, Helix and other editors with
  yaml-language-server, as the first line of the run file:
    # yaml-language-server: $schema=run.schema.json
  VS Code, in settings.json, for all run files:
    "yaml.schemas": {"run.schema.json": ["run*.yaml"]}
  PyCharm: Settings > Languages & Frameworks > Schemas and DTDs >
    JSON Schema Mappings""",
    example="config schema run.yaml --output run.schema.json\nconfig schema > run.schema.json",
)
def _config_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="a run file whose classes are described too"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the schema to this file; an existing one is replaced",
    )


@command(
    "config validate",
    "config.validate_command",
    "Check run files without building anything.",
    more="""\
Reports every mistake in every file, also in the runs of a sweep: unknown keys with the nearest known ones, wrong types,
missing arguments, classes that cannot be used. Modules that a file names are imported; nothing is built.
Exit code 1: a file has mistakes.""",
    example="config validate run.yaml\nconfig validate configs/*.yaml trainer.max_epochs=1",
)
def _config_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="CONFIG", nargs="+", help="run files; KEY=VALUE applies to all of them"
    )
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=OVERRIDES)
    add_flag(parser, "--json", "print the mistakes of each file as JSON")


@command(
    "lr-find",
    "finders.lr_command",
    "Suggest a learning rate.",
    more="""\
Trains for --updates updates while the learning rate grows exponentially from --low to --high, or until the loss
explodes. The suggestion is the rate at which the smoothed loss falls fastest. No run directory is written.
Exit code 1: the loss never fell, so there is no suggestion.""",
    example="""\
lr-find run.yaml
lr-find run.yaml model.width=64 --low 1e-6 --high 10 --updates 200 --plot lr.png""",
)
def _lr_find(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_option(parser, "--low", "RATE", "the first rate (default: 1e-7)", type=float, default=1e-7)
    add_option(parser, "--high", "RATE", "the last rate (default: 1)", type=float, default=1.0)
    add_option(
        parser,
        "--updates",
        "N",
        "the number of rates to try (default: 100)",
        type=int,
        default=100,
    )
    add_option(parser, "--optimizer", "NAME", "the optimizer to vary, if there are several")
    add_option(parser, "--plot", "FILE", "draw the curve to this file (.png, .svg, .pdf)")
    add_flag(parser, "--json", "print all rates, losses and the suggestion as JSON")


@command(
    "batch-size-find",
    "finders.batch_size_command",
    "Suggest a batch size: the largest that fits, and a fast one.",
    more="""\
Trains a few updates with batches of 1, 2, 4, ... samples, until memory runs out, --max is reached or one batch holds
the whole data set; bisection then finds the largest size that fits. The suggestion is the smallest size that is about
as fast as the fastest. On the CPU, sizes that would need more than 80 % of the free memory, or more than --memory, are
skipped. No run directory is written.
Exit code 1: not even the smallest size fits.""",
    example="""\
batch-size-find run.yaml
batch-size-find run.yaml --max 512 --json""",
)
def _batch_size_find(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_option(parser, "--start", "N", "the smallest size (default: 1)", type=int, default=1)
    add_option(parser, "--max", "N", "the largest size (default: 4096)", type=int, default=4096)
    add_option(parser, "--updates", "N", "updates per size (default: 4)", type=int, default=4)
    add_option(
        parser,
        "--memory",
        "BYTES",
        "the memory that a step may use, such as 800M or 4G",
        type=parse_count,
    )
    add_flag(parser, "--json", "print all sizes and the suggestion as JSON")


@command(
    "tune",
    "tune.tune_command",
    "Measure which settings make training faster.",
    more="""\
Trains the run for a few seconds with each of several settings, in turns with the current settings: data workers, batch
size, precision, threads, torch.compile, channels-last, a fused optimizer, pinned memory. Then the settings that help
are tried together. Prints samples per second, the ratio to the current settings with its spread, and what to change.
A difference within the noise is not reported as faster. No run directory is written. Ctrl-C stops early and prints the
results so far. This command takes run files; in a program, call trainer.tune(data).""",
    example="""\
tune run.yaml
tune run.yaml --only workers,batch-size --seconds 5 --json""",
)
def _tune(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_option(parser, "--seconds", "S", "time per setting (default: 2)", type=float, default=2.0)
    add_option(parser, "--only", "NAMES", "try only these, as in workers,compile", type=parse_names)
    add_flag(parser, "--json", "print all measurements and the suggestion as JSON")


@command(
    "scale",
    "scale.scale_command",
    "Estimate memory, communication and speed on many devices.",
    more="""\
Compares DDP, FSDP2, HSDP, tensor parallelism (TP) and FSDP2 with TP on each number of devices, each with the fastest
settings that fit: steps per update, recomputed activations, sizes of the mesh. The model is that of a run file
(CONFIG), or a transformer of --layers and --width. The memory of parameters, gradients and optimizer and the bytes of
every collective are exact; activations and seconds are estimates from vendors' peak figures. Nothing is trained.
Exit code 1: no strategy is sensible on any of these numbers of devices.""",
    example="""\
scale --params 7B --layers 32 --width 4096 --sequence 4096 --batch 1024 --devices 8,64,512,4096
scale run.yaml --device a100 --per-node 4 --between hdr --devices 4,8,16 --json""",
)
def _scale(parser: argparse.ArgumentParser) -> None:
    add_config(parser, what="a run file (YAML) whose model is measured", nargs="?")
    add_option(
        parser, "--params", "N", "parameters of the transformer: 7B, 125M, 7e9", type=parse_count
    )
    add_option(parser, "--layers", "N", "blocks of the transformer", type=int)
    add_option(parser, "--width", "N", "width of the transformer", type=int)
    add_option(
        parser, "--sequence", "N", "tokens per sample (default: 2048)", type=int, default=2048
    )
    add_option(
        parser,
        "--vocabulary",
        "N",
        "size of the vocabulary (default: 32000)",
        type=int,
        default=32_000,
    )
    add_option(
        parser, "--batch", "N", "samples per update on all devices (default: 1024)", type=int
    )
    add_option(
        parser,
        "--devices",
        "N,N",
        "numbers of devices (default: 8,64,512,4096)",
        type=numbers,
        default=[8, 64, 512, 4096],
    )
    add_option(
        parser,
        "--device",
        "NAME",
        "type of device: a100, h100, b200, ... (default: h100)",
        default="h100",
    )
    add_option(parser, "--per-node", "N", "devices per node (default: 8)", type=int, default=8)
    add_option(parser, "--within", "LINK", "the link inside a node (default: the device's own)")
    add_option(parser, "--between", "LINK", "the link between nodes (default: ndr)", default="ndr")
    add_option(
        parser, "--adapters", "N", "network adapters per node (default: one per device)", type=int
    )
    add_option(
        parser,
        "--utilisation",
        "SHARE",
        "share of the peak speed that is reached (default: 0.4)",
        type=float,
        default=0.4,
    )
    add_option(parser, "--optimizer", "NAME", "sgd, momentum, adam or adamw (default: adamw)")
    add_flag(parser, "--no-overlap", "assume that nothing is sent while devices compute")
    add_flag(parser, "--json", "print JSON: every estimate with all its collectives")


COMMANDS = (
    _init,
    _check,
    _train,
    _sweep,
    _eval,
    _predict,
    _config,
    _config_show,
    _config_schema,
    _config_validate,
    _lr_find,
    _batch_size_find,
    _tune,
    _scale,
)
