"""Commands as the command line has them: help, arguments, and the name of the function to call.

What a command needs is imported with its own module, when the command is chosen: help
is quick.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = Callable[[ArgumentParser], None]

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
INTERFACES = ("configured", "native", "simple", "lifecycle", "modular", "adversarial")


COMMANDS: list[Command] = []


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands, which has no function.

    Args:
        name: As it is typed: "train", or "config show" of the group "config".
        function: The module in this package and the function in it that runs the command; imported
            when the command is chosen.
        add_arguments: Adds its arguments; its docstring is the help, with examples at the end. A
            line that begins with a space is printed as it is.
    """

    name: str
    function: str
    add_arguments: Arguments


def command(name: str, function: str) -> Callable[[Arguments], Arguments]:
    """Make a command of the function that adds its arguments."""

    def register(add_arguments: Arguments) -> Arguments:
        COMMANDS.append(Command(name, function, add_arguments))
        return add_arguments

    return register


def add(parser: Any, spec: str, what: str, **given: Any) -> None:
    """Add an argument as it is typed: "config CONFIG" by its place, "-o --output FILE" with a value,
    "--best min|max" with choices, "--json" as a flag. A number as `default` says the type.

    The names in capitals say how a shell completes them: RUN, CONFIG, CHECKPOINT, DIR, FILE.
    """
    *names, value = spec.split()
    if value.startswith("-"):
        names.append(value)
        given["action"] = "store_true"
    elif "|" in value:
        given["choices"] = value.split("|")
    else:
        given["metavar"] = value
    if isinstance(given.get("default"), int | float):
        given["type"] = type(given["default"])
    parser.add_argument(*names, help=what, **given)


def add_config(
    parser: ArgumentParser, what: str = "a run file (YAML)", nargs: str | None = None
) -> None:
    """Add the arguments CONFIG and KEY=VALUE."""
    add(parser, "config CONFIG", what, nargs=nargs)
    add(parser, "overrides KEY=VALUE", OVERRIDES, nargs="*", default=[])


def add_run(parser: ArgumentParser, dest: str = "name", what: str = RUN) -> None:
    """Add the argument RUN, by default the last run, and --root."""
    add(parser, f"{dest} RUN", f"{what} (default: last)", nargs="?", default=LAST)
    add_root(parser)


def add_root(parser: ArgumentParser) -> None:
    """Add the option that names the folder of runs."""
    what = f"the folder to look for runs in (default: {ROOT})"
    add(parser, "--root DIR", what, default=ROOT)


def add_checkpoint(parser: ArgumentParser) -> None:
    """Add the option that chooses a checkpoint of the run."""
    add(parser, "--checkpoint WHICH", WHICH)


def numbers(text: str) -> list[int]:
    """8,64 as [8, 64]; argparse names this function where it fails."""
    return [int(part) for part in text.split(",")]


def parse_names(text: str) -> list[str]:
    """workers,batch-size as the names of settings."""
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]


@command("init", "init.init_command")
def _init(parser: ArgumentParser) -> None:
    """Write a small project that trains right away.

    Writes a small program with synthetic data, a README with the commands, and a .gitignore.
    Existing files are never overwritten: README.md and .gitignore stay as they are; if any other
    file exists, nothing is written.

    An interface is a style of writing a training program. All of them use the same trainer
    inside:

      configured   YAML describes the run; you write model, data and loss
      native       `loopwright.Trainer`, with methods to override
      simple       a model, an optimizer, a loss and loaders
      lifecycle    you pass data sets and override named stages
      modular      several models and optimizers, your own step, many devices
      adversarial  paired image translation with a GAN

    examples:
      loopwright init
      loopwright init circles --interface modular
    """
    add(
        parser,
        "folder DIR",
        "the folder of the project (default: the current one)",
        nargs="?",
        default=".",
    )
    what = "the style of the program (default: configured)"
    add(parser, f"--interface {'|'.join(INTERFACES)}", what, default="configured")


@command("check", "check.check_command")
def _check(parser: ArgumentParser) -> None:
    """Try a run file on a few samples.

    Does everything that `train` would do, once, on a few samples of the real data, in a temporary
    folder. It checks the config, builds all objects, trains a few updates with accumulation,
    evaluates and predicts on every data set, calls every callback, saves and loads a checkpoint,
    compares a resumed run with an uninterrupted one, and follows the schedule to the end. It
    reports all mistakes at once, then the time and memory that the run will need.

    Exit code 1: a mistake was found.

    examples:
      loopwright check run.yaml
      loopwright check run.yaml trainer.max_updates=500 --json
    """
    add_config(parser)
    add(parser, "--json", "print JSON")


