from __future__ import annotations

import ast
import bisect
import re
from typing import NamedTuple

import libcst as cst

from ddp_lint.findings import Cause, Confidence, Span
from ddp_lint.knowledge import canonical, frameworks, table
from ddp_lint.knowledge.frameworks import Twins
from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.one_process import uses_data_parallel
from ddp_lint.launch.ranks import runs_alone, several_ranks
from ddp_lint.launch.started import launched_under
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.rules.wrapping.arming import returns_output_of, runs_forward, trained_by
from ddp_lint.rules.wrapping.freezing import Changes
from ddp_lint.rules.wrapping.kept_inside import kept_inside
from ddp_lint.rules.wrapping.never_called import trained_beside
from ddp_lint.rules.wrapping.training import backward_of, backward_of_callers, loss_of, returned
from ddp_lint.rules.wrapping.unwrapping import UNWRAPPING, Unwrapping
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import absent, conjuncts, exclusive, holding
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in, last_name
from ddp_lint.source.syntax import calls_below, function_at, parameters, statements, walk
from ddp_lint.source.tree import positional_of, subtree
from ddp_lint.tensors.contexts import is_method_without_gradient, without_gradient
from ddp_lint.view.accumulation import is_backward
from ddp_lint.view.wraps import Wrap, argument

_DDP = "torch.nn.parallel.DistributedDataParallel"
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_REFERENCE = re.compile(r"^\s*(\w+):\s*!ref\s+<(\w+)>", re.MULTILINE)  # `encoder: !ref <Encoder>`
_GIVEN = frameworks.every(lambda each: each.given_wrapped)
_PLAIN_MODULE_USES = frozenset(
    table("wrappers")["plain_module_methods"]
)  # reading parameters, checkpoints, modes: no forward


class _Order(NamedTuple):
    """The calls of a function in the order in which they run: the place of each, those of the backwards, and by the
    name of a wrapper those that run its forward. Each call behind a wrapper asks what ran before it."""

    calls: list[cst.Call]
    places: dict[cst.Call, int]
    backwards: list[int]
    forwards: dict[str, list[int]]


