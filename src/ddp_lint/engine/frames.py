"""Room for the frames of functions that call themselves to a great depth.

From Python 3.11 on, frames lie in chunks of 16 kB, and the system gets a chunk back as soon as the first frame in it is
left. Where the evaluation goes up and down over the end of a chunk, each call asks the system for memory and each
return gives it back: a twentieth of the time of a whole run. A function with a large frame gets a chunk of its own that
holds it, of twice its size at most; the frames of what it calls lie in the rest, which takes memory only where it is
used.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

#: Values for which there is room in the frame: with what is in front of them a little more than a power of two, so that
#: as much is left for other frames, some 2,000 of them.
_VALUES = 2**17


def with_room(function: F) -> F:
    """The function itself, in whose frame there is room for those of what it calls."""
    if sys.version_info >= (3, 11) and isinstance(function, types.FunctionType):
        function.__code__ = function.__code__.replace(co_stacksize=_VALUES)
    return function


__all__ = ["with_room"]