@command("train", "train.train_command")
def _train(parser: ArgumentParser) -> None:
    """Train from a run file, or resume a run.

    The run file is checked before anything is built. The run directory is runs/<name>/<id>, or
    the `output_path` of the run file.

    An unfinished run with the same name and config is resumed exactly where it stopped. A
    finished run is left alone, and a new one starts. A new run also starts if the config has
    changed; --accept-changes resumes the old run with the new config. If the config is the same
    but model, optimizer, loss or data have changed, that is an error.

    Ctrl-C and SIGTERM finish the current update, save and exit; the same command resumes the run.
    Ctrl-C twice exits at once. SIGUSR1 saves without stopping.

    On several processes:

      torchrun --nproc-per-node 4 -m loopwright train run.yaml

    A Python program is not started with this command but with python or torchrun.

    examples:
      loopwright train run.yaml
      loopwright train run.yaml trainer.max_epochs=20 model.width=64 name=wide
      loopwright train --resume last trainer.max_epochs=40
      loopwright train run.yaml --new
    """
    add_config(
        parser, what="a run file (YAML); with --resume the default is that of the run", nargs="?"
    )
    how = parser.add_mutually_exclusive_group()
    add(how, "--new", "start a new run even if there is an unfinished one")
    add(
        how,
        "--resume RUN",
        "resume this run (its path, the beginning of its name or id, or `last`), or start "
        "a new run from this checkpoint",
    )
    add(
        parser,
        "--accept-changes",
        "resume a run even if its config, code or data have changed; run.json records what changed",
    )
    add(
        parser,
        "--progress auto|bar|lines|silent",
        "how progress is shown (default: a bar on a terminal, otherwise lines)",
        default="auto",
    )
    add_root(parser)


@command("sweep", "sweep.sweep_command")
def _sweep(parser: ArgumentParser) -> None:
    r"""Train one run for each combination of values, and compare them.

    The values to try are in the run file under `sweep:`, or on the command line:
    model.width=8,16,32 or n=range(1,5). The methods are grid (all combinations), random (`num` of
    them) and optuna (which chooses values by the results so far, and stops runs that do worse
    than others at the same update). Each run is a separate process with a run directory in
    runs/<name>/sweep, or in the folder that `output_path` or --output names.

    The same command continues a sweep: finished runs are not trained again, unfinished runs are
    resumed, and failed runs are tried again. Ctrl-C lets the runs save and exit.
    Exit code 1: at least one run failed.

    examples:
      loopwright sweep run.yaml model.width=8,16,32 model.optimizer.lr=0.1,0.01 \
          --jobs 2
      loopwright sweep run.yaml --metric test_loss --json
      loopwright sweep run.yaml --optuna --num 30 --jobs 4
    """
    add_config(parser)
    add(parser, "--jobs N", "the number of runs at a time (default: 1)", default=1)
    add(
        parser, "--metric NAME", "the metric to compare (default: the evaluation loss, or the loss)"
    )
    add(
        parser,
        "--direction minimize|maximize",
        "whether smaller or larger values of the metric are better",
    )
    add(parser, "--optuna", "let Optuna choose the values")
    add(parser, "--num N", "the number of runs with Optuna (default: 20)", type=int)
    add(parser, "-o --output DIR", "the folder of the runs")
    add(parser, "--json", "print JSON; progress goes to stderr")


@command("eval", "evaluate.eval_command")
def _eval(parser: ArgumentParser) -> None:
    """Evaluate the model of a run that a run file started.

    The model and the data are built from the config and the code that the run directory contains,
    so the run must have been started from a run file. With --data KEY the losses on that data set
    are computed. Without it, the evaluation callbacks of the run measure once; a run without such
    callbacks is evaluated on every data set except `train`. The run itself is not changed.

    examples:
      loopwright eval
      loopwright eval digits --data test --checkpoint newest
      loopwright eval runs/digits/20260102T030405-a1b2c3 --json
    """
    add_run(parser)
    add(parser, "--data KEY", "a data set of the run file, such as test")
    add_checkpoint(parser)
    add(parser, "--json", "print run, checkpoint and metrics as JSON")