class ForwardBypassesWrapper(Rule):
    """The training forward bypasses the DDP or FSDP wrapper, so gradients are never averaged.

    ## What it does

    Finds training forwards that call `model.module(x)`, a method of `.module`, the unwrapped original of a wrapped
    model, or the result of `unwrap_model`, of a helper of the project or of a property that takes the wrapper off, if
    the output is used in a loss whose `backward()` is called, here or in a function of the file that gets the loss, or
    that a trainer's loss method returns; `self.model(...)` where a Trainer of transformers gives `compute_loss` the
    wrapped model. `loss = elbo(model.module, x)`, where `elbo` is a function of the project that returns what its
    parameter computes. Also the unwrapped original that is given to a function of the project which trains it, where
    nothing uses the wrapper; and parts of it that a class keeps by names of their own (`self.body = self.net.body`
    beside `self.ddp = DDP(self.net)`) and trains, where nothing in the project runs the wrapper. And a wrapper that is
    given to nothing but an object of the project which keeps what is inside (`self.body = net.module.body`) and trains
    that.

    ## Why it breaks

    DDP prepares its gradient reduction in `DistributedDataParallel.forward`. A forward that bypasses it does not
    prepare it: rank 0 steps with the gradients of its own batch, rank 1 with those of its own, and the replicas drift
    apart from the first step. Nothing is printed, the loss falls, and the checkpoint holds one rank's model. Measured
    on 2 x H200 and on gloo: no error, parameters differ by 0.0099 after two steps. Under FSDP the inner module
    computes on sharded parameters and fails.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")


    def train():
        net = torch.nn.Linear(4, 4).to(device)
        model = DDP(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(8, 4, device=device) + dist.get_rank()
            loss = model.module(x).square().mean()  # <- DDP601
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")


    def train():
        net = torch.nn.Linear(4, 4).to(device)
        model = DDP(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(8, 4, device=device) + dist.get_rank()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Checkpoints, EMA, evaluation and everything else under `no_grad`, results that are detached or never reach a
    `backward()`, methods and parts that run in addition to a forward of the DDP model before the same `backward()`,
    also one in a function that gets the model (then the reduction is prepared), a wrapper class that calls its own
    `self.module`, calls where a test says that there is no wrapper (`else` of `if self.wrapped is not None`),
    `net = model.module` in code of one process, `accelerator.backward(loss)` in a program that the project launches
    with settings for DeepSpeed alone (`distributed_type: DEEPSPEED`: its hooks are on the parameters), and FSDP2
    (`fully_shard` wraps in place: there is no
    second object). Only with `--preview`: `net.module` of what the file does not wrap, if it is not about several
    ranks itself or uses `nn.DataParallel`.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the ranks differ after `backward()`.

    ## Fix safety

    No automatic fix: another entry point of the model must become part of `forward`.

    ## References

    - PyTorch, `torch/nn/parallel/distributed.py`: `_pre_forward` calls `reducer.prepare_for_forward`.
    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    confidence = Confidence.HIGH
    triggers = Triggers(
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "backward",
        "manual_backward",
        "hparams",
        "compute_loss",
        *sorted(UNWRAPPING),
        Trait.DELEGATES,
        file=(
            "DistributedDataParallel",
            "FullyShardedDataParallel",
            "module",
            "hparams",
            "compute_loss",
            "prepare",  # by a helper of the project that takes the wrapper off again
            *sorted(UNWRAPPING),
        ),
    )
    oracles = ("gradient", "parameter", "exception")

    def start(self) -> None:
        self._wraps = self.module.wraps
        self._unwrapping = Unwrapping(self.module)
        self._orders: dict[cst.FunctionDef, _Order] = {}
        self._changes = Changes(self.module)
        self._raw_calls: dict[cst.FunctionDef | None, list[tuple[cst.Call, str, str]]] = {}

    def visit_Assign(self, node: cst.Assign) -> None:
        """``self.ddp = DDP(self.net)``, where only parts of the model run."""
        facts, project = self.module.facts, self.module.project
        call = node.value if isinstance(node.value, cst.Call) else None
        if call is None or facts is None or project is None or self.module.file.is_test:
            return
        outer = dotted(node.targets[0].target)
        if canonical(self.module.qualified(call.func)) != _DDP or not outer:
            return
        line = self.module.span(node).line
        wraps = (n for n in statements(facts.tree) if isinstance(n, ast.Assign) and n.lineno == line)
        wrap = next(wraps, None)
        if not outer.startswith("self."):
            if wrap is not None:
                self._taken_apart(call, outer, wrap)
            return
        part = trained_beside(project, facts, wrap, files_of_programs(self.module)) if wrap is not None else None
        if part is not None and several_ranks(self.module, call) is not None:
            self.report(
                facts.file.span_of(part),
                f"this runs a part of the model inside `{outer}`, and nothing calls `{outer}`: no gradient is averaged",
                notes=["the reducer is prepared in the forward of the wrapper: rank 0 and rank 1 train apart"],
                labels=[(call, "wrapped here")],
                help=f"compute the loss in the forward of the model, and call `{outer}(...)`",
                confidence=Confidence.MEDIUM,
            )

    def _taken_apart(self, call: cst.Call, outer: str, wrap: ast.Assign) -> None:
        """``model = DDP(net)`` that an object gets which trains what it takes out of it."""
        facts, project = self.module.facts, self.module.project
        assert facts is not None and project is not None
        scope = function_at(facts.tree, wrap.lineno) or facts.tree
        kept = kept_inside(project, facts, wrap, scope, files_of_programs(self.module))
        if kept is None or several_ranks(self.module, call) is None:
            return
        self.report(
            facts.file.span_of(kept.given),
            f"`{last_part(kept.given.func)}` takes the model out of `{outer}` and trains it: no gradient is averaged",
            notes=["the reducer is prepared in the forward of the wrapper: rank 0 and rank 1 train apart"],
            labels=[
                (call, "wrapped here"),
                (kept.facts.file.span_of(kept.runs), "runs what is inside"),
                (kept.facts.file.span_of(kept.backward), "this backward averages nothing"),
            ],
            help=f"keep `{outer}` and call it; dispatch its parts from the forward of the model",
            confidence=Confidence.MEDIUM,
        )

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func)
        if self._given_inside(node):
            return
        if not name:
            self._unwrapped(node)
            return
        if ".module.module" in name and self._reaches_through(node, name):
            return
        head, behind = _split_module(name)
        if behind and head not in ("self", "cls", "super") and not _is_plain_use(name):
            self._behind_wrapper(node, head, name)
        elif not behind:
            self._twin(node, name)

    def _reaches_through(self, node: cst.Call, name: str) -> bool:
        """A forward that calls what lies two or more wrappers deep: each of them is skipped."""
        function = self.module.function_of(node)
        if function is None or not function.name.value.endswith("forward") or _is_plain_use(name):
            return False
        self.report(
            node,
            f"`{name}(...)` bypasses the wrapper: its hooks do not run, and no gradient is averaged",
            notes=["no rank gathers the parameters either"],
            help="call the outermost module, and let its forward dispatch",
            confidence=Confidence.MEDIUM,
        )
        return True

    def _behind_wrapper(self, node: cst.Call, head: str, name: str) -> None:
        wrap = self._wraps.of(head, node)
        backward = backward_of(self.module, node)
        # DeepSpeed's hooks are on the parameters; the engine may be the `module` of a record.
        if backward is None or dotted(backward.func) in (f"{head}.backward", f"{head}.module.backward"):
            return
        if wrap is None and (not _is_forward(name) or self._is_of_one_process()):
            return
        if self._may_replicate(wrap, node) and self._is_armed(node, head, backward):
            return
        if runs_alone(self.module, node) or self._averages_itself(backward) or self._changes.is_frozen(head, node):
            return
        labels: list[tuple[cst.CSTNode | Span, str]] = [(backward, "this backward averages nothing")]
        if wrap is not None:
            labels.insert(0, (wrap.place, f"`{head}` is wrapped here"))
        self.report(
            node,
            f"`{name}(...)` runs the module inside `{head}`: its gradients are not averaged",
            notes=[
                f"the gradient hooks of `{head}` do not run: rank 0 and rank 1 step with the gradients "
                "of their own batches"
            ],
            labels=labels,
            help=f"call `{head}(...)`; dispatch further entry points from `forward`",
            confidence=Confidence.HIGH if wrap is not None else self._of_unseen_wrap(),
        )

    def _given_inside(self, node: cst.Call) -> bool:
        """A function of the project that gets the module inside a wrapper and returns what it computes, for a backward
        here: ``loss = elbo(model.module, x)``."""
        found = ((arg.value, self._unwrapping.source(arg.value)) for arg in node.args if _may_be_model(arg.value))
        for given, source in found:
            wrapper = source[0] if source is not None else ""
            wrap = self._wraps.of(wrapper, node) if wrapper else None
            if wrap is None or wrap.kind == "fsdp2" or source is None or not self._is_whole(given, source):
                continue
            if not self._computes_by(node, given):
                continue
            backward = backward_of(self.module, node)
            if backward is None or self._averages_itself(backward) or runs_alone(self.module, node):
                continue
            if self._calls_wrapper(node, wrapper) or self._changes.is_frozen(wrapper, node):
                continue
            self.report(
                given,
                f"`{dotted(node.func)}(...)` gets the module inside `{wrapper}` and runs its forward: no gradient is "
                "averaged",
                notes=["rank 0 and rank 1 step with the gradients of their own batches"],
                labels=[(wrap.place, f"`{wrapper}` is wrapped here"), (backward, "this backward averages nothing")],
                help=f"give it `{wrapper}`",
                confidence=Confidence.MEDIUM,
            )
            return True
        return False

    def _calls_wrapper(self, node: cst.Call, wrapper: str) -> bool:
        """Whether the function around runs the wrapper's own forward, too: before the same backward that arms it, and
        elsewhere its author knows the two apart, as for the discriminator in the step of a generator."""
        function = self.module.function_of(node)
        return function is not None and any(runs_forward(self.module, c, wrapper) for c in calls_in(function.body))

    def _is_whole(self, given: cst.BaseExpression, source: tuple[str, cst.CSTNode]) -> bool:
        """Whether an argument is all of the module inside a wrapper, not a part of it: by itself or by a name."""
        if given is source[1]:
            return True
        values = self.module.assignments(given) if isinstance(given, cst.Name) else []
        return bool(values) and all(value is source[1] for value in values)

    def _computes_by(self, node: cst.Call, given: cst.BaseExpression) -> bool:
        """Whether what a function of the project returns is computed by the argument that it is given."""
        helper = helper_of(self.module, node)
        if helper is None or any(arg.star for arg in node.args):
            return False
        names = [each.arg for each in parameters(helper.function)][helper.owner is not None :]
        taken = [name for place, name in enumerate(names) if argument(node, place, name) is given]
        return any(returns_output_of(helper.facts, helper.function, name) for name in taken)

    def _may_replicate(self, wrap: Wrap | None, node: cst.CSTNode) -> bool:
        """Whether the wrapper may be DDP's, whose hooks a forward arms: also where a test asks whether it shards, and
        the code runs either way."""
        if wrap is None or wrap.kind == "ddp":
            return True
        shown = (part for test in holding(self.module, node) for part in conjuncts(test))
        return wrap.tested and all(part is not wrap.call for part in shown)

    def _is_armed(self, node: cst.Call, head: str, end: cst.Call) -> bool:
        """Whether the wrapper's own forward runs before the same backward, or the call itself where another function
        has the backward: its hooks are armed then, and average all gradients of the parameters."""
        function = self.module.function_of(node)
        order = self._order_of(function) if function is not None else None
        place = order.places.get(end) if order is not None else None
        if order is None or place is None:
            return False
        before = bisect.bisect_left(order.backwards, place)
        forwards = self._forwards_of(order, head)
        first = bisect.bisect_left(forwards, order.backwards[before - 1] if before else 0)
        calls = (order.calls[at] for at in forwards[first : bisect.bisect_left(forwards, place)])
        return any(not exclusive(self.module, c, node) and not without_gradient(self.module, c) for c in calls)

    def _order_of(self, function: cst.FunctionDef) -> _Order:
        if function not in self._orders:
            calls = self.module.calls_as_run(function)
            backwards = [place for place, call in enumerate(calls) if is_backward(call)]
            self._orders[function] = _Order(calls, {call: place for place, call in enumerate(calls)}, backwards, {})
        return self._orders[function]

    def _forwards_of(self, order: _Order, head: str) -> list[int]:
        """The places of the calls that run the wrapper's forward, without the backwards."""
        if head not in order.forwards:
            of_backward = set(order.backwards)
            order.forwards[head] = [
                place
                for place, call in enumerate(order.calls)
                if place not in of_backward and runs_forward(self.module, call, head)
            ]
        return order.forwards[head]

    def _twin(self, node: cst.Call, name: str) -> None:
        wrap = self._wraps.twin(name, node)
        if wrap is not None and self._is_absent(wrap, node):
            return
        if wrap is not None and wrap.kind != "fsdp2":
            backward = backward_of(self.module, node)
            if backward is not None and not runs_alone(self.module, node) and not self._averages_itself(backward):
                self._report_separate(
                    node,
                    f"`{name}(...)` bypasses its wrapper `{wrap.outer}`: its gradients are not averaged",
                    (name, wrap, backward),
                    f"call `{wrap.outer}(...)`",
                )
            return
        if self._unwrapped(node):
            return
        if "." in name and not self._kept_raw(node, name):
            self._framework_twin(node, name)

    def _kept_raw(self, node: cst.Call, name: str) -> bool:
        """A forward of the model that a trainer keeps without its wrapper, in a method of the user's that gets the
        wrapped one, or in one that this calls: ``self.model(..)`` in `compute_loss`."""
        owner, function = self.module.class_of(node), self.module.function_of(node)
        entries = [entry for entry in _GIVEN if name == entry.raw] if owner is not None else []
        if owner is None or function is None or not entries or without_gradient(self.module, node):
            return False
        for entry in entries:
            methods = [m for m in owner.body.body if isinstance(m, cst.FunctionDef) and m.name.value in entry.train]
            own = function in methods
            called = f"self.{function.name.value}"
            trains = [m for m in methods if m is function or any(dotted(c.func) == called for c in calls_in(m.body))]
            if not trains or any(self._hands_on(m, entry.parameter) for m in trains):
                continue
            leads = backward_of(self.module, node) or (
                loss_of(self.module, node) if own else returned(self.module, node)
            )
            if leads is None or not any(self.module.is_subclass(owner, base) for base in entry.classes):
                continue
            self.report(
                node,
                f"`{name}(...)` is the raw module, the wrapped one is `{entry.parameter}`: no gradient is averaged",
                notes=["rank 0 and rank 1 each train a separate model"],
                labels=[(trains[0].name, f"gets the wrapped one as `{entry.parameter}`"), (leads, "leads to the loss")],
                help=f"call the `{entry.parameter}` that `{trains[0].name.value}` gets",
                confidence=Confidence.MEDIUM,
            )
            return True
        return False

    def _hands_on(self, method: cst.FunctionDef, parameter: str) -> bool:
        """Whether a method calls the model that it gets, or gives it to another function, which may call it."""
        calls = calls_in(method.body)
        return any(
            dotted(call.func) == parameter or any(dotted(arg.value) == parameter for arg in call.args) for call in calls
        )

    def _is_absent(self, wrap: Wrap, node: cst.Call) -> bool:
        """Whether a test around a call says that there is no wrapper; not one that the wrap itself is under, which
        makes it where there was none."""
        return wrap.outer in absent(self.module, node) - absent(self.module, wrap.call)

    def _unwrapped(self, node: cst.Call) -> bool:
        """A call of what was taken out of its wrapper: `net = model.module`, `accelerator.unwrap_model(model)`."""
        found = self._unwrapping.source(node.func)
        if found is None or _is_plain_use(last_name(node.func)):
            return False
        backward = backward_of(self.module, node) or self._backward_of_caller(node, found[0])
        end = backward or loss_of(self.module, node)
        if end is None or (backward is None and self._evaluates(node)) or runs_alone(self.module, node):
            return False
        if backward is not None and self._averages_itself(backward):
            return False
        effect = "this backward averages nothing" if backward is not None else "the loss that is used for training"
        wrapper, place = found
        if self._changes.is_frozen(wrapper, node):
            return False
        wrap = self._wraps.of(wrapper, node)
        if wrap is None and isinstance(place, cst.Attribute) and self._is_of_one_process():
            return False
        is_method = isinstance(self.module.parent(place), cst.Attribute)  # loss = model.module.compute_loss
        in_part = isinstance(node.func, cst.Attribute) or _is_taken_from(node.func, place)
        may_be_armed = (is_method or in_part) and self._may_replicate(wrap, node)
        until = backward or (node if is_method else None)
        if until is not None and may_be_armed and self._is_armed(node, wrapper, until):
            return True
        if isinstance(node.func, cst.Attribute) and is_method_without_gradient(self.module, node.func.attr.value):
            return False
        name, taken = self.module.quoted(node.func), self.module.span(place)
        self.report(
            node,
            f"{name} was unwrapped at line {taken.line}, so its gradients are not averaged; keep "
            f"`{wrapper}` and call that",
            notes=[f"rank 0 and rank 1 each train a separate {name}"],
            labels=[(place, f"unwrapped from `{wrapper}` here"), (end, effect)],
            help=_instead(wrapper, dotted(node.func)),
            confidence=self._of_unseen_wrap()
            if wrap is None and isinstance(place, cst.Attribute)
            else Confidence.MEDIUM,
            cause=Cause(taken),
        )
        return True

    def _backward_of_caller(self, node: cst.Call, wrapper: str) -> cst.Call | None:
        """The backward from what a function returns, where another one in the file calls it, if neither of them runs
        the forward of the wrapper besides."""
        function = self.module.function_of(node)
        for call, backward in backward_of_callers(self.module, node):
            caller = self.module.function_of(call)
            given = argument(call, places.index(wrapper), wrapper) if wrapper in (places := _places(function)) else None
            own = {wrapper, dotted(given)} - {""}
            around = [f for f in (function, caller) if f is not None]
            if all(dotted(c.func) not in own for f in around for c in calls_in(f.body)):
                return backward
        return None

    def _averages_itself(self, backward: cst.Call) -> bool:
        """Whether a backward that is given the loss is that of DeepSpeed's engine, whose hooks are on the parameters,
        in all launches of the program that the project has."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not any(arg.keyword is None for arg in backward.args):
            return False
        return launched_under(project, facts) == {"DEEPSPEED"}

    def _is_of_one_process(self) -> bool:
        """Whether nothing shows several ranks: a `.module` is then that of the GPUs of `nn.DataParallel`."""
        return several_ranks(self.module) is None

    def _of_unseen_wrap(self) -> Confidence:
        """How sure it is that a `.module` is that of DDP, where the wrap is not seen: the file itself is about several
        ranks, and does not use `nn.DataParallel`, which has one, too."""
        ranks = several_ranks(self.module)
        of_ranks = ranks is not None and ranks.own and not uses_data_parallel(self.module.file)
        return Confidence.MEDIUM if of_ranks else Confidence.LOW

    def _evaluates(self, node: cst.Call) -> bool:
        """Whether the function around is named after evaluation: ``get_eval_loss``."""
        function = self.module.function_of(node)
        return function is not None and bool(words_of(function.name.value) & names("branches", "evaluation"))

    def _framework_twin(self, node: cst.Call, name: str) -> None:
        """`self.raw.x(...)` where the framework wraps `self.wrapped.x` (`frameworks.Twins`)."""
        raw, _, attribute = name.rpartition(".")
        for entry in frameworks.every(lambda framework: framework.twins):
            if raw != entry.raw or not self._in_training_method(node, entry) or without_gradient(self.module, node):
                continue
            wrapped = self._wrapped_name(entry, attribute)
            if wrapped:
                self._raw_calls.setdefault(self.module.function_of(node), []).append((node, name, wrapped))

    def finish(self) -> None:
        """One finding for the raw calls of a method: they have one cause; one for a model that trains beside a wrapper
        which nothing uses."""
        for wrap in self._wraps.all:
            self._trained_beside(wrap)
        for calls in self._raw_calls.values():
            node, name, wrapped = calls[0]
            self.report(
                node,
                f"`{name}(...)` calls the raw module, the trainer wraps `{wrapped}`: its gradients are not averaged",
                notes=["rank 0 and rank 1 each train a separate model"],
                labels=[(other, f"so does `{raw}`: the wrapped one is `{twin}`") for other, raw, twin in calls[1:]],
                help=f"call `{wrapped}(...)`, the object that DDP wrapped",
                confidence=Confidence.MEDIUM,
            )

    def _trained_beside(self, wrap: Wrap) -> None:
        """A function that trains the unwrapped model which it is given, while nothing uses the wrapper. By `ast`: large
        statements of a script are not parsed for this rule."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or wrap.kind == "fsdp2" or wrap.tested or wrap.handed is not None:
            return
        if not wrap.inner or wrap.outer in ("", wrap.inner) or "." in f"{wrap.inner}{wrap.outer}":
            return
        line = self.module.span(wrap.call).line
        function = function_at(facts.tree, line)
        scope = function or facts.tree
        if _is_used(scope, wrap.outer) or runs_alone(self.module, wrap.call):
            return
        after = (call for call in calls_below(scope) if call.lineno > line)
        for call in after:
            backward = trained_by(project, facts, call, wrap.inner)
            if backward is None or function_at(facts.tree, call.lineno) is not function:
                continue
            if _is_bound_between(scope, wrap.inner, line, call) or _excludes(scope, line, call):
                continue
            self._report_separate(
                facts.file.span_of(call),
                f"`{dotted_ast(call.func)}(...)` trains `{wrap.inner}` beside its wrapper `{wrap.outer}`, which "
                "nothing uses: its gradients are not averaged",
                (wrap.inner, wrap, backward),
                f"give it `{wrap.outer}`",
            )
            return

    def _report_separate(
        self,
        place: cst.CSTNode | Span,
        headline: str,
        trained: tuple[str, Wrap, cst.CSTNode | Span],
        help: str,
    ) -> None:
        """Report a model that each rank trains by itself: its name, its wrap, the backward that averages nothing."""
        name, wrap, backward = trained
        self.report(
            place,
            headline,
            notes=["rank 0 and rank 1 each train a separate model"],
            labels=[
                (wrap.place, f"`{name}` is wrapped as `{wrap.outer}` here"),
                (backward, "this backward averages nothing"),
            ],
            help=help,
        )

    def _in_training_method(self, node: cst.Call, entry: Twins) -> bool:
        function, owner = self.module.function_of(node), self.module.class_of(node)
        if function is None or owner is None or function.name.value not in entry.methods:
            return False
        return any(self.module.is_subclass(owner, base) for base in entry.classes)

    def _wrapped_name(self, entry: Twins, attribute: str) -> str:
        """What the framework wraps `attribute` as: by the recipe's YAML, else when it is called like a module."""
        words = {word.lower() for word in _WORD.findall(attribute)}
        if not words.isdisjoint(entry.other_words):
            return ""
        listed = self._listed_in_yaml(entry)
        if listed is not None:
            return f"{entry.wrapped}.{listed[attribute]}" if attribute in listed else ""
        return "" if words.isdisjoint(entry.module_words) else f"{entry.wrapped}.{attribute}"

    def _listed_in_yaml(self, entry: Twins) -> dict[str, str] | None:
        """Raw name to wrapped name in the block that lists the wrapped modules; None without such a block."""
        path, project = self.module.path, self.module.project
        if path is None or project is None:
            return None
        block = re.compile(rf"^{entry.yaml_block}:\s*\n((?:[ \t]+.*\n|\s*\n)+)", re.MULTILINE)
        matches = [
            block.search((project.contents.text(file) or "") + "\n") for file in sorted(path.parent.glob(entry.yaml))
        ]
        found = [match[1] for match in matches if match]
        return {raw: name for text in found for name, raw in _REFERENCE.findall(text)} if found else None


