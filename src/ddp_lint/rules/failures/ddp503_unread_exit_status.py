from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Finding, Fix
from ddp_lint.launch.piped import SCRIPTS, piped
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.failures.failure_handling import caught, exits_with_success, is_log, only_logs, starts_ranks
from ddp_lint.rules.failures.one_result import puts_one
from ddp_lint.rules.failures.own_rank import is_rank_beside
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import SourceFile, dotted
from ddp_lint.source.control_flow import conditions, exits, holding, raises
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import appends, calls_in, last_name, literal_text, methods, receiver, returned_values
from ddp_lint.source.syntax import FunctionNode, calls_below, positional, walk
from ddp_lint.source.tree import called, descendants, method_of, names_in, parameters_of, subtree
from ddp_lint.view import Module
from ddp_lint.view.edits import add_argument
from ddp_lint.view.wraps import argument, assigned_name

_PROCESSES = ("multiprocessing.Process", "torch.multiprocessing.Process", "multiprocessing.context.Process")
_CONTEXTS = ("multiprocessing.get_context", "torch.multiprocessing.get_context")
_COMMANDS = ("subprocess.run", "subprocess.call", "os.system", "subprocess.Popen")
#: Commands that raise where the status is not 0.
_CHECKED = ("subprocess.check_call", "subprocess.check_output")
_RAISED = frozenset({"CalledProcessError", "SubprocessError", "Exception", "BaseException", ""})
#: What tells a process which rank it is.
_RANK = re.compile(r"\b(RANK|LOCAL_RANK|WORLD_SIZE)\b")
_RANK_OPTION = re.compile(r"--(local|node|global)?[_-]?rank\b")
#: What a shell does not wait for, also one that another shell starts.
_BACKGROUND = re.compile(r"[^&]&\s*[\"')]*\s*$")
_STATUS = re.compile(r"\b(returncode|exitcode|exit_code|sentinel|check_returncode)\b")
_SHARED = ("list", "dict", "Queue", "SimpleQueue", "Array", "Value", "Namespace")
_BY_PLACE = ("dict", "Array")
#: What makes a collection of its own of what a manager passes.
_COPIES = ("list", "tuple", "dict", "set", "sorted")
#: What asks whether a file is there, what it holds, or which files there are.
_ASKS_FOR_FILES = frozenset(
    {"exists", "isfile", "isdir", "is_file", "is_dir", "getsize", "stat", "listdir", "iterdir", "glob", "rglob"}
)
#: What looks at the status of a command in a shell script.
_READERS = {"errexit": "`set -e`", "test": "the test", "next": "the command behind it", "status": "`$?`"}
_REPORTS_STATUS = re.compile(
    r"\bput(_nowait)?\([^\n]*(exc|err|traceback|fail)|\bset_exception\b|\.send\([^\n]*(exc|err)", re.IGNORECASE
)


