from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.tensors import is_average
from ddp_lint.launch.callers import comes_first
from ddp_lint.launch.one_rank import first_rank_test, on_one_rank
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.launch.unused import is_plain
from ddp_lint.project.handed_on import ASKING, ASKS
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.preparing import prepares
from ddp_lint.rules.wrapping.wrapped_classes import prepared_attributes
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import arms, conditions, exclusive, ruled_out
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.syntax import FunctionNode, calls_below, walk
from ddp_lint.source.tree import called, children, descendants
from ddp_lint.tensors.classes import is_module_class
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument, is_init

_TABLE = table("wrappers")
_ANSWERED = frozenset((*_TABLE["ddp_attributes"], *_TABLE["module_attributes"]))
_GIVEN = frameworks.every(lambda each: each.given_wrapped)
_KEPT = frameworks.every(lambda each: each.kept_wrapped)
_MODULE_ONLY = frozenset({"parameters", "named_parameters", "train", "eval", "requires_grad_", "modules"})

#: What a method names that wraps a model, or runs what does so.
_WRAPS = re.compile(
    r"wrap|\bprepare(_model)?$|DataParallel|\bDDP\b|_inner_training_loop|\bsuper$|\b[A-Z]\w*\.train$|\binitialize$"
)

#: A test that holds on rank 0, and not where a rank of -1 says that there is one process alone.
_WITH_FIRST = re.compile(r"\b0\b")

#: Tests of how many GPUs there are: of several where they hold, or of one.
_SEVERAL_GPUS = re.compile(r"[\w.]*\bdevice_count\(\) *(> *1|>= *2|!= *1)")
_ONE_GPU = re.compile(r"[\w.]*\bdevice_count\(\) *(== *1|<= *1|< *2)")

#: Methods that give a module an attribute.
_ADDING = ("add_module", "register_module", "register_buffer", "register_parameter")

#: Files that are read for a class with an attribute.
_FILES = 40

#: Further attributes that are reported with the first.
_MOST_LABELS = 3


@dataclasses.dataclass(frozen=True)
class _Asked:
    """An attribute that is read from a wrapper called `name`; `made` is what wrapped it, `how` says how."""

    node: cst.Attribute
    name: str
    attribute: str
    made: cst.CSTNode
    how: str
    confidence: Confidence


#: What registers a function that runs when a checkpoint is loaded.
_FOR_RESUMING = frozenset({"register_load_state_pre_hook", "register_load_state_dict_pre_hook"})


