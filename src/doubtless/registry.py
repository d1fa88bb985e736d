"""Registries: things that a configuration names, ours and those of other packages.

Another package adds to a registry by an entry point of its group: either the thing itself, or a module that
registers things when it is imported. Groups: doubtless.methods, doubtless.losses, doubtless.sources,
doubtless.backbones, doubtless.indexes and doubtless.metrics.

What is not worth a package is named by its import path: `module:package.function`.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from doubtless.errors import DoubtlessError, InputError, nearest

T = TypeVar("T")

MODULE = "module:"
"""What a name begins with that is an import path."""
TIMM = "timm:"
"""What the name of a timm model with its published weights begins with."""
HUB = "hub:"
"""What the name of a model on the Hugging Face Hub begins with."""


class Registry(Generic[T]):
    """Things of one kind by their names: those registered here, and those of installed plugins.

    Plugins are looked for once, at the first unknown name or listing. `check` refuses what is not of the kind by an
    `InputError`. `hint` is a sentence to add where a name is unknown.

    >>> greetings: Registry[str] = Registry("greeting", group="example.greetings")
    >>> greetings.register("polite", "How do you do?")
    'How do you do?'
    >>> greetings.get("polite"), greetings.names(), "rude" in greetings
    ('How do you do?', ['polite'], False)
    """

    def __init__(
        self, kind: str, *, group: str, check: Callable[[str, Any], None] | None = None, hint: str = ""
    ) -> None:
        self.kind = kind
        self.group = group
        self.check = check
        self.hint = hint
        self.failures: dict[str, str] = {}
        """Entry points that could not be loaded, by name, each with the reason."""
        self._items: dict[str, T] = {}
        self._lock = threading.Lock()  # around the items
        self._search = threading.RLock()  # around the search for plugins, which themselves register
        self._searched = self._searching = False

    def register(self, name: str, item: T | None = None) -> Any:
        """Adds `item` under `name` and returns it; without an item, a decorator that does so.

        >>> squares: Registry[object] = Registry("function", group="example.functions")
        >>> @squares.register("square")
        ... def square(x): return x * x
        """
        if item is None:
            return lambda decorated: self.register(name, decorated)
        if not name or name.startswith(MODULE):
            raise InputError(
                f"A {self.kind} needs a name that is not empty and no import path, got {name!r}."
            )
        if self.check is not None:
            self.check(name, item)
        with self._lock:
            present = self._items.get(name)
            if present is not None and not _same(present, item):
                raise InputError(
                    f"The {self.kind} {name!r} is taken by {_describe(present)}, so {_describe(item)} needs "
                    "another name."
                )
            self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """What is registered under `name`; an unknown one is a sentence with the nearest name."""
        if name not in self:
            sentence = f"There is no {self.kind} {name!r}{nearest(name, self._items)}"
            parts = [sentence, self._shortfall(name), self.hint]
            raise InputError(" ".join(part for part in parts if part))
        return self._items[name]

    def names(self) -> list[str]:
        """All names in the order of their registration, plugins last."""
        self.load_plugins()
        return list(self._items)

    def items(self) -> list[tuple[str, T]]:
        """All names with what they stand for, plugins last."""
        self.load_plugins()
        return list(self._items.items())

    def __contains__(self, name: object) -> bool:
        if name not in self._items:
            self.load_plugins()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def load_plugins(self) -> None:
        """Loads the group's entry points, once. One that fails is a warning and a record in `failures`."""
        if self._searched:
            return
        with self._search:
            if self._searched or self._searching:  # a plugin may ask for names while it is imported
                return
            self._searching = True
            for entry in entry_points(group=self.group):
                self._load(entry)
            self._searched = True

    def _load(self, entry: EntryPoint) -> None:
        try:
            value = entry.load()
            if not isinstance(value, ModuleType):
                self.register(entry.name, value)
        except Exception as error:  # anything may be raised by code of others
            reason = str(error) if isinstance(error, DoubtlessError) else f"{type(error).__name__}: {error}"
            self.failures[entry.name] = reason
            package = "an unknown package" if entry.dist is None else f"the package {entry.dist.name}"
            warnings.warn(
                f"The {self.kind} plugin {entry.name!r} of {package} cannot be loaded and is left out: {reason}",
                stacklevel=2,
            )

    def _shortfall(self, name: str) -> str:
        """Why plugins may be the reason that a name is unknown."""
        if name in self.failures:
            return f"A plugin of this name cannot be loaded: {self.failures[name]}"
        if self.failures:
            names = ", ".join(self.failures)
            return (
                f"{len(self.failures)} plugin{'s' * (len(self.failures) > 1)} could not be loaded: {names}."
            )
        return ""


