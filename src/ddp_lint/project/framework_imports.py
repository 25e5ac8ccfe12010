"""Which files can use a framework of several ranks: by an import of their own, or of what they import in the project.

Any other file does not communicate, even if its methods have such names: `all_gather` is a function of JAX, too.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable

from ddp_lint.knowledge import communication, frameworks
from ddp_lint.project.layout import FILES_LIMIT, Layout
from ddp_lint.project.words import words
from ddp_lint.source.imports import folders_put_on_path, imports_in, is_script
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.wrap_evidence import evidence

#: Names of modules that are assumed to communicate, in any project.
COMMUNICATION = re.compile(r"(^|[._])(dist|distributed|comm|communication|collectives|idist)([._]|$)")
#: Libraries of arrays whose objects have methods of the same names (``strategy.reduce(...)``, ``lax.all_gather(x)``).
_ARRAYS = frozenset({"flax", "jax", "jaxlib", "keras", "mxnet", "optax", "tensorflow", "tf_keras"})
#: Packages with such names whose processes are not ranks of PyTorch: Python's own (`distutils.dist`), and Dask's.
_OTHERS = sys.stdlib_module_names | _ARRAYS | {"distutils", "setuptools", "distributed"}
#: Words of files that make parts of models communicate, which other files may call.
SHARDING = (
    "fully_shard",
    "FullyShardedDataParallel",
    "transformer_layer_cls",
    "ModuleWrapPolicy",
    "deepspeed.initialize",
)
#: `torch.distributed`, or what is set up for it. A variable of that name shows nothing, nor does that of a test.
_DISTRIBUTED = (r"\bdistributed\.", r"\.distributed\b", r"\bimport\b.*\bdistributed\b", r"\binit_distributed")
#: Lines that are nothing but a comment.
_COMMENTS = re.compile(r"^[ \t]*#.*", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class _Look:
    """Whether a file itself uses a framework; if not, the files of the project that it imports."""

    uses: bool
    imported: frozenset[str] = frozenset()
    #: Besides, it has what several ranks need: torch on its own is a library of arrays.
    has_ranks: bool = False


class FrameworkImports:
    """`text_of` gives the text of a file by its path, None where it cannot be read."""

    def __init__(self, layout: Layout, text_of: Callable[[str], str | None]) -> None:
        self._layout = layout
        self._text_of = text_of
        self._known: dict[str, bool] = {}
        self._looks: dict[str, _Look] = {}
        self._has_ranks: bool | None = None

    def changed(self, path: str) -> bool:
        """A file has changed: whether what is known of any file may be different now."""
        earlier = self._looks.pop(path, None)
        if earlier is None and self._has_ranks is not False:
            return False
        now = self._look(path)
        if now == earlier or (earlier is None and not now.has_ranks):
            return False
        self._known.clear()
        self._has_ranks = None
        return True

    def has_ranks(self, path: str) -> bool:
        """Whether this file, which may be a notebook or new, or any one of the project has what several ranks need."""
        if self._look(path).has_ranks:
            return True
        if self._has_ranks is None:
            files = self._layout.files()
            known = (self._looks[each] for each in files if each in self._looks)
            self._has_ranks = (
                len(files) >= FILES_LIMIT
                or any(look.has_ranks for look in known)
                or any(self._look(each).has_ranks for each in files)
            )
        return self._has_ranks

    def reach(self, path: str) -> bool:
        """Whether a file or one that it imports, however indirectly, uses a framework."""
        before: dict[str, str | None] = {path: None}
        stack = [path]
        while stack:
            place = stack.pop()
            known = self._known.get(place)
            if known is False:
                continue
            look = self._look(place)
            if known or look.uses:
                way: str | None = place
                while way is not None:
                    self._known[way] = True
                    way = before[way]
                return True
            new = look.imported - before.keys()
            before |= dict.fromkeys(new, place)
            stack += new
        self._known |= dict.fromkeys(before, False)
        return False

    def _look(self, path: str) -> _Look:
        found = self._looks.get(path)
        if found is None:
            found = self._looks[path] = self._looked(path)
        return found

    def _looked(self, path: str) -> _Look:
        text = self._text_of(path)
        if text is None:
            return _Look(False)
        if not (own := frameworks.all_packages().intersection(self._layout.name_of(path)[0].split("."))) <= {"torch"}:
            return _Look(True, has_ranks=True)
        found: set[str] = set()
        packages: set[str] = set()
        started, below = is_script(text), folders_put_on_path(text)
        uses = bool(own)
        for target, _ in imports_in(text):
            names = self._layout.imported(target, path, started, below)
            files = set(filter(None, map(self._layout.find, names)))
            first = target.partition(".")[0]
            packages.add(first)
            foreign = not files and first and first not in _OTHERS
            if foreign and (first in frameworks.all_packages() - {"torch"} or COMMUNICATION.search(target)):
                return _Look(True, has_ranks=True)
            uses = uses or bool(foreign and first == "torch")
            found |= files
        of_arrays = not packages.isdisjoint(_ARRAYS)
        named = not of_arrays and _uses_by_name(text)
        if uses:
            return _Look(True, has_ranks=named or _has_ranks(text, of_arrays=of_arrays))
        return _Look(named, frozenset(found), has_ranks=named)


def _has_ranks(text: str, *, of_arrays: bool) -> bool:
    """Whether a text that uses torch uses it with several ranks. Comments show nothing: that a file is "distributed
    under the License" is in the header of every second one. Nor does what is said in strings, nor a test by which a
    library takes a model out of its wrapper. A method shows nothing in a file of another library of arrays
    (`of_arrays`): the barriers of Mosaic are between the warps of one GPU."""
    pattern = _of_ranks(of_arrays)
    if not occurs(pattern, text) or not occurs(pattern, _COMMENTS.sub("", text)):
        return False
    try:
        tree = parse(text)
    except CannotParse:  # of another version of Python, perhaps
        return True
    return pattern.search(_COMMENTS.sub("", evidence(text, tree, frameworks.shows("wraps")))) is not None


@functools.cache
def _of_ranks(of_arrays: bool) -> re.Pattern[str]:
    """What a text has that uses torch with several ranks."""
    methods = () if of_arrays else (rf"\.{name}\b" for name in frameworks.distinctive())
    return frameworks.shows("wraps", *_DISTRIBUTED, "SyncBatchNorm", "full_tensor", *methods)


def _uses_by_name(text: str) -> bool:
    """Whether a text uses an object of a framework by its usual name."""
    words_at, pattern = _usual_names()
    return not words_at.isdisjoint(words(text)) and pattern.search(text) is not None


@functools.cache
def _usual_names() -> tuple[frozenset[bytes], re.Pattern[str]]:
    """Words one of which a text has that uses an object of a framework without an import, and how it has it. What
    torch's own are called (a scheduler, a mesh) has too many meanings; what is distinctive of torch is not sure enough
    to be reported by itself."""
    known = communication.load()
    types = {type_.name: type_ for type_ in known.types.values() if type_.known_as}
    types = {name: type_ for name, type_ in types.items() if not name.startswith("torch.")}
    receivers = {name for type_ in types.values() for name in type_.known_as}
    classes = types.keys() | {base for type_ in types.values() for base in type_.bases}
    named = (*known.collectives, *(name for _, name in (*known.ranks, *known.sources, *known.uniforms)))
    members = {member for owner, _, member in (name.rpartition(".") for name in named) if owner in classes}
    methods = {name for name, (_, confidence) in frameworks.distinctive().items() if confidence != "low"}
    methods |= {gate.rpartition(".")[2] for gate in known.gates}
    pattern = (
        rf"\b(?:{'|'.join(sorted(receivers))})\.(?:{'|'.join(sorted(members))})\b|\b(?:{'|'.join(sorted(methods))})\b"
    )
    return frozenset(map(str.encode, receivers | methods)), re.compile(pattern)


__all__ = ["COMMUNICATION", "SHARDING", "FrameworkImports"]