class AttributeBehindWrapper(Rule):
    """An attribute of the model is read from the DDP wrapper, which does not have it.

    ## What it does

    Finds `model.config`, `model.encode(x)` and the like where `model` is what `DistributedDataParallel(...)` or
    `accelerator.prepare(...)` returned, the model that transformers' `Trainer` passes to `compute_loss`, or the
    `self.model` of a trainer that keeps it wrapped, and neither DDP nor `nn.Module` has an attribute of that name. The
    same of what the function itself takes the inner module out of (`net.module.scale`), in a file that wraps. And
    `getattr(model, "patch_size", 16)` of the wrapper, where a module class of the project has that attribute.

    ## Why it breaks

    DDP forwards no attribute to the module inside it. On one process nothing is wrapped and the line works; as soon
    as the job runs on two, rank 0 and rank 1 raise "AttributeError: 'DistributedDataParallel' object has no
    attribute". With `getattr` and a default nothing is raised: the job runs with the default, where one process has the
    model's own value. FSDP1 and DeepSpeed forward attributes, `fully_shard` does not wrap.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 4
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)


    def train():
        model = DDP(Net().to(device))
        x = torch.randn(8, model.width, device=device)  # <- DDP620
        model(x).square().mean().backward()


    train()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 4
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)


    def train():
        model = DDP(Net().to(device))
        x = torch.randn(8, model.module.width, device=device)
        model(x).square().mean().backward()


    train()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Attributes that the file, or a base of the class, sets on the wrapper itself, also by `add_module`; names that are
    assigned again after the wrap; code under a test of the type, of `hasattr`, or of whether the job is distributed, or
    that catches the AttributeError, or under a test that an `assert` above the wrap excludes for several GPUs, or that
    holds with a single GPU (the `else` of `device_count() > 1`); with accelerate also files that configure DeepSpeed or
    FSDP, which forward attributes, programs that the project launches with settings for these alone, and tests, which
    run in one process. A method that only the constructor calls, before it wraps, or where another method wraps later.
    Methods that only programs of one process call, where others of the project make a group. Objects of a class that is
    no module, which DDP refuses; methods of a trainer of transformers whose own `train` wraps nothing. `getattr` with a
    default in a function that takes the module out of the wrapper too, or where no module class of the project has the
    attribute, which is then optional. What a function
    reads of a wrapped model that it is given is DDP627.

    ## How to confirm

    `ddp-lint verify train.py`: the AttributeError, on every rank.

    ## Fix safety

    No automatic fix: `model.module.config` (or `accelerator.unwrap_model(model).config`) for data; a forward under
    another name has to go through the wrapper's own forward, or its gradients are not averaged (DDP601).

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    triggers = Triggers(
        "DistributedDataParallel",
        "module",
        "unwrap_model",
        *sorted(frameworks.called_to_wrap()),
        *(method for entry in _GIVEN for method in entry.methods),
        *(name for entry in _KEPT for name in entry.found_by),
        file=(
            "DistributedDataParallel",
            *sorted(
                {part for name in frameworks.wrapping_methods() for part in (name.split(".")[0], name.split(".")[-2])}
            ),
            *sorted({name.rpartition(".")[2] for entry in _GIVEN for name in entry.classes}),
            *sorted({name.rpartition(".")[2] for entry in _KEPT for name in entry.classes}),
        ),
    )
    oracles = ("exception",)

    def start(self) -> None:
        #: By the attribute: the name of what the file sets it on, and where.
        self._set: dict[str, list[tuple[str, cst.CSTNode]]] = {}
        for node in self.module.nodes:
            for target in node.targets if type(node) is cst.Assign else ():
                if isinstance(target.target, cst.Attribute):
                    self._sets(dotted(target.target.value), target.target.attr.value, target.target)
            if type(node) is cst.Call and (added := _added(node)) is not None:
                self._sets(*added, node)
        self._set_by_bases: dict[tuple[cst.ClassDef, str], frozenset[str]] = {}
        #: By the function and the name of the wrapper: the first place of each attribute.
        self._found: dict[tuple[cst.CSTNode | None, str], dict[str, _Asked]] = {}
        self._wrapped = {wrap.outer for wrap in self.module.wraps.all if wrap.kind == "ddp"}
        self._prepared: dict[cst.Call, bool] = {}
        #: Where the file takes a module out of its wrapper, by the name of that one.
        self._taken_out: dict[str, list[cst.BaseExpression]] = {}
        for inner in self.module.of_type(cst.Attribute) if self._wrapped else ():
            if inner.attr.value == "module" and (wrapper := dotted(inner.value)):
                self._taken_out.setdefault(wrapper, []).append(inner.value)
        calls = [call for call in self.module.of_type(cst.Call) if isinstance(call.func, cst.Attribute) and call.args]
        unwraps = [call for call in calls if called(call) == "unwrap_model" and dotted(call.args[0].value)]
        may_prepare = (call for call in calls if unwraps and called(call) in frameworks.called_to_wrap())
        preparing = [call for call in may_prepare if self._prepares(call)] if not self.module.file.is_test else []
        for call in unwraps if preparing else ():
            if not self._leaves_out(preparing, call):
                self._taken_out.setdefault(dotted(call.args[0].value), []).append(call.args[0].value)
        #: By the first binding of a name: all uses of the name in one scope see the same ones.
        self._given_wrapped: dict[tuple[str, cst.CSTNode], bool] = {}
        self._of_one_rank: dict[cst.CSTNode, bool] = {}
        #: By what wrapped a model: what that is in, the tests of the `if`s among it with the arm, and their names.
        self._above: dict[cst.CSTNode, tuple[frozenset[cst.CSTNode], dict[str, str], frozenset[str]]] = {}

    def _leaves_out(self, preparing: list[cst.Call], unwrapping: cst.Call) -> bool:
        """Whether the calls that prepare models in a function name all that they are given, and not the model that is
        made and unwrapped there: `unwrap_model` returns one that is not wrapped as it is."""
        scope, model = self.module.scope_of(unwrapping), unwrapping.args[0].value
        given = [arg for call in preparing if self.module.scope_of(call) is scope for arg in call.args]
        names, made = {dotted(arg.value) for arg in given}, self.module.bindings(dotted(model), model)
        if not given or not all(names) or dotted(model) in names:
            return False
        return bool(made) and all(b.kind == "assign" and isinstance(b.value, cst.Call) for b in made)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        name, attribute = dotted(node.value), node.attr.value
        if not name or attribute in _ANSWERED or attribute.startswith("_"):
            return
        if name.count(".") > name.startswith("self."):
            return
        made = self._wrapped_by(node.value, name) or self._kept(node.value, name, attribute)
        made = made or self._unwrapped_beside(node.value, name) or self._prepared_below(node.value, name)
        if made is None or self._is_set(attribute, name, made[0]) or self._is_guarded(node, made):
            return
        asked = self._found.setdefault((self.module.function_of(node), name), {})
        asked.setdefault(attribute, _Asked(node, name, attribute, *made))

    def visit_Call(self, node: cst.Call) -> None:
        """``getattr(model, "patch_size", 16)``, which gives the default."""
        if len(node.args) != 3 or not isinstance(node.func, cst.Name) or node.func.value != "getattr":
            return
        model, asked = node.args[0].value, node.args[1].value
        name = dotted(model)
        if not name or not isinstance(asked, cst.SimpleString) or name not in self._wrapped:
            return
        attribute = str(asked.evaluated_value)
        made = self._wrapped_by(model, name) if attribute not in _ANSWERED else None
        if made is None or self._is_set(attribute, name, made[0]) or self._is_guarded(node, made):
            return
        if not self._is_taken_out_around(node, name) and not runs_alone(self.module, node) and self._has(attribute):
            self.report(
                node,
                f"`{name}` is the DDP wrapper, which has no `{attribute}`: this is the default on several processes",
                notes=["on one process it is the model's own, because nothing is wrapped there"],
                labels=[(made[0], made[1])],
                help=f"ask the inner module: `getattr({name}.module, ...)`",
                confidence=made[2],
            )

    def _is_taken_out_around(self, use: cst.CSTNode, name: str) -> bool:
        """Whether the function of a place takes the module out of the wrapper too: it asks both."""
        function = self.module.function_of(use)
        return any(self.module.function_of(taken) is function for taken in self._taken_out.get(name, ()))

    def _has(self, attribute: str) -> bool:
        """Whether a module class of the project has the attribute."""
        project = self.module.project
        if project is None:
            return False

        def found() -> bool:
            for facts in project.modules.but_tests(project.contents.holding(attribute), _FILES):
                for node in (node for node in facts.tree.body if isinstance(node, ast.ClassDef)):
                    class_ = project.classes.of(facts, node)
                    has = attribute in class_.methods or class_.attribute(attribute)
                    if has and is_module_class(project, f"{facts.name}.{node.name}"):
                        return True
            return False

        return project.remember(("a module has", attribute), found)

    def _sets(self, holder: str, attribute: str, node: cst.CSTNode) -> None:
        if holder != "self":
            self._set.setdefault(attribute, []).append((holder, node))

    def _is_set(self, attribute: str, name: str, made: cst.CSTNode) -> bool:
        """Whether the file sets the attribute on something, which may be the wrapper: not on the model itself, above
        the line that wraps it. Or a base of the class around does so, in another file."""
        here = self.module.function_of(made)
        in_file = any(
            not self._is_for_resuming(node)
            and (holder != name or self.module.function_of(node) is not here or self.module.wraps.follows(node, made))
            for holder, node in self._set.get(attribute, ())
        )
        owner = self.module.class_of(made) if name.startswith("self.") else None
        return in_file or (owner is not None and attribute in self._set_above(owner, name))

    def _is_for_resuming(self, node: cst.CSTNode) -> bool:
        """Whether a line is in a function that is registered for the loading of checkpoints: it does not run before."""
        function = self.module.function_of(node)
        if function is None or not any(isinstance(up, cst.FunctionDef) for up in self.module.ancestors(function)):
            return False
        return function.name.value in self._registered

    @functools.cached_property
    def _registered(self) -> frozenset[str]:
        calls = (call for call in self.module.of_type(cst.Call) if called(call) in _FOR_RESUMING)
        return frozenset(dotted(arg.value) for call in calls for arg in call.args)

    def _set_above(self, owner: cst.ClassDef, name: str) -> frozenset[str]:
        """What the methods of the project's bases of a class set on an attribute of the object; not their constructors,
        which run before that of the class wraps anything."""
        project = self.module.project
        if project is None:
            return frozenset()
        if (owner, name) not in self._set_by_bases:
            bases = map(project.classes.find, project.classes.lineage(self.module.name_of(owner))[1:])
            methods = (m for facts in bases if facts is not None for n, m in facts.methods.items() if n != "__init__")
            self._set_by_bases[owner, name] = frozenset(a for m in methods for h, a in _set_in(m) if h == name)
        return self._set_by_bases[owner, name]

    def finish(self) -> None:
        for asked in self._found.values():
            first, *others = asked.values()
            self._report(first, others)

    def _report(self, asked: _Asked, others: list[_Asked]) -> None:
        """One wrapper in one function, one finding: the first attribute raises, the others wait behind it."""
        if runs_alone(self.module, asked.node):
            return
        name, attribute = asked.name, asked.attribute
        self.report(
            asked.node,
            f"`{name}` is the DDP wrapper, which has no `{attribute}`: AttributeError on several processes",
            notes=["on one process it works, because nothing is wrapped there"],
            labels=[(asked.made, asked.how), *((o.node, f"nor `{o.attribute}`") for o in others[:_MOST_LABELS])],
            help=f"use the inner module: `{name}.module.{attribute}`, or accelerate's unwrap_model({name})",
            confidence=asked.confidence,
        )

    def _wrapped_by(self, use: cst.BaseExpression, name: str) -> tuple[cst.CSTNode, str, Confidence] | None:
        """What wrapped the object that a name refers to at `use`, how, and how certain that is."""
        if name not in self._wrapped and not self._may_be_given(self.module.bindings(name, use)):
            return None  # most names: no need to find which of their bindings holds here
        last = self._last_binding(use, name)
        if last is None or last.value is None:
            return self._given(last, name) if last is not None and last.kind == "parameter" else None
        for wrap in self.module.wraps.made_by(last.value, name):
            # A wrapper of the project's own may hand attributes on.
            made = wrap.kind == "ddp" and wrap.given is not None
            if (
                made
                and not wrap.tested
                and not self._wraps_no_module(wrap.call)
                and self.module.wraps.after(wrap, use)
                and not comes_first(self.module, use, wrap.call)
            ):
                return wrap.call, "wrapped here", Confidence.HIGH
        value = last.value
        if (
            isinstance(value, cst.Call)
            and not self.module.file.is_test
            and self._prepares(value)
            and self._is_module(use, name)
            and not comes_first(self.module, use, value)
        ):
            return value, "on several processes this returns it wrapped in DDP", Confidence.MEDIUM
        return None

    def _wraps_no_module(self, wrap: cst.Call) -> bool:
        """Whether what is wrapped is an object of a class of the project that is no module: DDP raises for that, and
        what has such a name is not wrapped."""
        model, project = wrap.args[0].value if wrap.args else None, self.module.project
        last = self._last_binding(model, dotted(model)) if model is not None and dotted(model) else None
        if project is None or last is None or not isinstance(last.value, cst.Call):
            return False
        kind = project.meanings.canonical(self.module.constructed_by(last.value))
        known = project.classes.find(kind) is not None and is_plain(project, kind)
        return known and not is_module_class(project, kind)

    def _may_be_given(self, bindings: Sequence[Binding]) -> bool:
        if not bindings:
            return False
        key = bindings[0].name, bindings[0].node
        if key not in self._given_wrapped:
            self._given_wrapped[key] = any(map(self._may_give_wrapped, bindings))
        return self._given_wrapped[key]

    def _may_give_wrapped(self, binding: Binding) -> bool:
        given = binding.kind == "parameter" and any(binding.name == entry.parameter for entry in _GIVEN)
        return given or (isinstance(binding.value, cst.Call) and self._prepares(binding.value))

    def _prepares(self, call: cst.Call) -> bool:
        if call not in self._prepared:
            self._prepared[call] = prepares(self.module, call)
        return self._prepared[call]

    def _last_binding(self, use: cst.BaseExpression, name: str) -> Binding | None:
        bindings, here = self.module.bindings(name, use), self.module.function_of(use)
        by_one = [b for b in bindings if self._is_of_one_rank(b)]
        if by_one and not on_one_rank(self.module, use):  # the others still have what was bound before
            bindings = [b for b in bindings if b not in by_one]
        if not name.startswith("self."):
            return next(self.module.scopes.last_before(bindings, self._entry(use, name)), None)
        methods = {self.module.function_of(b.node): b for b in bindings}  # each with what it leaves behind
        left = [b for method, b in methods.items() if method is not here and not _puts_back(method, b)]
        own = [b for b in bindings if self.module.function_of(b.node) is here]
        return next(self.module.scopes.last_before(own, use), left[-1] if left else None)

    def _entry(self, use: cst.CSTNode, name: str) -> cst.CSTNode:
        """The place in the scope that binds a name from which a function inside it, which uses the name, first runs."""
        scope = self.module.scopes.scope_of(name.partition(".")[0], use)
        if scope is None or scope is self.module.scope_of(use):
            return use
        first, *others = self.module.closures.entries(use, scope) or [use]
        for place in others:
            first = first if self.module.wraps.follows(place, first) else place
        return first

    def _is_of_one_rank(self, binding: Binding) -> bool:
        if binding.node not in self._of_one_rank:
            self._of_one_rank[binding.node] = on_one_rank(self.module, binding.node)
        return self._of_one_rank[binding.node]

    def _given(self, binding: Binding, name: str) -> tuple[cst.CSTNode, str, Confidence] | None:
        """The model that a trainer of transformers hands to a method that the class overrides."""
        function, owner = self.module.function_of(binding.node), self.module.class_of(binding.node)
        if function is None or owner is None:
            return None
        for entry in _GIVEN:
            given = name == entry.parameter and function.name.value in entry.methods
            derived = given and any(self.module.is_subclass(owner, base) for base in entry.classes)
            if derived and not self._trains_unwrapped(owner):
                return binding.node, "the trainer passes the wrapped model", Confidence.MEDIUM
        return None

    def _trains_unwrapped(self, owner: cst.ClassDef) -> bool:
        """Whether a trainer has a `train` of its own, or of a base in the project, that wraps nothing and calls nothing
        of the base which does: it hands the model out as it is."""
        project = self.module.project
        bases = project.classes.lineage(self.module.name_of(owner)) if project is not None else ()
        methods: dict[str, FunctionNode] = {}
        for facts in (project.classes.find(base) for base in bases if project is not None):
            methods = {**(facts.methods if facts is not None else {}), **methods}
        if "train" not in methods:
            return False
        own = {of_self(dotted_ast(call.func)) for call in calls_below(methods["train"])}
        called = [methods["train"], *(methods[name] for name in sorted(own) if name in methods)]
        names = [dotted_ast(n) for each in called for n in walk(each) if isinstance(n, (ast.Name, ast.Attribute))]
        return not any(map(_WRAPS.search, names))

    def _kept(self, use: cst.BaseExpression, name: str, attribute: str) -> tuple[cst.CSTNode, str, Confidence] | None:
        """The attribute of a trainer, whose class is a base of the class around, that holds the wrapped model: as long
        as no method binds it again."""
        owner, function = self.module.class_of(use), self.module.function_of(use)
        if function is not None and function.name.value == "__init__":  # before it wraps
            return None
        for entry in _KEPT:
            if owner is None or name != f"self.{entry.attribute}" or attribute not in entry.parts:
                continue
            derived = any(self.module.is_subclass(owner, base) for base in entry.classes)
            if derived and self._last_binding(use, name) is None:
                return owner.name, "a base of this class keeps its model wrapped", Confidence.MEDIUM
        return None

    def _prepared_below(self, use: cst.BaseExpression, name: str) -> tuple[cst.CSTNode, str, Confidence] | None:
        """The model of an object which a class of the project that inherits from the one around has wrapped."""
        owner, function, project = self.module.class_of(use), self.module.function_of(use), self.module.project
        if owner is None or function is None or project is None or name != "self.model":
            return None
        if (self.module.name_of(owner), name) not in prepared_attributes(project):
            return None
        early = (m for m in owner.body.body if isinstance(m, cst.FunctionDef) and is_init(m))
        called_early = {called(n) for m in early for n in descendants(m.body) if isinstance(n, cst.Call)}
        here = any(self.module.function_of(b.node) is function for b in self.module.bindings(name, use))
        if is_init(function) or function.name.value in called_early or here:
            return None  # before it is wrapped
        return owner.name, "a class that inherits from this one wraps its model", Confidence.MEDIUM

    def _unwrapped_beside(self, use: cst.BaseExpression, name: str) -> tuple[cst.CSTNode, str, Confidence] | None:
        """Where the same function takes the inner module of the same object, whenever it comes by the use."""
        inner = [n for n in self._taken_out.get(name, ()) if self.module.scope_of(n) is self.module.scope_of(use)]
        last = self._last_binding(use, name) if inner else None
        if last is None or not self._is_module(use, name):
            return None
        around = {up for up in self.module.ancestors(use) if isinstance(up, (cst.If, cst.IfExp, cst.Try))}
        for node in inner:
            tests = (up for up in self.module.ancestors(node) if isinstance(up, (cst.If, cst.IfExp, cst.Try)))
            same = all(up in around or self._asks_for_first(up) for up in tests)
            same = same and self._last_binding(node, name) is last
            if same and not exclusive(self.module, node, use):
                return node, "its inner module is taken out of the wrapper here", Confidence.MEDIUM
        return None

    def _asks_for_first(self, branch: cst.CSTNode) -> bool:
        """Whether a branch is for one rank alone: its model is wrapped as those of the others are."""
        return isinstance(branch, cst.If) and first_rank_test(self.module.code(branch.test), True)

    def _is_module(self, use: cst.CSTNode, name: str) -> bool:
        """Whether the function uses what only a module has, for an attribute of an object any method of its class; or
        it is the model of an object, whose methods need not: `prepare` also returns optimizers and loaders."""
        if "optim" in name:  # schedule-free optimizers have train() and eval()
            return False
        if is_average(name):  # `prepare` wraps no model without a parameter that requires a gradient
            return False
        if name == "self.model":
            return True
        owner = self.module.class_of(use) if name.startswith("self.") else None
        scope = owner or self.module.scopes.scope_of(name.partition(".")[0], use)
        inside = isinstance(scope, (cst.FunctionDef, cst.ClassDef))
        for node in descendants(scope if scope is not None and inside else self.module.scope_of(use)):
            if isinstance(node, cst.Call) and dotted(node.func) == name:
                return True
            if isinstance(node, cst.Attribute) and node.attr.value in _MODULE_ONLY and dotted(node.value) == name:
                return True
        return False

    def _is_guarded(self, use: cst.CSTNode, made: tuple[cst.CSTNode, str, Confidence]) -> bool:
        """Whether a test around the use checks how the model is wrapped, or what the wrap is under; or the error is
        caught."""
        if ruled_out(self.module, made[0], use) or self._has_one_gpu(use):
            return True
        if made[0] not in self._above:
            there = frozenset(self.module.ancestors(made[0]))
            asked = frozenset(name for up in there if isinstance(up, cst.If) for name in _names(up.test))
            self._above[made[0]] = there, arms(self.module, made[0]), asked
        there, wrapped_under, conditions = self._above[made[0]]
        here = arms(self.module, use) if wrapped_under else {}
        for up in self.module.ancestors(use):
            if isinstance(up, cst.Try) and up.handlers:
                return True
            if up in there or (isinstance(up, (cst.If, cst.IfExp)) and _holds(up.test, use)):
                continue  # what a test reads raises whatever the test is for
            code = self.module.code(up.test) if isinstance(up, cst.If) else ""
            if code in wrapped_under and wrapped_under[code] == here.get(code):
                continue  # the test that the wrap is under holds here too
            test = (
                up.test if isinstance(up, (cst.If, cst.IfExp)) else up if isinstance(up, cst.BooleanOperation) else None
            )
            names = _names(test) if test is not None else set()
            if _WITH_FIRST.search(code) and first_rank_test(code, True):
                conditions = conditions - names  # rank 0 wraps as well as the others
            if names & conditions or any(n in ASKING or any(word in n for word in ASKS) for n in names):
                return True
        return False

    def _has_one_gpu(self, use: cst.CSTNode) -> bool:
        """Whether a test says that the machine has a single GPU: the other branch of ``device_count() > 1``."""
        tests = [(self.module.code(test), taken) for test, taken in conditions(self.module, use)]
        return any((_SEVERAL_GPUS if not taken else _ONE_GPU).fullmatch(text) for text, taken in tests)


def _added(call: cst.Call) -> tuple[str, str] | None:
    """The name of the module and the attribute that it gets by ``model.add_module("head", head)``, or the object's by
    ``setattr(model, "head", head)``."""
    by_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _ADDING
    if not by_method and dotted(call.func) != "setattr":
        return None
    holder = call.func.value if isinstance(call.func, cst.Attribute) else argument(call, 0, "")
    key = argument(call, 0, "name") if by_method else argument(call, 1, "")
    return (dotted(holder), str(key.evaluated_value)) if isinstance(key, cst.SimpleString) else None


def _set_in(function: FunctionNode) -> Iterator[tuple[str, str]]:
    """The same for all that a function of any file sets, also by assignments."""
    for node in walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield dotted_ast(node.value), node.attr
        elif isinstance(node, ast.Call) and node.args:
            by_method = isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING
            holder = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
            key = (
                node.args[0]
                if by_method
                else next(iter(node.args[1:]), None)
                if dotted_ast(node.func) == "setattr"
                else None
            )
            if isinstance(key, ast.Constant):
                yield dotted_ast(holder), str(key.value)


def _puts_back(method: cst.FunctionDef | None, last: Binding) -> bool:
    """Whether a method ends with an attribute as it found it: ``kept = self.model; ..; self.model = kept``."""
    if method is None or not isinstance(last.value, cst.Name):
        return False
    stores = (n for n in descendants(method.body) if isinstance(n, cst.Assign) and dotted(n.value) == last.name)
    return any(dotted(target.target) == last.value.value for store in stores for target in store.targets)


def _holds(value: cst.CSTNode, call: cst.CSTNode) -> bool:
    return value is call or any(node is call for node in descendants(value))


def _names(test: cst.CSTNode) -> set[str]:
    """What a test mentions: whole dotted names, in lower case."""
    name = dotted(test) if isinstance(test, (cst.Name, cst.Attribute)) else ""
    return {name.lower()} if name else {found for child in children(test) for found in _names(child)}
