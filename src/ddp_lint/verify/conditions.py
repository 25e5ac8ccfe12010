"""The conditions that a finding is under: which were met, and which way they went on which rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below
from ddp_lint.verify.finding_context import Guard
from ddp_lint.verify.oracles.case import Case, real
from ddp_lint.verify.sources import tree_of
from ddp_lint.verify.trace import Samples, Trace
from ddp_lint.verify.wording import how_often

#: A number as `repr` writes it.
_NUMBER = re.compile(r"-?(\d[\d.e+-]*|inf|nan)")


def unmet(case: Case) -> str:
    """Why the finding's lines never ran: the first condition on the way to them that no rank met."""
    at = case.situation
    if not _came_near(case):
        if at.function:
            return f"no rank called `{at.function}`"
        ran = at.path.endswith(".py") and any(case.recorded(trace, "counts") for trace in case.traces)
        return f"no rank ran this {'line' if ran else 'file'}"
    guard = _first_unmet(case)
    if guard is not None:
        return _unmet_guard(case, guard)
    return "no rank got this far: an earlier statement returned or raised"


def for_good(case: Case) -> bool:
    """The condition that was not met depends on options of the command line and on nothing else, or is tested before
    anything trains (how many GPUs are there): no input changes it."""
    guard = _first_unmet(case) if _came_near(case) else None
    if guard is None or guard.wanted is None:
        return False
    if any(guard.line in case.recorded(trace, "early") for trace in case.traces):
        return True
    test, options = _parsed(case, guard)
    given = {node.value for node in ast.walk(test) if isinstance(node, ast.Attribute) and node.attr in options}
    names = (node for node in ast.walk(test) if isinstance(node, ast.Name | ast.Call))
    return bool(given) and all(isinstance(node, ast.Name) and node in given for node in names)


def _came_near(case: Case) -> bool:
    return any(_line_ran(trace, case, line) for trace in case.traces for line in _entries(case))


def _first_unmet(case: Case) -> Guard | None:
    guards = case.situation.guards
    return next((g for g in guards if not any(_line_ran(trace, case, g.first) for trace in case.traces)), None)


def outcomes(case: Case) -> Iterator[tuple[int | None, str, int]]:
    """(rank, what was seen, line) of each condition; one entry without a rank where all ranks agree."""
    texts = {guard.line: guard.text for guard in case.situation.guards if guard.wanted is not None}
    for line in sorted(texts.keys() | case.situation.tests):
        seen = {trace.rank: result for trace in case.traces if (result := _tested(trace, case, line))}
        text = f"`{texts[line]}`" if line in texts else f"the condition of line {line}"
        if seen and len(set(seen.values())) == 1 and len(seen) == len(case.traces):
            yield None, f"{text} was {_spoken(next(iter(seen.values())))} on every rank", line
        else:
            for rank, result in seen.items():
                yield rank, f"{text} was {_spoken(result)} on rank {rank}", line


def one_sided(case: Case) -> str:
    """The condition nearest to the finding, when it took one value only on all ranks; '' when it took both.

    Without a condition the line runs on every rank that gets there, which is the uniform case.
    """
    at = case.situation
    tests = [guard.line for guard in at.guards if guard.wanted is not None] or sorted(at.tests)
    if not tests:
        return ""
    line = tests[-1]
    seen = [result for trace in case.traces if (result := _tested(trace, case, line))]
    true, false = sum(result[0] for result in seen), sum(result[1] for result in seen)
    if not seen or (true and false):
        return ""
    text = next((f"`{guard.text}`" for guard in at.guards if guard.line == line), f"the condition of line {line}")
    return f"{text} was {'true' if true else 'false'} all {true + false} times, on every rank"


def by_luck(case: Case) -> str:
    """How the ranks went the same way by conditions that let each go its own; '' where that is not known."""
    return _unlike_values(case) or _left_by_luck(case) or _equally_often(case) or _equally_long(case)


def _unlike_values(case: Case) -> str:
    """A condition of a number that differs between the ranks, which had both outcomes, the same ones on all ranks."""
    at = case.situation
    for line in sorted({guard.line for guard in at.guards if guard.wanted is not None} | at.tests):
        if any(result is None or not all(result) for result in (_tested(trace, case, line) for trace in case.traces)):
            continue
        by_rank = {trace.rank: _numbers_of(trace, case, line) for trace in case.traces}
        for name in sorted(set.intersection(*map(set, by_rank.values()))):
            if len({found[name] for found in by_rank.values()}) > 1:
                each = " and ".join(f"{found[name]} on rank {rank}" for rank, found in by_rank.items())
                return f"`{name}` in the condition of line {line} was {each}: that they went the same way is luck"
    return ""


def _equally_often(case: Case) -> str:
    """The condition that had both outcomes on each rank as often as on the others, but in another order."""
    for rank, text, line in outcomes(case):
        orders = {case.recorded(trace, "orders").get(line, 0) for trace in case.traces}
        if rank is None and len(orders) > 1:
            return f"{text}, but in another order on each: that they were equally often is luck"
    return ""