@command("predict", "evaluate.predict_command")
def _predict(parser: ArgumentParser) -> None:
    """Write the outputs of a model for a data set to a file.

    The model and the data are built from the config and the code that the run directory contains,
    so the run must have been started from a run file. Outputs are written for every sample of the
    data set, in its order. The name of FILE chooses the format:

      .safetensors  tensors by name: `output`; for a dict its keys; for a tuple
                    `output.0`, `output.1` and so on
      .npy          NumPy, for a model with one output
      .json         lists of numbers; also for outputs that are not tensors

    examples:
      loopwright predict --data test --output predictions.safetensors
      loopwright predict digits --data test --checkpoint best -o digits.npy
    """
    add_run(parser)
    add(parser, "--data KEY", "a data set of the run file, such as test", required=True)
    add(parser, "-o --output FILE", "the file to write", required=True)
    add_checkpoint(parser)
    add(parser, "--force", "replace FILE if it exists")


@command("config", "")
def _config(parser: ArgumentParser) -> None:
    """Show and validate run files.

    A run file describes a run in YAML: model, data, optimizer and trainer.

    examples:
      loopwright config validate run.yaml
    """


@command("config show", "config.show_command")
def _config_show(parser: ArgumentParser) -> None:
    """Print a run file with includes, variables and overrides resolved.

    Includes (`defaults:`), variables and KEY=VALUE are resolved; values from the environment stay
    ${env:NAME}. The output is a run file itself. `config validate` checks it.

    examples:
      loopwright config show run.yaml model.width=64
    """
    add_config(parser)
    add(parser, "--json", "print JSON instead of YAML")


@command("config validate", "config.validate_command")
def _config_validate(parser: ArgumentParser) -> None:
    """Check run files without building anything.

    Reports every mistake in every file, also in the runs of a sweep: unknown keys with the
    nearest known ones, wrong types, missing arguments, classes that cannot be used. Modules that
    a file names are imported; nothing is built.
    Exit code 1: a file has mistakes.

    examples:
      loopwright config validate run.yaml
      loopwright config validate configs/*.yaml trainer.max_epochs=1
    """
    add(parser, "files CONFIG", "run files; KEY=VALUE applies to all of them", nargs="+")
    add(parser, "overrides KEY=VALUE", OVERRIDES, nargs="*", default=[])
    add(parser, "--json", "print the mistakes of each file as JSON")


@command("lr-find", "tuning.lr_command")
def _lr_find(parser: ArgumentParser) -> None:
    """Suggest a learning rate.

    Trains for --updates updates while the learning rate grows exponentially from --low to --high,
    or until the loss explodes. The suggestion is the rate at which the smoothed loss falls
    fastest. No run directory is written.
    Exit code 1: the loss never fell, so there is no suggestion.

    examples:
      loopwright lr-find run.yaml
      loopwright lr-find run.yaml model.width=64 --low 1e-6 --high 10 --updates 200
    """
    add_config(parser)
    add(parser, "--low RATE", "the first rate (default: 1e-7)", default=1e-7)
    add(parser, "--high RATE", "the last rate (default: 1)", default=1.0)
    add(parser, "--updates N", "the number of rates to try (default: 100)", default=100)
    add(parser, "--optimizer NAME", "the optimizer to vary, if there are several")
    add(parser, "--json", "print all rates, losses and the suggestion as JSON")


@command("batch-size-find", "tuning.batch_size_command")
def _batch_size_find(parser: ArgumentParser) -> None:
    """Suggest a batch size: the largest that fits, and a fast one.

    Trains a few updates with batches of 1, 2, 4, ... samples, until memory runs out, --max is
    reached or one batch holds the whole data set; bisection then finds the largest size that
    fits. The suggestion is the smallest size that is about as fast as the fastest. On the CPU,
    sizes that would need more than 80 % of the free memory are skipped. No run directory is
    written.
    Exit code 1: not even the smallest size fits.

    examples:
      loopwright batch-size-find run.yaml
      loopwright batch-size-find run.yaml --max 512 --json
    """
    add_config(parser)
    add(parser, "--start N", "the smallest size (default: 1)", default=1)
    add(parser, "--max N", "the largest size (default: 4096)", default=4096)
    add(parser, "--json", "print all sizes and the suggestion as JSON")


