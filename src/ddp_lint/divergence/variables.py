"""Variables of modules, classes and objects: what all that is assigned to them makes them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

from ddp_lint.divergence import kept_keys, signals, worlds
from ddp_lint.divergence import references as ref
from ddp_lint.divergence.calls_by_name import is_wrapped, of_arms, unwrapped
from ddp_lint.divergence.definitions import (
    MODEL,
    assignments_in,
    declared_in_body,
    defaults_of,
    entering,
    handing_over,
    is_flag,
    is_rank_of_matrix,
    keyed_by_batches,
    rebinders_in,
    rebound_in,
    remade_in,
    set_in_body,
    stores_of,
)
from ddp_lint.divergence.event_graph import CONFIDENCES
from ddp_lint.divergence.expressions import evaluate, held_in
from ddp_lint.divergence.frame import Evaluation, Frame, either_way, reference_of, span_of
from ddp_lint.divergence.inheritance import Question
from ddp_lint.divergence.lengths import assigned_once, grown, is_loader_name
from ddp_lint.divergence.object_lists import parts_of, registered
from ddp_lint.divergence.parameters import annotated
from ddp_lint.divergence.project_names import as_configured, spellings
from ddp_lint.divergence.records import fields_of
from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.values import (
    GROWN,
    MADE,
    Condition,
    Known,
    Test,
    Value,
    Variation,
    constant,
    divergent,
    is_absent,
    is_on,
    merge,
    negated,
    unknown,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table
from ddp_lint.project import Answered
from ddp_lint.project.bound import unpacked_in
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import children, inside, kept_by_node
from ddp_lint.project.uses import Use, constructions, uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    first_name,
    is_none,
    names_in,
    parameters,
    positional,
    walk,
)

#: Decorators of methods whose first argument is no object of their class.
_OF_NO_OBJECT: Final = ("staticmethod", "classmethod")
#: Files that may make objects of a class; beyond it nothing is known of what they are made with.
_FILES = 4
#: ... and that call a setter.
_SETTING = 8
#: Ways to rebind a module's variable that are followed from call to call.
_FOLLOWED = ("counted", "switched")
_NO_NAMES: Mapping[str, Value] = {}
#: Imported names in what is assigned to a module's variable: beyond it, as in the tables of all models of a library,
#: nothing is known of what it holds. For each name the modules on the way to its definition are read.
_IMPORTED = 20
#: Functions on the way from what makes an object to the one that knows what it is given.
_PASSED_ON = 2
#: Functions that read a module variable.
_REBINDING = 3


class Variables:
    """What a project's modules and classes hold, each looked up once; for a call in hand, what it has rebound."""

    def __init__(self, summaries: Evaluation) -> None:
        self._summaries = summaries
        self._known: dict[str, dict[str, Answered[Value]]] = {}
        self._pending_modules: set[Hashable] = set()
        #: By module, names that neither it nor the knowledge has anything for: those of Python's own functions, mostly.
        self._plain: dict[str, dict[str, Value]] = {}
        self._attributes: dict[Hashable, Answered[Value | None]] = {}
        self._pending_attributes: set[Hashable] = set()
        self._rebound: dict[tuple[str, str], Value] = {}
        self._following = False
        #: Tables of more imported names than are followed, as (path, line, name).
        self.tables: set[tuple[str, int, str]] = set()

    def let_go(self, facts: ModuleFacts) -> None:
        """Let go of the variables of a module."""
        self._plain.pop(facts.name, None)
        if (known := self._known.pop(facts.name, None)) is not None:
            self._summaries.linker.project.drop(known.values())

    def rebound(self) -> Hashable:
        """What is rebound by now, as a part of a summary's key."""
        if not self._rebound:
            return ()
        return tuple(sorted((name, value.components) for name, value in self._rebound.items()))

    def forget(self) -> None:
        """Before a new root: all variables are as the modules make them."""
        self._rebound.clear()

    def module_name(self, frame: Frame, node: ast.Name) -> Value:
        """A name that is no local one: a definition, an import, a variable of the module, a builtin."""
        value = self._module_name(frame, node)
        if self._summaries.own is None:
            return value
        reference = self._summaries.linker.in_module(frame.facts, node.id)
        return as_configured(frame, value, node, *spellings(frame, node, reference), f"{frame.facts.name}.{node.id}")

    def _module_name(self, frame: Frame, node: ast.Name) -> Value:
        plain = self._plain.get(frame.facts.name, _NO_NAMES).get(node.id)
        if plain is not None and not self._rebound:
            return plain
        reference = self._summaries.linker.in_module(frame.facts, node.id)
        if isinstance(reference, ref.ModuleRef):
            variable = self.variable_at(reference.name)
            if variable is not None:
                return variable
        if reference is not None:
            if isinstance(reference, ref.External):
                ranked = frame.named_rank("attribute", reference.name, node)
                if ranked is not None:
                    return ranked
            found = unknown(("name", getattr(reference, "name", node.id)), reference)
            if not isinstance(reference, ref.ModuleRef) and not self._summaries.linker.project.is_recording:
                self._plain.setdefault(frame.facts.name, {})[node.id] = found  # which nothing has to note again
            return found
        overlaid = self._rebound.get((frame.facts.name, node.id))
        if overlaid is not None:
            return overlaid
        variable = self.module_variable(frame.facts, node.id)
        if variable is not None and (variable.varies is not None or variable.reference is not None):
            return variable
        ranked = frame.named_rank("name", node.id, node)
        if ranked is not None and (variable is None or variable.constant is None or is_absent(variable)):
            return ranked
        if variable is not None:
            return variable
        guess = known().guessed_type(node.id)
        plain = unknown(("name", node.id), ref.Instance(guess, guessed=True) if guess else None)
        if ranked is None and not frame.facts.imports.stars and node.id not in assignments_in(frame.facts.tree):
            self._plain.setdefault(frame.facts.name, {})[node.id] = plain
        return plain

    def variable_at(self, name: str) -> Value | None:
        """A module-level variable by absolute dotted name."""
        found = self._summaries.linker.project.meanings.split(name)
        if found is None or not found[1] or "." in found[1]:
            return None
        return self.module_variable(*found)

    def module_variable(self, facts: ModuleFacts, name: str) -> Value | None:
        """What top-level statements assign to the name, joined; a variable that functions rebind is unknown, but for
        counters, which are taken to be as they start."""
        values = self._known.setdefault(facts.name, {})
        assigned = assignments_in(facts.tree).get(name) if name not in values else ()
        if name not in values and (not assigned or (facts.name, name) in self._pending_modules):
            return None
        return self._summaries.linker.project.remember(name, lambda: self._joined(facts, name, assigned or ()), values)

    def _is_table(self, facts: ModuleFacts, name: str, value: ast.expr) -> bool:
        """Does it hold more imported names than are followed?"""
        imported = {node.id for node in walk(value) if isinstance(node, ast.Name)} & facts.imports.names.keys()
        if len(imported) > _IMPORTED:
            self.tables.add((facts.file.path, value.lineno, name))
        return len(imported) > _IMPORTED

    def _joined(self, facts: ModuleFacts, name: str, assigned: Sequence[tuple[ast.expr, ast.expr]]) -> Value:
        heard = signals.of_variable(facts, name)
        if heard is not None:
            return divergent(("signal", facts.name, name), heard)
        self._pending_modules.add((facts.name, name))
        frame = Frame(self._summaries, facts, None)
        result: Value | None = None
        try:
            for target, value in assigned:
                followed = isinstance(target, ast.Name) and not self._is_table(facts, name, value)
                current = evaluate(frame, value) if followed else unknown(frame.key(value))
                either = either_way(frame, value)
                result = current if result is None else merge(either, result, current, frame.key(value))
        finally:
            self._pending_modules.discard((facts.name, name))
        assert result is not None
        rebound = rebound_in(facts.tree).get(name)
        counter = rebound in _FOLLOWED and isinstance(getattr(result.constant, "value", None), int)
        if not rebound and result.entries == {} and (own := self._entered_on_some(facts, name, None)) is not None:
            return divergent((GROWN, facts.name, name), own)
        if rebound and not counter and result.varies is None:
            result = self._rebound_to(facts, name) or unknown(("global", facts.name, name), result.reference)
        return result

    def _rebound_to(self, facts: ModuleFacts, name: str) -> Value | None:
        """What a function of the module makes of its variable, where that distinguishes the ranks."""
        for node in rebinders_in(facts.tree).get(name, ())[:_REBINDING]:
            function = FunctionRef(node, facts, bare=True)
            with self.following():
                env = self._summaries.names_after(function)
            value = env.get(name) if env is not None else None
            if value is not None and value.by_rank and not value.open:
                return value
        return None

    def set_global(self, frame: Frame, name: str, value: Value) -> None:
        """A function rebinds a variable of its module; callees see it until it is as it was."""
        if rebound_in(frame.facts.tree).get(name) not in _FOLLOWED and not self._following:
            return
        start = self.module_variable(frame.facts, name)
        key = (frame.facts.name, name)
        if start is not None and start.components == value.components:
            self._rebound.pop(key, None)
        else:
            self._rebound[key] = value

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """While a function is evaluated for what it leaves in its module: its callees see what it has set by then, and
        nothing that was set before, which is evaluated once for all who ask."""
        outer, self._following, self._rebound = (self._following, self._rebound), True, {}
        try:
            yield
        finally:
            self._following, self._rebound = outer

    @contextlib.contextmanager
    def switched(self, variables: Mapping[tuple[str, str], Value]) -> Iterator[None]:
        """For the body of a `with`: variables of modules are as its manager has set them."""
        kept = dict(self._rebound)
        self._rebound.update(variables)
        try:
            yield
        finally:
            self._rebound.clear()
            self._rebound.update(kept)

    def hand_over(self, frame: Frame) -> None:
        """At a `yield`: what is set now holds for the body of the `with`."""
        frame.switched = dict(self._rebound)

    def class_variable(self, of: ClassRef, name: str) -> Value | None:
        found = self._class_variable(of, name)
        self._summaries.linker.questions.note(Question(of, "variable", name), found)
        return found

    def _class_variable(self, of: ClassRef, name: str) -> Value | None:
        for owner in self._summaries.linker.linearised(of)[0]:
            if (assigned := set_in_body(owner.node).get(name)) is not None:
                value = evaluate(Frame(self._summaries, owner.facts, None, owner), assigned)
                plain = value.constant is None and value.varies is None and value.reference is None
                # two members of an enumeration are two values, though both are `auto()`
                return unknown(("class", owner.node.name, name)) if plain else value
        return None

    def attribute_of(self, of: ClassRef, name: str) -> Value | None:
        """What the methods of the class assign to `self.name`, joined; None when none does."""
        key = (of, name)
        found = None
        if key not in self._pending_attributes:
            remember = self._summaries.linker.project.remember
            found = remember(key, lambda: self._assigned_to(of, name), self._attributes)
        self._summaries.linker.questions.note(Question(of, "attribute", name), found)
        return found

    def attribute_before(self, of: ClassRef, name: str, method: ast.AST | None) -> Value | None:
        """The same where a method begins that wraps what it finds in the attribute: as the other ones leave it."""
        held = self.attribute_of(of, name)
        if held is None or not is_wrapped(held) or not isinstance(method, FunctionNode):
            return held
        return self._joined_stores(of, name, without=method) if name in remade_in(method) else held

    def is_size(self, of: ClassRef, name: str) -> bool:
        """Does a constructor take the attribute with a positive number by default, or make parameters of this size:
        ``rank=4`` is that of a matrix?"""
        for owner in self._summaries.linker.linearised(of)[0]:
            for method, value in stores_of(owner.node, name):
                taken = value.id if isinstance(value, ast.Name) else ""
                return method.name == "__init__" and is_rank_of_matrix(method, taken)
        return False

    def _assigned_to(self, of: ClassRef, name: str) -> Value | None:
        """Evaluated separately: a reader of the attribute depends on its value, not on how it was computed."""
        return self._summaries.linker.questions.apart(lambda: self._held(of, name))[0]

    def _held(self, of: ClassRef, name: str) -> Value | None:
        stored = self._joined_stores(of, name)
        if stored is not None and stored.items == () and (given := self._registered(of, name)) is not None:
            return given
        turned = self._turned(of, name) if stored is not None and stored.reference is None else None
        return turned or stored

    def _joined_stores(self, of: ClassRef, name: str, without: FunctionNode | None = None) -> Value | None:
        self._pending_attributes.add((of, name))
        result: Value | None = None
        emptied = overwritten = False
        try:
            for owner in self._summaries.linker.linearised(of)[0]:
                heard = signals.of_attribute(owner.node, owner.facts, name)
                if heard is not None:
                    return divergent(("signal", of.node.name, name), heard)
                stores = [store for store in stores_of(owner.node, name)[:4] if store[0] is not without]
                for method, value in stores:
                    if overwritten and method.name == "__init__":
                        continue  # the constructor of the class itself has set another since
                    emptied = emptied or is_none(value)
                    current = self._stored(of, owner, method, name, value)
                    if current is None or (result is not None and current.constant == Known(None)):
                        continue
                    if result is None or result.constant == Known(None):
                        result = current
                    else:
                        test = either_way(Frame(self._summaries, owner.facts, None), value)
                        merged = merge(test, result, current, ("attribute", name))
                        before = None if _takes_apart(value, name) else unwrapped(result, current)
                        result = of_arms(merged, before, result, current, test)
                overwritten = overwritten or any(_is_left(method, value) for method, value in stores)
        finally:
            self._pending_attributes.discard((of, name))
        if result is None:
            result = self._declared(of, name)
        if result is not None and result.constant is not None and result.constant.value is not None:
            return unknown(("self", of.node.name, name))
        if result is not None and result.entries == {} and (keyed := self._keyed_in(of, name)) is not None:
            return keyed
        if emptied and result is not None and result.open and result.missing is None:
            # Whether it is set by now follows from the state of the object, not from the value.
            choice = (("missing", of.node.name, name),) * worlds.COUNT
            return dataclasses.replace(result, missing=Test("atom", atom=Condition(choice, f"{name} is None")))
        return result

    def _registered(self, of: ClassRef, name: str) -> Value | None:
        """A list to which a method of the object adds what it is given, on some ranks alone: ``if rank == 0:
        trainer.register(Evaluator())``."""
        self._pending_attributes.add((of, name))
        objects: list[tuple[Value, Test]] = []
        try:
            for owner in self._summaries.linker.linearised(of)[0]:
                for added in kept_keys.added_to(self._summaries.linker.project, owner.facts, name, owner.node):
                    made = self._receiver(added.place)
                    if made is None or of not in self._summaries.linker.linearised(made)[0]:
                        continue
                    frame = _assigning(self._around(added.place.facts, added.place), added.given)
                    frame.values_alone = True
                    value, test = evaluate(frame, added.given), self._as_test(added.place)
                    parts = parts_of(value) if added.is_list else [(value, None)]
                    objects += [(part, when) for part, own in parts if (when := own or test) is not None]
        finally:
            self._pending_attributes.discard((of, name))
        return registered(("registered", of.node.name, name), objects)

    def _as_test(self, place: kept_keys.Entered) -> Test | None:
        """The test of the rank around a place, that has to hold there."""
        if (found := self._rank_test(place)) is None:
            return None
        block, holds, _ = found
        frame = _assigning(self._around(place.facts, place), block.test)
        frame.values_alone = True
        test = evaluate(frame, block.test).truth(frame.text(block.test))
        return test if holds else negated(test)

    def _turned(self, of: ClassRef, name: str) -> Value | None:
        """What another method makes of the object in an attribute: ``fully_shard(self.model)``."""
        for owner in self._summaries.linker.linearised(of)[0]:
            for call in handing_over(owner.node).get(name, ()):
                callee = self._summaries.linker.expression(owner.facts, call.func)
                entry = known().collectives.get(callee.name) if isinstance(callee, ref.External) else None
                type_ = entry.turns.get(entry.takes[0]) if entry is not None and entry.takes else None
                if type_ is not None:
                    return unknown(("turned", of.node.name, name), ref.Instance(type_))
        return None

    def _keyed_in(self, of: ClassRef, name: str) -> Value | None:
        """A dictionary to which a method adds keys that follow from the rank's own batches, or on some ranks alone."""
        key = ("keyed", of.node.name, name)
        receiver = unknown((MADE, of.node.name), ref.Instance(of))
        for owner in self._summaries.linker.linearised(of)[0]:
            if name in keyed_by_batches(owner.node):
                return grown(key, span_of(owner.facts, owner.node))
            for method in entering(owner.node).get(name, ()):
                function = FunctionRef(method, owner.facts, owner, receiver, of, bare=True)
                after = self._summaries.entries_after(function, name)
                if after is not None and after.kind == GROWN and (varies := after.varies) is not None:
                    # Another method may add the key on all ranks.
                    unsure = min(varies.confidence, Confidence.MEDIUM, key=CONFIDENCES.index)
                    return divergent((GROWN, key), dataclasses.replace(varies, confidence=unsure))
            if (own := self._entered_on_some(owner.facts, name, owner)) is not None:
                return divergent((GROWN, key), own)
        return None

    def _entered_on_some(self, facts: ModuleFacts, name: str, of: ClassRef | None) -> Variation | None:
        """Why a dictionary that a module or an object keeps has a key on some ranks alone: all places that enter the
        key are under tests of the rank, none of them in both arms of one."""
        project = self._summaries.linker.project
        for places in kept_keys.by_key(project, facts, name, of.node if of is not None else None).values():
            tests = [self._rank_test(place) for place in places]
            arms = {(id(test[0]), test[1]) for test in tests if test is not None}
            if None in tests or any((test, not holds) in arms for test, holds in arms):
                continue
            if of is not None and not any(self._is_of(place, of) for place in places):
                continue
            _, _, varies = next(test for test in tests if test is not None)
            origin = Label(span_of(places[0].facts, places[0].at), "some ranks alone add a key here")
            return dataclasses.replace(varies, origin=origin, confidence=Confidence.MEDIUM, call_depth=0)
        return None

    def _rank_test(self, place: kept_keys.Entered) -> tuple[ast.If, bool, Variation] | None:
        """A test around a place that the rank decides, which arm of it the place is in, and what it depends on."""
        for block, holds in place.tests():
            frame = _assigning(self._around(place.facts, place), block.test)
            frame.values_alone = True
            varies = evaluate(frame, block.test).varies
            if varies is not None and varies.by_rank_or_place:
                return block, holds, varies
        return None

    def _is_of(self, place: kept_keys.Entered, of: ClassRef) -> bool:
        """Is the object that a method was called on one of the class?"""
        if place.receiver is None:
            return place.owner is of.node
        made = self._receiver(place)
        return made is not None and made.node is of.node

    def _receiver(self, place: kept_keys.Entered) -> ClassRef | None:
        """The class of the object that a method was called on."""
        if place.receiver is None:
            return None
        frame = _assigning(self._around(place.facts, place), place.receiver)
        frame.values_alone = True
        made = evaluate(frame, place.receiver).reference
        return made.of if isinstance(made, ref.Instance) and isinstance(made.of, ClassRef) else None

    def _declared(self, of: ClassRef, name: str) -> Value | None:
        """``trainer: Trainer`` in the class body."""
        for owner in self._summaries.linker.linearised(of)[0]:
            if (annotation := declared_in_body(owner.node).get(name)) is not None:
                if getattr(annotation, "id", "") == "bool" and (given := self._field_given(of, name)) is not None:
                    return given
                instance = annotated(self._summaries.linker, owner.facts, annotation)
                return unknown(("declared", name), instance) if instance else None
        only = self._summaries.linker.only_class(name, of)
        return unknown(("declared", name), ref.Instance(only)) if only is not None else None

    def _stored(self, of: ClassRef, owner: ClassRef, method: FunctionNode, name: str, value: ast.expr) -> Value | None:
        """The value of `self.name` after the method, evaluated for arguments unknown."""
        receiver = unknown(("object", of.node.name), ref.Instance(of))
        function = FunctionRef(method, owner.facts, owner, receiver, of, bare=True)
        if not positional(method):
            return None
        if isinstance(value, ast.Name):
            given = (
                self._flag_given(of, method, value.id)
                or self._wrapped_given(of, method, value.id)
                or self._loader_given(of, method, value.id)
            )
            if given is not None:
                return given
        after = self._summaries.attribute_after(function, name)
        if isinstance(value, ast.Name) and (after is None or _may_be_of_other_class(after)):
            return self._object_given(of, method, value.id, after) or self._object_set(method, value.id) or after
        return after

    def _flag_given(self, of: ClassRef, method: FunctionNode, name: str) -> Value | None:
        """What the project makes objects of the class with, for a flag of ``__init__`` that follows from the rank in
        each of these places: ``Trainer(is_main=rank == 0)``."""
        flag = next((a for a in parameters(method) if a.arg == name), None)
        if method.name != "__init__" or flag is None:
            return None
        by_name = is_flag(flag, defaults_of(method).get(name))
        if not by_name and flag.annotation is not None:
            return None
        given = self._given(of, method, name)
        if not by_name and not all(isinstance(assigned_once(*each), _TESTS) for each in given):
            return None
        return _by_rank(given)

    def _field_given(self, of: ClassRef, name: str) -> Value | None:
        """The same of a field of a dataclass: ``Settings(verbose=rank == 0)``."""
        fields = fields_of(self._summaries.linker, of)
        if not fields:
            return None
        made = self._summaries.linker.project.classes.of(of.facts, of.node).name
        return _by_rank(self._passed(made, fields, name))

    def _wrapped_given(self, of: ClassRef, method: FunctionNode, name: str) -> Value | None:
        """The wrapped model that every object of the class is made with: ``Trainer(model)`` after ``model =
        FSDP(model)``."""
        if method.name != "__init__" or not MODEL.search(name):
            return None
        given = self._given(of, method, name)
        wrappers = [_wrapper_of(frame, argument) for frame, argument in given]
        if not wrappers or len(set(wrappers)) > 1 or wrappers[0] is None:
            return None
        buffered = all(_has_buffers(frame, argument) for frame, argument in given)
        flags = {flag for frame, argument in given for flag in _flags_of(frame, argument)}
        broadcasts = flags.pop() if len(flags) == 1 else None if flags else True
        model = ref.Instance(wrappers[0], buffered=buffered, broadcasts=broadcasts)
        return unknown(("wrapped", of.node.name, name), model)

    def _loader_given(self, of: ClassRef, method: FunctionNode, name: str) -> Value | None:
        """The loader that every object of the class is made with, where each of them ends with the rank's own data:
        ``Trainer(DataLoader(Shards(rank)))``."""
        if method.name != "__init__" or not is_loader_name(name):
            return None
        given = self._given(of, method, name)
        found = [evaluate(frame, assigned_once(frame, argument)).reference for frame, argument in given]
        own = all(isinstance(loader, ref.Instance) and loader.streams for loader in found)
        return unknown(("given", of.node.name, name), found[0]) if found and own else None

    def _object_given(self, of: ClassRef, method: FunctionNode, name: str, known_as: Value | None) -> Value | None:
        """The object of the project that every object of the class is made with: ``Trainer(Evaluator(cfg))``. It says
        more than an annotation, which may name a base class."""
        if method.name != "__init__":
            return None
        found: list[Value] = []
        for frame, argument in self._given(of, method, name):
            frame.values_alone = True
            value = evaluate(frame, assigned_once(frame, argument))
            if value.constant != Known(None):
                found.append(value)
        if len(found) == 1 and isinstance(found[0].reference, ref.ListOf):
            return found[0]
        objects = held_in(found)
        each = [value.reference for value in found]
        if objects is None or not all(isinstance(one, ref.Instance) and isinstance(one.of, ClassRef) for one in each):
            return None
        declared = reference_of(known_as) if known_as is not None else None
        base = declared.of if isinstance(declared, ref.Instance) and not declared.guessed else None
        linearised = self._summaries.linker.linearised
        if base is not None and not all(base in linearised(one.of)[0] for one in each):
            return None
        one = each[0] if all(other == each[0] for other in each) else objects
        return unknown(("given", of.node.name, name), one)

    def _object_set(self, setter: FunctionNode, name: str) -> Value | None:
        """The object that the project gives a method which keeps it (``joint.set_metric(self.metric)``), None where
        all calls leave it out. Of a method whose name no other one has, and which says whose it is or what it is given;
        nothing if a call does not show it."""
        linker, default = self._summaries.linker, defaults_of(setter).get(name)
        names = [parameter.arg for parameter in positional(setter)][1:]
        only = linker.only_method(setter.name, telling=setter.name == f"set_{name.strip('_')}")
        paths = linker.project.contents.holding(f".{setter.name}(") if only is not None and only.node is setter else ()
        files = [
            facts for path in paths if (facts := linker.project.modules.facts_of(path)) and not facts.source.is_test
        ]
        found: list[Value] = []
        places = [(facts, use) for facts in files for use in uses(facts, setter.name)] if name in names else []
        for facts, use in places if len(files) <= _SETTING else ():
            given = argument_at(use.call, names.index(name), name) or default if use.call is not None else None
            objects = self._objects(facts, use, given) if given is not None else None
            if objects is None:
                return None
            found += objects
        held = held_in(found)
        if not places or len(files) > _SETTING or (found and held is None):
            return None
        return unknown(("set", setter.name, name), held) if held is not None else constant(None)

    def _objects(self, facts: ModuleFacts, use: Use, given: ast.expr) -> list[Value] | None:
        """The objects that an argument may be, by the classes of which the function, or the class around it, makes it:
        a constructor that is being evaluated is not evaluated again. None where it may be something else."""
        values = [(facts, given)]
        if isinstance(given, ast.Name) and use.around is not None:
            values = [(facts, value) for value in assigned_in(use.around, given.id)]
        elif isinstance(given, ast.Attribute) and use.owner is not None and use.around in use.owner.body:
            own = dotted_ast(given.value) == first_name(use.around)
            of = self._summaries.linker.class_ref(use.owner, facts)
            owners = self._summaries.linker.linearised(of)[0] if own else ()
            values = [(owner.facts, value) for owner in owners for _, value in stores_of(owner.node, given.attr)]
        made = [(home, value) for home, value in values if not is_none(value)]
        classes = [self._class_made(home, value) for home, value in made]
        if not values or None in classes:
            return None
        return [unknown((MADE, of), ref.Instance(of)) for of in classes if of is not None]

    def _class_made(self, facts: ModuleFacts, value: ast.expr) -> ClassRef | str | None:
        """The class of the project, or the known one of another package, of which a call makes an object."""
        callee = self._summaries.linker.expression(facts, value.func) if isinstance(value, ast.Call) else None
        if isinstance(callee, ref.External):
            return known().type_of(callee.name) or None
        return callee if isinstance(callee, ClassRef) else None

    def _given(self, of: ClassRef, method: FunctionNode, name: str) -> list[tuple[Frame, ast.expr]]:
        """What the project makes objects of the class with, for a parameter of ``__init__``, and where; nothing if a
        call does not show it."""
        made = self._summaries.linker.project.classes.of(of.facts, of.node).name
        return self._passed(made, [a.arg for a in positional(method)][1:], name)

    def _passed(self, called: str, names: Sequence[str], name: str, depth: int = 0) -> list[tuple[Frame, ast.expr]]:
        """What the project gives a function or a class, by its canonical name, for a parameter; where a caller passes
        on a parameter of its own, what that one is given."""
        found: list[tuple[Frame, ast.expr]] = []
        for facts, use, call in constructions(self._summaries.linker.project, called, _FILES):
            place = names.index(name) if name in names else len(call.args)
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            argument = call.args[place] if place < len(call.args) else keywords.get(name)
            if None in keywords or any(isinstance(each, ast.Starred) for each in call.args):
                return []
            if argument is not None:
                further = self._from_callers(facts, use, argument, depth) if depth < _PASSED_ON else []
                found += further or [(_assigning(self._around(facts, use), argument), argument)]
        return found

    def _from_callers(
        self, facts: ModuleFacts, use: Use, argument: ast.expr, depth: int
    ) -> list[tuple[Frame, ast.expr]]:
        """What a function is given that passes on a parameter as it is: ``def run(model): Trainer(model).train()``."""
        around = use.around
        if not isinstance(argument, ast.Name) or around is None or assigned_in(around, argument.id):
            return []
        names = [a.arg for a in positional(around)]
        if all(argument.id != parameter.arg for parameter in parameters(around)):
            return []
        if facts.definitions.get(around.name) is around:
            return self._passed(f"{facts.name}.{around.name}", names, argument.id, depth + 1)
        if around.name == "__init__" and use.owner is not None and argument.id != names[0]:
            made = self._summaries.linker.project.classes.of(facts, use.owner).name
            return self._passed(made, names[1:], argument.id, depth + 1)
        return []

    def _around(self, facts: ModuleFacts, use: Use | kept_keys.Entered) -> Frame:
        """The function that a call is in, with the object that it is a method of: ``Checkpoint(self)``."""
        frame = Frame(self._summaries, facts, use.around)
        if use.owner is not None and use.around in use.owner.body:
            if any(ref.is_decorated(use.around, by) for by in _OF_NO_OBJECT):
                return frame
            of = self._summaries.linker.class_ref(use.owner, facts)
            frame.env[first_name(use.around)] = unknown((MADE, of.node.name), ref.Instance(of))
        return frame


