"""Process groups as the comparison needs them: which ranks are in one, and which tests keep its members together."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Literal

from ddp_lint.divergence.values import Condition, Value, Variation
from ddp_lint.divergence.worlds import World
from ddp_lint.knowledge.communication import GroupSource

#: Words in the name of a group or of a rank that name the parallel axis it runs along.
_AXES = (
    ("world", re.compile(r"(^|_)world(_|$)")),
    ("expert data", re.compile(r"(^|_)(edp|expt_dp|ep_dp)(_|$)|expert_(data|dp)")),
    ("expert tensor", re.compile(r"(^|_)etp(_|$)|expert_tensor")),
    ("expert", re.compile(r"(^|_)ep(_|$)|expert_(model_)?parallel")),
    ("embedding", re.compile(r"embed")),
    ("pipeline", re.compile(r"(^|_)pp(_|$)|pipe|stage")),
    ("tensor", re.compile(r"(^|_)(tp|mp|mpu|slice)(_|$)|tensor|model_parallel")),
    ("context", re.compile(r"(^|_)(cp|sp|ulysses)(_|$)|context|sequence|seq_")),
    ("expert", re.compile(r"(^|_)(ep|moe)(_|$)|expert")),
    ("replicate", re.compile(r"replic")),
    ("shard", re.compile(r"shard")),
    ("data", re.compile(r"(^|_)(dp|ddp|fsdp|dpr)(_|$)|data")),
)
WORLD_AXIS = "world"
#: Scopes of a place among all ranks, of one node or of all: no place along a single parallel axis.
OF_MACHINES = frozenset({WORLD_AXIS, "node", "nodes"})
#: Axes whose ranks work on one batch together.
_SHARING = frozenset({"tensor", "expert tensor", "pipeline", "context", "model"})


#: The group along one axis of a mesh: ``mesh["tp"].get_group()``, ``mesh.get_group("tp")``.
_OF_AXIS = re.compile(r"(?P<of>.+)\.get_group\((?P<along>[^()]*)\)")


#: The axis of a group that is called that of the ranks of one node: each test of the rank within the node splits it.
_LOCAL = "local"
#: How such a group is called.
_OF_NODE = re.compile(r"^(?:local|intra_?node|(?:in|same|per)_node|node_?local)(?:_(?:process_)?(?:group|pg|comm))?$")


@functools.lru_cache(maxsize=8192)
def axis_in(name: str) -> str:
    """The parallel axis that a name mentions (``self.dp_group``: data); '' when it does not."""
    last = name.rpartition(".")[2].lower()
    return next((axis for axis, pattern in _AXES if pattern.search(last)), "")


@dataclasses.dataclass(frozen=True)
class Group:
    """`key` identifies a group ("" is the world), `axis` is the axis that the members lie along, "" unknown."""

    key: str = ""
    axis: str = WORLD_AXIS
    #: An attribute of some object, whose name shows nothing: each such object has its own.
    own: bool = False
    #: What a callee calls ``group`` without having been given it: its members are not to be seen from here.
    hidden: bool = False
    #: The ranks in it, where the code names them; () where it does not.
    members: tuple[int, ...] = ()
    #: Those of the compared ranks that are not in it, where its list shows that: ``range(0, world_size, 8)``.
    outside: tuple[int, ...] = ()
    #: Its list follows from what only the run knows: a test of the rank may ask just whether it is a member. Of
    #: neighbours, only one that does not separate rank 0 from rank 1.
    computed: Literal["", "any", "neighbours"] = ""

    @property
    def is_world(self) -> bool:
        return self.axis == WORLD_AXIS

    @property
    def holds_experts(self) -> bool:
        """Has each of its ranks experts of its own, by its name, to which a batch may send nothing?"""
        return self.axis == "expert"

    def may_hold(self, world: World) -> bool:
        """Can the rank of this world be one of the members?"""
        return world.rank not in self.outside and (not self.members or world.rank in self.members)

    def may_be_chosen_by(self, condition: Condition) -> bool:
        """Can the ranks for which the condition holds be just the members? Nobody makes a group of a single rank."""
        if not self.computed or not condition.by_rank:
            return False
        if condition.open or self.computed == "neighbours":
            return condition.open or condition.truths[0] == condition.truths[1]
        return condition.truths.count(True) != 1


WORLD = Group()


def of_source(source: GroupSource) -> Group:
    """The group that a call known to hand one out, or a name known to have one, stands for."""
    return WORLD if source.scope == WORLD_AXIS else Group(source.name.rpartition(".")[2], source.scope)


def named(text: str) -> Group:
    """The group that an expression names: ``self.dp_group`` and ``mpu.get_dp_group()`` by what they have in common."""
    asked = _OF_AXIS.fullmatch(text)
    if asked is not None:
        along = _name_in(asked["along"]).lower()
        axis = axis_in(along) or axis_in(_name_in(asked["of"])) or (_LOCAL if _OF_NODE.search(along) else "")
        if axis or asked["along"]:  # each axis of a mesh has groups of its own
            return Group(text, axis)
    key = re.sub(r"\(.*\)$", "", text).rpartition(".")[2].lstrip("_").removeprefix("get_").lower()
    axis = axis_in(_INDEX.sub("", key)) or (_LOCAL if _OF_NODE.search(key) else "")
    looked_up = not axis and "[" in text
    return Group(key or text, axis, own=not axis and text.startswith("self."), computed="any" if looked_up else "")


#: ``groups[stage]``: the variable says which of the groups, not along which axis they lie; ``groups["tp"]`` does.
_INDEX = re.compile(r"\[[^\"']*\]$")


def _axis_asked_for(group: str) -> str:
    """The axis whose group ``mesh.get_group("tp")`` is; '' for other expressions."""
    asked = _OF_AXIS.fullmatch(group)
    return _name_in(asked["along"]) if asked is not None else ""


_GROUP = re.compile(r"(^|[._])(process_)?(group|pg)$")


def names_group(text: str) -> bool:
    """Does the expression say that it is a process group?"""
    return _GROUP.search(text) is not None


def listed_ranks(values: Iterable[Value | None]) -> tuple[int, ...]:
    """The first list of numbers among the arguments of a call that makes a group; () where none is known."""
    for value in values:
        ranks = value.constant.value if value is not None and value.constant is not None else None
        if isinstance(ranks, tuple) and ranks and all(type(rank) is int for rank in ranks):
            return ranks
    return ()


_HANDS_OUT = re.compile(r"^_?get_\w+_group$")


def handed_out(function: str, arguments: Iterable[Value] = ()) -> Group | None:
    """The group that a function of this name hands out (``get_tensor_model_parallel_group``), None for other names;
    with a list of ranks, any function that mentions a group (``make_group([0, 2])``)."""
    if "group" not in function:
        return None
    members = listed_ranks(arguments)
    if members:
        return Group(f"{function}({members})", "", members=members)
    known = _HANDS_OUT.match(function) is not None and axis_in(function) not in ("", WORLD_AXIS)
    return named(function) if known else None


def along(call: ast.Call) -> str:
    """The axis of a mesh that the only argument of a call names (``comm.get_rank("tp")``), or the part of the mesh that
    is asked for its own ranks (``mesh["tp"].get_local_rank()``); '' for anything else."""
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    of = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "get_local_rank" else None
    if not call.args and isinstance(of, ast.Subscript):
        given = of.slice
    name = given.value if isinstance(given, ast.Constant) else given.attr if isinstance(given, ast.Attribute) else ""
    if not isinstance(name, str) or (isinstance(given, ast.Attribute) and not name.isupper()):
        return ""
    return "" if axis_in(name) == WORLD_AXIS else name


def _name_in(text: str) -> str:
    """The last name in ``ParallelMode.TENSOR``, ``mesh["tp"]`` or ``mesh_dim="dp"``."""
    return next(iter(re.findall(r"\w+", text)[::-1]), "")


#: Names for any group.
_NAMELESS = frozenset({"group", "pg", "process_group", "comm", "comm_group", "dim_group"})


#: ``groups[name]``, ``manager.get_group(name)``: which one it is, a variable says.
_LOOKED_UP = re.compile(r"[(\[]\s*[A-Za-z_]")


def of_callee(text: str) -> Group:
    """The group that an expression of a callee names, none of whose callers has passed it."""
    group = named(text)
    looked_up = not group.axis and _LOOKED_UP.search(text) is not None
    return dataclasses.replace(group, hidden=looked_up or group.key in _NAMELESS)


def shown(group: Group) -> str:
    """The group in words for a message, '' for the world and for one whose name shows nothing."""
    if group.key and group.key == group.axis:
        return f"the {group.axis} group"
    return "" if "(" in group.key or group.key in _NAMELESS else group.key


def of_object(group: Group, receiver: str) -> Group:
    """A method's `self.group` as seen where the method is called on an object."""
    return Group(f"{receiver}.{group.key}", axis_in(receiver)) if group.own and receiver else group