@command("tune", "tuning.tune_command")
def _tune(parser: ArgumentParser) -> None:
    """Measure which settings make training faster.

    Trains the run for a few seconds with each of several settings, in turns with the current
    settings: data workers, batch size, precision, threads, torch.compile. Then the
    settings that help are tried together. Prints samples per second, the ratio to the current
    settings with its spread, and what to change. A difference within the noise is not reported as
    faster. No run directory is written. Ctrl-C stops early and prints the results so far. This
    command takes run files; in a program, call trainer.tune(data).

    examples:
      loopwright tune run.yaml
      loopwright tune run.yaml --only workers,batch-size --seconds 5 --json
    """
    add_config(parser)
    add(parser, "--seconds S", "time per setting (default: 2)", default=2.0)
    add(parser, "--only NAMES", "try only these, as in workers,compile", type=parse_names)
    add(parser, "--json", "print all measurements and the suggestion as JSON")


@command("ui", "ui.ui_command")
def _ui(parser: ArgumentParser) -> None:
    """Show runs in the browser while they train.

    The page has a table of runs, their curves while they train, and everything that was recorded.
    It only reads files, so it never disturbs a run. It needs no account, and nothing in your
    program except `run_dir`.

    Only this machine can open the page. With --host, other machines can open it too, with the
    token in the printed address. To open it through ssh instead, run this on your own machine and
    open the printed address:

      ssh -L 6060:localhost:6060 MACHINE

    examples:
      loopwright ui
      loopwright ui runs/digits --port 6070
      loopwright ui --host 0.0.0.0
    """
    add(
        parser,
        "root DIR",
        f"the folder of runs, or one run (default: {ROOT})",
        nargs="?",
        default=ROOT,
    )
    add(parser, "--port N", "the port (default: 6060, or the next free one)", default=6060)
    add(
        parser,
        "--host ADDRESS",
        "the address to listen on (default: 127.0.0.1)",
        default="127.0.0.1",
    )
    add(parser, "--open", "open the page in a browser")


@command("watch", "watch.watch_command")
def _watch(parser: ArgumentParser) -> None:
    """Watch a run while it trains.

    Shows the state, the progress, the time left and the curves of the metrics; a metric and its
    evaluation share a chart. It only reads files, so you can start and quit it at any time, also
    for a run that has ended or crashed. A column that covers several steps shows the range of
    their values, so no spike is lost. Ctrl-C quits. Without a terminal, one picture is printed.

    examples:
      loopwright watch
      loopwright watch digits --metric loss --metric eval_accuracy --log
      loopwright watch runs/first --once
    """
    add_run(parser)
    add(
        parser,
        "--metric NAME",
        "draw this metric; may be repeated (default: what fits)",
        action="append",
    )
    add(parser, "--log", "draw on a logarithmic scale")
    add(parser, "--once", "print one picture and exit")
    add(parser, "--interval SECONDS", "time between two pictures (default: 1)", default=1.0)


@command("report", "ui.report_command")
def _report(parser: ArgumentParser) -> None:
    """Write runs to one HTML file that needs no server.

    The file is the page of `loopwright ui` with the runs in it: table, curves, images, config and
    log. It opens in any browser without a server or network. Curves with very many points are
    thinned (mean, minimum and maximum are kept), and the page says so. It contains config, log
    and details of the machine: look at it before you send it.

    examples:
      loopwright report
      loopwright report runs/digits runs/digits-2 -o digits.html
      loopwright report runs/digits/sweep --points 500
    """
    add(
        parser,
        "names RUN",
        f"{RUN}; or a folder of runs (default: last)",
        nargs="*",
        default=[LAST],
    )
    add_root(parser)
    add(
        parser,
        "-o --output FILE",
        "the file to write (default: report.html)",
        default="report.html",
    )
    add(parser, "--points N", "the most points per curve (default: depends on the size)", type=int)


