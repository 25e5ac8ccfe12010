"""One process that says how each model can be built: `... REQUEST.json ANSWER.json`."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from ddp_lint.verify.missing_requirements import missing_module


def main(request_path: str, answer_path: str) -> int:
    request = json.loads(pathlib.Path(request_path).read_text(encoding="utf-8"))
    answer = _recipes(request)
    pathlib.Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _recipes(request: dict[str, Any]) -> dict[str, Any]:
    from ddp_lint.verify.child.arguments import CannotBuild
    from ddp_lint.verify.child.compiling import trace_only
    from ddp_lint.verify.child.example import of_recipe, sketch
    from ddp_lint.verify.child.inputs import find_recipe, load
    from ddp_lint.verify.child.single_rank_group import alone

    recipes, skipped, examples = {}, {}, {}
    if request.get("shim"):
        from ddp_lint.verify.child.shim import Shim

        Shim(lambda _requested, _actual: None, request["nproc"]).install("cpu")
    trace_only(lambda: None)
    with alone():
        try:
            module = load(request["path"], request["root"])
        except BaseException as error:
            return {"error": f"{request['path']}: importing it fails: {type(error).__name__}: {error}{_needs(error)}"}
        for name in request["models"]:
            try:
                with _limit(request["timeout"], name):
                    recipes[name] = find_recipe(module, name, request["entry"], request.get("given", ""))
                    examples[name] = of_recipe(module, name, recipes[name])
            except CannotBuild as error:
                skipped[name] = str(error)
                if name:
                    examples[name] = sketch(module, getattr(module, name))
            except (Exception, SystemExit) as error:
                skipped[name] = f"{request['path']}: {name or request['entry']}: {type(error).__name__}: {error}"
    return {"recipes": recipes, "skipped": skipped, "examples": examples}


def _needs(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    return f"\n{missing_module(error.name)}"


@contextlib.contextmanager
def _limit(seconds: float, name: str) -> Iterator[None]:
    """A model that runs too long on one process cannot be verified."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError(f"{name}: the trial on one process took more than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(0)