def seen_through(scope: str, receiver: str) -> str:
    """The same for the group that a rank belongs to."""
    key = scope.removeprefix("group:")
    if key == scope or receiver == "self" or axis_in(key):
        return scope
    return f"group:{of_object(Group(key, own=True), receiver).key}"


#: A test of how many ranks lie along an axis: ``is_pipe_parallel``, ``tp_size > 1``.
_SEVERAL = re.compile(r"(?:^|\.)(?:is_(\w+)_parallel|(?:get_)?(\w*size)(?:\(.*\))? > 1)$")
_SINGLE = re.compile(r"(?:^|\.)(?:get_)?(\w*size)(?:\(.*\))? == 1$")
_DISTRIBUTED = re.compile(r"(?:^|\.)is_distributed(?:\(\))?$")
_ALL = "*"


def leaves_alone(test: str, chosen: bool, group: Group, flags: frozenset[str] = frozenset()) -> bool:
    """Does this outcome of a test imply that the group has a single member, which waits for no other rank?

    `flags`: those of the project under which alone it joins the process group.
    """
    if test.rpartition(".")[2] in flags:
        return not chosen
    name, many = _counted_by(test)
    if not name or chosen is many:
        return False
    if name == _ALL:
        return True
    return group.is_world if name.endswith("world_size") else bool(group.axis) and axis_in(name) == group.axis


