"""The keys of a run file; what its objects must be is said by the door that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .places import Entry, Place, Schema, mapping_of, one_of_kind

DATA: Any = dict[str, Any]


def run_schema(
    *,
    model: Place,
    dataset: Place,
    trainer: Place,
    optimizer: Place | None = None,
    scheduler: Place | None = None,
    initializer: Place | None = None,
) -> Schema:
    """The schema of a run file for a door with these places; a key without a place is not accepted."""
    entries = {
        "name": Entry(str | None, description="What the run is called; its directory is runs/<name>/<id>."),
        "seed": Entry(int | None, description="The seed of all randomness: 0 is a seed, null is none."),
        "output_path": Entry(Path | None, description="The run directory; otherwise a new one in runs/<name>."),
        "tags": Entry(list[str], description="Words to find the run by."),
        "resume": Entry(bool | str | None, description="true or auto to go on, false to start anew, or a run's path."),
        "vars": Entry(DATA, description="Values to use elsewhere in the file as ${vars.name}."),
        "defaults": Entry(list[Any] | str, description="Files to include; this file's keys win over theirs."),
        "modules": Entry(str, description="The folder of the modules that kinds name: this one, or one above it."),
        "sweep": Entry(DATA, description="Keys with lists of values, one run for each combination."),
        "model": Entry(one_of_kind(model), True, model.description or "The model that is trained."),
        "datasets": Entry(
            mapping_of(dataset), True, dataset.description or "Data sets by name, such as train and test."
        ),
        "trainer": Entry(one_of_kind(trainer), True, trainer.description or "The trainer and its settings."),
    }
    for name, place in (("optimizer", optimizer), ("scheduler", scheduler), ("initializer", initializer)):
        if place is not None:
            entries[name] = Entry(one_of_kind(place), description=place.description or f"The {name}.")
    return Schema(entries, "A training run.")
