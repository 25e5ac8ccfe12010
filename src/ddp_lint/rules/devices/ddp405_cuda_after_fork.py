from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Fix
from ddp_lint.launch.callers import call_sites
from ddp_lint.launch.cuda import Initialiser, asks_driver, runs_before, uses_cuda
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.launch.search import importers, leads_to
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import of_self
from ddp_lint.source.queries import appends, receiver
from ddp_lint.source.syntax import FunctionNode, blocks_at, function_at
from ddp_lint.source.tree import called, descendants, names_in, subtree
from ddp_lint.view.edits import replace
from ddp_lint.view.wraps import argument, assigned_name

#: Calls of the function that starts a worker which are looked at.
_CALLERS = 8
_PACKAGES = ("multiprocessing", "torch.multiprocessing")
_STARTERS = ("Process", "Pool")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MAPS = ("map", "imap", "imap_unordered", "starmap", "apply", "apply_async", "map_async", "starmap_async", "submit")
_OTHER_METHOD = re.compile(
    r"""set_start_method\(\s*(method=)?["'](spawn|forkserver)|get_context\(\s*(method=)?["'](spawn|forkserver)"""
)
#: A program that has none of these words has hardly touched the GPU by the time that it forks.
_SETS_SPAWN = re.compile(r"""set_start_method\([^)\n]*["'](spawn|forkserver)""")
_SPEAKS_OF_GPU = re.compile(r"\b(torch|cuda)\b")