@functools.lru_cache(maxsize=4096)
def _counted_by(test: str) -> tuple[str, bool]:
    """What a test counts (`_ALL`: the ranks of every group), '' for none; whether it holds where there are several."""
    if _DISTRIBUTED.search(test):
        return _ALL, True
    several, single = _SEVERAL.search(test), _SINGLE.search(test)
    found = several or single
    return next((g for g in found.groups() if g), "") if found else "", several is not None


def holds_all_of(counted: str, group: Group) -> bool:
    """Is a rank that is alone among those of `counted` ("" is the world) alone in the group, too?"""
    return not counted or counted == group.key or (bool(group.axis) and axis_in(counted) == group.axis)


def replicas_can_diverge(varies: Variation) -> bool:
    """Can two replicas of one model differ in it? They share their place along every other parallel axis."""
    if varies.cause == "membership":
        return False
    return varies.cause != "rank" or varies.scope in OF_MACHINES | {"data"}


def can_diverge(varies: Variation, group: Group) -> bool:
    """Can two members of `group` differ in a value that varies like this?

    All ranks of a data-parallel group share their pipeline stage, so a stage test keeps such a group together; a
    membership test keeps exactly the members of some group together, which is taken to be the one at hand.
    """
    if varies.cause in ("data", "length", "exception", "failure") and group.axis in _SHARING:
        return False  # ranks that share a batch fail alike, too
    if not varies.by_rank_or_place or group.is_world:
        return True
    if varies.cause == "membership":
        return False
    if varies.scope.startswith("group:"):
        key = varies.scope[len("group:") :]
        same_axis = axis_in(key) == group.axis if group.axis else key == _axis_asked_for(group.key)
        return key == group.key or same_axis
    if varies.scope == "world":
        return group.axis != "node"
    if varies.scope == "nodes":
        return bool(group.axis) and group.axis not in ("node", _LOCAL)  # one that shows no axis is taken to be a node's
    return bool(group.axis) and (varies.scope == group.axis or (varies.scope == "node" and group.axis == _LOCAL))
