"""How the cost of odd input grows: CPU seconds for an input and for one of twice its size, the ratio, and the seconds
for 5,000 lines.

    python benchmarks/growth.py [KIND ...] [--limit 2.3] [--lines 5000] [--seconds 2]

Each kind is generated at its size, at twice that and with 5,000 lines, and checked with all rules in a process of its
own, without a cache. What grows in proportion has a ratio of 2; what the check of a tiny file costs is taken off. Exits
with 1 where a ratio is above the limit, or the seconds of one file; a ratio of a short run is measured again at twice
the size, where noise is a smaller part.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

#: Characters of a line on average, by which a file of longer lines than full ones counts.
_LINE, _FULL_LINE = 40, 80
#: CPU seconds below which a ratio above the limit may be noise: it is measured again at twice the size.
_SHORT = 2.0
Make = Callable[[pathlib.Path, int], None]
KINDS: dict[str, tuple[int, Make]] = {}
#: Those that are one file, for which the limit of seconds is.
ONE_FILE: set[str] = set()
#: What a kind is checked with besides.
_OPTIONS = {"ignores_added_to_files": ["--add-ignore"], "fixes_of_files": ["--fix", "--unsafe-fixes"]}
_TORCH = "import torch\nimport torch.distributed as dist\nfrom torch import nn\n"
_DDP = _TORCH + "from torch.nn.parallel import DistributedDataParallel as DDP\n"
#: Folders below each other: of more than 256 the rest is not searched, which is an error.
_DEEP = 240
_MODULE = _TORCH + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"


def kind(size: int) -> Callable[[Make], Make]:
    """Register a kind with the size that it is measured at first."""

    def register(make: Make) -> Make:
        KINDS[make.__name__] = (size, make)
        return make

    return register


def text(size: int) -> Callable[[Callable[[int], str]], Make]:
    """Register a kind that is one file."""

    def register(source: Callable[[int], str]) -> Make:
        def make(folder: pathlib.Path, n: int) -> None:
            (folder / "a.py").write_text(source(n))

        make.__name__ = source.__name__
        ONE_FILE.add(source.__name__)
        return kind(size)(make)

    return register


# ---- one file


@text(1500)
def clips_in_a_row(size: int) -> str:
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    head = "dist.init_process_group()\ndef f(model, scaler, optimizer, loss):\n    scaler.scale(loss).backward()\n"
    return _TORCH + head + clip * size + "    scaler.step(optimizer)\n"


@text(2500)
def forwards_in_a_row(n: int) -> str:
    calls = "".join(f"    y{i} = ddp(x)\n" for i in range(n))
    return _DDP + f"def train(model, x):\n    ddp = DDP(model)\n{calls}    y0.sum().backward()\n"


@text(10_000)
def assignments_in_a_chain(n: int) -> str:
    links = "".join(f"    x{i + 1} = x{i}\n" for i in range(n))
    return f"{_TORCH}def f(x0):\n{links}    x{n}.item()\n    if x{n} > 0:\n        dist.all_reduce(x{n})\n"


@text(5000)
def assignments_to_one_name(n: int) -> str:
    return f"{_TORCH}def f(x):\n{'    x = x + 1' * 0}" + "    x = torch.log(x)\n" * n + "    dist.all_reduce(x)\n"


@text(10_000)
def globals_in_a_chain(n: int) -> str:
    links = "".join(f"x{i + 1} = x{i}\n" for i in range(n))
    return f"{_TORCH}x0 = dist.get_rank()\n{links}if x{n} == 0:\n    dist.barrier()\n"


@text(10_000)
def noqa_comments(n: int) -> str:
    return _TORCH + "x = 1  # noqa: DDP101\n" * n


@text(10_000)
def ignore_comments(n: int) -> str:
    return _TORCH + "x = 1  # ddp-lint: ignore[DDP101] because\n" * n


@text(5000)
def codes_in_a_comment(n: int) -> str:
    return f"{_TORCH}x = 1  # noqa: {', '.join(f'DDP{i}' for i in range(n))}\n"


@text(1000)
def suppressed_findings(n: int) -> str:
    return _TORCH + "if dist.get_rank() == 0:\n    dist.barrier()  # noqa: DDP101\n" * n


@text(1000)
def findings(n: int) -> str:
    return _TORCH + "def f(x):\n" + "    y = torch.log(torch.softmax(x, dim=-1))\n" * n


@text(20_000)
def dictionary(n: int) -> str:
    return f"{_TORCH}DATA = {{\n" + "".join(f"    'key {i}': [{i}, 'torch', None],\n" for i in range(n)) + "}\n"


@text(50_000)
def list_on_one_line(n: int) -> str:
    return f"{_TORCH}data = torch.tensor([{'1, ' * n}])\n"


@text(1000)
def calls_in_a_chain(n: int) -> str:
    functions = "".join(f"def f{i + 1}():\n    f{i}()\n" for i in range(n))
    return f"{_TORCH}def f0():\n    dist.barrier()\n{functions}if dist.get_rank() == 0:\n    f{n}()\n"


@text(80)
def calls_of_the_next_function_with_two_numbers(n: int) -> str:
    defs = "".join(
        f"def f{i}(a, b, c):\n    f{i + 1}(b, c, {2 * i})\n    f{i + 1}(a, b, {2 * i + 1})\n" for i in range(n)
    )
    return f"{_TORCH}{defs}def f{n}(a, b, c):\n    if a > b:\n        return\n    dist.all_reduce(a)\n"


@text(40)
def calls_of_the_next_function_with_two_flags(n: int) -> str:
    defs = "".join(
        f"def f{i}(x, a, b, c):\n    f{i + 1}(x, b, c, True)\n    f{i + 1}(x, b, c, False)\n" for i in range(n)
    )
    return f"{_TORCH}{defs}def f{n}(x, a, b, c):\n    if a and b and not c:\n        return\n    dist.all_reduce(x)\n"


def _handed_on(n: int, first: str, second: str) -> str:
    """Functions that call the next one twice with something else, of which each keeps the last eight."""
    given, kept = (", ".join(f"p{k}" for k in range(start, 8)) for start in range(2))
    calls = (f"    f{i + 1}(x, {kept}, {first})\n    f{i + 1}(x, {kept}, {second})\n" for i in range(n))
    defs = "".join(f"def f{i}(x, {given}):\n{each}" for i, each in enumerate(calls))
    made = "def g(x):\n    return x\ndef h(x):\n    return x + 1\nclass G:\n    pass\nclass H:\n    pass\n"
    last = f"def f{n}(x, {given}):\n    if p0(x) and p1(x):\n        return p2(x)\n    dist.all_reduce(x)\n"
    return f"{_TORCH}{made}{defs}{last}"


@text(20)
def calls_of_the_next_function_with_two_functions(n: int) -> str:
    return _handed_on(n, "g", "h")


@text(20)
def calls_of_the_next_function_with_two_objects(n: int) -> str:
    return _handed_on(n, "G()", "H()")


@text(20)
def calls_of_the_next_function_with_two_tuples(n: int) -> str:
    return _handed_on(n, "(p0, g)", "(p1, h)")


@text(20)
def calls_of_the_next_function_with_two_tests_of_the_rank(n: int) -> str:
    return _handed_on(n, "dist.get_rank() == 0", "dist.get_rank() > 1")


@text(20)
def attributes_of_each_rank_that_are_handed_on(n: int) -> str:
    defs = "".join(
        f"def f{i}(x, s):\n    s.a{i} = dist.get_rank()\n    f{i + 1}(x, s)\n"
        f"    s.b{i} = dist.get_rank()\n    f{i + 1}(x, s)\n"
        for i in range(n)
    )
    return f"{_TORCH}{defs}def f{n}(x, s):\n    if s.a0:\n        return\n    dist.all_reduce(x)\n"


@text(2000)
def calls_in_a_chain_reversed(n: int) -> str:
    functions = "".join(f"def f{i + 1}():\n    f{i}()\n" for i in reversed(range(n)))
    return f"{_TORCH}{functions}def f0():\n    dist.barrier()\nif dist.get_rank() == 0:\n    f{n}()\n"


def _circle(n: int, body: str) -> str:
    """Functions that each call the ten after it, the last ones the first: all are one circle of calls."""
    calls = ("".join(f"    f{(i + k) % n}(x)\n" for k in range(1, 11)) for i in range(n))
    defs = "".join(f"def f{i}(x):\n    if x > {i}:\n        return\n{body}{each}" for i, each in enumerate(calls))
    return f"{_TORCH}{defs}def start(x):\n    f0(x)\n    dist.barrier()\n"


@text(500)
def functions_that_call_one_another(n: int) -> str:
    return _circle(n, "")


@text(500)
def functions_that_communicate_and_call_one_another(n: int) -> str:
    return _circle(n, "    dist.all_reduce(x)\n")


@text(250)
def terms_of_a_condition(n: int) -> str:
    return f"{_TORCH}def f(x):\n    if {' and '.join(f'x[{i}] > 0' for i in range(n))}:\n        dist.barrier()\n"


@text(1500)
def rank_branches(n: int) -> str:
    return f"{_TORCH}def f():\n" + "    if dist.get_rank() == 0:\n        dist.barrier()\n" * n


@text(3000)
def branches_without_collectives(n: int) -> str:
    arms = "".join(f"    if c[{i}]:\n        x = x + {i}\n" for i in range(n))
    return f"{_TORCH}def f(c, x):\n{arms}    dist.all_reduce(x)\n"


@text(3000)
def returns_under_conditions(n: int) -> str:
    arms = "".join(f"    if c[{i}]:\n        return x\n" for i in range(n))
    return f"{_TORCH}def f(c, x):\n{arms}    dist.all_reduce(x)\n"


@text(1500)
def assertions_about_the_rank(n: int) -> str:
    asserted = "".join(f"    assert x[{i}] == dist.get_rank()\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{asserted}    dist.barrier()\n"


@text(8000)
def arms_of_elif(n: int) -> str:
    arms = "".join(f"    elif c == {i}:\n        dist.barrier()\n" for i in range(n))
    return f"{_TORCH}def f(c):\n    if c is None:\n        pass\n{arms}"


@text(1000)
def try_blocks(n: int) -> str:
    return f"{_TORCH}def f(x):\n" + (
        "    try:\n        dist.all_reduce(x)\n    except RuntimeError:\n        pass\n" * n
    )


@text(2500)
def loops(n: int) -> str:
    return f"{_TORCH}def f(xs):\n" + "    for x in xs:\n        dist.all_reduce(x)\n" * n


@text(1500)
def functions(n: int) -> str:
    return _TORCH + "".join(f"def f{i}(x):\n    dist.all_reduce(x)\n    return x.item()\n" for i in range(n))


@text(600)
def functions_that_nothing_uses(n: int) -> str:
    gathers = "".join(
        f"def f{i}(x):\n    p = [x.clone()] * 2\n    dist.all_gather(p, x)\n    return p\n" for i in range(n)
    )
    return f"{_TORCH}{gathers}if __name__ == '__main__':\n    print()\n"


@text(700)
def classes(n: int) -> str:
    return _TORCH + "".join(
        f"class N{i}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        self.w.weight.data.mul_(2)\n        return self.w(x).sum().item()\n"
        for i in range(n)
    )


@text(300)
def classes_that_inherit_in_a_chain(n: int) -> str:
    return (
        _TORCH
        + "class N0(nn.Module):\n    pass\n"
        + "".join(
            f"class N{i + 1}(N{i}):\n    def forward(self, x):\n        return x.sum().item()\n" for i in range(n)
        )
    )


@text(2000)
def methods(n: int) -> str:
    return _MODULE + "".join(f"    def m{i}(self, x):\n        self.a{i} = x.item()\n" for i in range(n))


@text(2500)
def layers(n: int) -> str:
    made = "".join(f"        self.l{i} = nn.Linear(2, 2)\n" for i in range(n))
    used = "".join(f"        x = self.l{i}(x)\n" for i in range(n))
    return f"{_MODULE}{made}    def forward(self, x):\n{used}        return x\n"


@text(5000)
def statements_of_forward(n: int) -> str:
    used = "".join(f"        x{i + 1} = torch.relu(x{i})\n" for i in range(n))
    return f"{_MODULE}    def forward(self, x0):\n{used}        return x{n}\n"


@text(1000)
def branches_of_forward(n: int) -> str:
    used = "        if x.sum() > 0:\n            x = x + 1\n" * n
    return f"{_MODULE}    def forward(self, x):\n{used}        return x\n"


@text(2000)
def environment(n: int) -> str:
    return "import os\nimport torch\n" + "".join(f"os.environ['NCCL_VARIABLE_{i}'] = '1'\n" for i in range(n))


@text(20_000)
def imports(n: int) -> str:
    return _TORCH + "".join(f"from package.module{i} import name{i}\n" for i in range(n)) + "dist.barrier()\n"


@text(1000)
def training_steps(n: int) -> str:
    step = "    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    return (
        _DDP
        + "def train(net, x):\n    model = DDP(net)\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        + step * n
    )


@text(1000)
def wraps(n: int) -> str:
    return _DDP + "def train(nets, x):\n" + "".join(f"    m{i} = DDP(nets[{i}])\n    m{i}(x)\n" for i in range(n))


@text(2500)
def loaders(n: int) -> str:
    return (
        _TORCH
        + "from torch.utils.data import DataLoader, DistributedSampler\ndef train(d):\n"
        + "".join(f"    s{i} = DistributedSampler(d)\n    l{i} = DataLoader(d, sampler=s{i})\n" for i in range(n))
    )


@text(1000)
def asynchronous_work(n: int) -> str:
    return f"{_TORCH}def f(x):\n" + "    w = dist.all_reduce(x, async_op=True)\n    x = x + 1\n    w.wait()\n" * n


@text(1000)
def streams(n: int) -> str:
    return f"{_TORCH}def f(x, s):\n" + "    with torch.cuda.stream(s):\n        y = x.cuda()\n    y.sum()\n" * n


@text(5000)
def subprocesses(n: int) -> str:
    return "import subprocess, torch\nfrom torch import distributed\n" + "subprocess.run(['nvidia-smi'])\n" * n


@text(200_000)
def lines_of_strings(n: int) -> str:
    return f'{_TORCH}TEXT = """\n' + "dist.barrier() # noqa\n" * n + '"""\n'


@text(200_000)
def comments(n: int) -> str:
    return _TORCH + "# dist.barrier() and torch.log(softmax)\n" * n + "x = 1\n"


@text(90)
def nested_blocks(n: int) -> str:
    blocks = "".join(" " * (i + 1) + f"if x > {i}:\n" for i in range(min(n, 97)))
    return f"{_TORCH}def f(x):\n{blocks}{' ' * (min(n, 97) + 1)}dist.barrier()\n"


@text(150)
def attributes_in_a_chain(n: int) -> str:
    return f"{_TORCH}def f(x):\n" + f"    y = x{'.sum()' * n}\n" * 10


@text(60_000)
def unknown_names(n: int) -> str:
    return _TORCH + "".join(f"name_{i}\n" for i in range(n))


@text(2000)
def decorators(n: int) -> str:
    return f"{_TORCH}@torch.no_grad()\n" + "@register\n" * n + "def f(x):\n    dist.all_reduce(x)\n"


@text(3000)
def items_of_with(n: int) -> str:
    items = ", ".join(f"torch.no_grad() as c{i}" for i in range(n))
    return f"{_TORCH}def f(x):\n    with ({items}):\n        dist.all_reduce(x)\n"


@text(1500)
def cases_of_match(n: int) -> str:
    cases = "".join(f"        case {i}:\n            dist.barrier()\n" for i in range(n))
    return f"{_TORCH}def f(x):\n    match x:\n{cases}"


@text(1000)
def fields_of_f_strings(n: int) -> str:
    """Of one f-string with thousands of fields, the cost is that of Python's own parser, which is not linear in it."""
    fields = "".join(f"{{x[{i}]!r:>{{w}}}} " for i in range(20))
    return f"{_TORCH}def f(x, w):\n" + f"    print(f'{fields}')\n" * n + "    dist.all_reduce(x)\n"


