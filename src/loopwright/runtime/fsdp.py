"""Models of several ranks: materialised from the meta device, made equal, cut into layers' parts,
sharded by FSDP2.

While a sharded model computes, full parameters take the place of the shards that an optimizer
holds, and autograd knows only those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import own_parameters
from .._torch_compat.compiling import compile_in_place
from .._torch_compat.distributed import checkpoint_activations as make_checkpointed
from .._torch_compat.distributed import full_parameter, sharded_parameters
from ..errors import ConfigurationError
from ..text import nearest
from .dtensor import Mesh, copy_into, group_by_mesh, local_tensor, mesh_of


def materialise(module: nn.Module, device: torch.device) -> None:
    """Allocate and initialise a model that was built on the meta device.

    Its parameters stay the same objects, so an optimizer may hold them already. Of a sharded model
    one full layer at a time is initialised, on every rank with the same random numbers, and each
    rank keeps its shard: the values are those that a single process would have drawn.
    """
    allocate(module, device)
    missing = []
    for name, part in module.named_modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            _initialise(part, reset)
        elif own:
            missing.append(f"{name or 'the model'} ({type(part).__name__})")
    if missing:
        raise ConfigurationError(
            "meta-model",
            f"A model on the meta device cannot be initialised: {', '.join(missing)} has its own "
            "tensors but no `reset_parameters()` to initialise them. Add that method, or build "
            "the model on a real device.",
        )


def allocate(module: nn.Module, device: torch.device) -> None:
    """Allocate memory for a model on the meta device, without values; its parameters stay the same
    objects."""
    if any(mesh_of(param) is not None for param in module.parameters()):
        module.to_empty(device=device)  # FSDP2 keeps track of this
        return
    before = dict(module.named_parameters(remove_duplicate=False))
    module.to_empty(device=device)
    for name, param in before.items():
        owner, _, last = name.rpartition(".")
        parameters = own_parameters(module.get_submodule(owner))
        new = parameters[last]
        if new is not None and new is not param:
            torch.utils.swap_tensors(param, new)  # type: ignore[no-untyped-call]
            parameters[last] = param


def _initialise(part: nn.Module, reset: Callable[[], Any]) -> None:
    """Let a layer initialise its parameters; full tensors take the place of sharded ones
    meanwhile."""
    parameters = own_parameters(part)
    sharded: dict[str, nn.Parameter] = {}
    for name, param in parameters.items():
        if param is not None and mesh_of(param) is not None:
            sharded[name] = param
    for name, param in sharded.items():
        stand_in = torch.empty(param.shape, dtype=param.dtype, device=local_tensor(param).device)
        parameters[name] = nn.Parameter(stand_in, requires_grad=param.requires_grad)
    try:
        reset()
        for name, param in sharded.items():
            filled = parameters[name]
            assert filled is not None
            copy_into(param, filled.detach())
    finally:
        parameters.update(sharded)


def find_bad_value(module: nn.Module) -> str | None:
    """The first tensor of a newly initialised model without finite values, in words."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        local = local_tensor(tensor)
        if local.is_floating_point() and not torch.isfinite(local).all():
            return (
                f"{name} has non-finite values right after initialisation: correct its "
                "module's `reset_parameters`."
            )
    return None


def broadcast_module(module: nn.Module) -> None:
    """Broadcast the parameters and buffers of rank 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model: modules of one class, with parameters, in a `ModuleList` or
    `Sequential`."""
    blocks: list[nn.Module] = []
    for container in module.modules():
        if isinstance(container, nn.ModuleList | nn.Sequential):
            compound = [part for part in container if _is_compound(part)]
            if len(compound) > 1 and len({type(part) for part in compound}) == 1:
                blocks += compound
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    return [block for block in blocks if id(block) not in inner]


def _is_compound(module: nn.Module) -> bool:
    """Whether a module has parameters and modules inside it."""
    return bool(list(module.parameters())) and bool(list(module.children()))


def _require(blocks: Sequence[nn.Module], setting: str, advice: str) -> None:
    if not blocks:
        raise ConfigurationError(
            "no-blocks",
            f"{setting} found no repeated blocks in the model (modules of the same class in a "
            f"ModuleList or Sequential): {advice}.",
        )