#: Variables that one is made of through which it is followed.
_ASSIGNED: Final = 4


def _assigning(frame: Frame, argument: ast.expr, depth: int = _ASSIGNED) -> Frame:
    """The frame with the variables that an argument is made of and that its function assigns once: ``dataset`` of
    ``Trainer(DataLoader(dataset))``."""
    function = frame.function
    if not isinstance(function, FunctionNode) or not depth:
        return frame
    for name in sorted(names_in(argument)):
        values = assigned_in(function, name) if name not in frame.env else []
        if len(values) == 1:
            _assigning(frame, values[0], depth - 1)
            frame.env[name] = evaluate(frame, values[0])
    return frame


#: Expressions that give a Boolean.
_TESTS: Final = (ast.Compare, ast.UnaryOp, ast.BoolOp)


def _by_rank(given: list[tuple[Frame, ast.expr]]) -> Value | None:
    """What all of these are, if each follows from the rank."""
    found = [evaluate(frame, assigned_once(frame, argument)) for frame, argument in given]
    by_rank = [v for v in found if v.by_rank and not v.open]
    return by_rank[0] if by_rank and len(by_rank) == len(found) else None


def _takes_apart(value: ast.expr, name: str) -> bool:
    """``self.model = self.model.module``"""
    return isinstance(value, ast.Attribute) and getattr(value.value, "attr", "") == name


