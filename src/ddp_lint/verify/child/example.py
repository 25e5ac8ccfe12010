"""A `ddp_lint_example()` for a model: what works as it is, or the lines to fill in."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ddp_lint.verify.child import shapes
from ddp_lint.verify.child.arguments import construct, needed, parameters, required, syntax
from ddp_lint.verify.child.arrangements import arrangements

EXAMPLE = "ddp_lint_example"


def of_recipe(module: ModuleType, name: str, recipe: Mapping[str, Any]) -> str:
    """The function that builds the model and its inputs as the recipe does; "" for one that the file offers already.

    A `training_step` is called by no example: its model is proven with its own batches.
    """
    if recipe["source"] != "inferred" or recipe.get("method"):
        return ""
    model = construct(getattr(module, name), module, recipe["shrink"]).text
    return _function(model, recipe["inputs"], recipe["keywords"], "")


def advice(module: ModuleType, cls: Any, reasons: list[str]) -> str:
    """What failed, and the lines to add, as specific to this model as its source allows."""
    return (
        f"{module.__file__}: {cls.__name__}: no arguments and inputs found that work"
        + "".join(f"\n  {reason}" for reason in list(dict.fromkeys(reasons))[:3])
        + "\nAdd this to the file, with values that fit (or name such a function with --entry):\n\n"
        + sketch(module, cls)
    )


def sketch(module: ModuleType, cls: Any) -> str:
    """The function to fill in: what could be guessed is there, `...` marks the rest."""
    notes = f"    # {cls.__name__}{_signature(cls)}\n    # forward{_signature(cls.forward)}\n"
    try:
        made = construct(cls, module, True)
    except Exception:
        text = f"{cls.__name__}({', '.join(f'{name}=...' for name in required(cls))})"
        return _function(text, [], {}, notes, names=_asked(cls))
    inputs, keywords = [], {}
    for parameter in parameters(made.value.forward):
        if needed(parameter):
            spec = _likely(parameter.name, made.value)
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = spec
            else:
                inputs.append(spec)
    return _function(made.text, inputs, keywords, notes)


def left_open(function: Any) -> int:
    """The line of its file at which such a function still has `...` for a value, 0 where it has none."""
    tree = syntax(function)
    indices = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    held = (
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call | ast.Tuple | ast.Dict | ast.keyword)
        for part in ast.iter_child_nodes(node)
    )
    lines = [p.lineno for p in held if isinstance(p, ast.Constant) and p.value is ... and id(p) not in indices]
    return inspect.getsourcelines(function)[1] + min(lines) - 1 if lines else 0


def _likely(name: str, model: Any) -> shapes.Spec:
    way = arrangements(name, model.forward)[0]
    found = [[*shapes.named_candidates(leaf, model), *shapes.candidates(model)][0] for leaf in way.leaves]
    return way.filled(tuple(found))


def _asked(cls: Any) -> list[str]:
    return required(cls.forward)[1:] or ["x"]


def _function(
    model: str, inputs: Any, keywords: Mapping[str, Any], notes: str, *, names: list[str] | None = None
) -> str:
    """Positional inputs are a tuple, keywords a dict; both together a tuple of the two."""
    by_position = [shapes.source(spec) for spec in inputs] if names is None else ["..." for _ in names]
    positional = f"({', '.join(by_position)}{',' * (len(by_position) == 1)})"
    by_name = ", ".join(f"{key!r}: {shapes.source(spec)}" for key, spec in keywords.items())
    both = f"({positional}, {{{by_name}}})" if by_position else f"{{{by_name}}}"
    given = both if keywords else positional
    imports = "    import torch\n" + ("    import types\n" if "types." in model else "")
    asked = f"    # inputs: {', '.join(names)}\n" if names else ""
    return f"def {EXAMPLE}():\n{imports}{notes}    model = {model}\n{asked}    return model, {given}\n"


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"