def parallelize_layers(module: nn.Module, mesh: Mesh, device_mesh: Any) -> None:
    """Apply tensor parallelism by the mesh's plan."""
    from torch.distributed.tensor.parallel import parallelize_module

    names = [name for name, _ in module.named_modules()]
    for pattern in mesh.plan or {}:
        if "*" not in pattern and pattern not in names:
            raise ConfigurationError(
                "mesh-plan",
                f"Mesh(plan=...) names {pattern}, which the model does not have: "
                f"{nearest(pattern, names[1:])}",
            )
    parallelize_module(module, device_mesh["tensor"], dict(mesh.plan or {}))


def shard_module(module: nn.Module, device_mesh: Any, **settings: Any) -> dict[int, nn.Parameter]:
    """Shard every repeated block, then the rest (FSDP2). Returns the new parameters under the ids
    of the old ones."""
    from torch.distributed.fsdp import fully_shard

    before = dict(module.named_parameters())
    for part in (*blocks_of(module), module):
        fully_shard(part, mesh=device_mesh, **settings)
    after = dict(module.named_parameters())
    return {id(param): after[name] for name, param in before.items()}


def checkpoint_activations(module: nn.Module) -> None:
    """Recompute the activations of every block in the backward pass instead of keeping them."""
    blocks = blocks_of(module)
    advice = "leave it off, or apply torch.utils.checkpoint in the model's forward"
    _require(blocks, "activation_checkpointing=True", advice)
    for block in blocks:
        make_checkpointed(block)


def compile_parts(module: nn.Module, what: str) -> None:
    """Compile the model or its blocks; in place, so that the names in its state dict stay."""
    parts = [module] if what == "model" else blocks_of(module)
    _require(parts, "compile='blocks'", "use compile='model'")
    for part in parts:
        compile_in_place(part)


