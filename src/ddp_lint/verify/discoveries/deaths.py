"""Ranks that died by a signal, for lack of memory, or by their own exit."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.knowledge.signatures import explain, signature
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery
from ddp_lint.verify.discoveries.exceptions import of_signature
from ddp_lint.verify.discoveries.mismatches import LUCK, cause_of_mismatch, since_origin
from ddp_lint.verify.match import Kind, place, present
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.trace import Exit
from ddp_lint.verify.wording import on_one_line

#: What gloo aborts over, as tensors of different size meet.
_UNLIKE_SIZES = (Kind.SHAPE, Kind.DTYPE, Kind.SPLITS, Kind.ORDER, Kind.BUFFER)
#: The rule of ranks that meet in one collective with different numbers of bytes.
_SIZES = "DDP105"
#: Signals that are explained by their name alone (`signatures.toml`).
_EXPLAINED = ("SIGABRT", "SIGBUS", "SIGILL", "SIGKILL", "SIGSEGV")
#: Signals by which the ranks of a run are ended that the user interrupts.
_ENDED_BY_US = ("SIGTERM", "SIGINT", "SIGKILL")


def deaths_of(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        if outcome.how in ("signal", "oom", "exit", "not_started"):
            if examined.run.outcome == "interrupted" and (
                outcome.how == "not_started" or outcome.signal in _ENDED_BY_US
            ):
                continue
            known = explain(f"{outcome.message}\n{outcome.log}")
            met = examined.mismatches[0] if examined.mismatches else None
            how = _how(outcome)
            cause = of_signature(known) if known is not None else _of_signal(outcome.signal)
            frame = outcome.last.frame
            sent = outcome.trace.last(Exit)
            if outcome.how == "signal" and sent is not None and sent.status < 0 and sent.site is not None:
                known, frame = None, sent.site
                cause = Cause.of("own-signal", function=sent.site.function, line=sent.site.line)
            if known is not None and known.code == _SIZES and met is not None and met.kind in _UNLIKE_SIZES:
                origin = examined.origin(met)
                # Torch's own words name no line, and no peer.
                how = f"died of {outcome.signal}: {since_origin(origin, met)}"
                calls = [call for _, call in present(origin.calls)]
                if len(set(map(place, calls))) > 1:
                    cause = Cause.of("unlike-lines", luck=LUCK)
                if origin is not met:
                    frame = calls[0].site
                why = cause_of_mismatch(examined, origin)
                if why.text:
                    cause = Cause(f"{why.text} ({LUCK})", why.fix or cause.fix, code=cause.code)
            message = f"rank {outcome.rank} {how}"
            yield discovery(examined, ("death", "exception"), message, frame, cause, rank=outcome.rank)


def _of_signal(name: str) -> Cause:
    """What mostly sends it. No rule: each may have many reasons."""
    sent = signature(name.lower()) if name in _EXPLAINED else None
    return Cause(sent.cause, sent.fix) if sent else Cause()


def _how(outcome: RankOutcome) -> str:
    end = {
        "signal": f"died of {outcome.signal}",
        "oom": "was killed by the system's out-of-memory killer",
        "exit": f"ended itself with status {outcome.exit} before its end",
        "not_started": "never started",
    }[outcome.how]
    says_more = outcome.message and outcome.how not in ("signal", "oom")
    return f"{end}: {on_one_line(outcome.message)}" if says_more else end