def _may_be_of_other_class(value: Value) -> bool:
    """Is its class unknown, guessed by a name, or a class of the project that it may be derived from?"""
    of = value.reference
    if isinstance(of, ref.Instance):
        return of.guessed or isinstance(of.of, ClassRef)
    return value.constant is None and value.varies is None and (of is None or isinstance(of, ref.Method))


def _values_of(frame: Frame, name: str) -> list[ast.expr]:
    """What a name is assigned in the function at hand, or at the top level of a script."""
    if isinstance(frame.function, FunctionNode):
        return assigned_in(frame.function, name)
    assigned = assignments_in(frame.facts.tree).get(name, ()) if frame.function is None else ()
    return [value for target, value in assigned if isinstance(target, ast.Name)]


def _has_buffers(frame: Frame, argument: ast.expr) -> bool:
    """Does a model have buffers, by the one class of the project that it is made an object of where it is wrapped, or
    by the text of that file?"""
    evidence = frame.summaries.evidence
    classes = set(_classes_of(frame, argument, _ASSIGNED))
    if len(classes) == 1:
        return evidence.has_buffers(classes.pop())
    return evidence.shows(frame.facts, frame.owner, "buffers")


def _flags_of(frame: Frame, argument: ast.expr) -> Iterator[bool | None]:
    """Whether the forward of a wrapped model broadcasts its buffers, by each call that wraps it in the function."""
    made = [argument] if isinstance(argument, ast.Call) else _values_of(frame, getattr(argument, "id", ""))
    for call in (value for value in made if isinstance(value, ast.Call)):
        callee = frame.linker.expression(frame.facts, call.func)
        entry = known().collectives.get(callee.name) if isinstance(callee, ref.External) else None
        if entry is not None and entry.buffers:
            given = argument_at(call, entry.takes.index(entry.buffers), entry.buffers)
            yield is_on(evaluate(frame, given) if given is not None else None)