@text(1000)
def rank_tests_of_all_kinds(n: int) -> str:
    tests = (
        "dist.get_rank() == {0}",
        "x.rank != {0}",
        "{0} < dist.get_rank() < {0} + 2",
        "x.is_main and x.local_rank % {0}",
    )
    arms = "".join(f"    if {tests[i % 4].format(i + 1)}:\n        x = x + {i}\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{arms}    dist.all_reduce(x)\n"


@text(600)
def collectives_under_tests_of_their_own(n: int) -> str:
    arms = "".join(f"    if flags[{i}]:\n        dist.all_reduce(x[{i}])\n" for i in range(n))
    return f"{_TORCH}def f(x, flags):\n{arms}"


@text(500)
def nested_loops_in_a_row(n: int) -> str:
    loop = "".join(f"{'    ' * (d + 1)}for i{d} in range(x[{d}]):\n" for d in range(6))
    return f"{_TORCH}def f(x):\n" + f"{loop}{'    ' * 7}dist.all_reduce(x)\n" * n


@text(150)
def nested_try_blocks_in_a_row(n: int) -> str:
    tries = "".join(f"{'    ' * (d + 1)}try:\n" for d in range(12)) + f"{'    ' * 13}dist.all_reduce(x)\n"
    tries += "".join(f"{'    ' * (d + 1)}except E{d}:\n{'    ' * (d + 2)}pass\n" for d in reversed(range(12)))
    return f"{_TORCH}def f(x):\n" + tries * n


@text(2000)
def groups_of_their_own(n: int) -> str:
    made = "".join(f"    g{i} = dist.new_group([0, {i + 1}])\n    dist.all_reduce(x, group=g{i})\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{made}"


@text(3000)
def lambdas(n: int) -> str:
    made = "".join(f"    f{i} = lambda y: f{i - 1}(y) if y > {i} else dist.all_reduce(y)\n" for i in range(1, n))
    return f"{_TORCH}def f(x):\n    f0 = print\n{made}    f{n - 1}(x)\n"


@text(3000)
def comprehensions(n: int) -> str:
    made = "".join(f"    y{i} = [dist.all_reduce(v) for v in x if v > {i}]\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{made}"


@text(2500)
def nested_unpackings(n: int) -> str:
    unpacked = "    a, (b, *c), d = x, (dist.get_rank(), 2, 3), 4\n" * n
    return f"{_TORCH}def f(x):\n{unpacked}    if b:\n        dist.barrier()\n"


@text(2000)
def default_arguments(n: int) -> str:
    given = ", ".join(f"a{i}=dist.get_rank()" for i in range(n))
    return f"{_TORCH}def f({given}):\n    if a0 == 0:\n        dist.barrier()\nf()\n"


@text(2000)
def parameters_of_a_constructor(n: int) -> str:
    names = [f"a{i}" for i in range(n)]
    kept = "".join(f"        self.{name} = {name}\n" for name in names)
    run = "    def run(self):\n        if self.a1:\n            dist.barrier()\n"
    made = f"def g(r):\n    N({', '.join('r' for _ in names)}).run()\n"
    return f"{_TORCH}class N:\n    def __init__(self, {', '.join(names)}):\n{kept}{run}{made}"


@text(2000)
def bases_of_a_class(n: int) -> str:
    bases = "".join(f"class B{i}:\n    pass\n" for i in range(n))
    method = "    def f(self):\n        if dist.get_rank() == 0:\n            dist.barrier()\n"
    return f"{_TORCH}{bases}class C({', '.join(f'B{i}' for i in range(n))}):\n{method}"


@text(4000)
def keywords_of_a_class(n: int) -> str:
    given = ", ".join(f"k{i}={i}" for i in range(n))
    return f"{_TORCH}class C(A, {given}):\n    def f(self):\n        dist.barrier()\n"


@text(4000)
def names_in_a_pattern(n: int) -> str:
    names = ", ".join(f"a{i}" for i in range(n))
    return f"{_TORCH}def f(x):\n    match x:\n        case [{names}]:\n            dist.all_reduce(a1)\n"


@text(4000)
def keywords_in_a_pattern(n: int) -> str:
    given = ", ".join(f"k{i}=a{i}" for i in range(n))
    return f"{_TORCH}def f(x):\n    match x:\n        case A({given}):\n            dist.all_reduce(a1)\n"


@text(4000)
def names_of_an_import_in_a_function(n: int) -> str:
    names, used = ", ".join(f"a{i}" for i in range(n)), "".join(f"    a{i}(x)\n" for i in range(n // 4))
    return f"{_TORCH}def f(x):\n    from package.module import ({names})\n{used}    dist.barrier()\n"


@text(500)
def findings_in_one_line(n: int) -> str:
    return f"{_TORCH}def f(x):\n    {'y = torch.log(torch.softmax(x, dim=-1)); ' * n}\n"


@text(2000)
def keywords_of_a_call(n: int) -> str:
    given = ", ".join(f"a{i}={i}" for i in range(n))
    return f"{_TORCH}def f(**kw):\n    dist.barrier()\nif dist.get_rank() == 0:\n    f({given})\n"


@text(1500)
def one_name_defined_again(n: int) -> str:
    return _TORCH + "def f(x):\n    dist.all_reduce(x)\n" * n + "f(1)\n"


@text(2000)
def functions_in_a_function(n: int) -> str:
    inner = "".join(f"    def g{i}(y):\n        dist.all_reduce(y + x)\n    g{i}(x)\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{inner}"


@text(1500)
def global_statements(n: int) -> str:
    return _TORCH + "".join(
        f"s{i} = 0\ndef f{i}(x):\n    global s{i}\n    s{i} = x\n    if s{i} > 0:\n        dist.barrier()\n"
        for i in range(n)
    )


@text(2000)
def walruses(n: int) -> str:
    tests = "".join(f"    if (y{i} := torch.sum(x)) > {i}:\n        dist.all_reduce(y{i})\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{tests}"


@text(2500)
def branches_that_bind(n: int) -> str:
    arms = "".join(f"    if c[{i}]:\n        y{i} = x + {i}\n" for i in range(n))
    return f"{_TORCH}def f(c, x):\n{arms}    dist.all_reduce(x)\n"


@text(1000)
def asserts_by_rank(n: int) -> str:
    tests = "    assert dist.get_rank() == 0 or x, f'{dist.get_rank()}'\n" * n
    return f"{_TORCH}def f(x):\n{tests}    dist.barrier()\n"


@text(2000)
def imports_under_conditions(n: int) -> str:
    arms = "".join(f"if x > {i}:\n    import a{i} as m\nelse:\n    from b{i} import *\n" for i in range(n))
    return f"{_TORCH}{arms}if dist.get_rank() == 0:\n    dist.barrier()\n"


@text(5000)
def annotations(n: int) -> str:
    bound = "".join(f"    y{i}: torch.Tensor | None = x\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{bound}    dist.all_reduce(x)\n"


@text(1500)
def finally_blocks(n: int) -> str:
    return f"{_TORCH}def f(x):\n" + "    try:\n        x = x + 1\n    finally:\n        dist.all_reduce(x)\n" * n


@text(2000)
def properties(n: int) -> str:
    made = "".join(f"    @property\n    def p{i}(self):\n        return dist.get_rank() + {i}\n" for i in range(n))
    used = "".join(f"        x = x + self.p{i}\n" for i in range(n))
    return f"{_MODULE}{made}    def forward(self, x):\n{used}        dist.all_reduce(x)\n        return x\n"


@text(5000)
def fields_of_a_dataclass(n: int) -> str:
    fields = "".join(f"    a{i}: int = {i}\n" for i in range(n))
    used = "".join(f"    x{i} = c.a{i}\n" for i in range(n))
    head = f"import dataclasses\n{_TORCH}@dataclasses.dataclass\nclass C:\n{fields}"
    return f"{head}def f(c: C):\n{used}    if c.a0:\n        dist.barrier()\n"


@text(3000)
def attributes_of_an_object(n: int) -> str:
    set_ = "".join(f"        self.a{i} = x + {i}\n" for i in range(n))
    used = "".join(f"        if self.a{i} > 0:\n            dist.barrier()\n" for i in range(n // 10))
    return f"{_TORCH}class C:\n    def __init__(self, x):\n{set_}    def f(self):\n{used}"


@text(4000)
def members_of_an_enumeration(n: int) -> str:
    members = "".join(f"    A{i} = {i}\n" for i in range(n))
    used = "".join(f"    if e is E.A{i}:\n        e = E.A0\n" for i in range(n // 4))
    return f"import enum\n{_TORCH}class E(enum.Enum):\n{members}def f(e):\n{used}    dist.barrier()\n"


@text(1500)
def dictionary_of_models(n: int) -> str:
    models = "".join(f"        'm{i}': DDP(nn.Linear({i + 1}, 2)),\n" for i in range(n))
    return (
        _DDP
        + f"def f(x):\n    models = {{\n{models}    }}\n    for m in models.values():\n        m(x).sum().backward()\n"
    )


@text(1000)
def files_by_the_rank(n: int) -> str:
    saved = "    if dist.get_rank() == 0:\n        torch.save({{}}, 'a{0}')\n    torch.load('a{0}')\n"
    return f"{_TORCH}def f():\n" + "".join(saved.format(i) for i in range(n))


@text(1000)
def checkpoints(n: int) -> str:
    saved = "    torch.save(m.state_dict(), 'a{0}')\n    m.load_state_dict(torch.load('a{0}'))\n"
    return _DDP + "def f(net):\n    m = DDP(net)\n" + "".join(saved.format(i) for i in range(n))


@text(600)
def keywords_handed_on_in_a_chain(n: int) -> str:
    links = "".join(f"def f{i + 1}(**kw):\n    f{i}(**kw)\n" for i in range(n))
    return f"{_TORCH}def f0(x=0, **kw):\n    dist.all_reduce(x)\n{links}if dist.get_rank() == 0:\n    f{n}(x=1)\n"


@text(3000)
def calls_of_one_function(n: int) -> str:
    calls = "".join(f"    sync(x[{i}], {i})\n" for i in range(n))
    return f"{_TORCH}def sync(x, i):\n    if i > 3:\n        return\n    dist.all_reduce(x)\ndef f(x):\n{calls}"


@text(500)
def functions_given_a_wrapped_model(n: int) -> str:
    defs = "".join(f"def train{i}(model, x):\n    model(x).sum().backward()\n    model.save{i}(x)\n" for i in range(n))
    calls = "".join(f"    train{i}(m, x)\n" for i in range(n))
    return _DDP + f"{defs}def main(net, x):\n    m = DDP(net)\n{calls}"


@text(1400)
def functions_of_one_table(n: int) -> str:
    defs = "".join(f"def f{i}(x):\n    dist.all_reduce(x)\n" for i in range(n))
    table = "TABLE = {" + ", ".join(f"'k{i}': f{i}" for i in range(n)) + "}\n"
    return f"{_TORCH}{defs}{table}" + "".join(f"def g{i}(x):\n    TABLE['k{i}'](x)\n" for i in range(n))


@text(1000)
def classes_of_one_factory(n: int) -> str:
    body = "    def run(self, x):\n        dist.all_reduce(x)\n    def other(self):\n        return 1\n"
    made = "".join(f"    if name == 'a{i}':\n        return A{i}()\n" for i in range(n))
    classes = "".join(f"class A{i}:\n{body}" for i in range(n))
    return f"{_TORCH}{classes}def make(name):\n{made}def main(x):\n    make('a0').run(x)\n"


@text(1000)
def functions_beside_statements_of_the_module(n: int) -> str:
    classes = "".join(f"class A{i}:\n    def run(self, x):\n        dist.all_reduce(x)\n" for i in range(n))
    made = "".join(f"a{i} = A{i}()\n" for i in range(n))
    return f"{_TORCH}{classes}{made}" + "".join(f"def g{i}(x):\n    a{i}.run(x)\n" for i in range(n))


@text(1000)
def options_of_a_parser(n: int) -> str:
    made = "".join(f"    p.add_argument('--o{i}', type=int, default={i})\n" for i in range(n))
    used = "".join(f"    if args.o{i} > 0:\n        x = x + {i}\n" for i in range(n))
    head = f"import argparse\n{_TORCH}def main(x):\n    p = argparse.ArgumentParser()\n"
    return f"{head}{made}    args = p.parse_args()\n{used}    if args.o1 == 0:\n        dist.barrier()\nmain(1)\n"


@text(700)
def methods_that_call_one_another(n: int) -> str:
    body = "        if x > {0}:\n            self.m{1}(x)\n        self.m{2}(x)\n        dist.all_reduce(x)\n"
    called = ((i, (i * 7 + 1) % n, (i * 3 + 2) % n) for i in range(n))
    return _MODULE + "".join(f"    def m{each[0]}(self, x):\n{body.format(*each)}" for each in called)


@text(100)
def groups_of_one_module(n: int) -> str:
    names = [f"_GROUP_{i}" for i in range(n)]
    parts = [_TORCH, *(f"{name} = None\n" for name in names), "def set_up(ranks):\n"]
    parts += [f"    global {x}\n    assert {x} is None\n    {x} = dist.new_group(ranks)\n" for x in names]
    parts += ["def tear_down():\n", *(f"    global {name}\n    {name} = None\n" for name in names)]
    parts += [f"def get{name}():\n    return {name}\n" for name in names]
    return "".join([*parts, "def f(x):\n", *(f"    dist.all_reduce(x, group=get{name}())\n" for name in names)])


@text(150)
def attributes_of_many_classes_handed_on(n: int) -> str:
    use = "def use(a, b, c):\n" + "    a(b)\n" * n + "    if a.rank == 0:\n        dist.barrier()\n"
    run = "    def run(self):\n        use(self.a, self.b, self.c)\n"
    return _TORCH + "import abc\n" + use + "".join(f"class C{i}(abc.ABC):\n{run}" for i in range(n))


@text(400)
def managers_of_contexts(n: int) -> str:
    body = (
        "    if dist.get_rank() == 0:\n        yield\n    dist.barrier()\n    if dist.get_rank() != 0:\n        yield\n"
    )
    made = "".join(f"@contextlib.contextmanager\ndef m{i}(x):\n{body}" for i in range(n))
    used = "".join(f"    with m{i}(x):\n        x = x + 1\n" for i in range(n))
    return f"import contextlib\n{_TORCH}{made}def f(x):\n{used}"


@text(700)
def sends_from_rank_to_rank(n: int) -> str:
    sent = "    if r == {0}:\n        dist.send(x, {1})\n    elif r == {1}:\n        dist.recv(x, {0})\n"
    return f"{_TORCH}def f(x):\n    r = dist.get_rank()\n" + "".join(sent.format(i, i + 1) for i in range(n))


@text(600)
def models_wrapped_in_one_function(n: int) -> str:
    made = "".join(f"    m{i} = DDP(net.a{i})\n    m{i}(net.x).sum().backward()\n" for i in range(n))
    return f"{_DDP}def f(net):\n{made}"


@text(500)
def loaders_of_one_function(n: int) -> str:
    made = "".join(f"    l{i} = DataLoader(x.a{i}, shuffle=True)\n" for i in range(n))
    used = "".join(f"    for y in l{i}:\n        dist.all_reduce(y)\n" for i in range(n))
    return f"{_TORCH}from torch.utils.data import DataLoader\ndef f(m, x):\n{made}{used}"


@text(500)
def loads_of_one_function(n: int) -> str:
    loads = "".join(f"    y{i} = torch.load('a{i}')\n" for i in range(n))
    return f"{_TORCH}def main():\n    dist.init_process_group()\n{loads}"


@text(400)
def wraps_in_functions(n: int) -> str:
    step = "    def step():\n        m(x).sum().backward()\n    step()\n    m.module.save()\n    m.custom{}()\n"
    made = "".join(f"def f{i}(net, x):\n    m = DDP(net)\n{step.format(i)}" for i in range(n))
    return f"{_DDP}{made}"


@text(400)
def methods_called_behind_a_wrapper(n: int) -> str:
    defs = "".join(f"    def m{i}(self, x):\n        return x\n" for i in range(n))
    used = "".join(f"    n.module.m{i}(x).sum().backward()\n" for i in range(n))
    head = "class N(nn.Module):\n"
    return f"{_DDP}{head}{defs}def train(x):\n    n = DDP(N())\n{used}"


@text(300)
def classes_that_override_one_method(n: int) -> str:
    head = "class B(nn.Module):\n    def run(self, x):\n        self.go(x)\n        dist.barrier()\n    def go(self, x):\n        pass\n"
    body = "    def go(self, x):\n        if x.n > {0}:\n            dist.all_reduce(x)\n"
    return f"{_TORCH}{head}" + "".join(f"class C{i}(B):\n{body.format(i)}" for i in range(n))


@text(500)
def layers_that_buffers_follow(n: int) -> str:
    made = "".join(
        f"        self.l{i} = nn.Linear(2, 2)\n        self.register_buffer('b{i}', torch.zeros(1))\n" for i in range(n)
    )
    used = "".join(f"        x = self.l{i}(x)\n        self.b{i} = x.mean()\n" for i in range(n))
    wrap = "from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(Net())\n"
    return f"{_MODULE}{made}    def forward(self, x):\n{used}        return x\n{wrap}"


@text(400)
def layers_under_conditions(n: int) -> str:
    made = "".join(f"        self.l{i} = nn.Linear(2, 2)\n" for i in range(n))
    used = "".join(f"        if x.sum() > {i}:\n            x = self.l{i}(x)\n" for i in range(n))
    return f"{_MODULE}{made}    def forward(self, x):\n{used}        return x\n"


@text(500)
def asynchronous_work_on_one_tensor(n: int) -> str:
    works = "".join(f"    w{i} = dist.all_reduce(x, async_op=True)\n" for i in range(n))
    waits = "".join(f"    w{i}.wait()\n" for i in range(n))
    return f"{_TORCH}def f(x):\n{works}{waits}"


@text(500)
def environment_of_gpus(n: int) -> str:
    written = "".join(f"os.environ['CUDA_VISIBLE_DEVICES'] = '{i}'\n" for i in range(n))
    return f"import os\n{_TORCH}{written}dist.init_process_group()\n"


@text(500)
def objects_of_the_first_rank(n: int) -> str:
    made = "".join(f"        self.w{i} = open('a') if rank == 0 else None\n" for i in range(n))
    used = "".join(f"        self.w{i}.write(x)\n" for i in range(n))
    head = "class A:\n    def __init__(self, rank):\n"
    return f"{_TORCH}{head}{made}    def run(self, x):\n        x.backward()\n{used}"


@text(40)
def calls_that_double_by_what_they_pass(n: int) -> str:
    names = ", ".join(f"p{i}" for i in range(8))
    call = "    f{}(x, p1, p2, p3, p4, p5, p6, p7, {})\n"
    links = "".join(f"def f{i}(x, {names}):\n{call.format(i + 1, 'g')}{call.format(i + 1, 'h')}" for i in range(n))
    return f"{_TORCH}def g(x): pass\ndef h(x): pass\n{links}def f{n}(x, {names}):\n    dist.all_reduce(x)\n"


@text(500)
def optimizers(n: int) -> str:
    step = "    o{0}.zero_grad()\n    m(x).sum().backward()\n    o{0}.step()\n"
    made = "".join(f"    o{i} = torch.optim.SGD(m.a{i}.parameters(), lr=0.1)\n{step.format(i)}" for i in range(n))
    return f"{_DDP}def f(net, x):\n    m = DDP(net)\n{made}"


@text(1000)
def loops_with_breaks(n: int) -> str:
    loop = "    for y in x:\n        if y > 0:\n            break\n        dist.all_reduce(y)\n"
    return f"{_TORCH}def f(x):\n{loop * n}"


@text(600)
def generators_in_a_chain(n: int) -> str:
    links = "".join(f"def g{i + 1}(x):\n    for y in g{i}(x):\n        yield y + {i}\n" for i in range(n))
    first = "def g0(x):\n    for y in x:\n        dist.all_reduce(y)\n        yield y\n"
    return f"{_TORCH}{first}{links}def f(x):\n    for y in g{n}(x):\n        print(y)\n"


@text(1500)
def dictionaries_in_a_chain(n: int) -> str:
    links = "".join(f"    d{i + 1} = {{**d{i}, 'k{i}': dist.get_rank() + {i}}}\n" for i in range(n))
    return f"{_TORCH}def f(d0):\n{links}    if d{n}['k0'] == 0:\n        dist.barrier()\n"


@text(1000)
def match_of_classes(n: int) -> str:
    case = "        case C{0}(a=a, b=[b, *c]) if a > {0}:\n            dist.all_reduce(b)\n"
    return f"{_TORCH}def f(x):\n    match x:\n" + "".join(case.format(i) for i in range(n))


@text(1000)
def groups_in_a_list(n: int) -> str:
    made = "".join(f"    gs.append(dist.new_group([0, {i + 1}]))\n" for i in range(n))
    used = "".join(f"    dist.all_reduce(x, group=gs[{i}])\n" for i in range(n))
    return f"{_TORCH}def f(x):\n    gs = []\n{made}{used}"


@text(600)
def returns_of_tuples(n: int) -> str:
    defs = "".join(f"def f{i}(x):\n    return x, dist.get_rank(), {i}\n" for i in range(n))
    used = "".join(f"    a{i}, b{i}, c{i} = f{i}(x)\n    if b{i} == 0:\n        x = x + a{i}\n" for i in range(n))
    return f"{_TORCH}{defs}def g(x):\n{used}    dist.all_reduce(x)\n"


def _behind(n: int, used: str, after: str) -> str:
    """Methods of a model that are called behind its wrapper, each with what is done with the result."""
    defs = "".join(f"    def m{i}(self, x):\n        return x\n" for i in range(n))
    calls, rest = ("".join(each.format(i) for i in range(n)) for each in (used, after))
    head = "class N(nn.Module):\n"
    return f"{_DDP}{head}{defs}def train(x):\n    n = DDP(N())\n{calls}{rest}    x.sum().backward()\n"


@text(600)
def results_from_behind_a_wrapper(n: int) -> str:
    return _behind(n, "    y{0} = n.module.m{0}(x)\n", "    y{0}.sum().backward()\n")


@text(800)
def results_from_behind_a_wrapper_in_a_chain(n: int) -> str:
    return _behind(n, "    x = n.module.m{0}(x)\n", "")


def _of_dense_lines(n: int, line: str) -> str:
    """Lines of hundreds of characters: most of their cost is the parser's."""
    return f"{_TORCH}def f(x):\n" + "".join(f"    y{i} = {line}\n" for i in range(n)) + "    dist.all_reduce(y0)\n"


@text(100)
def lambdas_in_lambdas(n: int) -> str:
    return _of_dense_lines(n, "".join(f"lambda a{i}: " for i in range(60)) + "dist.all_reduce(a0 + x)")


@text(100)
def nested_comprehensions(n: int) -> str:
    line = "x"
    for i in range(12):
        line = f"[v{i} + {i} for v{i} in {line} if v{i} > {i}]"
    return _of_dense_lines(n, line)


@text(100)
def walrus_chains(n: int) -> str:
    return _of_dense_lines(n, " + ".join(f"(w{i} := x + {i})" for i in range(60)))


@text(50)
def groups_of_parameters(n: int) -> str:
    groups = ", ".join(f"{{'params': x.a{i}.parameters(), 'lr': {i}}}" for i in range(40))
    return _of_dense_lines(n, f"torch.optim.SGD([{groups}], 0.1)")


# ---- several files


@kind(300)
def files_that_wrap(folder: pathlib.Path, n: int) -> None:
    head = (
        _TORCH + "from torch.nn.parallel import DistributedDataParallel as DDP\ndef wrap(net):\n    return DDP(net)\n"
    )
    for i in range(n):
        body = "    m = wrap(net)\n    m(x).sum().backward()\n    m.save()\n"
        (folder / f"w{i}.py").write_text(f"{head}def train{i}(net, x):\n{body}")


def _users_of_a_library(folder: pathlib.Path, n: int) -> None:
    base = "class Base:\n    def run(self, x):\n        self.go(x)\n    def go(self, x):\n        dist.barrier()\n"
    (folder / "lib.py").write_text(f"{_TORCH}def sync(x):\n    dist.all_reduce(x)\n{base}")
    for i in range(n):
        (folder / f"s{i}.py").write_text(
            f"{_TORCH}from lib import sync, Base\nclass C{i}(Base):\n    def go(self, x):\n"
            "        if dist.get_rank() == 0:\n            sync(x)\n"
            f"def main(x):\n    if dist.get_rank() == 0:\n        C{i}().run(x)\n"
            "if __name__ == '__main__':\n    main(1)\n"
        )


@kind(100)
def files_that_use_a_library(folder: pathlib.Path, n: int) -> None:
    _users_of_a_library(folder, n)


@kind(100)
def ignores_added_to_files(folder: pathlib.Path, n: int) -> None:
    """With `--add-ignore`."""
    _users_of_a_library(folder, n)


@kind(100)
def fixes_of_files(folder: pathlib.Path, n: int) -> None:
    """With `--fix`: all are checked four times, as fixes may make others possible, in their file and in other files."""
    (folder / "lib.py").write_text(
        f"{_TORCH}from torch.utils.data import DataLoader\nfrom torch.utils.data.distributed import DistributedSampler\n"
        "def load(data):\n    sampler = DistributedSampler(data)\n    return sampler, DataLoader(data, sampler=sampler)\n"
        "def sync(x):\n    dist.all_reduce(x)\n"
    )
    body = "    sampler, loader = load(data)\n    for epoch in range(epochs):\n        for x in loader:\n            sync(net(x))\n"
    lost = "        for x in loader:\n            sync(net(x))\n            net(x).sum().backward()\n"
    for i in range(n):
        own = "    s = DistributedSampler(data)\n    loader = DataLoader(data, sampler=s)\n    for epoch in range(epochs):\n"
        (folder / f"s{i}.py").write_text(
            f"{_TORCH}from torch.utils.data import DataLoader\n"
            "from torch.utils.data.distributed import DistributedSampler\n"
            f"from lib import load, sync\ndef train(data, net, epochs):\n{own}{lost}{body}"
        )


@kind(300)
def models_made_of_each_other(folder: pathlib.Path, n: int) -> None:
    for i in range(n):
        other = f"P{(i + 1) % n}"
        (folder / f"p{i}.py").write_text(
            f"{_TORCH}from {other.lower()} import {other}\nclass P{i}(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.inner = {other}()\n        self.w = nn.Parameter(torch.zeros(1))\n"
            "    def forward(self, x):\n        self.w.data.mul_(2)\n        return self.inner(x).sum().item()\n"
        )


@kind(500)
def one_name_in_all_files(folder: pathlib.Path, n: int) -> None:
    for i in range(n):
        (folder / f"m{i}.py").write_text(
            f"{_TORCH}from m{(i + 1) % n} import run as again\ndef run(x):\n    dist.all_reduce(x)\n    again(x)\n"
        )


@kind(300)
def scripts_of_one_library(folder: pathlib.Path, n: int) -> None:
    (folder / "lib.py").write_text(
        f"{_TORCH}import os\ndef setup():\n    dist.init_process_group('nccl')\ndef fetch(p):\n"
        "    if not os.path.exists(p):\n        open(p, 'w').write('x')\n    return open(p).read()\n"
    )
    for i in range(n):
        (folder / f"s{i}.py").write_text(
            f"{_TORCH}from lib import setup, fetch\ndef main():\n    setup()\n    fetch('data{i}')\n"
            f"    torch.load('a{i}.pt')\nif __name__ == '__main__':\n    main()\n"
        )


@kind(60)
def programs_that_look_names_up(folder: pathlib.Path, n: int) -> None:
    for i in range(n):
        uses = "\n".join(f"import lib{(i + step) % n}\ngetattr(lib{(i + step) % n}, 'run' + x)()" for step in range(4))
        (folder / f"lib{i}.py").write_text(f"import torch\ndef run{i}(x):\n    return torch.load('a')\n")
        start = "if __name__ == '__main__':\n    dist.init_process_group('nccl')\n    x = torch.load('b')\n"
        (folder / f"train{i}.py").write_text(f"{_TORCH}import sys\nx = sys.argv[1]\n{uses}\n{start}")


@kind(300)
def packages_that_hand_on(folder: pathlib.Path, n: int) -> None:
    """Packages in each other's row, each with all names of the next."""
    (folder / "p0.py").write_text(f"{_TORCH}def f():\n    dist.barrier()\n")
    for i in range(1, n):
        (folder / f"p{i}").mkdir()
        (folder / f"p{i}" / "__init__.py").write_text(f"from p{i - 1} import f\n")
    (folder / "a.py").write_text(f"{_TORCH}from p{n - 1} import f\nif dist.get_rank() == 0:\n    f()\n")


@kind(200)
def stars_in_a_chain(folder: pathlib.Path, n: int) -> None:
    (folder / "s0.py").write_text(f"{_TORCH}def f():\n    dist.barrier()\n")
    for i in range(1, n):
        (folder / f"s{i}.py").write_text(f"{_TORCH}from s{i - 1} import *\ndef g{i}():\n    f()\n")


@kind(200)
def files_in_one_circle_of_imports(folder: pathlib.Path, n: int) -> None:
    for i in range(n):
        (folder / f"c{i}.py").write_text(
            f"{_TORCH}from c{(i + 1) % n} import f{(i + 1) % n}\nfrom c{(i + 7) % n} import f{(i + 7) % n}\n"
            f"def f{i}(x):\n    if x > {i}:\n        f{(i + 1) % n}(x)\n    f{(i + 7) % n}(x)\n    dist.all_reduce(x)\n"
        )


@kind(200)
def methods_of_one_name(folder: pathlib.Path, n: int) -> None:
    """Each file has a class with the method that all call on objects of no known class."""
    for i in range(n):
        (folder / f"m{i}.py").write_text(
            f"{_TORCH}class C{i}:\n    def step(self, x):\n        dist.all_reduce(x)\n"
            "def run(o, x):\n    if dist.get_rank() == 0:\n        o.step(x)\n"
        )


@kind(500)
def cells_of_a_notebook(folder: pathlib.Path, n: int) -> None:
    cell = {"cell_type": "code", "source": f"{_TORCH}if dist.get_rank() == 0:\n    dist.barrier()\n", "outputs": []}
    (folder / "a.ipynb").write_text(json.dumps({"cells": [cell] * n, "metadata": {}, "nbformat": 4}))


@kind(20_000)
def batch_script(folder: pathlib.Path, n: int) -> None:
    (folder / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n" + "export NCCL_DEBUG=INFO \\\n  NCCL_IB_DISABLE=1\nsrun python a.py\n" * n
    )


@kind(120)
def nested_folders(folder: pathlib.Path, n: int) -> None:
    at = os.open(folder, os.O_RDONLY)
    for i in range(n):
        if i % _DEEP == 0:
            os.close(at)
            (folder / f"d{i}").mkdir()
            at = os.open(folder / f"d{i}", os.O_RDONLY)
        with open(os.open("a.py", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at), "w") as file:
            file.write(f"{_TORCH}import b\nif dist.get_rank() == 0:\n    dist.barrier()\n")
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@kind(500)
def files_that_import_in_a_chain(folder: pathlib.Path, n: int) -> None:
    (folder / "m0.py").write_text(f"{_TORCH}def f0():\n    dist.barrier()\n")
    for i in range(n):
        (folder / f"m{i + 1}.py").write_text(f"{_TORCH}from m{i} import f{i}\ndef f{i + 1}():\n    f{i}()\n")


@kind(2000)
def own_names(folder: pathlib.Path, n: int) -> None:
    names = ", ".join(f'"package.module{i}.rank"' for i in range(n))
    (folder / "ddp-lint.toml").write_text(
        f"rank-expressions = [{names}]\ncollectives = [{names.replace('rank', 'c')}]\n"
    )
    (folder / "a.py").write_text(
        _TORCH
        + "".join(f"def f{i}(x):\n    if x.rank == {i}:\n        x.c(x)\n        dist.barrier()\n" for i in range(100))
    )


@kind(3000)
def patterns_of_the_configuration(folder: pathlib.Path, n: int) -> None:
    rows = "".join(f'"m{i}/*.py" = ["DDP10{i % 9 + 1}"]\n' for i in range(n))
    (folder / "ddp-lint.toml").write_text(f"[per-file-ignores]\n{rows}")
    for i in range(60):
        (folder / f"a{i}.py").write_text(f"{_TORCH}if dist.get_rank() == 0:\n    dist.barrier()\n")


@kind(2000)
def patterns_of_gitignore(folder: pathlib.Path, n: int) -> None:
    (folder / ".gitignore").write_text("".join(f"*a*b{i}*c\n" for i in range(n)))
    for i in range(200):
        (folder / f"aaaaabbbbb{i}.py").write_text(_TORCH)


@kind(1000)
def files(folder: pathlib.Path, n: int) -> None:
    for i in range(n):
        (folder / f"m{i}.py").write_text(f"{_TORCH}def f(x):\n    if dist.get_rank() == {i}:\n        dist.barrier()\n")


@kind(40_000)
def shell_script(folder: pathlib.Path, n: int) -> None:
    (folder / "run.sh").write_text(
        "#!/bin/bash\n" + "export NCCL_DEBUG=INFO\ntorchrun --nproc-per-node 2 a.py # noqa\n" * n
    )


@kind(4000)
def yaml(folder: pathlib.Path, n: int) -> None:
    (folder / "job.yaml").write_text("env:\n" + "".join(f"  - name: NCCL_A{i}\n    value: '1'\n" for i in range(n)))


@kind(150)
def classes_of_few_names(folder: pathlib.Path, n: int) -> None:
    """Tests often call all their classes A, B and C: by its name, a base may be any of them."""
    body = "    def f(self, x):\n        dist.all_reduce(x)\n\n    def g(self, x):\n        return A().f(x) or self.f(x)\n\n"
    for i in range(n):
        classes = "".join(f"class {name}({base}):\n{body}" for name, base in ("AB", "BC", "CD", "DE"))
        (folder / f"m{i}.py").write_text(f"{_TORCH}class E:\n    pass\n\n{classes}")


# ---- measuring


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--limit", type=float, default=2.3, help="the largest ratio that is right")
    parser.add_argument("--lines", type=int, default=5000, help="the lines of the file of the last column; 0: no such")
    parser.add_argument("--seconds", type=float, default=2.0, help="the most CPU seconds that are right for them")
    parser.add_argument("--timeout", type=float, default=120.0, help="CPU seconds after which a run is ended")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each by turns, of which the fastest counts")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each run would compile the linter
    title = f"{options.lines} lines s" if options.lines else ""
    print(f"{'kind':64}{'size':>9}{'s':>8}{'2x s':>8}{'ratio':>7}{title:>15}")
    above = 0
    for name in options.kinds or KINDS:
        size, make = KINDS[name]
        lines = _size_of_lines(make, size, options.lines) if options.lines else 0
        once, ratio, seconds = _growth(make, size, lines, options)
        while ratio > options.limit and once < _SHORT:  # what grows too fast does so at twice the size, noise does not
            size *= 2
            once, ratio, _ = _growth(make, size, 0, options)
        wrong = ratio > options.limit or (name in ONE_FILE and seconds > options.seconds)
        above += wrong
        last = f"{seconds:15.2f}" if lines else f"{'-' * bool(options.lines):>15}"
        print(f"{name:64}{size:9}{once:8.2f}{once * ratio:8.2f}{ratio:7.2f}{last}{'  <--' * wrong}", flush=True)
    return 1 if above else 0


def _growth(make: Make, size: int, lines: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """The CPU seconds of an input without what any check costs, how many times that one of twice its size takes, and
    the seconds at the size `lines` (0: none)."""
    turns = [[_seconds(*run, options.timeout) for run in _runs(make, size, lines)] for _ in range(options.repeats)]
    start, once, twice, last = (min(seconds) for seconds in zip(*turns, strict=True))
    once = max(once - start, 0.01)
    return once, (twice - start) / once, max(last - start, 0.0)


def _runs(make: Make, size: int, lines: int) -> list[tuple[Make, int]]:
    """A tiny file, which costs what each check costs on the machine as it is just now; the input; twice the input; and
    the input at the size `lines`."""
    return [(_tiny, 0), (make, size), (make, 2 * size), (make, lines) if lines else (_tiny, 0)]


def _tiny(folder: pathlib.Path, n: int) -> None:
    """One file with a finding: the start of the process, and the modules and tables that each check needs once."""
    (folder / "a.py").write_text(
        f"{_DDP}{_MODULE.removeprefix(_TORCH)}        self.w = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.w(x).sum().item()\n"
        "def train(x):\n    DDP(Net())(x).backward()\n    if dist.get_rank() == 0:\n        dist.barrier()\n"
    )


def _size_of_lines(make: Make, size: int, lines: int) -> int:
    """The size at which an input has that many lines, or as much text as that many have where its lines are longer than
    full ones; 0 if it does not grow in proportion to its size."""

    def share(n: int) -> float:
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            make(folder, n)
            texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
            ends, length = sum(text.count(b"\n") for text in texts), sum(map(len, texts))
            return (length / _LINE if length > _FULL_LINE * ends else ends) / lines
        finally:
            _remove(folder)

    first, second = share(size), share(2 * size)
    return round(size + (1 - first) * size / (second - first)) if second > 1.5 * first else 0


def _seconds(make: Make, n: int, limit: float) -> float:
    """The CPU seconds of a check of what `make` makes at size `n`."""
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        (folder / "pyproject.toml").write_text("")
        make(folder, n)
        command = [
            "check",
            "--select",
            "ALL",
            "--preview",
            "--exit-zero",
            "--no-cache",
            "-q",
            "--jobs",
            "1",
            "-o",
            os.devnull,
        ]
        command += _OPTIONS.get(make.__name__, [])
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({int(limit)}, {int(limit)}))\n"
        code = f"{limited}from ddp_lint.cli import main; main({command!r})"
        process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            print(f"  {make.__name__} at {n} ended with status {process.returncode}", file=sys.stderr)
        return usage.ru_utime + usage.ru_stime
    finally:
        _remove(folder)


def _remove(folder: pathlib.Path) -> None:
    subprocess.run(["rm", "-rf", "--", str(folder)], check=False)  # shutil recurses once a folder


if __name__ == "__main__":
    sys.exit(main())