class UnreadExitStatus(Rule):
    """The exit status of a worker or a launched job is never read, so its failure is not noticed.

    ## What it does

    Finds processes that are joined without any read of their `exitcode`; commands that start ranks (torchrun,
    accelerate, deepspeed, mpirun) whose status is dropped, or tested and then only printed, as is the exception of
    `check=True`; and threads whose target runs `subprocess.check_call` or `sys.exit`, which end only the thread. In
    shell scripts: such a command whose output goes to `tee` where the script looks at the status, by `set -e`, `&&`,
    `if` or `$?`, without `set -o pipefail`.

    ## Why it breaks

    `Process.join()` returns normally for any status of the worker, and an exception in a thread ends only that thread.
    Rank 1 runs out of memory, the watchdog ends rank 0, and the parent evaluates an old checkpoint and ends with 0: CI
    is green and the scheduler starts the next job. Measured: an exception or `sys.exit(3)` in a thread leaves status
    0. The status of a pipe is that of its last command, and `tee` has written the log all the same: in
    `torchrun train.py 2>&1 | tee train.log` a rank that raises leaves status 0, and `set -e` goes on to the line that
    publishes the model. Measured with bash 5 and torch 2.13: status 1 without the pipe, 0 with it.

    ## Example

    ```python
    import multiprocessing


    def worker(rank):
        raise RuntimeError(f"rank {rank} failed")


    if __name__ == "__main__":
        process = multiprocessing.Process(target=worker, args=(0,))
        process.start()
        process.join()  # <- DDP503
        print("training finished")
    ```

    ## Use instead

    ```python
    import multiprocessing
    import sys


    def worker(rank):
        print(f"rank {rank} worked")


    if __name__ == "__main__":
        process = multiprocessing.Process(target=worker, args=(0,))
        process.start()
        process.join()
        if process.exitcode != 0:
            sys.exit(f"worker failed with status {process.exitcode}")
    ```

    `torch.multiprocessing.spawn(..., join=True)` raises in the parent when a worker fails; so does
    `subprocess.run(..., check=True)`.

    ## When it is silent

    Files that read `exitcode`, `returncode` or `sentinel` anywhere, or whose workers send their exceptions through a
    queue, or their results through a queue in whose `get()` the parent waits, or whose `get_nowait()` raises where none
    is; a `Process()` without a target, which runs nothing; daemon processes; commands other than launchers, background
    commands of a shell, and `check=False`; statuses that are returned, raised or used as exit status; a parent that
    checks right behind a join or a command whether the files that it leaves are there; an object whose other method
    raises where a file is missing in the folder that it gives the worker; a function that a caller gives, in a project
    that raises where a worker has left no result in its queue; a parent that checks after the join whether the results
    have arrived, also in a copy (`found = list(results)`, `if len(found) == 0`), reads them by index from a shared
    dictionary or array, takes the one result of its one worker out of a shared list that is empty without it
    (`results[0]`), or reads a shared number (`result.value`); a parent that communicates with its workers through
    pipes and waits for each answer, or that is a rank of their process group (`Process(target=Runner, args=(rank,))`
    beside `Runner(0)`), where a dead worker fails its next collective. Scripts with `pipefail` or `PIPESTATUS` anywhere
    (one that reads another script, which may turn it on, is of low confidence), commands in the background or before
    `|| true`, and scripts that look at no status at all.

    ## How to confirm

    `ddp-lint verify train.py`: a child ends with a status other than 0 and the script with 0.

    ## Fix safety

    Unsafe, only for `subprocess.run`: `check=True` raises where the script used to continue.

    ## References

    - https://docs.python.org/3/library/multiprocessing.html#multiprocessing.Process.exitcode
    - https://docs.python.org/3/library/subprocess.html#subprocess.CompletedProcess.check_returncode
    """

    confidence = Confidence.MEDIUM
    in_tests_too = True
    of_small_harm = True
    triggers = Triggers(
        "Process",
        "Popen",
        "Thread",
        "check_call",
        "check_output",
        "poll",
        "returncode",
        *(c.rpartition(".")[2] for c in _COMMANDS),
        file=("Process", "subprocess", "Thread", "os.system"),  # "system" alone is a role in chats
    )
    oracles = ("exit",)
    files = SCRIPTS

    @classmethod
    def in_text(cls, file: SourceFile) -> Iterator[Finding]:
        for found in piped(file):
            yield cls.finding(
                found.span,
                f"the exit status here is that of `tee`, so that {_READERS[found.reader]} sees no failure",
                help="`set -o pipefail` at the top of the script, or test `${PIPESTATUS[0]}`",
                confidence=None if found.sure else Confidence.LOW,
            )

    def start(self) -> None:
        self._reported: set[cst.Call] = set()
        self._reads_status = self.module.file.shows(_STATUS)

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name in _PROCESSES or self._is_context_process(node):
            self._visit_process(node)
        elif name == "threading.Thread":
            self._visit_thread(node)
        elif name in _CHECKED or (name in _COMMANDS and dotted(argument(node, None, "check")) == "True"):
            self._visit_checked(node)
        elif name in _COMMANDS:
            self._visit_command(node, name)

    # ---- processes

    def _is_context_process(self, node: cst.Call) -> bool:
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "Process":
            return False
        makers = [func.value, *self.module.assignments(func.value)]
        return any(isinstance(m, cst.Call) and self.module.qualified(m.func) in _CONTEXTS for m in makers)

    def _visit_process(self, node: cst.Call) -> None:
        if (
            self._reads_status
            or self.module.file.shows(_REPORTS_STATUS)
            or self._is_daemon(node)
            or self._answers(node)
            or not node.args  # without a target it runs nothing that can fail
        ):
            return
        joined, started = (self._next_call_on(node, method) for method in ("join", "start"))
        if joined is not None and joined not in self._reported and not self._is_looked_at(node, joined):
            self._reported.add(joined)
            self.report(
                joined,
                "a worker that raised or was killed is not noticed: no code reads its `exitcode` after join()",
                labels=[(started, "the worker starts here")] if started is not None else [],
                help="after join(), raise when exitcode is not 0; or use torch.multiprocessing.spawn, which raises "
                "itself",
            )

    def _answers(self, node: cst.Call) -> bool:
        """Whether the parent sends requests to its workers through pipes, and waits for each answer: it notices a
        death."""
        scope = self.module.class_of(node) or self.module.scope_of(node)
        asks, hears, pipes = (next(methods(scope, name), None) for name in ("send", "recv", "Pipe"))
        made = any(isinstance(n, cst.Call) and last_name(n.func) == "Pipe" for n in descendants(scope))
        return asks is not None and hears is not None and (made or pipes is not None)

    def _is_looked_at(self, node: cst.Call, joined: cst.Call) -> bool:
        """Whether what the worker has done is looked at after the join: ``if not results``, in a test an assertion."""
        if self._is_product_checked(joined) or self._is_product_missed(node) or self._runs_for_others(node):
            return True
        if is_rank_beside(self.module, node):
            return True
        line = self.module.span(joined).line
        scope = self.module.scope_of(joined)
        if any(self._is_ended(call, joined) for name in ("kill", "terminate") for call in methods(scope, name)):
            return True
        later = [n for n in descendants(scope) if isinstance(n, (cst.Name, cst.Assert)) and self._is_below(n, line)]
        if any(isinstance(n, cst.If) and self._is_below(n, line) and _reads_value(n.test) for n in descendants(scope)):
            return True  # a shared number in which the worker leaves how it ended
        handed = argument(node, 3, "args")
        reached = [*(descendants(handed) if handed is not None else ()), *self._target_body(node)]
        shared = {dotted(n) for n in reached if self._is_shared(n)}
        if any(not call.args and self._is_queue(receiver(call)) for call in methods(scope, "get")):
            return True  # the parent reads the workers' results: it waits there for one that died
        if self._waits_for_kept_queue(node):
            return True
        if any(
            dotted(receiver(call)) in shared and self._raises_without(call) for call in methods(scope, "get_nowait")
        ):
            return True  # a worker that died has left no answer, and the missing one raises
        copied = {name for n in later if (name := self._copy_of(n, shared))}
        reads = [n for n in later if isinstance(n, cst.Name) and n.value in shared | copied]
        if self.module.file.is_test:
            return bool(reads) or any(isinstance(n, cst.Assert) or n.value.startswith("assert") for n in later)
        return any(self._is_emptiness_test(n) or self._is_missed(n) or self._is_required(n, node) for n in reads)

    def _is_product_checked(self, node: cst.CSTNode) -> bool:
        """Whether the files that a worker or a command leaves are checked right behind it, and a missing one raises:
        ``assert path.exists()``, ``if len(files) != n: raise``."""
        for statement in _behind(self.module, node):
            tests = list(_raising_tests(statement))
            if any(self._asks_for_files(test) for test in tests):
                return True
            if not tests and not isinstance(statement, (cst.Assign, cst.AnnAssign)) and not is_log(statement):
                return False
        return False

    def _asks_for_files(self, test: cst.BaseExpression) -> bool:
        calls = (n for value in self._values_in(test) for n in subtree(value) if isinstance(n, cst.Call))
        return any(called(call) in _ASKS_FOR_FILES for call in calls)

    def _values_in(self, test: cst.BaseExpression) -> list[cst.BaseExpression]:
        """A test, and what the names in it are assigned."""
        names = [n for n in subtree(test) if isinstance(n, cst.Name)]
        return [test, *(value for name in names for value in self.module.assignments(name))]

    def _is_product_missed(self, node: cst.Call) -> bool:
        """Whether the worker gets the folder that its object keeps, and another method of the object raises where a
        file in it is not there: ``if not os.path.exists(os.path.join(self.folder, name)): raise``."""
        owner, handed = self.module.class_of(node), argument(node, 3, "args")
        if owner is None or handed is None:
            return False
        kept = {name for n in descendants(handed) if (name := dotted(n)).startswith("self.")}
        own, here = dotted(argument(node, 1, "target")), self.module.function_of(node)
        for test in descendants(owner) if kept else ():
            if not isinstance(test, cst.If) or not raises(test.body) or not self._asks_for_files(test.test):
                continue
            function = self.module.function_of(test)
            if function is None or function is here or f"self.{function.name.value}" == own:
                continue
            if any(dotted(n) in kept for value in self._values_in(test.test) for n in subtree(value)):
                return True
        return False

    def _runs_for_others(self, node: cst.Call) -> bool:
        """Whether the worker runs a function with arguments that whoever calls gives both, in a project that reads what
        a worker has left in a queue and raises where that is nothing: ``try: queue.get_nowait()``, ``except Empty:
        raise``."""
        function, project = self.module.function_of(node), self.module.project
        if function is None or project is None:
            return False
        parts = (argument(node, 1, "target"), argument(node, 3, "args"))
        taken = {each.name.value for each in parameters_of(function)} - {"self"}
        given = all(dotted(part).partition(".")[0] in taken for part in parts)
        return given and project.remember(("misses results",), lambda: _misses_results(project))

    def _waits_for_kept_queue(self, node: cst.Call) -> bool:
        """Whether the worker gets a queue that its object keeps, and a method of the object other than the worker's
        own waits for what is in it: ``batch = self.queue.get()``."""
        owner = self.module.class_of(node)
        handed = [arg for each in ((3, "args"), (4, "kwargs")) if (arg := argument(node, *each)) is not None]
        kept = {dotted(n) for arg in handed for n in descendants(arg) if self._is_queue(n)}
        kept = {name for name in kept if name.startswith("self.")}
        if owner is None or not kept:
            return False
        own = dotted(argument(node, 1, "target"))
        return any(
            not call.args and dotted(receiver(call)) in kept and not self._is_in(call, own)
            for call in methods(owner, "get")
        )

    def _is_in(self, call: cst.Call, method: str) -> bool:
        function = self.module.function_of(call)
        return function is not None and f"self.{function.name.value}" == method

    def _target_body(self, node: cst.Call) -> Iterator[cst.CSTNode]:
        """What the worker runs, where it is a function inside the one around: it has the variables of that one."""
        for function in self._inner_targets(node):
            yield from descendants(function.body)

    def _inner_targets(self, node: cst.Call) -> Iterator[cst.FunctionDef]:
        target, scope = argument(node, 1, "target"), self.module.scope_of(node)
        if isinstance(target, cst.Name) and isinstance(scope, cst.FunctionDef):
            inner = (n for n in descendants(scope.body) if isinstance(n, cst.FunctionDef))
            yield from (function for function in inner if function.name.value == target.value)

    def _raises_without(self, call: cst.Call) -> bool:
        """Whether an answer that is not there raises: nobody asks for it before, and no handler goes on without it."""
        asked = any(
            "empty" in {called(n) for n in subtree(test) if isinstance(n, cst.Call)}
            for test in holding(self.module, call)
        )
        return not asked and not self._goes_on_without(call)

    def _goes_on_without(self, node: cst.CSTNode) -> bool:
        """Whether a handler around takes what is raised, and does not raise itself."""
        attempts = (up for up in self.module.ancestors(node) if isinstance(up, cst.Try))
        return any(not raises(handler.body) for attempt in attempts for handler in attempt.handlers)

    def _is_ended(self, call: cst.Call, joined: cst.Call) -> bool:
        """Whether the joined worker is ended on purpose, and not only where ``is_alive()`` shows that it hangs."""
        asked = any("is_alive" in self.module.code(test) for test, _ in conditions(self.module, call))
        return dotted(receiver(call)) == dotted(receiver(joined)) and not asked

    def _is_emptiness_test(self, name: cst.Name) -> bool:
        up = next((a for a in self.module.ancestors(name) if isinstance(a, (cst.BaseSmallStatement, cst.If))), None)
        return isinstance(up, cst.If) and any(n is name for n in subtree(up.test))

    def _copy_of(self, node: cst.CSTNode, shared: set[str]) -> str:
        """The name of a list or dictionary that is made of what the workers share: ``found = list(results)``."""
        call = self.module.parent(self.module.parent(node) or node)
        is_copied = isinstance(node, cst.Name) and node.value in shared and isinstance(call, cst.Call)
        if not is_copied or not isinstance(call, cst.Call) or dotted(call.func) not in _COPIES or len(call.args) != 1:
            return ""
        name = assigned_name(self.module, call)
        return name if name.isidentifier() and len(self.module.assignments(name, call)) == 1 else ""

    def _is_missed(self, name: cst.Name) -> bool:
        """Whether it is one result of each worker by its place, which a dead worker leaves missing or as it was."""
        up = self.module.parent(name)
        by_place = any(
            isinstance(maker, cst.Call) and last_name(maker.func) in _BY_PLACE
            for maker in self.module.assignments(name)
        )
        return by_place and isinstance(up, cst.Subscript) and up.value is name

    def _is_required(self, name: cst.Name, node: cst.Call) -> bool:
        """Whether it is the one result of the one worker, in a list that is empty at first, which raises where the
        worker has put nothing there: ``results = manager.list()``, ``return results[0]``."""
        up, makers = self.module.parent(name), self.module.assignments(name)
        if not isinstance(up, cst.Subscript) or up.value is not name or not _is_number(up):
            return False
        if isinstance(self.module.parent(up), (cst.AssignTarget, cst.AugAssign)) or self._goes_on_without(up):
            return False
        empty = all(isinstance(m, cst.Call) and last_name(m.func) == "list" and not m.args for m in makers)
        always = all("is_alive" in self.module.code(test) for test, _ in conditions(self.module, up))
        return empty and always and self._is_only_worker(node) and self._puts_one_result(node, name.value)

    def _is_only_worker(self, node: cst.Call) -> bool:
        scope = self.module.scope_of(node)
        made = [n for n in descendants(scope) if isinstance(n, cst.Call) and last_name(n.func) == "Process"]
        return len(made) == 1 and not self._is_repeated(node)

    def _is_repeated(self, node: cst.CSTNode) -> bool:
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return False
            if isinstance(up, (cst.For, cst.While, cst.BaseComp)):
                return True
        return False

    def _puts_one_result(self, node: cst.Call, name: str) -> bool:
        """Whether the worker runs a function of this file that puts one thing into a list of the parent."""
        target, handed, facts = argument(node, 1, "target"), argument(node, 3, "args"), self.module.facts
        if not isinstance(target, cst.Name) or facts is None:
            return False
        named = [n for n in walk(facts.tree) if isinstance(n, FunctionNode) and n.name == target.value]
        if len(named) != 1 or next(self._inner_targets(node), None) is not None:
            return len(named) == 1 and puts_one(named[0], name)
        given = [dotted(each.value) for each in handed.elements] if isinstance(handed, (cst.Tuple, cst.List)) else []
        taken = positional(named[0])[given.index(name) :] if name in given else []
        return bool(taken) and puts_one(named[0], taken[0].arg)

    def _is_below(self, node: cst.CSTNode, line: int) -> bool:
        return self.module.span(node).line > line

    def _is_shared(self, node: cst.CSTNode) -> bool:
        """Whether a name refers to what a manager or queue passes between processes: ``manager.list()``."""
        return isinstance(node, cst.Name) and any(
            isinstance(maker, cst.Call) and last_name(maker.func) in _SHARED for maker in self.module.assignments(node)
        )

    def _is_queue(self, node: cst.CSTNode | None) -> bool:
        makers = self.module.assignments(node) if isinstance(node, (cst.Name, cst.Attribute)) else []
        return any(isinstance(maker, cst.Call) and last_name(maker.func).endswith("Queue") for maker in makers)

    def _is_daemon(self, node: cst.Call) -> bool:
        name = assigned_name(self.module, node)
        daemon = dotted(argument(node, None, "daemon")) == "True"
        return daemon or bool(name and re.search(rf"\b{re.escape(name)}\.daemon *= *True", self.module.file.code))

    def _next_call_on(self, node: cst.Call, method: str) -> cst.Call | None:
        """The first call of the method below, where several processes have one name in turn; else the first at all."""
        calls, line = list(self._calls_on(node, method)), self.module.span(node).line
        return next((call for call in calls if self._is_below(call, line)), calls[0] if calls else None)

    def _calls_on(self, node: cst.Call, method: str) -> Iterator[cst.Call]:
        """The calls of a method of the process: by its name, or by one that iterates over the list it is put in."""
        scope = self.module.class_of(node) or self.module.scope_of(node)
        names = set(self._names_of(node))
        for loop in descendants(scope):
            if isinstance(loop, cst.For) and any(dotted(part) in names - {""} for part in subtree(loop.iter)):
                names |= names_in(loop.target)
        for call in methods(scope, method):
            if dotted(receiver(call)) in names - {""}:
                yield call

    def _names_of(self, node: cst.Call) -> Iterator[str]:
        name = assigned_name(self.module, node)
        for up in self.module.ancestors(node):
            if isinstance(up, (cst.ListComp, cst.List)) and not name:
                name = assigned_name(self.module, up)
            if isinstance(up, cst.Call) and last_name(up.func) == "append" and isinstance(up.func, cst.Attribute):
                yield dotted(up.func.value)
            if isinstance(up, cst.BaseStatement):
                break
        if name:
            yield name
            yield from self._lists_of(name, node)

    def _lists_of(self, name: str, node: cst.Call) -> Iterator[str]:
        for call in appends(self.module.scope_of(node)):
            if call.args and dotted(call.args[0].value) == name:
                yield dotted(receiver(call))

    # ---- threads

    def _visit_thread(self, node: cst.Call) -> None:
        target = argument(node, 1, "target")
        definition = (
            next((b.node for b in self.module.bindings(target) if b.kind == "function"), None) if target else None
        )
        if not isinstance(definition, cst.FunctionDef):
            return
        for call in calls_in(definition.body):
            if self._fails_alone(call) and not any(isinstance(a, cst.Try) for a in self.module.ancestors(call)):
                self.report(
                    call,
                    "a failure in this thread ends only the thread: the launcher exits 0 although a rank failed",
                    labels=[(node, "the thread is started here")],
                    help="keep the status or the exception, and raise it in the main thread after join(); or use "
                    "concurrent.futures, whose result() raises",
                )
                return

    def _fails_alone(self, call: cst.Call) -> bool:
        name = self.module.qualified(call.func)
        checked = name == "subprocess.run" and dotted(argument(call, None, "check")) == "True"
        fails = name == "sys.exit" and not exits_with_success(self.module, call)
        return fails or checked or name in ("subprocess.check_call", "subprocess.check_output")

    # ---- commands that start ranks

    def _visit_command(self, node: cst.Call, name: str) -> None:
        if not self._starts_ranks(node):
            return
        if name == "subprocess.Popen":
            self._visit_started(node)
            return
        if not self._is_dropped(node) or self._in_background(node) or self._is_product_checked(node):
            return
        if argument(node, None, "check") is not None:  # `check=False` says that the status is not wanted
            return
        fix = None
        if name == "subprocess.run":
            fix = Fix("raise when it fails", Applicability.UNSAFE, (add_argument(self.module, node, "check", "True"),))
        self.report(
            node,
            "the exit status of the launched ranks is dropped: this script ends with 0 although a rank failed",
            help="check=True raises when a rank failed; or exit with the status",
            confidence=Confidence.HIGH,
            fix=fix,
        )

    def _visit_checked(self, node: cst.Call) -> None:
        """A launch that raises when a rank fails, in a `try` that only logs it."""
        handler = self._handler_of(node) if self._starts_ranks(node) and not self.module.file.is_test else None
        function = self.module.function_of(node)
        if handler is None or not only_logs(handler.body) or (function is not None and returned_values(function)):
            return
        self.report(
            handler,
            "the failure of the launched ranks is only printed: this script ends with 0 although a rank failed",
            labels=[(node, "the ranks are started here")],
            help="raise again behind the message, or exit with the status",
        )

    def _handler_of(self, node: cst.Call) -> cst.ExceptHandler | None:
        """The handler that takes what a checked command raises."""
        below: cst.CSTNode = node
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return None
            if isinstance(up, cst.Try) and below is up.body:
                return next((h for h in up.handlers if not _RAISED.isdisjoint(caught(h))), None)
            below = up
        return None

    def _visit_started(self, node: cst.Call) -> None:
        """A launch in the background whose `wait()` drops the status."""
        waits = [call for method in ("wait", "communicate") for call in self._calls_on(node, method)]
        if self._reads_status or any(self._calls_on(node, "poll")) or not waits:
            return
        if not all(method_of(wait) == "communicate" or self._is_dropped(wait) for wait in waits):
            return
        self.report(
            waits[0],
            "the exit status of the launched ranks is dropped: this script ends with 0 when a rank has failed",
            labels=[(node, "the ranks are started here")],
            help="exit with what wait() returns, or raise when `returncode` is not 0",
        )

    def _is_dropped(self, node: cst.Call) -> bool:
        """Whether nothing takes what a call returns, or only a name that is never read."""
        name = assigned_name(self.module, node)
        if not name.isidentifier():
            return isinstance(self.module.parent(node), cst.Expr)
        mentions = (n for n in descendants(self.module.scope_of(node)) if isinstance(n, cst.Name) and n.value == name)
        return all(isinstance(self.module.parent(n), cst.AssignTarget) for n in mentions)

    def _starts_ranks(self, node: cst.Call) -> bool:
        return any(starts_ranks(text) for text in self._command(node)) or self._gives_rank(node)

    def _gives_rank(self, node: cst.Call) -> bool:
        """Whether the command gets a rank, by an option or in its environment: ``f"--local_rank={i}"``,
        ``env={**os.environ, "RANK": str(i)}``."""
        if any(_RANK_OPTION.search(text) for text in self._command(node)):
            return True
        env = argument(node, None, "env")
        values = [env, *self.module.assignments(env)] if env is not None else []
        return any(_RANK.search(self.module.code(value)) for value in values)

    def _in_background(self, node: cst.Call) -> bool:
        """``os.system("torchrun train.py &")``, or in quotes for another shell: its status is not the ranks'."""
        return any(_BACKGROUND.search(text) for text in self._command(node))

    def _command(self, node: cst.Call) -> Iterator[str]:
        """The literal texts of the command: where it is written, and in what is assigned or added to its name."""
        command = node.args[0].value if node.args else None
        if command is None:
            return
        for part in [command, *self._assigned_above(command), *self._added_to(command)]:
            yield " ".join(literal_text(n) for n in subtree(part))

    def _assigned_above(self, command: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """What the name of a command is assigned before it is run: below, it may be the command of another call."""
        bindings = self.module.bindings(command) if isinstance(command, cst.Name) else ()
        assigned = (b for b in bindings if b.kind == "assign" and not b.index)
        return (b.value for b in assigned if b.value is not None and self.module.scopes.before(b, command))

    def _added_to(self, command: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """``command += " &"``."""
        bindings = self.module.bindings(command)
        return (b.value for b in bindings if b.kind == "augment" and b.value is not None)

    # ---- a status that is only printed

    def visit_If(self, node: cst.If) -> None:
        arm = self._failure_arm(node)
        if arm is None or not only_logs(arm) or self._is_used_later(node):
            return
        if not starts_ranks(self.module.file.code):
            return
        self.report(
            node.test,
            "the exit status of the launched process is only printed: this process ends with 0",
            labels=[(arm, "only reported")],
            help="raise, or exit with the status",
        )

    def _failure_arm(self, node: cst.If) -> cst.BaseSuite | None:
        test = node.test
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return None
        target = test.comparisons[0]
        left = test.left.func if isinstance(test.left, cst.Call) else test.left
        if last_name(left) not in ("returncode", "exitcode", "poll") or self.module.code(target.comparator) != "0":
            return None
        if isinstance(target.operator, cst.NotEqual):
            return node.body
        return (
            node.orelse.body if isinstance(target.operator, cst.Equal) and isinstance(node.orelse, cst.Else) else None
        )

    def _is_used_later(self, node: cst.If) -> bool:
        function = self.module.function_of(node)
        if function is None:
            return True
        inside = {id(n) for n in descendants(node)}
        for other in descendants(function):
            if id(other) in inside:
                continue
            if isinstance(other, cst.Attribute) and other.attr.value in ("returncode", "exitcode"):
                return True
            if isinstance(other, cst.Return) and other.value is not None:
                return True
        return False


def _misses_results(project: Project) -> bool:
    """Whether code of a project takes a result out of a queue at once, and raises where the queue is empty."""
    files = map(project.modules.facts_of, project.contents.holding("get_nowait"))
    attempts = (n for facts in files if facts is not None for n in walk(facts.tree) if isinstance(n, ast.Try))
    return any(
        any(last_part(call.func) == "get_nowait" for statement in attempt.body for call in calls_below(statement))
        and all(isinstance(handler.body[-1], ast.Raise) for handler in attempt.handlers)
        for attempt in attempts
        if attempt.handlers
    )


def _behind(module: Module, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The statements that run behind the one of a node in its function, in their order; of blocks of `with` those
    inside."""
    below: cst.CSTNode = node
    for up in module.ancestors(node):
        if isinstance(up, cst.FunctionDef):
            return
        if isinstance(up, (cst.IndentedBlock, cst.Module)):
            place = next(i for i, statement in enumerate(up.body) if statement is below)
            yield from _run_in_turn(up.body[place + 1 :])
        below = up


def _run_in_turn(lines: Iterable[cst.BaseStatement | cst.BaseSmallStatement]) -> Iterator[cst.CSTNode]:
    for line in lines:
        if isinstance(line, cst.With):
            yield from _run_in_turn(line.body.body)
        elif isinstance(line, cst.SimpleStatementLine):
            yield from line.body
        else:
            yield line


def _raising_tests(statement: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """What raises, or ends the program, where it does not hold: what is asserted, the test of ``if missing: raise``."""
    if isinstance(statement, cst.Assert) or (
        isinstance(statement, cst.If) and (raises(statement.body) or exits(statement.body))
    ):
        yield statement.test
    elif isinstance(statement, cst.Expr) and method_of(statement.value).startswith("assert"):
        yield from (arg.value for arg in cst.ensure_type(statement.value, cst.Call).args)


def _is_number(subscript: cst.Subscript) -> bool:
    """``results[0]``, ``results[-1]``"""
    index = subscript.slice[0].slice if len(subscript.slice) == 1 else None
    value = index.value if isinstance(index, cst.Index) else None
    return isinstance(value.expression if isinstance(value, cst.UnaryOperation) else value, cst.Integer)


def _reads_value(test: cst.BaseExpression) -> bool:
    """``result.value != 0``."""
    return any(isinstance(n, cst.Attribute) and n.attr.value == "value" for n in descendants(test))
