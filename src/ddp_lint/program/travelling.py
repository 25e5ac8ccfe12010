"""Objects that travel: what is in sight, and which methods are mentioned, on all ways from a function.

Step 4 of `program.reach`. Functions that call each other have the same answer, so that it is computed by strongly
connected component, each after those that it leads to.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping

from ddp_lint.program.events import Need, Vocabulary

#: Methods that run where an object is made.
MAKING = frozenset({"__init__"})


class Travelling:
    """What is in sight and what is mentioned on all ways from a function: objects may come from one and be used in
    another. Sets of words are numbers, a bit for each word that matters."""

    def __init__(
        self,
        events: Vocabulary,
        shown: list[tuple[frozenset[str], ...]],
        wraps: list[bool],
        used: list[frozenset[str]],
        edges: list[list[int]],
    ) -> None:
        self._events, self._showing = events, events.showing
        self._shown, self._wraps, self._used = shown, wraps, used
        self._edges = edges
        self._components = _components(edges)
        self._component_of = [0] * len(edges)
        for place, members in enumerate(self._components):
            for number in members:
                self._component_of[number] = place

    def more(self, methods: Mapping[str, set[str]], found: bytearray) -> list[int]:
        """The functions beyond those found that can communicate: by a method of a class (`methods`: names, with those
        of the classes that have them), or by an object of a framework."""
        needs = self._needs(methods)
        words = {word for each in (*needs.values(), self._events.objects) for need in each for word in need.words}
        bits = {word: 1 << place for place, word in enumerate(words)}
        places = {name: 1 << place for place, name in enumerate(needs)}
        masks = [_mask(each, bits) for each in needs.values()]
        of_objects = _mask(self._events.objects, bits)
        sights, uses, wrapping = self._gathered(bits, places)
        return [
            number
            for number, component in enumerate(self._component_of)
            if not found[number] and _meets(sights[component], uses[component], wrapping[component], masks, of_objects)
        ]

    def _needs(self, methods: Mapping[str, set[str]]) -> dict[str, frozenset[Need]]:
        """What shows an object that has a communicating method, by the method's name."""
        own = {
            name: frozenset(Need(frozenset({class_}), False) for class_ in classes)
            for name, classes in methods.items()
            if name not in MAKING
        }
        known = self._events.methods
        nothing: frozenset[Need] = frozenset()
        return {name: own.get(name, nothing) | known.get(name, nothing) for name in own.keys() | known.keys()}

    def _gathered(self, bits: Mapping[str, int], places: Mapping[str, int]) -> tuple[list[int], list[int], list[bool]]:
        """For each component the words in sight, the methods that are mentioned and whether models are wrapped, on all
        ways from it. Components come after those that they lead to."""
        sights, uses, wrapping = list[int](), list[int](), list[bool]()
        seen_in: dict[frozenset[str], int] = {}
        same: dict[int, int] = {}  # most components have what many others have
        for place, members in enumerate(self._components):
            seen = mentioned = 0
            wraps = False
            for number in members:
                for words in self._shown[number]:
                    if words not in seen_in:
                        seen_in[words] = _union(bits[word] for word in words & bits.keys())
                    seen |= seen_in[words]
                for word in self._used[number] & places.keys():
                    mentioned |= places[word]
                wraps = wraps or self._wraps[number]
                for callee in self._edges[number]:
                    component = self._component_of[callee]
                    if component != place:
                        seen |= sights[component]
                        mentioned |= uses[component]
                        wraps = wraps or wrapping[component]
            sights.append(same.setdefault(seen, seen))
            uses.append(same.setdefault(mentioned, mentioned))
            wrapping.append(wraps)
        return sights, uses, wrapping


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


_Mask = tuple[int, int]


def _mask(needs: Iterable[Need], bits: Mapping[str, int]) -> _Mask:
    """The words that satisfy one of the needs: always, and where models are wrapped."""
    always = wrapped = 0
    for need in needs:
        for word in need.words:
            wrapped |= bits[word]
            always |= 0 if need.wrapped else bits[word]
    return always, wrapped


def _meets(seen: int, mentioned: int, wraps: bool, masks: list[_Mask], of_objects: _Mask) -> bool:
    if seen & of_objects[wraps]:
        return True
    while mentioned:
        lowest = mentioned & -mentioned
        if seen & masks[lowest.bit_length() - 1][wraps]:
            return True
        mentioned ^= lowest
    return False


def _components(edges: list[list[int]]) -> list[list[int]]:
    """The strongly connected components, each after those that it leads to (Tarjan's algorithm, without recursion)."""
    index = [-1] * len(edges)
    low = [0] * len(edges)
    on_stack = bytearray(len(edges))
    stack: list[int] = []
    components: list[list[int]] = []
    count = 0
    for root in range(len(edges)):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, place = work.pop()
            if place == 0:
                index[node] = low[node] = count
                count += 1
                stack.append(node)
                on_stack[node] = True
            callees = edges[node]
            while place < len(callees):
                callee = callees[place]
                place += 1
                if index[callee] < 0:
                    work += [(node, place), (callee, 0)]
                    break
                if on_stack[callee]:
                    low[node] = min(low[node], index[callee])
            else:
                if low[node] == index[node]:
                    component = stack[stack.index(node) if stack[-1] != node else -1 :]
                    del stack[-len(component) :]
                    for member in component:
                        on_stack[member] = False
                    components.append(component)
                if work:
                    caller = work[-1][0]
                    low[caller] = min(low[caller], low[node])
    return components