def disable_unsupported_steps(optimizer: Optimizer) -> None:
    """Turn off fused and foreach steps that torch lacks for sharded parameters, or for several
    device meshes."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    lacks_foreach = len(group_by_mesh(params)) > 1
    is_adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
    for group in optimizer.param_groups:
        if "foreach" in group and lacks_foreach:
            group["foreach"] = False
        if "fused" in group and (lacks_foreach or not is_adam):
            group["fused"] = False


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Broadcast the values of the first rank; one collective per dtype."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    for group in groups.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
        dist.broadcast(flat, src=0)
        start = 0
        for tensor in group:
            tensor.detach().copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


class ShardedModels:
    """The sharded models of a trainer.

    Ranks that use different parameters would reduce-scatter gradients that do not belong together.
    The first backward pass of each optimizer is checked for it, and such parameters are named in an
    error; with `finds_unused` every backward pass is checked, and missing gradients are zeros.
    """

    def __init__(self, gather: Callable[[Any], list[Any]], *, finds_unused: bool = False) -> None:
        self.modules: WeakSet[Any] = WeakSet()
        self.is_used = False  # whether there has been a sharded model
        self._gather = gather
        self._finds_unused = finds_unused
        self._checked: set[tuple[int, int]] = set()
        self._holders: dict[int, Any] = {}
        self._is_last: bool | None = None

    def add(self, module: nn.Module, reduce_scatter: Any = None) -> None:
        """Take up a sharded model; `reduce_scatter` is to take the place of torch's own."""
        self.modules.add(module)
        self.is_used = True
        self._is_last = None
        if reduce_scatter is not None:
            for part in _sharded(module):
                part.set_custom_reduce_scatter(reduce_scatter)

    def start_step(self, is_last: bool) -> None:
        """Gradients are reduce-scattered in the backward pass of the window's last step only."""
        if is_last != self._is_last:
            self._is_last = is_last
            for module in self.modules:
                module.set_requires_gradient_sync(is_last)

    def reshard(self) -> None:
        """Free the full parameters that a forward pass without a backward pass has left."""
        for module in self.modules:
            for part in _sharded(module):
                part.reshard()

    def prepare(
        self,
        loss: Tensor,
        params: Sequence[nn.Parameter],
        inputs: Sequence[Tensor] | None,
        *,
        is_last: bool,
    ) -> list[Tensor] | None:
        """Prepare a backward pass to some parameters; returns `inputs` as the tensors that autograd
        knows."""
        # By the first parameter and their number, which are the same on all ranks: lists are made
        # anew, and a list's id that is used again on one rank only would let it wait for others.
        key = (id(params[0]), len(params)) if params else (0, 0)
        if is_last and (self._finds_unused or key not in self._checked):
            self._checked.add(key)
            self._compare_used(loss, params)
        if inputs is None:
            return None
        return [self._full(param) for param in inputs if self._is_computed_with(param)]

    def _compare_used(self, loss: Tensor, params: Sequence[nn.Parameter]) -> None:
        trained = [p for p in params if p.requires_grad and self._is_computed_with(p)]
        reached = leaves_of(loss)
        used = [id(self._full(p)) in reached or self._has_gradient(p) for p in trained]
        if self._finds_unused:
            self._fill(trained, used)
            return
        unused = []
        for param, is_used in zip(trained, used, strict=True):
            if not is_used:
                unused.append(self._name(param))
        every = self._gather(unused)
        if any(names != unused for names in every):
            raise ConfigurationError("forward-outside-model", _explanation(every))

    def _fill(self, params: Sequence[nn.Parameter], used: Sequence[bool]) -> None:
        """Zeros for gradients that only other ranks have; a parameter that no rank uses keeps
        none."""
        device = params[0].device if params else torch.device("cpu")
        anywhere = torch.tensor(used, dtype=torch.uint8, device=device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        for param, is_used, is_needed in zip(params, used, anywhere.tolist(), strict=True):
            if is_needed and not is_used:
                full = self._full(param)
                full.grad = torch.zeros_like(full, memory_format=torch.contiguous_format)

    def _holder(self, param: Tensor) -> Any:
        if id(param) not in self._holders:
            self._holders = {}
            for module in self.modules:
                for part in _sharded(module):
                    for held in sharded_parameters(part):
                        self._holders[id(held.sharded_param)] = held
        return self._holders.get(id(param))

    def _is_computed_with(self, param: Tensor) -> bool:
        """Whether the parameter was never sharded, or has a full parameter, which the first forward
        pass makes."""
        holder = self._holder(param)
        return holder is None or full_parameter(holder) is not None

    def _full(self, param: Tensor) -> Tensor:
        holder = self._holders.get(id(param))
        full = None if holder is None else full_parameter(holder)
        return param if full is None else full

    def _has_gradient(self, param: nn.Parameter) -> bool:
        """Whether an earlier step of the window left one."""
        holder = self._holders.get(id(param))
        accumulated = getattr(holder, "unsharded_accumulated_grad", None)
        return self._full(param).grad is not None or accumulated is not None

    def _name(self, param: nn.Parameter) -> str:
        wanted = (id(param), id(self._full(param)))
        for module in self.modules:
            for name, own in module.named_parameters():
                if id(own) in wanted:
                    return str(name)
        return "a parameter"


def _sharded(module: Any) -> list[Any]:
    """The modules that FSDP2 shards one by one."""
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def leaves_of(loss: Tensor) -> set[int]:
    """The ids of the tensors that a loss was computed from and that take a gradient."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        waiting += [after for after, _ in node.next_functions]
    return found


def _explanation(unused: Sequence[Sequence[str]]) -> str:
    common = set(unused[0]).intersection(*unused[1:])
    lines = []
    for rank, names in enumerate(unused):
        own = [name for name in names if name not in common]
        lines.append(f"on rank {rank}: {', '.join(own) or 'none of them'}")
    return (
        "The loss does not depend on the same parameters on all processes, which a sharded model "
        f"needs to sum up gradients. Parameters without a gradient: {'; '.join(lines)}. Use all parameters "
        "on every process, or pass DistributedRuntime('fsdp', find_unused_parameters=True), "
        "which adds a check to every backward pass."
    )