def _may_be_model(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) or (isinstance(value, cst.Attribute) and value.attr.value == "module")


def _instead(wrapper: str, called: str) -> str:
    """What to call: where the unwrapped module took the wrapper's name, nothing of that name is left to call."""
    if called == wrapper or called.startswith(f"{wrapper}."):
        return f"give the unwrapped module another name, and train with the wrapped `{wrapper}`"
    return f"call `{wrapper}(...)`"


def _places(function: cst.FunctionDef | None) -> list[str]:
    return [p.name.value for p in positional_of(function)] if function is not None else []


def _is_used(scope: ast.AST, wrapper: str) -> bool:
    """Whether a function or a script uses a wrapper for more than its parameters or its state."""
    plain = {
        node.value
        for node in walk(scope)
        if isinstance(node, ast.Attribute) and node.attr in _PLAIN_MODULE_USES and isinstance(node.value, ast.Name)
    }
    names = (node for node in walk(scope) if isinstance(node, ast.Name) and node.id == wrapper)
    return any(isinstance(name.ctx, ast.Load) and name not in plain for name in names)


def _is_bound_between(scope: ast.AST, name: str, line: int, call: ast.Call) -> bool:
    """Whether a function binds a name again from a line to a call."""
    stores = (node for node in walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(node.id == name and line <= node.lineno <= call.lineno for node in stores)


def _excludes(scope: ast.AST, line: int, call: ast.Call) -> bool:
    """Whether a line and a call behind it are in two branches of one test."""
    branches = (node for node in walk(scope) if isinstance(node, ast.If) and node.orelse)
    return any(
        node.body[0].lineno <= line < node.orelse[0].lineno <= call.lineno <= (node.end_lineno or 0)
        for node in branches
    )


def _is_taken_from(called: cst.BaseExpression, place: cst.CSTNode) -> bool:
    """Whether what is called is a part that the unwrapped module returns: ``net.get_embeddings()(ids)``, not
    ``unwrap(model)(ids)``."""
    part = called.func if isinstance(called, cst.Call) else None
    return isinstance(part, cst.Attribute) and all(each is not place for each in subtree(called))


def _split_module(name: str) -> tuple[str, bool]:
    """`model.module.encode` -> ("model", True); `model` -> ("model", False)."""
    head, behind, _ = f"{name}.".partition(".module.")
    return (head, True) if behind else (name, False)


def _is_forward(name: str) -> bool:
    """Whether a call behind `.module` is the forward or part of it, judged by its name alone."""
    method = name.rpartition(".")[2]
    return method in ("module", "compute_loss", "training_step") or method.startswith(("forward", "encode", "decode"))


def _is_plain_use(name: str) -> bool:
    method = name.rpartition(".")[2]
    return method in _PLAIN_MODULE_USES or method.startswith(("get_", "set_"))