def _equally_long(case: Case) -> str:
    """The loop whose rounds the finding is about, where each rank made as many with data of its own. '' where a
    DistributedSampler made it so, or all ranks were given the same samples."""
    loop, path = case.situation.loop, case.situation.path
    if loop is None:
        return ""
    rounds = [case.line_counts(trace, (loop.each,))[0] for trace in case.traces]
    fed = [next(_fed_by(trace, path, loop.header), None) for trace in case.traces]
    samples = [event for event in fed if event is not None]
    if len(samples) == len(fed):
        same = {(event.dataset, event.batches or event.rows) for event in samples}
        if all(event.replicas > 1 for event in samples) or (len(same) == 1 and samples[0].batches):
            return ""
    if len(set(rounds)) != 1 or not rounds[0]:
        return ""
    often = f"{how_often(rounds[0])} on each rank with the data of this run"
    return f"the loop of line {loop.header} ran {often}: with other data one rank may have more"


def _fed_by(trace: Trace, path: str, line: int) -> Iterator[Samples]:
    """What loaders gave a loop."""
    for event in trace.of(Samples):
        if event.site is not None and (real(event.site.path), event.site.line) == (path, line):
            yield event


def _left_by_luck(case: Case) -> str:
    """The condition by which a rank leaves a loop, where it let each rank do so once: it has had both outcomes in any
    case, and that they came in the same iteration proves nothing. '' without such a condition, and where a loop that
    ends anyway is left because of numbers that are equal on all ranks."""
    loops = [n for n in ast.walk(tree_of(case.situation.path)) if isinstance(n, ast.While | ast.For | ast.AsyncFor)]
    for loop, node in ((around, inner) for around in loops for inner in ast.walk(around)):
        leaves = isinstance(node, ast.If) and any(isinstance(last, ast.Break | ast.Return) for last in node.body[-1:])
        if leaves and isinstance(node, ast.If) and node.lineno in case.situation.tests:
            endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
            seen = [_tested(trace, case, node.lineno) for trace in case.traces]
            once = all(result is not None and result[0] == 1 for result in seen)
            if once and (endless or not _of_equal_numbers(case, node.lineno)):
                return f"each rank left a loop by the condition of line {node.lineno}, this time in the same iteration"
    return ""


def _of_equal_numbers(case: Case, line: int) -> bool:
    """All values of a condition that are known are numbers, the same ones on all ranks."""
    values = [_values_of(trace, case, line) for trace in case.traces]
    return all(values) and values.count(values[0]) == len(values) and all(map(_NUMBER.fullmatch, values[0].values()))


def _entries(case: Case) -> tuple[int, ...]:
    at = case.situation
    return (at.entry,) if at.entry else tuple(guard.line for guard in at.guards) or tuple(at.ran)


def _line_ran(trace: Trace, case: Case, line: int) -> bool:
    return any(case.line_counts(trace, (line,))) or _tested(trace, case, line) is not None


def _unmet_guard(case: Case, guard: Guard) -> str:
    if guard.wanted is None:
        return f"`{guard.text}` (line {guard.line}) was never entered"
    results = [result for trace in case.traces if (result := _tested(trace, case, guard.line))]
    values = _values(case, guard.line)
    saw = f" ({', '.join(f'{name} = {value}' for name, value in values.items())})" if values else ""
    value = "false" if guard.wanted else "true"
    times = sum(map(sum, results))
    was = f"{value} all {times} times{saw}{_decided_by(case, guard)}" if times else "never tested"
    return f"`{guard.text}` (line {guard.line}) was {was}"


def _decided_by(case: Case, guard: Guard) -> str:
    """Which options of the command line decide a condition: a single one is the way to meet it."""
    test, options = _parsed(case, guard)
    asked = [options[name] for node in ast.walk(test) if (name := last_part(node)) in options]
    if not asked:
        return ""
    alone = last_part(test) in options
    way = "gets there" if alone and guard.wanted else "decides that" if len(asked) == 1 else "decide that"
    return f": {' and '.join(f'`-- {flag}`' for flag in dict.fromkeys(asked))} {way}"


def _parsed(case: Case, guard: Guard) -> tuple[ast.expr, Mapping[str, str]]:
    """A condition, and the options of its file by attribute; none where these cannot be read."""
    try:
        test = ast.parse(guard.text, mode="eval").body
    except SyntaxError:  # of a loop or a handler
        return ast.Constant(None), {}
    return test, dict(_options(tree_of(case.situation.path)))


def _options(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(attribute, flag) of each option that the file gives an argparse parser."""
    for node in calls_below(tree):
        if last_part(node.func) == "add_argument":
            flags = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            long = next((flag for flag in flags if flag.startswith("--")), "")
            given = next((word.value for word in node.keywords if word.arg == "dest"), None)
            name = given.value if isinstance(given, ast.Constant) else long.removeprefix("--").replace("-", "_")
            if long:
                yield str(name), long


def _values(case: Case, line: int) -> Mapping[str, str]:
    return next((found for trace in case.traces if (found := _values_of(trace, case, line))), {})


def _values_of(trace: Trace, case: Case, line: int) -> Mapping[str, str]:
    found: Mapping[str, str] = case.recorded(trace, "values").get(line, {})
    return found


def _numbers_of(trace: Trace, case: Case, line: int) -> dict[str, str]:
    """The values that a condition was computed from, without the truth values, which are its outcome."""
    return {name: text for name, text in _values_of(trace, case, line).items() if _NUMBER.fullmatch(text)}


def _tested(trace: Trace, case: Case, line: int) -> tuple[int, int] | None:
    found: tuple[int, int] = case.recorded(trace, "guards").get(line, (0, 0))
    return found if any(found) else None


def _spoken(result: tuple[int, int]) -> str:
    true, false = result
    if true and false:
        return f"true {how_often(true)} and false {how_often(false)}"
    return f"true {how_often(true)}" if true else f"false {how_often(false)}"
