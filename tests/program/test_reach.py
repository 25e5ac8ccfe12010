"""Which functions of a project can communicate: never too few, and not simply all."""

import json
import os
import pathlib
import textwrap

import pytest

from ddp_lint.divergence.analyse import graph_of, roots, summaries_of
from ddp_lint.divergence.event_graph import EventNode
from ddp_lint.knowledge.project_names import Names
from ddp_lint.program import Place, index
from ddp_lint.project import Project
from ddp_lint.project.communication import Reach

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"

NONE = Names()
#: Modules of a project by name, the functions that can communicate as ``module:function``, and some that cannot.
PROJECTS: dict[str, tuple[dict[str, str], set[str], set[str]]] = {
    "directly, under any name": (
        {
            "a": """
                import torch.distributed as dist
                from torch.distributed import broadcast as send_all
                import torch.distributed

                def named(x): dist.broadcast(x, 0)
                def renamed(x): send_all(x, 0)
                def spelled_out(x): torch.distributed.reduce(x, 0)
                def other(x): return torch.broadcast_to(x, (2, 2)), x.sum()
            """
        },
        {"a:named", "a:renamed", "a:spelled_out"},
        {"a:other", "a:"},
    ),
    "a method from whose result a framework goes backward": (
        {
            "a": """
                import lightning as L

                class Net(L.LightningModule):
                    def training_step(self, batch, index): return self.layer(batch).mean()
                    def loss(self, batch): return self.layer(batch).mean()
            """
        },
        {"a:Net.training_step"},
        {"a:Net.loss"},
    ),
    "a module that another one hands on": (
        {
            "compat": "import torch.distributed as dist\n",
            "a": """
                from compat import dist

                def communicates(x): dist.gather(x)
                def computes(x): return x.gather(0, x)
            """,
        },
        {"a:communicates"},
        {"a:computes"},
    ),
    "objects of a framework's packages": (
        {
            "a": """
                import torchmetrics.image as image

                def scored(x): return image.PeakSignalNoiseRatio().compute()
            """,
            "b": """
                from drawing import image

                def drawn(x): return image.open(x).compute()
            """,
        },
        {"a:scored"},
        {"b:drawn"},
    ),
    "through calls, methods and constructors": (
        {
            "helpers": """
                import torch.distributed as dist

                def sync(): dist.barrier()
                def idle(): pass
            """,
            "objects": """
                from helpers import sync

                class Base:
                    def __init__(self): self.ready = True
                    def save(self): sync()
                    def name(self): return "base"

                class Saver(Base):
                    def __init__(self):
                        super().__init__()
                        sync()
            """,
            "a": """
                import helpers
                from objects import Saver

                def calls(): helpers.sync()
                def constructs(): return Saver()
                def saves(saver: Saver): saver.save()
                def asks(saver: "Saver"): return saver.title()
                def idles(): helpers.idle()
            """,
        },
        {"helpers:sync", "objects:Base.save", "objects:Saver.__init__", "a:calls", "a:constructs", "a:saves"},
        {"helpers:idle", "a:idles", "objects:Base.name", "objects:Base.__init__"},
    ),
    "an object that travels": (
        {
            "work": """
                def run(job): job.work()
                def look(job): return job.size
            """,
            "a": """
                import torch.distributed as dist
                from work import look, run

                class Job:
                    def work(self): dist.barrier()
                    def size(self): return 1

                def runs(): run(Job())
                def looks(job): look(job)
            """,
        },
        {"a:Job.work", "a:runs"},
        {"a:Job.size", "a:looks", "work:look"},
    ),
    "an attribute of another method's making": (
        {
            "a": """
                import torch.distributed as dist

                class Writer:
                    def flush(self): dist.barrier()

                class Trainer:
                    def __init__(self): self.writer = Writer()
                    def end(self): self.writer.flush()
                    def start(self): self.steps = 0
            """
        },
        {"a:Writer.flush", "a:Trainer.end"},
        {"a:Trainer.start"},
    ),
    "what nobody has to mention, where objects are called and managers entered": (
        {
            "a": """
                import torch.distributed as dist

                class Manager:
                    def __enter__(self): return self
                    def __exit__(self, *error): dist.barrier()

                class Loader:
                    def __iter__(self): dist.barrier()

                class Layer:
                    def __call__(self, x): dist.all_reduce(x)

                class Meter:
                    def __str__(self):
                        dist.all_reduce(self.total)
                        return "loss"

                class Owner:
                    def __init__(self):
                        self.manager, self.loader, self.layer = Manager(), Loader(), Layer()
                        self.meter = Meter()
                    def writes(self): return f"{self.meter}"
                    def enters(self):
                        with self.manager: pass
                    def calls(self, x): return self.layer(x)
                    @property
                    def size(self): return self.loader.size
            """
        },
        {"a:Owner.enters", "a:Owner.calls", "a:Owner.writes", "a:Manager.__exit__", "a:Loader.__iter__"},
        {"a:Owner.size", "a:Manager.__enter__"},
    ),
    "a decorator, a default, an attribute by name": (
        {
            "a": """
                import torch.distributed as dist

                def together(f):
                    def inner(*args):
                        dist.barrier()
                        return f(*args)
                    return inner

                @together
                def decorated(): pass

                def default(op=dist.all_reduce): op()
                def by_name(x): getattr(dist, "barrier")()
                def plain(): pass
            """
        },
        {"a:together", "a:together.inner", "a:decorated", "a:default", "a:by_name"},
        {"a:plain"},
    ),
    "its own object: named for an attribute, called, written, entered": (
        {
            "a": """
                import torch.distributed as dist

                class Layer:
                    def __init__(self, size): self.size = size
                    def forward(self, x): dist.all_reduce(x)
                    def __str__(self): return str(dist.all_gather(self.size))
                    def __enter__(self): dist.barrier()
                    def norm(self, x): return len(x.pow(2)) * self.size
                    def twice(self, x): return self(x) + self(x)
                    def shown(self): return f"{self}"
                    def entered(self):
                        with self: pass
                    def passed(self, x): return run(self, x)
                    def last(self, x): return abs(x)
                    def after(self, x): return x

                def run(layer, x): return layer(x)
            """
        },
        {"a:Layer.twice", "a:Layer.shown", "a:Layer.entered", "a:Layer.passed"},
        {"a:Layer.norm", "a:Layer.__init__", "a:Layer.last", "a:Layer.after"},
    ),
    "constructors of what an object holds; super().__init__()": (
        {
            "a": """
                import torch.distributed as dist

                class Mesh:
                    def __init__(self): dist.barrier()

                class Base:
                    def __init__(self): self.size = 1
                    def start(self): self.mesh = Mesh()

                class Model(Base):
                    def __init__(self): super().__init__()
            """
        },
        {"a:Base.start"},
        {"a:Model.__init__", "a:Base.__init__"},
    ),
    "attributes by computed names": (
        {
            "a": """
                import torch.distributed as dist

                class Trainer:
                    def train_step(self): dist.barrier()
                    def run(self, kind): getattr(self, f"{kind}_step")()
                    @property
                    def inner(self): return getattr(self, self.prefix, self)

                def of_its_own(kind):
                    trainer = Trainer()
                    getattr(trainer, f"{kind}_step")()
                def of_another(config, names):
                    kinds = {Trainer: 1}
                    return [getattr(config, name) for name in names]
            """
        },
        {"a:Trainer.run", "a:of_its_own"},
        {"a:Trainer.inner", "a:of_another"},
    ),
    "tables of a module: not what it imports and defines beside a list": (
        {
            "a": """
                import torch.distributed as dist

                def sums(x): dist.all_reduce(x)
                def plain(x): return x

                TABLE = {"sum": sums}
                PAIR = [sums, plain]
                if PAIR:
                    import math
                def halved(x: "float" = 1, *, places: "tuple" = (sums,)) -> "float": return x

                def looked_up(x): return TABLE["sum"](x)
                def rooted(x): return math.sqrt(x)
                def calls(x): return halved(x)
            """
        },
        {"a:looked_up"},
        {"a:rooted"},
    ),
    "backward of a wrapped model alone": (
        {
            "single": "def step(loss): loss.backward()\n",
            "several": """
                from torch.nn.parallel import DistributedDataParallel as DDP

                def step(loss): loss.backward()
                def wrap(model): return DDP(model)
            """,
        },
        {"several:step", "several:wrap"},
        {"single:step"},
    ),
    "a model that is only taken out of its wrapper": (
        {
            "a": """
                from torch.nn.parallel import DistributedDataParallel as DDP

                def taken(m): return m.module if isinstance(m, DDP) else m
                def calls(m): return taken(m).state_dict()
                def runs(m, x):
                    if isinstance(m, DDP):
                        return m(x), m.module
            """
        },
        {"a:runs"},
        {"a:taken", "a:calls"},
    ),
    "a word in a comment at the head of a function": (
        {
            "a": """
                from torch.nn.parallel import DistributedDataParallel as DDP

                def wrap(m): return DDP(m)
                def old() -> int:  # backward compatibility
                    return 0
                def marked(x, mark="#", step=None.backward): return x
            """
        },
        {"a:wrap", "a:marked"},
        {"a:old"},
    ),
    "the module's own statements": (
        {
            "quiet": "def f(): pass\nf()\n",
            "loud": "from quiet import f\nimport torch.distributed as dist\ndist.barrier()\n",
        },
        {"loud:"},
        {"quiet:", "quiet:f"},
    ),
}


