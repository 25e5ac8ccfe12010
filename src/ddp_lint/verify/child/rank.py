"""One rank: `python -m ddp_lint.verify.child.rank SPEC`, started by its supervisor."""

from __future__ import annotations

import atexit
import os
import pathlib
import runpy
import sys
import threading
import traceback

from ddp_lint.lifetime import end_with_parent
from ddp_lint.verify import trace
from ddp_lint.verify.child import guard
from ddp_lint.verify.child.session import Session
from ddp_lint.verify.frames import add_target
from ddp_lint.verify.spec import Spec


def main(spec_path: str) -> int:
    spec = Spec.load(pathlib.Path(spec_path))
    _die_with_parent()
    add_target(spec.path, package=bool(spec.module))
    sys.path.insert(0, spec.root)
    session = Session(spec)
    session.start()
    try:
        if spec.kind == "script":
            _kept = _run_script(spec, session)
        else:
            from ddp_lint.verify.child.loop import train

            train(spec, session)
        _finish(session)
    except SystemExit as error:
        return _left(error, session)
    except BaseException as error:
        if type(error).__name__ == "EnoughSteps":
            session.recorder.emit(trace.Note, frames=(), text=f"ended after --steps {spec.steps}")
            _finish(session)
            return 0
        _raised(error, session)
        return 1
    return 0


def _run_script(spec: Spec, session: Session) -> dict[str, object]:
    """The user's script as `python SCRIPT ARGUMENTS` would run it; its globals, to be kept while observers look once
    more: else the models there would live on some ranks and not on others, as the garbage collector has it."""
    sys.argv = [spec.path, *spec.arguments]
    session.watch_lines()
    if spec.module:
        return runpy.run_module(spec.module, run_name="__main__", alter_sys=True)
    return runpy.run_path(spec.path, run_name="__main__")


def _finish(session: Session) -> None:
    """The last line has run: other threads and what is registered for the end still belong to the program."""
    session.recorder.marks.set(session.recorder.rank, "leaving")
    _shut_down()
    session.finish()


def _left(error: SystemExit, session: Session) -> int:
    """The user's code called sys.exit: the end when it says success and nothing had failed."""
    status = session.exits.left(error)
    if status == 0 and error.__context__ is None:
        _finish(session)
        return 0
    session.lines.flush()
    if status:
        print(error.code if isinstance(error.code, str) else "", file=sys.stderr)
        session.watchdog.die()
    session.close()
    return status


def _raised(error: BaseException, session: Session) -> None:
    if isinstance(error, Exception) and guard.is_own(error.__traceback__):
        guard.failed(error)
    session.exits.raised(error, "main")
    traceback.print_exception(type(error), error, error.__traceback__)
    session.last_words(failed=True)
    session.watchdog.die(others_may_follow=isinstance(error, OSError | ImportError))
    session.close()


def _die_with_parent() -> None:
    """End with the supervisor, which may have ended already."""
    end_with_parent()
    if sys.platform == "linux" and os.getppid() == 1:
        os._exit(1)


def leave(code: int) -> None:
    """End as the interpreter would, without its teardown: freeing torch takes a second, and gloo may abort in it."""
    _shut_down()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _shut_down() -> None:
    """Wait for the threads that the interpreter would wait for, and run what is registered for its end, once."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


if __name__ == "__main__":
    leave(main(sys.argv[1]))