@command("runs", "runs.runs_command")
def _runs(parser: ArgumentParser) -> None:
    """List runs in a table.

    The folder is searched with all folders in it. The states of a run:

      running      its process is alive
      crashed      its process is gone without recording how it ended
      finished     it reached its limit
      stopped      a callback or the program ended it early
      interrupted  a signal ended it, after it had saved
      failed       it ended with an error
      unreadable   its run.json is damaged

    The metric shown is the best value of all epochs. The run records whether smaller or larger is
    better, or the name of the metric says so; --best overrides it. If neither is known, the last
    value is shown.

    examples:
      loopwright runs
      loopwright runs --state running,crashed
      loopwright runs --metric eval_accuracy --sort metric --limit 10
    """
    add(
        parser,
        "root DIR",
        f"the folder to look for runs in (default: {ROOT})",
        nargs="?",
        default=ROOT,
    )
    choose = parser.add_argument_group("filters")
    add(choose, "--state STATE,...", "only runs in these states: --state failed,crashed")
    add(
        choose, "--tag TAG", "only runs with this tag; may be repeated", action="append", default=[]
    )
    add(choose, "--limit N", "only the first N runs", type=int)
    add(parser, "--metric NAME", "the metric to show (default: the main metric of each run)")
    add(parser, "--best min|max", "whether smaller or larger values of the metric are better")
    add(
        parser,
        "--sort age|metric",
        "the order of the table (default: age, the newest first)",
        default="age",
    )
    add(parser, "--json", "print JSON")


@command("show", "show.show_command")
def _show(parser: ArgumentParser) -> None:
    """Show what a run did, its metrics and its checkpoints.

    Prints what ran, on which machine, from which code, how far it got, its metrics and its
    checkpoints.
    Exit code 1: the run failed or crashed, or part of it cannot be read.

    examples:
      loopwright show
      loopwright show digits --json
    """
    add_run(parser)
    add(parser, "--all", "print everything that run.json holds, at full length")
    add(parser, "--json", "print everything as JSON, with run.json and the config")


@command("diff", "diff.diff_command")
def _diff(parser: ArgumentParser) -> None:
    """Compare two runs: the last two, or those named.

    Without arguments the last two runs are compared; with one RUN, that run and the last one.
    First come config, code, packages, seed, hardware and data, then the metrics of every step and
    epoch, bit for bit, up to the first difference. Names, tags and folders are not compared, and
    neither are metrics of time and memory.
    Exit code 1: the runs differ.

    examples:
      loopwright diff
      loopwright diff runs/first runs/second
      loopwright diff last~1 last --ignore 'lr*'
    """
    add(parser, "first RUN", f"{RUN} (default: the last but one)", nargs="?")
    add(parser, "second RUN", "the run to compare it with (default: last)", nargs="?", default=LAST)
    add_root(parser)
    add(
        parser,
        "--ignore NAME",
        "skip this metric; * and ? match, may be repeated",
        action="append",
        default=[],
    )
    add(parser, "--strict", "also compare metrics of time and memory")
    add(parser, "--all", "list every difference, not only the first 20")
    add(parser, "--json", "print JSON")


@command("plot", "plot.plot_command")
def _plot(parser: ArgumentParser) -> None:
    """Draw the loss or other metrics of runs.

    Without --metric the training loss and the evaluation loss share one picture. Each --metric
    has its own panel, with a curve for every run along its updates. An existing picture is
    replaced.

    examples:
      loopwright plot
      loopwright plot --text
      loopwright plot runs/first runs/second --metric eval_loss -o curves.svg
    """
    add(parser, "names RUN", f"{RUN} (default: last)", nargs="*", default=[LAST])
    add(
        parser,
        "--metric NAME",
        "draw this metric; may be repeated (default: the loss)",
        action="append",
    )
    add_root(parser)
    add(parser, "--log", "draw on a logarithmic scale")
    where = parser.add_mutually_exclusive_group()
    add(where, "-o --output FILE", "a .png, .svg, .pdf file (default: the metric's name and .png)")
    add(where, "--text", "draw in the terminal instead")


@command("query", "query.query_command")
def _query(parser: ArgumentParser) -> None:
    """Query the metrics of a run with SQL.

    Queries only read, also while the run is training. NaN is NULL.

    examples:
      loopwright query "SELECT name, min(value) FROM epochs GROUP BY name"
      loopwright query runs/first "SELECT * FROM epochs WHERE name = 'loss'" --json
    """
    add_run(parser, "run_name")
    add(parser, "sql SQL", "one SELECT statement over metrics, epochs, events, media and others")
    add(parser, "--json", "print a JSON list with one object per row")


