"""The benchmark runner: plan, keys, resuming, failing runs, tables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from benchmarks.results_page.drawing import _frozen
from doubtless.bench import load_suite, plan_jobs
from doubtless.bench.comparison import _run_record
from doubtless.bench.plan import plan_tuning, run_key
from doubtless.bench.suite import merge
from doubtless.bench.worker import make_run, measure_again
from doubtless.cli import app
from doubtless.config import with_overrides
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation
from doubtless.methods.configuration import make_config
from tests.reference.waiting import wait_until

SUITES = Path(__file__).parents[2] / "benchmarks" / "suites"


@pytest.fixture
def suite(tiny_config: dict[str, Any], tmp_path: Path) -> Path:
    base = merge(tiny_config, {"training": {"epochs": 2}, "data": {"ood": []}})
    content = {
        "name": "tiny",
        "title": "Tiny",
        "seeds": [0, 1],
        "base": base,
        "methods": {
            "raw": {"set": {"method": "pretrained", "features": {"head": "raw"}}},
            "contrastive": {"set": {"loss": {"name": "contrastive"}}, "grid": {"training.lr": [1e-3, 3e-3]}},
        },
        "published": {
            "source": "a paper",
            "methods": {"contrastive": {"recall@1": 0.9}},
            "not_comparable": {"recall@1": "it is made up"},
        },
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def bench(suite: Path, tmp_path: Path, *options: str) -> Any:
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    return CliRunner().invoke(app, ["bench", str(suite), *folders, *options])


def test_from_plan_to_comparison(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBTLESS_CACHE", str(tmp_path / "cache"))
    planned = json.loads(bench(suite, tmp_path, "--dry-run", "--json").stdout)
    assert planned["open"] == 4
    assert planned["estimated_seconds"] > 0
    assert not (tmp_path / "work").exists()

    assert bench(suite, tmp_path, "--tune-only", "--jobs", "2").exit_code == 0
    assert not list((tmp_path / "work").rglob("metrics.json"))  # no test image was measured
    assert not (tmp_path / "out").exists()
    done = bench(suite, tmp_path, "--tune", "--jobs", "2", "--json")
    assert done.exit_code == 0, done.output
    tuned = yaml.safe_load((tmp_path / "tuned" / "tiny.yaml").read_text())["contrastive"]
    scores = {entry["training.lr"]: entry["score"] for entry in tuned["tried"]}
    assert tuned["chosen"]["training.lr"] == max(scores, key=lambda lr: scores[lr])

    tried = {file.parent.name: file for file in (tmp_path / "work" / "tuning").rglob("model.safetensors")}
    made = {file.parent.name: file for file in (tmp_path / "work" / "tiny").rglob("model.safetensors")}
    (again,) = tried.keys() & made.keys()  # of the first seed with the chosen value
    assert made[again].stat().st_mtime_ns == tried[again].stat().st_mtime_ns  # copied, not trained anew

    result = json.loads((tmp_path / "out" / "tiny.json").read_text())
    cell = result["table"]["cells"]["contrastive"]["recall@1"]
    by_hand = [
        run["measures"]["recall@1"]["value"] for run in result["runs"] if run["method"] == "contrastive"
    ]
    assert len(by_hand) == 2
    assert cell["mean"] == pytest.approx(sum(by_hand) / 2)
    assert cell["published"] == 0.9
    assert cell["not_comparable"] == "it is made up"
    assert all(str(tmp_path) not in line for line in [result["command"]])
    page = (tmp_path / "out" / "tiny.html").read_text()
    assert "contrastive" in page
    assert "it is made up" in page

    assert result["versions"]["torch"] == torch.__version__
    for record in (tmp_path / "work").rglob("made_with.json"):  # as if the runs came from two other machines
        made = json.loads(record.read_text())
        record.write_text(json.dumps(made | {"torch": "1.0", "device": record.parent.name[:1]}))
    assert bench(suite, tmp_path).exit_code == 0
    elsewhere = json.loads((tmp_path / "out" / "tiny.json").read_text())["versions"]
    assert elsewhere["torch"] == "1.0"
    assert set(elsewhere["device"].split(" and ")) == {"c", "r"}

    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "work").rglob("model.safetensors")}
    assert bench(suite, tmp_path).exit_code == 0
    assert {
        file: file.stat().st_mtime_ns for file in (tmp_path / "work").rglob("model.safetensors")
    } == before
    assert json.loads((tmp_path / "out" / "tiny.json").read_text())["table"] == result["table"]

    drawn = tmp_path / "out" / "tiny.html"
    before_redrawing = drawn.read_text()
    assert bench(suite, tmp_path, "--redraw").exit_code == 0
    assert drawn.read_text() == before_redrawing  # figures and pictures are kept, numbers the same
    drawn.unlink()
    assert bench(suite, tmp_path, "--redraw").exit_code == 0
    assert "it is made up" in drawn.read_text()  # from the numbers alone
    assert "<h3>Versions</h3>" in drawn.read_text()


def test_a_table_grows_by_what_is_missing(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBTLESS_COMMIT", "1111111")
    extended(suite, {"lam": {"base": "contrastive", "set": {"method": "lam-posthoc"}}})
    first = bench(suite, tmp_path, "--only", "lam", "--seeds", "1")  # its base is made, and is no row
    assert first.exit_code == 0, first.output
    path = tmp_path / "out" / "tiny.json"
    kept = json.loads(path.read_text())
    assert [(run["method"], run["seed"]) for run in kept["runs"]] == [("lam", 0)]
    kept["runs"][0]["measures"]["recall@1"]["value"] = 0.123  # what no run would give
    path.write_text(json.dumps(kept))

    shutil.rmtree(tmp_path / "work")  # as if on another machine
    monkeypatch.setenv("DOUBTLESS_COMMIT", "2222222")
    assert bench(suite, tmp_path, "--extend", "--seeds", "1", "--only", "lam").exit_code == 0
    assert not (tmp_path / "work").exists()  # there was nothing to make
    done = bench(suite, tmp_path, "--extend", "--jobs", "2")
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    assert [(run["method"], run["seed"]) for run in result["runs"]] == [
        (method, seed) for seed in (0, 1) for method in ("raw", "contrastive", "lam")
    ]
    lam = [run for run in result["runs"] if run["method"] == "lam"]
    assert lam[0]["measures"]["recall@1"]["value"] == 0.123
    assert lam[0]["frozen"]["commit"] == "1111111"
    assert "frozen" not in lam[1]
    assert result["frozen"]["commit"] == "2222222"
    mean = (0.123 + lam[1]["measures"]["recall@1"]["value"]) / 2
    assert result["table"]["cells"]["lam"]["recall@1"]["mean"] == pytest.approx(mean)
    parts = "Settings frozen in commit `2222222` (5 runs); Settings frozen in commit `1111111` (1 run)."
    assert _frozen(result) == parts
    shutil.rmtree(tmp_path / "work")
    assert "has all 6 runs" in bench(suite, tmp_path, "--extend").output


def test_a_failed_run_does_not_stop_the_rest(suite: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(suite.read_text())
    content["seeds"] = [0]
    content["methods"]["broken"] = {
        "set": {"loss": {"name": "ProxyAnchorLoss", "arguments": {"nonsense": 1}}}
    }
    content["methods"]["orphan"] = {"base": "broken", "set": {"method": "lam-posthoc"}}
    content["methods"] = {name: content["methods"][name] for name in ("broken", "orphan", "contrastive")}
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    found = bench(suite, tmp_path)
    assert found.exit_code == 1
    assert "does not take {'nonsense': 1}" in found.stderr
    assert "its base broken-" in found.stderr
    assert list(json.loads((tmp_path / "out" / "tiny.json").read_text())["table"]["cells"]) == [
        "contrastive",
        "contrastive + doubt",
    ]


def test_the_doubt_is_a_row_only_where_it_has_something_to_show(suite: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(suite.read_text())
    content |= {"seeds": [0], "methods": {"contrastive": content["methods"]["contrastive"]}}
    for metrics, rows in (
        (["recall@1"], ["contrastive"]),
        (["recall@1", "ausc"], ["contrastive", "contrastive + doubt"]),
    ):
        suite.write_text(yaml.safe_dump({**content, "metrics": metrics}, sort_keys=False))
        assert bench(suite, tmp_path).exit_code == 0
        assert list(json.loads((tmp_path / "out" / "tiny.json").read_text())["table"]["cells"]) == rows


@pytest.mark.slow
def test_killed_half_way_ends_with_the_same_table(suite: Path, tmp_path: Path) -> None:
    """kill -9 of the bench and all its runs, three times, then to the end."""
    content = yaml.safe_load(suite.read_text())
    content["base"]["training"]["epochs"] = 30
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    whole = bench(suite, tmp_path / "whole", "--json")
    assert whole.exit_code == 0, whole.output
    folders = ["--work", str(tmp_path / "cut/work"), "--out", str(tmp_path / "cut/out")]
    command = [sys.executable, "-m", "doubtless", "bench", str(suite), *folders, "--json"]
    for seconds in (12, 17, 21):
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout) == json.loads(whole.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_terminated_bench_leaves_no_run_behind(suite: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(suite.read_text())
    content["base"]["training"]["epochs"] = 10_000
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "doubtless", "bench", str(suite), *folders, "--only", "contrastive"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    wait_until(lambda: list((tmp_path / "work").rglob("last.ckpt")), seconds=120)
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    wait_until(lambda: not processes_of_session(process.pid), seconds=30)


def processes_of_session(session: int) -> list[int]:
    """Living processes that a command started in a session of its own has left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = entry.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(own) == session and state != "Z":
            found.append(int(entry.parent.name))
    return found


