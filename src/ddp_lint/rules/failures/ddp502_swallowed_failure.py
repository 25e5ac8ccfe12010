from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix, Span
from ddp_lint.knowledge import table
from ddp_lint.launch.callers import calls_in_file
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.joining import spawns_inside
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import has_ranks, several_ranks
from ddp_lint.project.uses import uses
from ddp_lint.rules.base import Rule
from ddp_lint.rules.failures.exit_methods import EXITS, drops_each_failure
from ddp_lint.rules.failures.failure_handling import caught, does_work, exits_with_success, is_log, only_logs
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.queries import calls_in, enclosing, last_name, statements
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import descendants, subtree


class SwallowedFailure(Rule):
    """A failure of training is caught and printed only: the process continues or ends with status 0.

    ## What it does

    Finds `except Exception:` (or bare, or `BaseException`, `RuntimeError`) around the call that trains or launches
    training, whose body only prints, logs or passes, if no later code reports the failure, or returns a status that
    the only caller drops; also around one training step in a loop of code that several ranks run;
    `except BaseException` that only prints; and such a handler around the `yield` of a context manager, which drops
    the failure of every `with` block that uses it, as does an `__exit__` that returns True without a look at the
    exception.

    ## Why it breaks

    When rank 1 raises, its handler prints and the rank ends with status 0, or continues with the next step. Rank 0 is
    in an all_reduce that rank 1 never enters: it waits until the watchdog ends it, and is blamed. Measured: with
    `except: pass` on rank 1 NCCL ends after 26 s and blames rank 0, gloo reports success; on all ranks both report
    success. Around `torch.multiprocessing.spawn` no rank hangs, but the job counts as a success.

    ## Example

    ```python
    import torch.distributed as dist


    def train():
        dist.init_process_group("gloo")
        raise RuntimeError("the data loader is broken")


    if __name__ == "__main__":
        try:
            train()
        except Exception as error:  # <- DDP502
            print(f"training failed: {error}")
    ```

    ## Use instead

    ```python
    import torch.distributed as dist


    def train():
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()


    if __name__ == "__main__":
        try:
            train()
        except Exception as error:
            print(f"training failed: {error}")
            raise
    ```

    ## When it is silent

    A handler that raises, exits with a status, returns or stores something that reports the failure, or calls anything
    but print and log; handlers of one particular error (`FileNotFoundError`); a `try` without a training or launching
    call, or one that rank 0 alone comes to; a `main()` or a context manager in a file without evidence of several
    ranks; a context manager that every `with` of the project puts around imports alone, or that hands the exception to
    a function which its users give it (`on_error(error)`); an `__exit__` that asks for the exception, or returns it.
    Only with `--preview`: a project without evidence of several ranks.

    ## How to confirm

    `ddp-lint verify train.py`: a rank caught an exception and ended with status 0, or its peers stall.

    ## Fix safety

    Unsafe: adding `raise` ends runs that used to continue.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/errors.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "BaseException",
        "contextmanager",
        "asynccontextmanager",
        *EXITS,
        *table("failures")["work"],
        *table("failures")["starters"],
        *table("failures")["entries"],
        tests=False,
    )
    oracles = ("exit", "stall", "exception")

    def visit_Try(self, node: cst.Try) -> None:
        for handler in node.handlers:
            if self._drops_failure_of_with(node, handler):
                function = self.module.function_of(node)
                if several_ranks(self.module) is not None and not self._is_around_imports(function):
                    self._report_context_manager(node, handler)
                continue
            unread = self._unread_status(node, handler)
            if (
                not (only_logs(handler.body) or unread is not None)
                or not self._is_broad(handler)
                or (node.finalbody is not None and self._raises(node.finalbody))
            ):
                continue
            work = next((call for call in calls_in(node.body) if does_work(self.module, call)), None)
            if work is not None and on_one_rank(self.module, node):
                continue  # the others do not take part in it
            if work is not None and unread is not None:
                self._report(handler, work, "ends with status 0", unread)
            elif work is not None and self._ends_here(node, handler):
                if self._spawns(work):
                    self._report_parent(handler, work)
                else:
                    self._report(handler, work, "continues as after a success and ends with status 0")
            elif work is not None and self._is_step(node, work) and several_ranks(self.module) is not None:
                if as_one_process(self.module, node):
                    continue
                self._report(handler, work, "continues with the next step")
            elif "BaseException" in caught(handler):
                self._report_interrupts(handler)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        returned = drops_each_failure(node)
        around = (up for up in self.module.ancestors(node) if isinstance(up, (cst.ClassDef, cst.FunctionDef)))
        owner = next(around, None) if returned is not None else None
        if returned is None or not isinstance(owner, cst.ClassDef) or several_ranks(self.module) is None:
            return
        if self._is_around_imports(owner):
            return
        self.report(
            returned,
            "this `__exit__` drops each failure: the rank continues, and the others hang in what it skipped",
            notes=[
                "True says that the exception is dealt with: rank 1 continues after the `with` block, and rank 0 waits "
                "in a collective that rank 1 never enters"
            ],
            labels=[(owner.name, "the failures of the `with` blocks and functions of this end here")],
            help="return False, or nothing",
            fix=self._return_nothing(returned),
        )

    def _return_nothing(self, returned: cst.Return) -> Fix | None:
        if returned.value is None:
            return None
        edit = Edit(self.module.span(returned.value), "False")
        return Fix("raise the exception again", Applicability.UNSAFE, (edit,))

    def _drops_failure_of_with(self, node: cst.Try, handler: cst.ExceptHandler) -> bool:
        """Whether the `try` holds the `yield` of a context manager and the handler drops the `with` block's failure."""
        function = self.module.function_of(node)
        if function is None or not any(_is_context_manager(d.decorator) for d in function.decorators):
            return False
        known = table("failures")
        if set(caught(handler)).isdisjoint((*known["broad_exceptions"], *known["fatal_exceptions"])):
            return False
        inside = list(descendants(handler.body, into_definitions=False))
        yields = [n for n in descendants(function.body, into_definitions=False) if isinstance(n, cst.Yield)]
        here = [n for n in yields if any(n is below for below in descendants(node.body))]
        after = yields[yields.index(here[-1]) + 1 :] if here else yields
        return (
            bool(here)
            and not any(isinstance(n, cst.Assert) for n in inside)
            and not self._reports_failure(handler.body)
            and not _hands_on(handler, function)
            and not any(not exclusive(self.module, here[-1], later) for later in after)
        )

    def _is_around_imports(self, manager: cst.FunctionDef | cst.ClassDef | None) -> bool:
        """Whether each `with` of the project that uses the context manager only imports: whoever skips that waits for
        nobody, and nobody for it."""
        project, found = self.module.project, False
        if manager is None or project is None:
            return False
        name, word = self.module.name_of(manager), manager.name.value
        for path in project.contents.holding(word):
            facts = project.modules.facts_of(path)
            if facts is None or facts.source.is_test:
                continue
            meant = {use.call for use in uses(facts, word) if project.meanings.of(facts, use.node) == name}
            if meant and not meant <= _around_imports(facts.tree):
                return False
            found = found or bool(meant)
        return found

    def _report_context_manager(self, node: cst.Try, handler: cst.ExceptHandler) -> None:
        place = next(n for n in descendants(node.body, into_definitions=False) if isinstance(n, cst.Yield))
        kind = " or ".join(k or "any exception" for k in caught(handler))
        self.report(
            self._head(handler),
            "this context manager drops a failure: the rank continues, and the others hang in what it skipped",
            notes=[
                f"the failure ({kind}) of a `with` block ends here: rank 1 continues after the block, "
                "and rank 0 waits in a collective that rank 1 never enters"
            ],
            labels=[(place, "the body of the `with` runs here")],
            help="re-raise at the end of the handler",
            fix=self._raise_again(handler),
        )

    def _is_broad(self, handler: cst.ExceptHandler) -> bool:
        return any(kind in table("failures")["broad_exceptions"] for kind in caught(handler))

    def _raises(self, block: cst.Finally) -> bool:
        return any(isinstance(n, cst.Raise) for n in descendants(block))

    def _ends_here(self, node: cst.CSTNode, handler: cst.ExceptHandler) -> bool:
        """Whether a statement is what a script or a `main` ends with: nothing after it says that a failure happened."""
        function = self.module.function_of(node)
        if function is not None and function.name.value not in _ENTRIES and not _is_entry(function.name.value):
            return False
        if any(isinstance(a, (cst.For, cst.While)) for a in self.module.ancestors(node)):
            return False
        return not any(self._reports_failure(later, handler) for later in self._later(node))

    def _later(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The statements after one in its own and the enclosing blocks, up to the function."""
        below: cst.CSTNode = node
        for up in self.module.ancestors(node):
            if isinstance(up, cst.BaseSuite | cst.Module):
                yield from self.module.following(below)
            if isinstance(up, cst.FunctionDef):
                return
            below = up

    def _reports_failure(self, statement: cst.CSTNode, dropped: cst.ExceptHandler | None = None) -> bool:
        """Whether a statement raises or exits; `dropped`: with another status than 0, behind that handler."""
        for node in subtree(statement):
            if isinstance(node, cst.Raise):
                return True
            if isinstance(node, cst.Call) and last_name(node.func) in ("exit", "_exit"):
                return dropped is None or not self._succeeds(node, dropped)
        return False

    def _succeeds(self, node: cst.Call, dropped: cst.ExceptHandler) -> bool:
        """Whether an exit has status 0 behind a handler: of a name, nothing but 0 is assigned outside of others."""
        if exits_with_success(self.module, node):
            return True
        status = node.args[0].value if node.args else None
        bound = self.module.bindings(status) if isinstance(status, cst.Name) else []
        handlers = (enclosing(self.module, each.node, cst.ExceptHandler) for each in bound)
        reached = [each for each, around in zip(bound, handlers, strict=True) if around in (None, dropped)]
        return bool(reached) and all(b.kind == "assign" and self.module.code(b.value or b.node) == "0" for b in reached)

    def _is_step(self, node: cst.Try, work: cst.Call) -> bool:
        """Whether the `try` holds the backward pass of one step of a loop."""
        return last_name(work.func) == "backward" and any(
            isinstance(a, (cst.For, cst.While)) for a in self.module.ancestors(node)
        )

    def _unread_status(self, node: cst.Try, handler: cst.ExceptHandler) -> cst.Call | None:
        """The call that drops what a handler returns behind its message, ``return 1``: the only one of the function,
        and what the script ends with."""
        body = [*statements(handler.body)]
        function = self.module.function_of(node)
        last = body[-1] if body and all(map(is_log, body[:-1])) else None
        if not isinstance(last, cst.Return) or function is None:
            return None
        calls = calls_in_file(self.module, function) if isinstance(last.value, (cst.Integer, cst.Name)) else ()
        statement = self.module.parent(calls[0]) if len(calls) == 1 else None
        return calls[0] if isinstance(statement, cst.Expr) and self._ends_here(statement, handler) else None

    def _report(self, handler: cst.ExceptHandler, work: cst.Call, what: str, unread: cst.Call | None = None) -> None:
        dropped = [(unread, "what the handler returns is dropped here")] if unread is not None else []
        kind = " or ".join(k or "any exception" for k in caught(handler))
        self.report(
            self._head(handler),
            f"when {self.module.quoted(work.func)} fails, this handler lets the rank continue while the "
            "others hang in a collective",
            notes=[
                f"when it fails on rank 1, the handler only logs it and the rank {what}; rank 0 waits in a "
                "collective that rank 1 never enters"
            ],
            labels=[(work, f"a failure in here ({kind}) is dropped"), *dropped],
            help="re-raise after the message, or exit with a status other than 0",
            confidence=Confidence.MEDIUM if self._runs_on_ranks(handler) else Confidence.LOW,
            fix=self._raise_again(handler) if unread is None else None,
        )

    def _spawns(self, work: cst.Call) -> bool:
        """Whether a call is of a function that spawns the ranks and waits for them."""
        helper, project = helper_of(self.module, work), self.module.project
        return helper is not None and project is not None and spawns_inside(helper.facts, project, helper.function)

    def _report_parent(self, handler: cst.ExceptHandler, work: cst.Call) -> None:
        self.report(
            self._head(handler),
            f"when {self.module.quoted(work.func)} fails, this handler ends the program with status 0: "
            "the job counts as a success",
            notes=["the failure of a rank ends the others and is raised here, in the process that started them"],
            labels=[(work, "a failure of a rank is raised by this call")],
            help="re-raise after the message, or exit with a status other than 0",
            fix=self._raise_again(handler),
        )

    def _runs_on_ranks(self, handler: cst.ExceptHandler) -> bool:
        """Whether several ranks may come by: what a script does at its top level only the ranks of this file do."""
        if self.module.function_of(handler) is None:
            return several_ranks(self.module) is not None
        return has_ranks(self.module)

    def _report_interrupts(self, handler: cst.ExceptHandler) -> None:
        self.report(
            self._head(handler),
            "`except BaseException` that only logs also catches SystemExit: a rank that should stop continues",
            help="catch Exception, or re-raise",
            confidence=Confidence.LOW,
        )

    def _head(self, handler: cst.ExceptHandler) -> Span:
        span = self.module.span(handler)
        line = self.module.file.lines[span.line - 1]
        return Span(span.path, span.line, span.column, span.line, len(line.rstrip()) + 1)

    def _raise_again(self, handler: cst.ExceptHandler) -> Fix | None:
        last = list(statements(handler.body))[-1]
        span = self.module.span(last)
        if not isinstance(handler.body, cst.IndentedBlock):
            return None
        if isinstance(last, cst.Pass):
            edit = Edit(span, "raise")
        else:
            end = Span(span.path, span.end_line, span.end_column, span.end_line, span.end_column)
            edit = Edit(end, "\n" + " " * (span.column - 1) + "raise")
        return Fix("raise the exception again", Applicability.UNSAFE, (edit,))


def _around_imports(tree: ast.Module) -> set[ast.expr | None]:
    """The managers of the `with` statements that only import."""
    blocks = (node for node in walk(tree) if isinstance(node, ast.With) and all(map(_imports, node.body)))
    return {item.context_expr for block in blocks for item in block.items}


def _imports(statement: ast.stmt) -> bool:
    """An import, or a flag behind one that says that it worked: ``HAS_APEX = True``."""
    flag = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    return flag or isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass))


def _hands_on(handler: cst.ExceptHandler, function: cst.FunctionDef) -> bool:
    """Whether a handler gives the exception to a function that the callers of the one around choose: what becomes of it
    they decide, ``on_error(error)``."""
    caught_as = handler.name.name if handler.name is not None else None
    if not isinstance(caught_as, cst.Name):
        return False
    given = {p.name.value for p in (*function.params.params, *function.params.kwonly_params)}
    calls = (call for call in calls_in(handler.body) if isinstance(call.func, cst.Name) and call.func.value in given)
    return any(isinstance(a.value, cst.Name) and a.value.value == caught_as.value for c in calls for a in c.args)


def _is_context_manager(decorator: cst.BaseExpression) -> bool:
    return last_name(decorator) in ("contextmanager", "asynccontextmanager")


_ENTRIES = ("main", "run", "train", "launch", "fit", "worker", "entry", "cli", "start", "execute")


def _is_entry(name: str) -> bool:
    """`run_training`, `train_worker`, `launch_job` and the like; not ``on_before_train_loop``."""
    words = name.strip("_").split("_")
    return words[0] in _ENTRIES or words[-1] in _ENTRIES