def import_object(path: str) -> Any:
    """What an import path names: `package.module.name`, with or without `module:` before it.

    >>> import_object("module:collections.OrderedDict")
    <class 'collections.OrderedDict'>
    """
    dotted = path.removeprefix(MODULE)
    parts = dotted.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise InputError(f"An import path looks like module:package.function, got {path!r}.")
    for count in range(len(parts) - 1, 0, -1):
        module = _import(".".join(parts[:count]), path)
        if module is None:
            continue
        value: Any = module
        for part in parts[count:]:
            if not hasattr(value, part):
                raise InputError(
                    f"{'.'.join(parts[:count])} has no {'.'.join(parts[count:])}, named by {path!r}."
                )
            value = getattr(value, part)
        return value
    raise InputError(
        f"There is no module {'.'.join(parts[:-1])} to import, named by {path!r}; its folder must be on PYTHONPATH "
        "or its package installed."
    )


def names_network(name: str) -> bool:
    """Whether a model's name is that of a network or of a model on a hub, and not that of a folder or file.

    >>> names_network("module:package.function?size=64"), names_network("runs/first")
    (True, False)
    """
    return name.startswith((MODULE, TIMM, HUB))


def call_import_path(path: str) -> Any:
    """Calls what an import path names, without arguments; what goes wrong in it is told as such.

    Runs and indexes name such paths, and may come from others: Python's own library, in which there is neither a
    network nor data but much that is better not called (`os.abort`), is refused.

    >>> call_import_path("module:torch.nn.Identity")
    Identity()
    """
    function = import_object(path)
    if (getattr(function, "__module__", None) or "").partition(".")[0] in sys.stdlib_module_names or (
        path.removeprefix(MODULE).partition(".")[0] in sys.stdlib_module_names
    ):
        raise InputError(f"{path} is of Python's own library; no network and no data are to be had there.")
    if not callable(function):
        raise InputError(
            f"{path} must name something to call without arguments, got a {type(function).__name__}."
        )
    try:
        return function()
    except DoubtlessError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be called without arguments: {type(error).__name__}: {error}."
        ) from error


def import_path_of(item: Any) -> str | None:
    """The import path of a class or function, None where none leads to it: a lambda, a local, `__main__`.

    >>> import collections
    >>> import_path_of(collections.OrderedDict)
    'module:collections.OrderedDict'
    >>> import_path_of(lambda: None) is None
    True
    """
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    if not module or not name or "<" in name or module == "__main__":
        return None
    path = f"{MODULE}{module}.{name}"
    try:
        return path if import_object(path) is item else None
    except InputError:
        return None


def _import(name: str, path: str) -> ModuleType | None:
    """A module, or None where there is none of that name; an error inside it is a sentence."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise InputError(f"{path} cannot be imported: {error}.") from error
    except Exception as error:  # code of others runs while it is imported
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error


def _same(present: object, item: object) -> bool:
    """Whether an item is what is registered already, or its next version: a notebook's cell that was run again."""
    if present is item:
        return True
    if is_dataclass(present) and type(present) is type(item):
        return all(
            _same(value, vars(item)[field]) or value == vars(item)[field]
            for field, value in vars(present).items()
        )
    names = [
        (getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (present, item)
    ]
    return names[0] == names[1] and None not in names[0] and "<lambda>" not in str(names[0][1])


def _describe(item: object) -> str:
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    return f"{module}.{name}" if module and name else f"a {type(item).__qualname__}"