def _classes_of(frame: Frame, model: ast.expr, depth: int) -> Iterator[ClassRef]:
    """The classes of the project that a model is made an object of, also where it is moved or wrapped then:
    ``Net().to(device)``, ``DDP(net)``."""
    if isinstance(model, ast.Name) and depth:
        for value in _values_of(frame, model.id):
            yield from _classes_of(frame, value, depth - 1)
    elif isinstance(model, ast.Call):
        callee = frame.linker.expression(frame.facts, model.func)
        if isinstance(callee, ClassRef):
            yield callee
        elif isinstance(callee, ref.External) and known().is_parallel(known().type_of(callee.name)) and model.args:
            yield from _classes_of(frame, model.args[0], depth)
        elif (
            isinstance(model.func, ast.Attribute) and model.func.attr in table("tensors")["layers"]["returning_module"]
        ):
            yield from _classes_of(frame, model.func.value, depth)


def _wrapper_of(frame: Frame, argument: ast.expr) -> str | None:
    """The one class of wrappers that a model is made an object of in the function at hand, None for any other."""
    made: set[str] = set()
    scope = frame.function if isinstance(frame.function, FunctionNode) else None
    if isinstance(argument, ast.Call):
        made.add(_made_by(frame, argument))
    elif isinstance(argument, ast.Name):
        made |= {_made_by(frame, value) for value in _values_of(frame, argument.id) if isinstance(value, ast.Call)}
    if isinstance(argument, ast.Name) and scope is not None:
        made |= {
            _class_of(held) for call, place in unpacked_in(scope, argument.id) if (held := _item(frame, call, place))
        }
        made |= {of for call in _calls_with(scope, argument.id) if (of := _turned(frame, call))}
    wrappers = {of for of in made if of and known().is_parallel(of)}
    return wrappers.pop() if len(wrappers) == 1 else None