def test_keys_change_with_what_changes_the_result(tiny_config: dict[str, Any]) -> None:
    key = run_key(make_config(tiny_config))
    for indifferent in ("data.workers=0", "data.root=/somewhere", "training.devices=2"):
        assert run_key(make_config(with_overrides(tiny_config, [indifferent]))) == key
    for telling in ("training.lr=0.5", "seed=3", "loss.margin=0.9", "data.ood=[digits]"):
        assert run_key(make_config(with_overrides(tiny_config, [telling]))) != key


def test_keys_are_those_of_before_there_were_younger_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from doubtless.methods.deterministic import Deterministic

    monkeypatch.setattr(Deterministic, "version", 1)
    plain = {
        "method": "deterministic",
        "data": {"source": "fashion-sample", "ood": ["digits"]},
        "loss": {"reduction": "all"},  # as it was before there was a choice
    }
    assert run_key(make_config(plain)) == "c1fb5162e730"  # worked out before there was evaluation.ood_ratio
    for setting in (
        "evaluation.ood_ratio=2.6",
        "loss.reduction=active",
        "training.warmup=1",
        "evaluation.size=32",
        "evaluation.open_set={}",
        "evaluation.scale=tuned",
    ):
        assert run_key(make_config(with_overrides(plain, [setting]))) != "c1fb5162e730"


