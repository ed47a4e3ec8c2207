"""`loopwright scale ...`: memory, bytes on the wire and speed of a model on machines that one does
not have."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import ConfigurationError
from ..scaling import Cluster, Comparison, Estimate, ModelShape, compare, measure, transformer
from ..scaling.estimate import TITLES
from ..text import size
from .output import FOUND, OK, print_fitted, print_json
from .tuning import built

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
memory (does not fit), samples (fewer than ranks), waiting (high COMM)."""


def scale_command(options: argparse.Namespace) -> int:
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
    if options.layers is None or options.width is None:
        raise ConfigurationError(
            "no-model-named",
            "Which model? Name a run file (CONFIG), or a transformer by --layers and --width (and "
            "--params), as in `loopwright scale --params 7B --layers 32 --width 4096`.",
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
    if options.layers or options.width or options.params:
        raise ConfigurationError(
            "model-named-twice",
            f"{options.config} has its own model: leave out --layers, --width and --params.",
        )
    with built(options) as engine:
        stream = engine._open(engine.dataset("train"), None, shuffle=False)
        stream.begin(0)
        batches = stream.take(1, 2)
        stream.close()
        if not batches:
            raise ConfigurationError(
                "no-sample-to-measure",
                "The data set `train` is empty: there is no sample to measure the model with.",
            )
        inputs, _ = engine.split_batch(engine.prepare_batch(batches[0].value))
        model = measure(engine.model, inputs)
        optimizers = list(engine.optimizers.values())
        optimizer = options.optimizer or (optimizers[0] if optimizers else "adamw")
        batch = options.batch or engine.config.effective_batch_size
        return compare(model, batch=batch, optimizer=optimizer, **given)


def _print_table(table: Comparison, cluster: Cluster) -> None:
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
        size(one.memory.total),
        size(round(one.wire)),
        f"{one.communication_share:.0%}",
        f"{one.timing.step:.3g} s",
        f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}",
        steps,
        next(iter(one.problems), ""),
    ]


def _print_advice(table: Comparison) -> None:
    best = table.advice
    if best is None:
        print(
            "On none of these numbers of devices would half of the time be spent on the model: "
            "see PROBLEM."
        )
        return
    memory = size(best.memory.total)
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