@kept_by_node(1024)
def _calls_with(scope: ast.AST, name: str) -> tuple[ast.Call, ...]:
    """The calls of a function that get a variable of its own as their first argument."""
    calls = (node for node in inside(scope) if isinstance(node, ast.Call) and node.args)
    return tuple(call for call in calls if getattr(call.args[0], "id", "") == name)


def _turned(frame: Frame, call: ast.Call) -> str:
    """The class that a call makes its first argument an object of, in place: ``fully_shard(model)``."""
    callee = frame.linker.expression(frame.facts, call.func)
    entry = known().collectives.get(callee.name) if isinstance(callee, ref.External) else None
    return entry.turns.get(entry.takes[0], "") if entry is not None and entry.takes else ""


def _item(frame: Frame, call: ast.Call, place: int) -> Value | None:
    """What a call returns at a place of a tuple: ``model, optimizer = prepare(model)``."""
    callee = frame.linker.expression(frame.facts, call.func)
    items = evaluate(frame, call).items if isinstance(callee, FunctionRef) else None
    return items[place] if items is not None and place < len(items) else None


def _class_of(value: Value) -> str:
    """The class of another package that it is an object of."""
    made = value.reference
    return made.of if isinstance(made, ref.Instance) and isinstance(made.of, str) and not made.guessed else ""


def _made_by(frame: Frame, call: ast.Call) -> str:
    """The class of another package that a call makes an object of, by itself or in a function: ``build_model(cfg)``."""
    callee = frame.linker.expression(frame.facts, call.func)
    if isinstance(callee, ref.External):
        return known().type_of(callee.name)
    if isinstance(callee, ClassRef):
        return frame.linker.wrapper(callee)
    return _class_of(evaluate(frame, call)) if isinstance(callee, FunctionRef) else ""


def _is_left(method: FunctionNode, value: ast.expr) -> bool:
    """Is it what a constructor leaves in the attribute in any case, also where that of a base class has set it?"""
    return method.name == "__init__" and id(value) in _set_last(method)


@kept_by_node(4096)
def _set_last(constructor: FunctionNode) -> frozenset[int]:
    """The values (by identity) of its own statements from the last one on that calls another constructor."""
    calls = [any(map(_constructs, children(line))) for line in constructor.body]
    last = max((place for place, found in enumerate(calls) if found), default=0)
    values = [value for line in constructor.body[last:] if (value := getattr(line, "value", None))]
    return frozenset(id(part) for value in values for part in (value, *getattr(value, "elts", ())))


def _constructs(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "__init__"
