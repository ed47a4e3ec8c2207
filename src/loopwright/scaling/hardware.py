"""Figures of devices, links and clusters: vendors' peaks by name, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..errors import ConfigurationError, check_number
from ..text import nearest

T = TypeVar("T")
GB = 10**9
MICRO = 1e-6


def _check_figures(value: object, *names: str, most: float | None = None) -> None:
    for name in names:
        label = f"{type(value).__name__}({name}"
        check_number(label, getattr(value, name), above=0, most=most, is_whole=False)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that computes, with its vendor's peak figures.

    Args:
        name: What it is called in tables.
        flops: Operations per second at most, of dense matrix products in bf16.
        memory: Bytes of its memory.
        bandwidth: Bytes per second that it reads from its memory.
        link: The name of the link to the other devices of its node, where none is given.
        is_host: Whether it is a CPU, whose processes agree by other messages than those of GPUs.

    Example:
        >>> from loopwright.scaling import Device
        >>> Device("my card", flops=100e12, memory=24 * 10**9, bandwidth=900e9).memory
        24000000000
    """

    name: str
    flops: float
    memory: int
    bandwidth: float
    link: str = "pcie4"
    is_host: bool = False

    def __post_init__(self) -> None:
        _check_figures(self, "flops", "memory", "bandwidth")


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a device to others: of its node, or of other nodes.

    Args:
        name: What it is called in tables.
        bandwidth: Bytes per second that one device, or one network adapter, sends at most.
        latency: Seconds that a message takes from one device to the next.

    Example:
        >>> from loopwright.scaling import Link
        >>> Link("slow", bandwidth=1e9, latency=50e-6).bandwidth
        1000000000.0
    """

    name: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        _check_figures(self, "bandwidth", "latency")


# Vendors' peak figures: dense bf16 matrix products with fp32 sums (not the doubled figure for
# sparse matrices), memory, memory bandwidth. Links: one direction of one device.
DEVICES: Mapping[str, Device] = {
    "a100": Device("A100 SXM 80 GB", 312e12, 80 * GB, 2.039e12, "nvlink3"),
    "h100": Device("H100 SXM 80 GB", 989e12, 80 * GB, 3.35e12, "nvlink4"),
    "h200": Device("H200 SXM 141 GB", 989e12, 141 * GB, 4.8e12, "nvlink4"),
    "b200": Device("B200 180 GB", 2250e12, 180 * GB, 8e12, "nvlink5"),
    "mi300x": Device("MI300X 192 GB", 1307.4e12, 192 * GB, 5.3e12, "infinity-fabric"),
    "l40s": Device("L40S 48 GB", 362e12, 48 * GB, 864e9, "pcie4"),
    "rtx4090": Device("RTX 4090 24 GB", 165.2e12, 24 * GB, 1008e9, "pcie4"),
}
# The latencies are no vendor's: they are what NCCL's own tuning tables assume for its bulk
# protocol.
LINKS: Mapping[str, Link] = {
    "nvlink3": Link("NVLink 3 (A100)", 300e9, 3.4 * MICRO),
    "nvlink4": Link("NVLink 4 (H100, H200)", 450e9, 3.4 * MICRO),
    "nvlink5": Link("NVLink 5 (B200)", 900e9, 3.4 * MICRO),
    "infinity-fabric": Link("Infinity Fabric (MI300X)", 448e9, 5.7 * MICRO),
    "pcie4": Link("PCIe 4.0 x16", 32e9, 5.7 * MICRO),
    "pcie5": Link("PCIe 5.0 x16", 64e9, 5.7 * MICRO),
    "hdr": Link("InfiniBand HDR 200 Gb/s", 25e9, 14 * MICRO),
    "ndr": Link("InfiniBand NDR 400 Gb/s", 50e9, 14 * MICRO),
    "ethernet100": Link("Ethernet 100 Gb/s", 12.5e9, 30 * MICRO),
    "ethernet25": Link("Ethernet 25 Gb/s", 3.125e9, 30 * MICRO),
    "ethernet10": Link("Ethernet 10 Gb/s", 1.25e9, 30 * MICRO),
}


class Cluster:
    """Nodes of equal devices, the links inside and between them, and how much of the peaks is
    reached.

    Args:
        device: A `Device`, or the name of a known one.
        per_node: The number of devices of a node.
        within: The link of a device to the others of its node: a `Link` or a name; the device's own
            by default.
        between: The link of a network adapter to other nodes: a `Link` or a name.
        adapters: The number of network adapters of a node; one for each device by default.
        utilisation: The share of the device's peak that matrix products reach in training.
        link_utilisation: The share of the links' bandwidth that collectives reach.
        usable_memory: The share of a device's memory that a program can fill before the allocator
            fails.

    Example:
        >>> from loopwright.scaling import Cluster
        >>> Cluster("h100", between="hdr").within.name
        'NVLink 4 (H100, H200)'
    """

    def __init__(
        self,
        device: Device | str = "h100",
        per_node: int = 8,
        within: Link | str | None = None,
        between: Link | str = "ndr",
        adapters: int | None = None,
        *,
        utilisation: float = 0.4,
        link_utilisation: float = 0.8,
        usable_memory: float = 0.92,
    ) -> None:
        self.device = _find(device, DEVICES)
        self.per_node = per_node
        self.within = _find(within or self.device.link, LINKS)
        self.between = _find(between, LINKS)
        self.adapters = per_node if adapters is None else adapters
        self.utilisation = utilisation
        self.link_utilisation = link_utilisation
        self.usable_memory = usable_memory
        _check_figures(self, "per_node", "adapters")
        _check_figures(self, "utilisation", "link_utilisation", "usable_memory", most=1)


def _find(given: T | str, known: Mapping[str, T]) -> T:
    """A known device or link by its name; the user's own as it is."""
    if not isinstance(given, str):
        return given
    if given.lower() in known:
        return known[given.lower()]
    kind = type(next(iter(known.values()))).__name__
    raise ConfigurationError(
        "unknown-hardware",
        f"There is no {kind.lower()} {given!r}: {nearest(given, known)} For any other, pass "
        f"{kind}(...) in Python.",
    )