@pytest.mark.parametrize("case", PROJECTS)
def test_reach(case: str, tmp_path: pathlib.Path) -> None:
    files, communicating, silent = PROJECTS[case]
    found = _functions(_index(_written(files, tmp_path)), tmp_path)
    assert communicating <= found
    assert not silent & found


def _written(files: dict[str, str], folder: pathlib.Path) -> pathlib.Path:
    (folder / "pyproject.toml").touch()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


def _index(
    folder: pathlib.Path, kept: pathlib.Path | None = None, *, read: bool = True, names: Names | None = None
) -> Reach:
    project = Project(folder, folder, names=names)
    reach = index(project.layout.files(), names or Names(), Place(str(folder), kept), read=lambda: read)
    assert reach is not None
    return reach


def _functions(reach: Reach, folder: pathlib.Path) -> set[str]:
    return {f"{pathlib.Path(path).stem}:{name}" for path, names in reach.items() for name in names}


def test_names_of_the_projects_own_count(tmp_path: pathlib.Path) -> None:
    folder = _written({"a": "import comm\ndef f(x): comm.fuse(x)\ndef g(x): comm.show(x)\n"}, tmp_path)
    assert _functions(_index(folder, names=Names(collectives=("comm.fuse",))), folder) == {"a:f"}


def test_only_regular_files_are_read(tmp_path: pathlib.Path) -> None:
    folder = _written({"good": "def f(): pass\n"}, tmp_path)
    os.mkfifo(folder / "pipe.py")  # whoever opened it would wait for ever
    assert set(_index(folder)) == {str(folder / "good.py")}


