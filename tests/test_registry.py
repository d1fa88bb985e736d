"""Registries: names, plugins of other packages, import paths."""

from __future__ import annotations

import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from doubtless.errors import InputError
from doubtless.registry import Registry, call_import_path, import_object, import_path_of

GROUP = "doubtless.tests"


def install(folder: Path, name: str, *, entries: dict[str, str], module: str = "") -> None:
    """Writes a package `name` with its metadata, as an installer leaves it."""
    (folder / f"{name}.py").write_text(module)
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{GROUP}]", *(f"{key} = {value}" for key, value in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages; what is imported from it is forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("plugin_good", "plugin_bad", "plugin_registering", "plugin_asking"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def things() -> Registry[Any]:
    registry: Registry[Any] = Registry("thing", group=GROUP)
    registry.register("cup", "a cup")
    return registry


def test_a_name_gives_what_was_registered(things: Registry[Any]) -> None:
    @things.register("plate")
    def plate() -> str:
        return "a plate"

    assert things.get("cup") == "a cup"
    assert things.get("plate") is plate
    assert things.names() == list(things) == ["cup", "plate"]
    assert len(things) == 2
    assert dict(things.items())["cup"] == "a cup"


def test_an_unknown_name_is_told_the_nearest(things: Registry[Any]) -> None:
    with pytest.raises(InputError, match=r"There is no thing 'cupp'; did you mean 'cup'\?"):
        things.get("cupp")


def test_a_taken_name_is_refused(things: Registry[Any]) -> None:
    assert things.register("cup", things.get("cup")) == "a cup"
    with pytest.raises(InputError, match="'cup' is taken"):
        things.register("cup", "another cup")
    with pytest.raises(InputError, match="needs a name"):
        things.register("module:os.path", "an import path")


def test_a_cell_that_is_run_again_replaces_what_it_defined(things: Registry[Any]) -> None:
    @dataclass(frozen=True)
    class Holder:
        function: Any

    def define() -> Any:
        def local() -> None: ...

        return local

    things.register("local", define())
    newer = things.register("local", define())
    assert things.get("local") is newer
    things.register("held", Holder(define()))
    things.register("held", Holder(define()))
    with pytest.raises(InputError, match="taken"):
        things.register("held", Holder(install))
    things.register("lambda", lambda: 1)
    with pytest.raises(InputError, match="taken"):
        things.register("lambda", lambda: 2)


def test_what_is_not_of_the_kind_is_refused() -> None:
    def check(name: str, item: Any) -> None:
        if not callable(item):
            raise InputError(f"{name} must be callable.")

    registry: Registry[Any] = Registry("function", group=GROUP, check=check)
    with pytest.raises(InputError, match="five must be callable"):
        registry.register("five", 5)
    assert "five" not in registry


def test_plugins_are_found_at_the_first_miss(site: Path, things: Registry[Any]) -> None:
    install(site, "plugin_good", entries={"good": "plugin_good:answer"}, module="answer = 'an answer'\n")
    assert things.get("cup") == "a cup"
    assert "plugin_good" not in sys.modules
    assert things.get("good") == "an answer"
    assert things.names() == ["cup", "good"]


def test_a_plugin_may_be_a_module_that_registers(
    site: Path, things: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "shared", things, raising=False)
    text = f"from {__name__} import shared\nshared.register('one', 'one')\nshared.register('two', 'two')\n"
    install(site, "plugin_registering", entries={"several": "plugin_registering"}, module=text)
    assert things.names() == ["cup", "one", "two"]


def test_a_plugin_may_ask_the_registry_while_it_is_loaded(
    site: Path, things: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "shared", things, raising=False)
    text = f"from {__name__} import shared\nnames = shared.names()\n"
    install(site, "plugin_asking", entries={"asking": "plugin_asking:names"}, module=text)
    assert things.get("asking") == ["cup"]


def test_a_broken_plugin_is_a_warning(site: Path, things: Registry[Any]) -> None:
    install(
        site, "plugin_bad", entries={"bad": "plugin_bad:nothing"}, module="raise RuntimeError('no licence')\n"
    )
    install(
        site,
        "plugin_good",
        entries={"cup": "plugin_good:cup", "jug": "plugin_good:jug"},
        module="cup = jug = 1\n",
    )
    with pytest.warns(UserWarning, match="cannot be loaded") as caught:
        assert things.names() == ["cup", "jug"]
    text = "\n".join(str(warning.message) for warning in caught)
    assert "'bad' of the package plugin_bad cannot be loaded" in text
    assert "no licence" in text
    assert "'cup' of the package plugin_good" in text
    assert "taken" in text
    assert things.get("cup") == "a cup"  # ours stays
    with pytest.raises(InputError, match="A plugin of this name cannot be loaded: RuntimeError: no licence"):
        things.get("bad")
    with pytest.raises(InputError, match="2 plugins could not be loaded: "):
        things.get("saucer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        things.names()  # said once


def test_plugins_are_loaded_once_by_many_threads(site: Path, things: Registry[Any]) -> None:
    text = "import time\ntime.sleep(0.05)\ncounter = []\n"
    install(site, "plugin_good", entries={"good": "plugin_good:counter"}, module=text)
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(things.get("good"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(value is seen[0] for value in seen)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("module:os", "looks like module:package.function"),
        ("module:", "looks like"),
        ("module:no_such_package.thing", "no module no_such_package to import"),
        ("module:os.path.no_such_thing", "os.path has no no_such_thing"),
        ("module:torch.pi", "must name something to call"),
        ("module:torch.nn.Linear", "cannot be called without arguments"),
        ("module:os.abort", "is of Python's own library"),
        ("module:os.sep", "is of Python's own library"),
        ("module:doubtless.registry.import_module", "is of Python's own library"),  # by another name
    ],
)
def test_a_wrong_import_path_is_a_sentence(path: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call_import_path(path)


def test_an_error_inside_an_imported_module_is_told(site: Path) -> None:
    (site / "plugin_bad.py").write_text("import no_such_dependency\n")
    with pytest.raises(InputError, match="cannot be imported: No module named 'no_such_dependency'"):
        import_object("module:plugin_bad.thing")


class Nested:
    class Inner: ...

    def method(self) -> None: ...


def test_import_paths_lead_back() -> None:
    assert import_path_of(Nested.Inner) == f"module:{__name__}.Nested.Inner"
    assert import_object(f"module:{__name__}.Nested.Inner") is Nested.Inner
    assert import_path_of(5) is None
    assert import_path_of(lambda: None) is None

    class Local: ...

    assert import_path_of(Local) is None