class CudaAfterFork(Rule):
    """A worker process is forked and then uses CUDA, which a forked child cannot.

    ## What it does

    Finds `Process`, `Pool` and `ProcessPoolExecutor` with the default or the fork start method whose target uses CUDA
    (followed through the project's functions), CUDA tensors passed to a pool, and manager processes forked from a
    training process.

    ## Why it breaks

    CUDA does not work in a forked process. On Linux before Python 3.14 the default start method forks: when the parent
    has touched the GPU (a tensor, or an import that did), the worker's first CUDA call fails with
    `Cannot re-initialize CUDA in forked subprocess`, and so does unpickling a CUDA tensor that came through a queue.
    The rank that started it waits for a result that never arrives, and its peers wait in the next collective.

    ## Example

    ```python
    import multiprocessing

    import torch


    def worker(rank):
        print(torch.ones(2).cuda(rank).sum())


    if __name__ == "__main__":
        torch.ones(1, device="cuda")
        process = multiprocessing.Process(target=worker, args=(0,))  # <- DDP405
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit("worker failed")
    ```

    ## Use instead

    ```python
    import multiprocessing

    import torch


    def worker(rank):
        print(torch.ones(2).to("cuda" if torch.cuda.is_available() else "cpu").sum())


    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=worker, args=(0,))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit("worker failed")
    ```

    ## When it is silent

    Contexts and start methods `spawn` and `forkserver`, also set elsewhere in the file; `torch.multiprocessing.spawn`;
    targets that handle CPU data; targets that cannot be resolved; files that name neither torch nor CUDA, so that
    their process has not used the GPU when it forks; files that only programs import, directly or through others,
    which set the start method to `spawn`, themselves or in a module that they import. Only with `--preview`: workers
    of a process that is not seen to use a GPU: the function that starts them does not use CUDA, and nothing before it
    or its calls has used or queried it (`torch.cuda.is_available()` is enough).

    ## How to confirm

    `ddp-lint verify train.py` on a GPU: the worker raises `Cannot re-initialize CUDA in forked subprocess`.

    ## Fix safety

    Unsafe: under `spawn` the script is imported again by each worker, so it needs a `__main__` guard, and the
    arguments must be picklable.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "Process", "Pool", "ProcessPoolExecutor", "Manager", file=("multiprocessing", "ProcessPoolExecutor")
    )
    oracles = ("exception",)
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        package, _, kind = self.module.qualified(node.func).rpartition(".")
        if kind in _STARTERS and package in _PACKAGES:
            self._visit_starter(node, kind)
        elif called(node) in _STARTERS and isinstance(node.func, cst.Attribute) and self._is_fork(node.func.value):
            self._visit_starter(node, called(node))
        elif kind == "ProcessPoolExecutor" and argument(node, 1, "mp_context") is None:
            self._visit_starter(node, "Pool")
        elif self._is_forked_manager(node):
            self._report_manager(node)

    def _is_fork(self, context: cst.BaseExpression) -> bool:
        """``get_context("fork")``, also by its name."""
        made = [context, *self.module.assignments(context)]
        calls = [m for m in made if isinstance(m, cst.Call) and called(m) == "get_context" and m.args]
        packages = (self.module.qualified(m.func).rpartition(".")[0] for m in calls)
        asked = [m.args[0].value for m in calls if next(packages) in _PACKAGES]
        return bool(asked) and all(isinstance(a, cst.SimpleString) and a.evaluated_value == "fork" for a in asked)

    def _visit_starter(self, node: cst.Call, kind: str) -> None:
        text = self.module.file.code
        forks = _SPEAKS_OF_GPU.search(text) is not None and not _OTHER_METHOD.search(text)
        forks = forks and not self._spawns_elsewhere()
        targets = [argument(node, 1, "target")] if kind == "Process" else self._mapped(node)
        for target in targets if forks else ():
            place = self._cuda_in(target, node)
            if place:
                self._report(node, place, None if self._parent_uses_cuda(node) else Confidence.LOW)
                return
        if kind == "Pool":
            self._visit_arguments(node, forks)

    def _spawns_elsewhere(self) -> bool:
        """Whether every program that leads to the file, one of them at least, sets the start method to spawn, itself or
        in a module that it imports for that."""
        project, name = self.module.project, self.module.name
        if project is None or not name or self.module.file.holds("__main__"):
            return False
        setting = (project.modules.facts_of(path) for path in project.contents.holding("set_start_method("))
        spawning = [each for each in setting if each is not None and each.file.shows(_SETS_SPAWN)]
        spawning = [each for each in spawning if not each.file.is_test and each.name]
        programs = {each.name for setter in spawning for each in importers(project, setter.name, holding=("__main__",))}
        programs |= {each.name for each in spawning}
        direct = importers(project, name, holding=("__main__",)) if programs else ()
        if any(not user.file.is_test and user.name not in programs for user in direct):
            return False
        found = (project.modules.facts(each) for each in sorted(programs))
        return any(each is not None and leads_to(project, each, name) for each in found)

    # ---- targets

    def _mapped(self, pool: cst.Call) -> list[cst.BaseExpression | None]:
        """The functions that a pool runs: its initializer, and the first argument of its map methods."""
        found: list[cst.BaseExpression | None] = [argument(pool, 1, "initializer"), argument(pool, 2, "initializer")]
        return found + [call.args[0].value for call in self._map_calls(pool) if call.args]

    def _map_calls(self, pool: cst.Call) -> list[cst.Call]:
        up = self.module.parent(pool)
        name = (
            dotted(up.asname.name) if isinstance(up, cst.WithItem) and up.asname else assigned_name(self.module, pool)
        )
        block = self.module.parent(up) if isinstance(up, cst.WithItem) else None
        scope = block or self.module.scope_of(pool)
        return [
            call
            for call in descendants(scope)
            if isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value in _MAPS
            and name
            and dotted(call.func.value) == name
        ]

    def _cuda_in(self, target: cst.BaseExpression | None, at: cst.Call) -> str:
        """What of the target uses CUDA, in words; '' when nothing does or the target is unknown."""
        facts, project = self.module.facts, self.module.project
        name = dotted(target)
        if not name or facts is None or project is None:
            return ""
        cls, own = self.module.class_of(at), of_self(name)
        method = project.classes.method(self.module.name_of(cls), own) if cls is not None and own else None
        owner, node = (method[0].module, method[1]) if method is not None else (facts, facts.definitions.get(name))
        if node is None:
            owner, node = project.meanings.definition(self.module.meaning(name)) or (owner, None)
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return ""
        place = uses_cuda(project, owner, node)
        return f"`{name}` uses CUDA ({owner.file.path}:{getattr(place, 'lineno', node.lineno)})" if place else ""

    def _parent_uses_cuda(self, node: cst.Call) -> bool:
        """Whether the process that starts the worker is seen to use a GPU: the function uses CUDA itself, or what runs
        before (in the file, and above the calls of the function) uses it or asks for it."""
        facts, project, function = self.module.facts, self.module.project, self.module.function_of(node)
        if facts is None or project is None:
            return False
        line = self.module.span(node).line
        own = function_at(facts.tree, line)
        if own is not None and any(uses_cuda(project, facts, part) for part in _in_one_run(own, line)):
            return True
        sites = call_sites(self.module, function) if function is not None and self.module.class_of(node) is None else ()
        lines = [(facts, line), *((site.facts, site.node.lineno) for site in sites[:_CALLERS])]
        before = [(each, s) for each, at in lines for s in runs_before(each.tree, at)]
        asked = Initialiser(project, asks_driver)
        return any(
            asked.of(each, s) or (not isinstance(s, _DEFINITIONS) and uses_cuda(project, each, s)) for each, s in before
        )

    def _report(self, node: cst.Call, place: str, sure: Confidence | None) -> None:
        self.report(
            node,
            f"{place} in a forked worker: it fails if this rank has used CUDA before",
            notes=[
                "the worker raises 'Cannot re-initialize CUDA in forked subprocess', and the other ranks wait for it"
            ],
            help='start it with get_context("spawn"), or torch.multiprocessing.spawn',
            confidence=sure,
            fix=self._fix(node),
        )

    def _fix(self, node: cst.Call) -> Fix | None:
        func = node.func
        if not isinstance(func, cst.Attribute) or self.module.qualified(func.value) not in _PACKAGES:
            return None
        text = f'{self.module.code(func.value)}.get_context("spawn")'
        return Fix("spawn the worker", Applicability.UNSAFE, (replace(self.module, func.value, text),))

    # ---- tensors handed to a pool

    def _visit_arguments(self, pool: cst.Call, forks: bool) -> None:
        """Tensors that were detached but not brought to the CPU, in the arguments of a map method."""
        if not self.module.file.holds("cuda") and not self.module.file.holds(".cpu()"):
            return
        for call in self._map_calls(pool):
            origin = self._tensor_origin(call.args[1].value) if len(call.args) > 1 else None
            if origin is not None:
                outcome = (
                    "fails with 'Cannot re-initialize CUDA in forked subprocess'" if forks else "opens a CUDA context"
                )
                self.report(
                    call,
                    "tensors go to a pool without `.cpu()`: if they are on a GPU, the workers fail to unpickle them",
                    notes=[f"if they are on a GPU, each worker {outcome} when it unpickles them"],
                    labels=[(origin, "detached, but still on its device")],
                    help="pass .cpu() copies or NumPy arrays",
                )
                return

    def _tensor_origin(self, given: cst.BaseExpression) -> cst.CSTNode | None:
        scope = self.module.scope_of(given)
        names, seen = names_in(given), set[str]()
        while names - seen:
            name = (names - seen).pop()
            seen.add(name)
            for value in self._put_into(name, scope):
                text = self.module.code(value)
                if ".cpu()" in text or ".numpy()" in text:
                    return None
                if re.search(r"\.detach\(\)", text):
                    return value
                names |= {dotted(n) for n in subtree(value) if isinstance(n, cst.Name)} - {""}
        return None

    def _put_into(self, name: str, scope: cst.CSTNode) -> list[cst.BaseExpression]:
        values = self.module.assignments(name, scope.body if isinstance(scope, cst.FunctionDef) else scope)
        return values + [call.args[0].value for call in appends(scope) if call.args and dotted(receiver(call)) == name]

    # ---- managers

    def _is_forked_manager(self, node: cst.Call) -> bool:
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "Manager":
            return False
        return any(
            isinstance(maker, cst.Call)
            and self.module.qualified(maker.func).endswith("multiprocessing.get_context")
            and bool(maker.args)
            and self.module.code(maker.args[0].value).strip("\"'") == "fork"
            for maker in (func.value, *self.module.assignments(func.value))
        )

    def _report_manager(self, node: cst.Call) -> None:
        evidence = several_ranks(self.module)
        if evidence is not None:
            self.report(
                node,
                "a manager process is forked from each rank, with its CUDA context, sockets and held locks",
                notes=["it hangs or crashes when they are used"],
                labels=[(evidence.span, evidence.text)],
                help='get_context("spawn").Manager()',
            )


def _in_one_run(function: FunctionNode, line: int) -> Iterator[ast.AST]:
    """The parts of a function that a run which comes by a line may come by: not those in the other arms of the `if`s
    around it."""
    around = blocks_at(function, line)
    branches = [block for block in around if isinstance(block, ast.If)]
    others = [s for b in branches for s in (b.body if any(each in around for each in b.orelse) else b.orelse)]
    stack: list[ast.AST] = [*function.body]
    while stack:
        part = stack.pop()
        if part in around:
            stack += [each for each in ast.iter_child_nodes(part) if each not in others]
        else:
            yield part
