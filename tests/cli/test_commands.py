"""The command line as a user meets it: real processes, exit codes, sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from doubtless.cli import app, main
from doubtless.errors import DoubtlessError

VERBS = [
    *("demo", "train", "evaluate", "posterior", "bench", "report", "methods", "sources"),
    *("embed", "ask", "calibrate", "compare", "export"),
]


def doubtless(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "doubtless", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, without the price of a new process."""
    monkeypatch.setattr(sys, "argv", ["doubtless", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str) -> None:
    found = CliRunner().invoke(app, [verb, "--help"])
    assert found.exit_code == 0
    assert f"Example: doubtless {verb}" in " ".join(found.output.split())
    assert "--json" in found.output


def test_lists_as_json() -> None:
    methods = json.loads(CliRunner().invoke(app, ["methods", "--json"]).output)
    assert "deterministic" in {row["method"] for row in methods}
    sources = json.loads(CliRunner().invoke(app, ["sources", "--json"]).output)
    assert "fashion-sample" in {row["source"] for row in sources}


def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, tiny_config, tiny_run: Path, monkeypatch, capsys
) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(yaml.safe_dump(tiny_config))
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "empty").mkdir()
    cases = [
        (["train", str(tmp_path / "none.yaml")], "There is no configuration"),
        (["train", str(tmp_path / "list.yaml")], "must hold keys and values"),
        (["train", str(tmp_path / "broken.yaml")], "no readable YAML"),
        (["train", str(good), "--set", "training.epoch=3"], "did you mean 'epochs'"),
        (["train", str(good), "--set", "trainin.epochs=3"], "did you mean 'training'"),
        (["train", str(good), "--set", "training.epochs=many"], "cannot be 'many'"),
        (["train", str(good), "--set", "training.epochs"], "key=value"),
        (["train", str(good), "--set", "method=detrministic"], "did you mean 'deterministic'"),
        (["train", str(good), "--set", f"data.source=folder:{tmp_path}/empty"], "has no images"),
        (["train", str(good), "--set", "loss.name=ProxyAnchorLos"], "did you mean 'ProxyAnchorLoss'"),
        (
            ["train", str(good), "--set", "loss.name=ProxyAnchorLoss", "--set", "loss.arguments.gama=1"],
            "does not take",
        ),
        (["train", str(good), "--out", str(tiny_run)], "exists already"),
        (["evaluate", str(tmp_path)], "is not a run"),
        (["evaluate", str(tmp_path / "nowhere")], "There is no run folder"),
        (["report", str(tmp_path)], "is not a run"),
        (["evaluate", str(tiny_run), "--ood", "digitss"], "did you mean 'digits'"),
    ]
    for arguments, sentence in cases:
        extra = (
            ["--out", str(tmp_path / "out")] if arguments[0] == "train" and "--out" not in arguments else []
        )
        code, out, err = in_process(monkeypatch, capsys, *arguments, *extra)
        assert code == 2, arguments
        assert sentence in err, (arguments, err)
        assert err.startswith("doubtless: ")
        assert "Traceback" not in out + err
        if (tmp_path / "out").exists():
            import shutil

            shutil.rmtree(tmp_path / "out")


def test_the_report_after_training_is_made_from_what_is_in_memory(
    tiny_config, tmp_path: Path, monkeypatch, capsys
) -> None:
    def never(*arguments: object, **named: object) -> None:
        raise AssertionError("what training had in memory is read again")

    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(tiny_config))
    monkeypatch.setattr("doubtless.runs.run.Run.load_method", never)
    monkeypatch.setattr("doubtless.runs.evaluation.open_run_data", never)
    words = ["train", str(config), "--out", str(run), "--json", "--set", "training.epochs=1"]
    code, out, err = in_process(monkeypatch, capsys, *words)
    assert code == 0, err
    assert json.loads(out)["measures"] == json.loads((run / "metrics.json").read_text())["measures"]
    page = (run / "report.html").read_text()
    assert "training.epochs=1" in page
    assert str(run) not in page


def test_train_evaluate_and_report_end_to_end(tiny_config, tmp_path: Path) -> None:
    """Through real processes, as a user would."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_config))
    run = tmp_path / "run"
    trained = doubtless("train", str(config), "--out", str(run), "--json", "--set", "training.epochs=2")
    assert trained.returncode == 0, trained.stderr[-2000:]
    found = json.loads(trained.stdout)
    assert found["measures"]["recall@1"]["value"] > 0.5
    assert set(found["baselines"]) == {"distance", "ratio", "spread", "norm"}
    assert json.loads((run / "metrics.json").read_text())["measures"] == found["measures"]
    page = (run / "report.html").read_text()
    assert "recall@1" in page
    assert "<svg" in page
    again = doubtless("evaluate", str(run), "--gallery", "train", "--bootstrap", "50", "--json")
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads(again.stdout)["protocol"]["kind"] == "query-gallery"
    assert (run / "on-test-in-train" / "report.html").exists()
    assert json.loads((run / "metrics.json").read_text())["measures"] == found["measures"]


def test_errors_beyond_ours_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["doubtless", "methods"])
    monkeypatch.setattr("doubtless.methods.all_methods", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main()
    assert not issubclass(ZeroDivisionError, DoubtlessError)


@pytest.mark.parametrize("arguments", [["-c", "import doubtless"], ["-m", "doubtless", "--help"]])
def test_start_is_light(arguments: list[str]) -> None:
    """No heavy library is imported to show the help: what keeps it below half a second."""
    listing = [sys.executable, "-X", "importtime", *arguments]
    loaded = subprocess.run(
        listing, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    ).stderr
    modules = {
        line.rsplit("|", 1)[-1].strip() for line in loaded.splitlines() if line.startswith("import time:")
    }
    assert not modules & {
        "torch",
        "numpy",
        "lightning",
        "timm",
        "pydantic",
        "scipy",
        "sklearn",
        "PIL",
        "yaml",
    }
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    assert time.perf_counter() - began < 10  # a hang, not a speed: the modules above are the real check