def test_what_is_too_large_to_parse_is_unknown(tmp_path: pathlib.Path) -> None:
    folder = _written({"good": "def f(): pass\n", "data": f"x = [{'0,' * 1_200_000}]\n"}, tmp_path)
    assert set(_index(folder)) == {str(folder / "good.py")}


def test_what_cannot_be_compiled_is_unknown(tmp_path: pathlib.Path) -> None:
    folder = _written({"good": "def f(): pass\n", "bad": "def f(:\n"}, tmp_path)
    assert set(_index(folder)) == {str(folder / "good.py")}


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("collectives/*.py")), ids=lambda path: path.name)
def test_no_function_that_communicates_is_left_out(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Compared with the evaluation of every function."""
    program = tmp_path / path.name
    program.write_text(path.read_text())
    (tmp_path / "pyproject.toml").touch()
    known = _index(tmp_path)[str(program)]
    project = Project(tmp_path, tmp_path)
    facts = project.modules.facts_of(program)
    assert facts is not None
    summaries = summaries_of(project)
    communicating = set()
    for root in roots(facts, summaries):
        graph, _ = graph_of(root, facts, summaries)
        if any(isinstance(node, EventNode) for node in graph.nodes):
            communicating.add(root.name if root.function is not None else "")
    assert communicating <= known


# ---- from run to run


def test_what_was_learned_is_kept_until_a_file_changes(tmp_path: pathlib.Path) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    folder = _written({"a": "from b import g\ndef f(): g()\n", "b": "def g(): pass\n"}, project)
    assert _functions(_index(folder, kept), folder) == set()
    assert _functions(_index(folder, kept, read=False), folder) == set()
    (folder / "b.py").write_text("import torch.distributed as dist\ndef g(): dist.barrier()\n")
    assert (
        index([str(folder / "a.py"), str(folder / "b.py")], Names(), Place(str(folder), kept), read=lambda: False)
        is None
    )
    assert _functions(_index(folder, kept), folder) == {"a:f", "b:g"}


def test_what_was_learned_holds_where_a_changed_file_mentions_what_it_did(tmp_path: pathlib.Path) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    folder = _written({"a": "import torch.distributed as dist\ndef f(x): dist.barrier()\n", "b": ""}, project)
    _index(folder, kept)
    (folder / "a.py").write_text("import torch.distributed as dist\n\ndef f(x):\n    dist.barrier()  # all\n")
    assert _functions(_index(folder, kept, read=False), folder) == {"a:f"}
    paths, place = [str(folder / "a.py"), str(folder / "b.py")], Place(str(folder), kept)
    same, other = {paths[1]: "# nothing\n"}, {paths[1]: "import torch.distributed as d\ndef g(): d.barrier()\n"}
    assert index(paths, Names(), place, read=lambda: False, unsaved=same) == {paths[0]: {"f"}, paths[1]: frozenset()}
    assert index(paths, Names(), place, read=lambda: False, unsaved=other) is None
    (folder / "c.py").write_text("")
    assert index([*paths, str(folder / "c.py")], Names(), place, read=lambda: False) is None


@pytest.mark.parametrize("spoiled", ["", "[]", "{}", '{"a.py": 3}', '{"a.py": ["x", [1]]}', "\0"])
def test_a_spoiled_index_is_made_anew(spoiled: str, tmp_path: pathlib.Path) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    folder = _written({"a": "import torch.distributed as dist\ndef f(): dist.barrier()\n"}, project)
    _index(folder, kept)
    for file in kept.iterdir():
        entry = json.loads(file.read_text())
        file.write_text(spoiled.replace("x", str(entry.get("a.py", ["x"])[0])))
    assert _functions(_index(folder, kept), folder) == {"a:f"}
    assert all(json.loads(file.read_text()) for file in kept.iterdir())


def test_functions_that_all_call_each_other(tmp_path: pathlib.Path) -> None:
    everyone = [f"def f{i}(): " + "; ".join(f"f{j}()" for j in range(40)) for i in range(40)]
    outside = ["import torch.distributed as dist", "def f40(): dist.barrier(); f0()"]
    folder = _written({"a": "\n".join([*everyone, *outside])}, tmp_path)
    assert _functions(_index(folder), folder) == {"a:f40"}


def test_what_was_learned_holds_where_the_words_that_are_new_lead_nowhere(tmp_path: pathlib.Path) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    text = "import torch.distributed as dist\ndef f(x): dist.barrier()\ndef g(x): return x\n"
    folder = _written({"a": text, "b": "def h(y): return y.sum()\n"}, project)
    _index(folder, kept)
    paths, place = [str(folder / "a.py"), str(folder / "b.py")], Place(str(folder), kept)

    def after(body: str) -> object:
        return index(paths, Names(), place, read=lambda: False, unsaved={paths[1]: f"def h(y): {body}\n"})

    assert after("total = y; return total.mean()") == {paths[0]: {"f"}, paths[1]: frozenset()}
    assert after("return f(y)") is None
    assert after("return y.all_reduce()") is None
    assert index(paths, Names(), place, read=lambda: False, unsaved={paths[1]: "def k(y): return y\n"}) is None
