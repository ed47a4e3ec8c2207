"""Private names of torch's compiler; see the package for the rules."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def uncompiled(module: nn.Module) -> nn.Module | None:
    """The module inside the one that `torch.compile(module)` returned; None for any other. Since
    2.0."""
    return module._modules.get("_orig_mod")


def is_compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` compiled this module, or one inside, in place; hooks are compiled,
    too. Since 2.2."""
    return any(part._compiled_call_impl is not None for part in module.modules())


def compiled_call(module: nn.Module) -> Any:
    """What `module.compile()` has put in place of calling the module; None where it was not called.
    Since 2.2."""
    return module._compiled_call_impl


def compile_in_place(module: nn.Module, **options: Any) -> None:
    """Compile a module as `module.compile()` does, also one of a class of torch's own. Since
    2.2."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = torch.compile(call, **options)


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Put something in place of calling a module, or None to call it as it is. Since 2.2."""
    module._compiled_call_impl = call


# Compiling


@contextmanager
def tracing_backward(most_graphs: int) -> Iterator[None]:
    """Meanwhile, compile backward passes into graphs, each for its own sizes and numbers. Since
    2.11."""
    import torch._dynamo.config as settings
    import torch._inductor.config as generation

    with (
        generation.patch(size_asserts=False),
        settings.patch(
            trace_autograd_ops=True, automatic_dynamic_shapes=False, recompile_limit=most_graphs
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def failed_to_compile(error: BaseException) -> bool:
    """Whether an error comes from compiling, and not from computing. Since 2.0."""
    return any(
        kind.__module__ in ("torch._dynamo.exc", "torch._inductor.exc")
        for kind in type(error).__mro__
    )


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether code of its own runs in the backward pass of a module or a parameter. Since 0.1; some
    since 2.1."""
    own = [
        p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
        for p in module.parameters()
    ]
    return any((module._backward_hooks, module._backward_pre_hooks, *own))


def num_hooks_registered() -> int:
    """The number of hooks of any kind that this process has registered so far; removed ones count,
    too. Since 0.1."""
    return RemovableHandle.next_id


def forward_hooks(modules: Iterable[nn.Module]) -> list[Mapping[int, Any]]:
    """The functions, by their numbers, that run before or after forward passes, where there are
    any. Since 0.1."""
    from torch.nn.modules import module as torchs

    found = [torchs._global_forward_hooks, torchs._global_forward_pre_hooks]
    for module in modules:
        found += [module._forward_hooks, module._forward_pre_hooks]
    return [hooks for hooks in found if hooks]
