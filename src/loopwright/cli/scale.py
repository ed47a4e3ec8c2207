"""`loopwright scale ...`: memory, bytes on the wire and speed of a model on machines that one does
not have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .arguments import add_command, add_config
from .exits import FOUND, OK
from .output import print_fitted, print_json, size_text

if TYPE_CHECKING:
    from ..scaling import Cluster, Comparison, Estimate, ModelShape

MORE = """\
Compares DDP, FSDP2, HSDP, tensor parallelism (TP) and FSDP2 with TP on each number of devices, each with the fastest
settings that fit: steps per update, recomputed activations, sizes of the mesh. The model is that of a run file
(CONFIG), or a transformer of --layers and --width. The memory of parameters, gradients and optimizer and the bytes of
every collective are exact; activations and seconds are estimates from vendors' peak figures. Nothing is trained.
Exit code 1: no strategy is sensible on any of these numbers of devices."""
EXAMPLE = """\
scale --params 7B --layers 32 --width 4096 --sequence 4096 --batch 1024 --devices 8,64,512,4096
scale run.yaml --device a100 --per-node 4 --between hdr --devices 4,8,16 --json"""
SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
HEADER = [
    "DEVICES",
    "STRATEGY",
    "MESH",
    "MEMORY",
    "SENT",
    "COMM",
    "TIME",
    "TOKENS/S",
    "STEPS",
    "PROBLEM",
]
LEGEND = """\
MESH: replicate x shard x tensor. MEMORY: per device. SENT: bytes that a device sends per update. COMM: the share of
TIME spent waiting for communication. TIME: of one update. STEPS: per update; r: activations are recomputed. PROBLEM:
memory (does not fit), samples (fewer than ranks), padding (more shards than rows), thin (narrow layers), waiting (high
COMM)."""


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Estimate memory, communication and speed on many devices."
    parser = add_command(
        parsers, common, "scale", run=scale_command, what=what, more=MORE, example=EXAMPLE
    )
    add_config(parser, what="a run file (YAML) whose model is measured", nargs="?")
    parser.add_argument(
        "--params",
        metavar="N",
        type=parse_count,
        help="parameters of the transformer: 7B, 125M, 7e9",
    )
    parser.add_argument("--layers", metavar="N", type=int, help="blocks of the transformer")
    parser.add_argument("--width", metavar="N", type=int, help="width of the transformer")
    parser.add_argument(
        "--sequence", metavar="N", type=int, default=2048, help="tokens per sample (default: 2048)"
    )
    parser.add_argument(
        "--vocabulary",
        metavar="N",
        type=int,
        default=32_000,
        help="size of the vocabulary (default: 32000)",
    )
    parser.add_argument(
        "--batch", metavar="N", type=int, help="samples per update on all devices (default: 1024)"
    )
    parser.add_argument(
        "--devices",
        metavar="N,N",
        type=parse_counts,
        default=[8, 64, 512, 4096],
        help="numbers of devices (default: 8,64,512,4096)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="h100",
        help="type of device: a100, h100, b200, ... (default: h100)",
    )
    parser.add_argument(
        "--per-node", metavar="N", type=int, default=8, help="devices per node (default: 8)"
    )
    parser.add_argument(
        "--within", metavar="LINK", help="the link inside a node (default: the device's own)"
    )
    parser.add_argument(
        "--between", metavar="LINK", default="ndr", help="the link between nodes (default: ndr)"
    )
    parser.add_argument(
        "--adapters",
        metavar="N",
        type=int,
        help="network adapters per node (default: one per device)",
    )
    parser.add_argument(
        "--utilisation",
        metavar="SHARE",
        type=float,
        default=0.4,
        help="share of the peak speed that is reached (default: 0.4)",
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="sgd, momentum, adam or adamw (default: adamw)"
    )
    parser.add_argument(
        "--no-overlap",
        action="store_true",
        help="assume that nothing is sent while devices compute",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: every estimate with all its collectives"
    )


def parse_count(text: str) -> float:
    """7B as 7000000000.0."""
    try:
        return float(text[:-1]) * SUFFIXES[text[-1]] if text[-1:] in SUFFIXES else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number: write 7B, 125M or 7e9"
        ) from None


def parse_counts(text: str) -> list[int]:
    """8,64 as [8, 64]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write numbers of devices as 8,64,512"
        ) from None