@command("export", "export.export_command")
def _export(parser: ArgumentParser) -> None:
    r"""Export the model of a run as safetensors, torch file or ONNX.

    Checkpoints are verified before their weights are written. ONNX needs the model as well, so
    the run must have been started from a run file: the model is built from its config, and the
    outputs of the ONNX file are compared with those of torch on samples of the training data.
    Exit code 1: the ONNX file was written, but its outputs differ from those of torch.

    examples:
      loopwright export
      loopwright export runs/digits --format onnx --checkpoint newest \
          --output digits.onnx
    """
    add_run(parser)
    add(
        parser,
        "--format safetensors|torch|onnx",
        "the format of the file (default: safetensors)",
        default="safetensors",
    )
    add_checkpoint(parser)
    add(parser, "--model NAME", "the model to export, if the run trains several")
    add(parser, "-o --output FILE", "the file to write (default: named after the run)")
    add(parser, "--force", "replace FILE if it exists")
    add(parser, "--opset N", "the ONNX opset version (default: torch's)", type=int)


@command("checkpoint", "")
def _checkpoint(parser: ArgumentParser) -> None:
    """List, verify, show and compare checkpoints.

    A run saves two kinds of checkpoints. Resume points hold the complete state of training. Kept
    models hold the weights of the best epochs. Nothing in a checkpoint is ever executed.

    examples:
      loopwright checkpoint list
      loopwright checkpoint verify runs/digits
    """


@command("checkpoint list", "checkpoint.list_command")
def _checkpoint_list(parser: ArgumentParser) -> None:
    """List the resume points and kept models of a run.

    The table has epoch, step, update and metric of each, its age, its size and whether it is
    intact.

    examples:
      loopwright checkpoint list
      loopwright checkpoint list runs/digits
    """
    add_run(parser, "run_directory", what=FOLDER)
    add(parser, "--json", "print JSON")


@command("checkpoint verify", "checkpoint.verify_command")
def _checkpoint_verify(parser: ArgumentParser) -> None:
    """Compare every file of every checkpoint with its hash.

    Exit code 1: a checkpoint is damaged, or there is none.

    examples:
      loopwright checkpoint verify
      loopwright checkpoint verify runs/digits
    """
    add_run(parser, "run_directory", what=FOLDER)
    add(parser, "--json", "print JSON")


@command("checkpoint show", "checkpoint.show_command")
def _checkpoint_show(parser: ArgumentParser) -> None:
    """Show what a checkpoint contains.

    Prints its metadata, files and models; --json has the tensors too.
    Exit code 1: a file is missing or damaged.

    examples:
      loopwright checkpoint show
      loopwright checkpoint show digits --checkpoint newest --json
    """
    add(parser, "source CHECKPOINT", f"{CHECKPOINT} (default: last)", nargs="?", default=LAST)
    add_root(parser)
    add_checkpoint(parser)
    add(parser, "--json", "print JSON")


@command("checkpoint diff", "checkpoint.diff_command")
def _checkpoint_diff(parser: ArgumentParser) -> None:
    """Compare two checkpoints bit for bit.

    Without arguments, the checkpoints of the last two runs are compared: every tensor and
    value. The time that training took is not compared. Use --checkpoint newest
    to compare the complete state of training, not only weights.
    Exit code 1: they differ.

    examples:
      loopwright checkpoint diff
      loopwright checkpoint diff runs/first runs/second --checkpoint newest
    """
    for name, default in (("first", "last~1"), ("second", LAST)):
        what = f"{CHECKPOINT}; or a {WEIGHTS} (default: {default})"
        add(parser, f"{name} {name.upper()}", what, nargs="?", default=default)
    add_root(parser)
    add_checkpoint(parser)
    add(parser, "--model NAME", "compare only the weights of this model")
    add(parser, "--json", "print JSON")


@command("doctor", "doctor.doctor_command")
def _doctor(parser: ArgumentParser) -> None:
    """Show what this machine has, and give advice.

    Prints versions, devices, processors, threads and memory, the compiler, the folder for runs,
    distributed backends and optional packages; then advice, where something is amiss.
    Exit code 1: the folder is not writable.

    examples:
      loopwright doctor
      loopwright doctor --folder /scratch/runs
    """
    add(parser, "--folder DIR", "the folder for runs (default: the current one)", default=".")
    add(parser, "--json", "print JSON")