def test_younger_settings_of_a_method_s_own_section_leave_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from doubtless.methods.lam_online import LamOnline

    monkeypatch.setattr(LamOnline, "version", 1)
    plain = {
        "method": "lam-online",
        "data": {"source": "fashion-sample"},
        "loss": {"name": "contrastive", "reduction": "all"},
    }
    before = "4d72c9968e79"  # worked out before there was laplace.tune.meant_for
    assert run_key(make_config(plain)) == before
    for setting in ("laplace.tune.meant_for=9000", "laplace.refit=true", "laplace.covariance=kronecker"):
        assert run_key(make_config(with_overrides(plain, [setting]))) != before


def test_key_changes_with_the_method_s_version(tiny_config, monkeypatch: pytest.MonkeyPatch) -> None:
    from doubtless.methods.deterministic import Deterministic

    key = run_key(make_config(tiny_config))
    monkeypatch.setattr(Deterministic, "version", 99)
    assert run_key(make_config(tiny_config)) != key


def test_plan_covers_methods_seeds_and_grid(suite: Path, tmp_path: Path) -> None:
    loaded = load_suite(suite)
    jobs = plan_jobs(loaded, tmp_path)
    assert [(job.method, job.seed) for job in jobs] == [
        ("raw", 0),
        ("contrastive", 0),
        ("raw", 1),
        ("contrastive", 1),
    ]
    assert len({job.folder for job in jobs}) == 4
    tuning = plan_tuning(loaded, tmp_path)
    assert [job.config.training.lr for job in tuning] == [1e-3, 3e-3]


def write_empty_metrics(folder: Path) -> None:
    Evaluation({}, {}, {}, {}, {}, None).save(folder / "metrics.json")


def extended(suite: Path, rows: dict[str, Any]) -> Path:
    content = yaml.safe_load(suite.read_text())
    content["methods"] |= rows
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    return suite