def scale_command(options: argparse.Namespace) -> int:
    from ..scaling import Cluster, compare

    cluster = Cluster(
        options.device,
        options.per_node,
        options.within,
        options.between,
        options.adapters,
        utilisation=options.utilisation,
    )
    given = {"devices": options.devices, "cluster": cluster, "overlap": not options.no_overlap}
    if options.config is not None:
        table = _compare_config(options, given)
    else:
        model = _transformer(options)
        table = compare(
            model, batch=options.batch or 1024, optimizer=options.optimizer or "adamw", **given
        )
    if options.json:
        print_json(table.to_dict())
    else:
        _print_table(table, cluster)
    return FOUND if table.advice is None else OK


def _transformer(options: argparse.Namespace) -> ModelShape:
    from ..scaling import transformer

    if options.layers is None or options.width is None:
        raise ConfigurationError(
            "Which model? Name a run file (CONFIG), or a transformer by --layers and --width (and "
            "--params), as in `loopwright scale --params 7B --layers 32 --width 4096`."
        )
    return transformer(
        options.layers,
        options.width,
        sequence=options.sequence,
        vocabulary=options.vocabulary,
        parameters=options.params,
    )


def _compare_config(options: argparse.Namespace, given: dict[str, Any]) -> Comparison:
    """The model, optimizer and batch of a run file; its layers are not cut, since a run file has no
    plan for it."""
    from ..scaling import compare, measure
    from .finders import built

    if options.layers or options.width or options.params:
        raise ConfigurationError(
            f"{options.config} has its own model: leave out --layers, --width and --params."
        )
    with built(options) as engine:
        stream = engine._open(engine.dataset("train"), None, shuffle=False)
        stream.begin(0)
        batches = stream.take(1, 2)
        stream.close()
        if not batches:
            raise ConfigurationError(
                "The data set `train` is empty: there is no sample to measure the model with."
            )
        inputs, _ = engine.split_batch(engine.prepare_batch(batches[0].value))
        model = measure(engine.model, inputs)
        optimizers = list(engine.optimizers.values())
        optimizer = options.optimizer or (optimizers[0] if optimizers else "adamw")
        batch = options.batch or engine.config.effective_batch_size
        return compare(model, batch=batch, optimizer=optimizer, **given)


def _print_table(table: Comparison, cluster: Cluster) -> None:
    from ..scaling.compare import TITLES

    model = table.model
    nodes = (
        f"{cluster.per_node} in a node by {cluster.within.name}, {cluster.between.name} "
        "between nodes"
    )
    print(f"{model.name}: {model.num_parameters:,} parameters on {cluster.device.name}, {nodes}")
    batch = next(iter(table.estimates.values())).training.batch
    print(
        f"An update: {batch:,} "
        f"samples{f' of {model.tokens:,} tokens' if model.tokens > 1 else ''}\n"
    )
    header = [name if name != "TOKENS/S" or model.tokens > 1 else "SAMPLES/S" for name in HEADER]
    rows = [
        [f"{number:,}", TITLES[name], *_row(one)] for (name, number), one in table.estimates.items()
    ]
    print_fitted(header, rows, right="0345678", fold="")
    print()
    print(LEGEND)
    print()
    print("Where each strategy is sensible:")
    for each in table.ranges:
        print(f"  {each.text}")
    print()
    _print_advice(table)


def _row(one: Estimate) -> list[str]:
    sizes = one.sizes
    mesh = "x".join(str(size) for size in (sizes.replicate, sizes.shard, sizes.tensor))
    speed = one.tokens_per_second if one.model.tokens > 1 else one.samples_per_second
    steps = f"{one.training.accumulate}{' r' if one.training.activation_checkpointing else ''}"
    return [
        mesh,
        size_text(one.memory.total),
        size_text(round(one.wire)),
        f"{one.communication_share:.0%}",
        f"{one.timing.step:.3g} s",
        f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}",
        steps,
        one.problem,
    ]


def _print_advice(table: Comparison) -> None:
    best = table.advice
    if best is None:
        print(
            "On none of these numbers of devices would half of the time be spent on the model: "
            "see PROBLEM."
        )
        return
    memory = size_text(best.memory.total)
    share = f"{best.communication_share:.0%}"
    speed = (
        f"{best.tokens_per_second:,.0f} tokens/s"
        if best.model.tokens > 1
        else f"{best.samples_per_second:,.4g}/s"
    )
    print(
        f"On {best.devices:,} devices: {memory} of memory, {share} of the time waiting, {speed}, "
        "with"
    )
    for line in best.program_lines:
        print(f"  {line}")
