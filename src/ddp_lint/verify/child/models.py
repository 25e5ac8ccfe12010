"""The models of this process: their names, their wrappers, and which storage belongs to which parameter."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from ddp_lint.verify import trace
from ddp_lint.verify.child.gathering import gathered

#: What wrappers put into qualified names.
_WRAPPER_PARTS = re.compile(r"(^|\.)(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")

#: The attributes in which a module registers what it has.
_REGISTERS = ("_parameters", "_buffers", "_modules")


def clean(name: str) -> str:
    """A qualified name without the parts that wrappers add."""
    return _WRAPPER_PARTS.sub("", name).lstrip(".")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has storage: of a DTensor its shard on this rank."""
    shard = getattr(tensor, "_local_tensor", None)
    return shard if isinstance(shard, torch.Tensor) else tensor


def is_shard(tensor: torch.Tensor) -> bool:
    """A DTensor of which this rank holds a part, or a summand."""
    return any(not placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _is_divided(tensor: torch.Tensor) -> bool:
    """Other ranks hold the rest of it: a mesh may have one rank alone."""
    return is_shard(tensor) and tensor.device_mesh.size() > 1


def pointer(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage, 0 when it has none (meta, freed, wrapper subclasses, lazy layers)."""
    if is_lazy(tensor):
        return 0
    try:
        return local(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


@dataclasses.dataclass(frozen=True)
class Place:
    """Which tensor of which model lies in a storage.

    `sharded`: it is this rank's part (FSDP2: not the gathered whole that replaces it during a forward; FSDP1:
    any parameter, as gathered and sharded ones are both views of flat storage).
    """

    name: str
    role: str
    tensor: torch.Tensor
    sharded: bool
    #: What keeps the replicas of the model equal that it is of (`Model.replicated`).
    wrap: str = ""


class Model:
    """One model as the training uses it: `root` is what is called, `inner` the user's module below DDP."""

    def __init__(self, root: nn.Module, number: int, counts: collections.Counter[str] | None = None) -> None:
        """`number`: of this process alone; `counts`: how many models of each wrap have a number among the ranks."""
        self.number = number
        self._counts = counts if counts is not None else collections.Counter()
        self._places_among: dict[str, int] = {}
        #: Optimizer steps that this model has seen.
        self.updates = 0
        #: How often the ranks have ended a `Join`: `updates` counts since then.
        self.joins = 0
        self._root = weakref.ref(root)
        self.wrap = wrap_of(root)
        #: The modules by clean name, as of the last `look`: walking them each time would be half of tracing's cost.
        self._modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        #: Of a model without a wrapper the parameters whose gradients the user's code has averaged over one set of
        #: ranks: the largest.
        self.averaged: set[str] = set()
        self._averaged_among: tuple[int, ...] = ()
        #: It is like a model under DDP.
        self.copies = False
        #: Where the user code sums over all ranks in its forward the parameters that are not of one number (zeros are
        #: the same on all ranks, regardless of what contains them).
        self.split: set[str] = set()
        self.look()

    @property
    def root(self) -> nn.Module | None:
        return self._root()

    @property
    def inner(self) -> nn.Module | None:
        root = self.root
        if isinstance(root, nn.parallel.DistributedDataParallel):
            module = root.module
            return module if isinstance(module, nn.Module) else None
        return root

    @property
    def shared_number(self) -> int:
        """Its number among the models of its wrap: the same on all ranks, also where one of them made others before."""
        wrap = self.replicated
        if wrap not in self._places_among:
            self._places_among[wrap] = self._counts[wrap]
            self._counts[wrap] += 1
        return self._places_among[wrap]

    @property
    def sharded(self) -> bool:
        return self.wrap in ("fsdp1", "fsdp2")

    @property
    def among(self) -> tuple[int, ...]:
        """The ranks that hold replicas of it (those of DDP's process group, or of the mesh), none for all."""
        root, ranks = self.root, self._mesh
        if not dist.is_initialized():
            return ()
        if isinstance(root, nn.parallel.DistributedDataParallel):
            ranks = tuple(dist.get_process_group_ranks(root.process_group))
        if self.replicated == trace.BY_HAND:
            ranks = self._averaged_among
        return ranks if len(ranks) < dist.get_world_size() else ()

    def average(self, name: str, ranks: tuple[int, ...]) -> None:
        """The user's code has averaged the gradient of a parameter over these ranks."""
        if self.averaged and len(ranks) > len(self._averaged_among):
            self.averaged.clear()
        if not self.averaged or ranks == self._averaged_among:
            self._averaged_among = ranks
            self.averaged.add(name)

    def look(self) -> None:
        """Take note of modules that came or went (called whenever the root is about to run)."""
        inner = self.inner
        named = inner.named_modules() if inner is not None else ()
        self._modules = [(clean(name), weakref.ref(module)) for name, module in named]

    def holds(self, module: nn.Module) -> bool:
        return any(reference() is module for _, reference in self._modules)

    def places(self) -> Iterator[Place]:
        """Every parameter and buffer as its module holds it now."""
        wrap = self.replicated
        for prefix, reference in self._modules:
            module = reference()
            if module is None:
                continue
            for role, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        whole = self.wrap == "fsdp2" and local(tensor) is tensor
                        yield Place(
                            f"{prefix}.{name}" if prefix else name, role, tensor, self.sharded and not whole, wrap
                        )

    def unregistered(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Trainable parameters that modules keep in plain lists, tuples and dicts, which no module registers."""
        for prefix, reference in self._modules:
            for attribute, value in vars(reference()).items() if reference() is not None else ():
                if type(value) in (list, tuple, dict) and attribute not in _REGISTERS:
                    items = value.items() if isinstance(value, dict) else enumerate(value)
                    for key, item in items:
                        yield from _trainable(".".join(filter(None, (prefix, attribute, str(key)))), item)

    @property
    def replicated(self) -> str:
        """The wrap as far as replicas are concerned: that the user's code averages gradients is one, too."""
        if self.wrap != "none":
            return self.wrap
        if self.averaged:
            return trace.BY_HAND
        if self.copies or self._mesh:
            return trace.COPY if self.copies else trace.TENSOR_PARALLEL
        return trace.SPLIT_BY_HAND if self.split else "none"

    @functools.cached_property
    def _mesh(self) -> tuple[int, ...]:
        """The ranks among which some of its parameters are split, where that is all that is done to them."""
        meshes = {p.device_mesh for p in self.parameters().values() if is_shard(p)}
        mesh = meshes.pop() if len(meshes) == 1 and self.wrap == "none" else None
        return tuple(mesh.mesh.tolist()) if mesh is not None and mesh.ndim == 1 else ()

    def compared(self) -> dict[str, nn.Parameter]:
        """The parameters that all ranks should hold alike where the wrap replicates."""
        parameters = {name: p for name, p in self.parameters().items() if name not in self._ignored}
        held: Collection[str] = parameters
        if self.replicated == trace.BY_HAND:
            held = self.averaged | self._beside_averaged(parameters)
        elif self.replicated == trace.SPLIT_BY_HAND:
            held = self.split
        return {name: parameter for name, parameter in parameters.items() if name in held}

    def _beside_averaged(self, parameters: Mapping[str, nn.Parameter]) -> set[str]:
        """Trained parameters of a layer of torch's whose other ones the user's code averages: the biases of its
        weights. What is averaged nowhere in a layer may be left to each rank on purpose."""
        if self.split:
            return set()
        layers = {name.rpartition(".")[0] for name in self.averaged}
        of_torch = {
            prefix
            for prefix, reference in self._modules
            if prefix in layers and type(reference()).__module__.startswith("torch.nn.")
        }
        return {name for name, p in parameters.items() if p.requires_grad and name.rpartition(".")[0] in of_torch}

    def parameters(self) -> dict[str, nn.Parameter]:
        """By clean name; a tied parameter once, under its first name. Those of lazy layers have no shape at first."""
        named = self.inner.named_parameters() if self.inner is not None else ()
        return {clean(name): p for name, p in named if not is_lazy(p)}

    def all_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """With every name of a tied parameter."""
        if self.inner is None:
            return []
        named = self.inner.named_parameters(remove_duplicate=False)
        return [(clean(name), p) for name, p in named if not is_lazy(p)]

    def statistics(self) -> dict[str, tuple[torch.Tensor, trace.Frame]]:
        """What modules gather by assignment, with the line that does."""
        found = {}
        for prefix, reference in self._modules:
            module = reference()
            if module is None:
                continue
            for name, site in gathered(module.__class__).items():
                tensor = module._buffers.get(name, vars(module).get(name))
                if isinstance(tensor, torch.Tensor) and not tensor.requires_grad:
                    found[f"{prefix}.{name}" if prefix else name] = tensor, site
        return found

    def running_statistics(self) -> dict[str, torch.Tensor]:
        """The buffers that batch norms gather in training and evaluate with."""
        norms = (reference() for _, reference in self._modules)
        held = {
            id(b) for m in norms if isinstance(m, nn.modules.batchnorm._BatchNorm) for b in m.buffers(recurse=False)
        }
        return {name: b for name, b in self.buffers().items() if id(b) in held and b.is_floating_point()}

    def buffers(self) -> dict[str, torch.Tensor]:
        named = self.inner.named_buffers() if self.inner is not None else ()
        return {clean(name): b for name, b in named if clean(name) not in self._ignored}

    @property
    def _ignored(self) -> set[str]:
        """What DDP was configured to leave to each rank."""
        return {clean(name) for name in getattr(self.root, "parameters_to_ignore", ())}


def _trainable(name: str, item: object) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a module, or one by itself, as far as they ask for gradients."""
    if isinstance(item, nn.Parameter) and item.requires_grad:
        yield name, item
    elif isinstance(item, nn.Module):
        yield from ((f"{name}.{inner}", p) for inner, p in item.named_parameters() if p.requires_grad)


def wrap_of(module: nn.Module) -> str:
    """ddp, fsdp1, fsdp2 or none."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return "ddp"
    for inner in module.modules():
        names = {cls.__name__ for cls in type(inner).__mro__}
        if "FullyShardedDataParallel" in names:
            return "fsdp1"
        if "FSDPModule" in names:
            return "fsdp2"
    return "none"


def _alike(one: Model, other: Model) -> bool:
    """Both have parameters of the same names and shapes."""
    shapes = [{name: p.shape for name, p in model.parameters().items()} for model in (one, other)]
    return shapes[0] == shapes[1]


class Models:
    """All models seen so far, with the queries about their tensors and modules."""

    def __init__(self) -> None:
        self._models: list[Model] = []
        self._numbers: collections.Counter[str] = collections.Counter()
        self._at_backward: dict[int, Place] = {}
        #: The root that ran last, and what is called with one whose forward turns out to be split among the ranks.
        self.running: Model | None = None
        self.when_split: Callable[[Model], None] = lambda model: None
        self._module_names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    def __iter__(self) -> Iterator[Model]:
        return iter([model for model in self._models if model.root is not None])

    def __bool__(self) -> bool:
        return bool(self._models)

    def find(self, root: nn.Module) -> Model | None:
        return next((model for model in self._models if model.root is root), None)

    def add(self, root: nn.Module) -> Model:
        """Register a root; models that became a part of it (or are wrapped by it) are forgotten."""
        inside = set(root.modules())
        number = len(self._models)
        self._models = [model for model in self._models if model.root not in inside]
        model = Model(root, number, self._numbers)
        model.copies = model.wrap == "none" and any(_alike(model, other) for other in self if other.wrap == "ddp")
        self._models.append(model)
        if model.inner is not None:
            for name, module in model.inner.named_modules():
                self._module_names[module] = clean(name)
        self._module_names[root] = ""
        return model

    def name_of_module(self, module: nn.Module) -> str:
        return self._module_names.get(module, type(module).__name__)

    def knows(self, module: nn.Module) -> bool:
        return module in self._module_names

    def place(self, tensor: torch.Tensor, *, as_of_backward: bool = False) -> Place | None:
        """The parameter or buffer whose storage the tensor lies in; `as_of_backward`: lay in when backward began."""
        address = pointer(tensor)
        if not address:
            return None
        return (self._at_backward if as_of_backward else self._places()).get(address)

    def backward_begins(self) -> None:
        """Remember where everything lies."""
        self._at_backward = self._places()

    def _places(self) -> dict[int, Place]:
        found: dict[int, Place] = {}
        for model in self:
            for place in model.places():
                found.setdefault(pointer(place.tensor), place)
        return found

    def averaged(self, tensor: torch.Tensor, ranks: tuple[int, ...]) -> None:
        """The user's code reduces a tensor over these ranks."""
        address = pointer(tensor)
        for model in self:
            for name, parameter in model.parameters().items() if address else ():
                if parameter.grad is not None and pointer(parameter.grad) == address:
                    model.average(name, ranks)

    def sums_in_forward(self) -> None:
        """The user's code sums over all ranks in the forward of a model."""
        model = self.running
        if model is not None and model.replicated == "none" and not model.updates:
            model.split = {
                n for n, p in model.parameters().items() if p.numel() > 1 and bool((p != p.flatten()[0]).any())
            }
            self.when_split(model)

    def tensor_name(self, tensor: torch.Tensor) -> str:
        """The name of a parameter or buffer, or "NAME.grad" of a gradient, "" for any other tensor."""
        place = self.place(tensor)
        name = place.name if place is not None else self.gradient_name(tensor)
        return name if place is not None or not name else f"{name}.grad"

    def gradient_name(self, tensor: torch.Tensor) -> str:
        """The name of the parameter whose gradient a tensor is, "" of any other one."""
        return self.gradient(tensor)[0]

    def gradient(self, tensor: torch.Tensor) -> tuple[str, bool]:
        """The same, and whether it is the gradient of this rank's part of that parameter."""
        address = pointer(tensor)
        for model in self:
            for name, parameter in model.parameters().items():
                if parameter.grad is not None and address and pointer(parameter.grad) == address:
                    return name, model.wrap == "fsdp1" or _is_divided(parameter)
        return "", False