def test_second_stages_are_tuned_upon_what_was_chosen_for_the_first(suite: Path, tmp_path: Path) -> None:
    row = {
        "base": "contrastive",
        "set": {"method": "lam-posthoc"},
        "grid": {"laplace.tune.grid": [5, 10]},
    }
    loaded = load_suite(extended(suite, {"lam": row}))
    chosen = loaded.model_copy(update={"tuned": {"contrastive": {"training.lr": 3e-3}}})
    assert {job.method for job in plan_tuning(chosen, tmp_path)} == {"contrastive"}
    base, *tuning = plan_tuning(chosen, tmp_path, with_base=True)
    assert plan_tuning(chosen, tmp_path, with_base=True, rows=["lam"]) == [base, *tuning]
    assert plan_tuning(chosen, tmp_path, rows=["lam"]) == []
    final = {(job.method, job.seed): job for job in plan_jobs(chosen, tmp_path)}
    assert base.folder == final["contrastive", 0].folder  # made once, used again
    write_empty_metrics(final["lam", 0].folder)
    recorded = _run_record(final["lam", 0])["config"]["base"]
    assert recorded == base.folder.name  # results name no folder of this machine
    assert base.config.training.lr == 3e-3
    assert [job.base for job in tuning] == [base.folder] * 2
    assert len({job.folder for job in tuning}) == 2


def test_a_row_of_another_measures_its_run_in_another_way(suite: Path, tmp_path: Path) -> None:
    row = {"of": "contrastive", "set": {"evaluation": {"score": "expected-distance", "ks": [2]}}}
    loaded = load_suite(extended(suite, {"again": row}))
    jobs = {job.method: job for job in plan_jobs(loaded, tmp_path / "work") if job.seed == 0}
    first, again = jobs["contrastive"], jobs["again"]
    assert again.base == first.folder != again.folder
    assert again.measures
    for job in (first, again):
        (tmp_path / f"{job.method}.yaml").write_text(job.config.to_yaml())
    make_run(tmp_path / "contrastive.yaml", first.folder)
    measure_again(tmp_path / "again.yaml", again.folder, first.folder)
    assert again.is_done
    measured, anew = (json.loads((job.folder / "metrics.json").read_text()) for job in (first, again))
    assert anew["measures"]["map@r"] == measured["measures"]["map@r"]  # points: both scores rank alike
    assert "recall@2" in anew["measures"]
    assert "recall@2" not in measured["measures"]
    assert anew["protocol"]["score"] == "expected-distance"
    assert not (again.folder / "model.safetensors").exists()
    with pytest.raises(InputError, match="it can only set evaluation"):
        plan_jobs(load_suite(extended(suite, {"again": {**row, "set": {"seed": 3}}})), tmp_path)


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_suites_are_valid(path: Path) -> None:
    suite = load_suite(path)
    assert suite.name == path.stem
    for method in suite.methods:
        assert suite.config(method, 0).method
    if suite.published:
        assert set(suite.published.methods) <= set(suite.methods)


def test_bad_suites_are_sentences(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'omniglot-equal'"):
        load_suite("omniglott", folder=SUITES)
    with pytest.raises(InputError, match="There is no suite"):
        load_suite(tmp_path / "none.yaml")
    content = yaml.safe_load(suite.read_text())
    suite.write_text(yaml.safe_dump({**content, "sedes": [1]}, sort_keys=False))
    with pytest.raises(InputError, match="did you mean 'seeds'"):
        load_suite(suite)
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(InputError, match="no method 'contrastiv'"):
        CliRunner().invoke(app, ["bench", str(suite), "--only", "contrastiv"], catch_exceptions=False)


def test_significance_of_means_and_of_ranks() -> None:
    """A method that is right where the other is wrong, and whose doubt knows, is better; itself is not."""
    import torch

    from doubtless.bench.comparison import difference
    from doubtless.evaluation import Evaluation, QueryRecord
    from doubtless.report import MethodResult

    generator = torch.Generator().manual_seed(0)

    def row(name: str, share: float, knows: float) -> MethodResult:
        found = []
        for _ in range(2):
            correct = torch.rand(400, generator=generator) < share
            noise = torch.rand(400, generator=generator)
            doubt = (1 - knows) * noise + knows * (~correct).double()
            values = {"recall@1": correct.double()}
            found.append(
                Evaluation(
                    {}, queries=QueryRecord(torch.arange(400), torch.zeros(400), correct, doubt, values)
                )
            )
        return MethodResult(name, found)

    good, bad = row("good", 0.9, 0.4), row("bad", 0.6, 0.0)
    for metric in ("recall@1", "error_auroc", "ausc"):
        better = difference(good, bad, metric)
        assert better is not None
        assert better.significant
        assert better.difference > 0
        same = difference(bad, bad, metric)
        assert same is not None
        assert not same.significant
    assert difference(good, bad, "nmi") is None
