"""An agent's session: the official package's client starts `doubtless mcp` as a process and calls its tools."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import doubtless
from doubtless.cli import main
from doubtless.errors import InputError
from doubtless.server.agents import Tools
from doubtless.server.service.service import Service

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
Result = TypeVar("Result")


def session(arguments: list[str], visit: Callable[[Any], Awaitable[Result]]) -> Result:
    """What `visit` makes of a client that has started `doubtless mcp ARGUMENTS`."""
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "doubtless", "mcp", *arguments], env=dict(os.environ)
    )

    async def visited() -> Result:
        async with mcp.Client(command, read_timeout_seconds=100) as client:
            return await visit(client)

    return asyncio.run(visited())


def refusal(result: Any) -> str:
    assert result.is_error
    return str(result.content[0].text)


@pytest.fixture
def picture_file(picture: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "asked" / "photo.png"
    path.parent.mkdir()
    path.write_bytes(picture)
    return path


def test_an_agent_asks_compares_and_looks(served_index: Path, picture_file: Path, picture: bytes) -> None:
    address = "data:image/png;base64," + base64.b64encode(picture).decode()
    with doubtless.open(served_index) as gallery:
        expected = gallery.ask(picture_file, k=3).to_json()
        other = gallery.items({"label": "class-4"})[0]
        pair = gallery.compare(picture_file, other.path)
        direct = gallery.ask(gallery.read([picture_file]).embedding, k=3)[0].to_json()
        vector = gallery.read([picture_file]).embedding.location[0].tolist()

    async def visit(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"ask", "compare", "status", "describe"}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert "decision" in tools["ask"].description
        assert "data:image/png" in tools["compare"].input_schema["properties"]["first"]["description"]

        for named in (str(picture_file), address):
            told = await client.call_tool("ask", {"image": named, "k": 3})
            assert not told.is_error
            assert told.structured_content == json.loads(json.dumps(expected))  # one form, whoever asks
            assert json.loads(told.content[0].text)["reason"] == expected["reason"]  # for clients without
        by_vector = (await client.call_tool("ask", {"vector": vector, "k": 3})).structured_content
        assert by_vector["decision"] == direct["decision"]
        assert [hit["id"] for hit in by_vector["hits"]] == [hit["id"] for hit in direct["hits"]]
        only = await client.call_tool("ask", {"image": address, "where": {"label": "class-2"}})
        assert {hit["label"] for hit in only.structured_content["hits"]} == {"class-2"}

        compared = (
            await client.call_tool("compare", {"first": str(picture_file), "second": other.path})
        ).structured_content
        assert (compared["decision"], compared["reason"]) == (pair.decision, pair.reason)
        assert compared["probability"] == pytest.approx(pair.probability)
        assert compared["reason_code"]

        status = (await client.call_tool("status")).structured_content
        assert status["items"] == 120
        assert 0 < status["promise"]["target_error"] < 1
        assert status["watch"]["sentence"]
        described = (await client.call_tool("describe")).structured_content
        assert described["label_counts"] == {f"class-{label}": 20 for label in range(6)}
        assert described["model"]["method"] == "deterministic"
        item = (await client.call_tool("describe", {"id": other.id})).structured_content
        assert item["label"] == "class-4"
        assert other.id not in {hit["id"] for hit in item["answer"]["hits"]}
        assert 0 <= item["own_label"] <= 1

    session([str(served_index)], visit)


def test_what_cannot_be_asked_is_a_sentence_and_the_server_goes_on(
    served_index: Path, picture_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.png").write_bytes(picture_file.read_bytes())
    (picture_file.parent / "link.png").symlink_to(tmp_path / "secret.png")
    (picture_file.parent / "notes.png").write_text("no picture")
    wrong = [
        ("ask", {}, "one of the two"),
        ("ask", {"image": str(picture_file), "vector": [1.0]}, "one of the two"),
        ("ask", {"image": str(picture_file.parent / "none.png")}, "There is no picture"),
        ("ask", {"image": str(picture_file.parent)}, "There is no picture"),
        ("ask", {"image": str(tmp_path / "secret.png")}, "Only pictures below"),
        ("ask", {"image": str(picture_file.parent / "link.png")}, "Only pictures below"),
        ("ask", {"image": str(picture_file.parent / ".." / "secret.png")}, "Only pictures below"),
        ("ask", {"image": "https://example.org/photo.png"}, "not fetched"),
        ("ask", {"image": "data:image/png,abc"}, "reads data:image/png;base64"),
        ("ask", {"image": "data:image/png;base64,%%%"}, "no base64"),
        ("ask", {"image": str(picture_file.parent / "notes.png")}, "no image of an accepted type"),
        ("ask", {"image": str(picture_file), "k": 100_000}, "k must lie between"),
        ("ask", {"image": str(picture_file), "confidence": 2}, "less than 1"),
        ("ask", {"vector": [1.0, 2.0]}, "dim"),
        ("compare", {"first": str(picture_file)}, "second"),
        ("describe", {"id": "nobody"}, "nobody"),
    ]

    async def visit(client: Any) -> None:
        for tool, arguments, sentence in wrong:
            assert sentence in refusal(await client.call_tool(tool, arguments)), (tool, arguments)
        told = await client.call_tool("ask", {"image": str(picture_file)})
        assert told.structured_content["decision"] in ("answer", "abstain", "not-in-gallery")

    session([str(served_index), "--images", str(picture_file.parent)], visit)


ODD_PATHS = [
    "a\0b", "a" * 100_000, "~nobody-of-this-name/x.png", "\ud800.png", "", ".", "loop.png", "empty.png", "pipe.png",
    "closed/photo.png", "/dev/zero", "/proc/kmsg", "/proc/self/environ",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_PATHS, ids=[ascii(name[:20]) for name in ODD_PATHS])
def test_paths_that_lead_to_no_picture_are_a_sentence(
    served_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What the system raises of them would be told nobody; a log of the kernel is waited for without end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "closed").touch()
    with Service.open(served_index, read_only=True) as service, pytest.raises(InputError) as told:
        Tools(service).picture(name)
    assert "picture" in str(told.value)
    assert len(str(told.value)) < 500


@pytest.mark.parametrize("ending", ["Ctrl-C", "agent closes", "agent is gone"])
def test_it_ends_when_it_is_told_to_and_when_its_agent_is_gone(served_index: Path, ending: str) -> None:
    """A thread waits for the agent's next word: it kept the process after Ctrl-C until that came."""
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listening}; from doubtless.cli import main; main()"
    command, pipes = [sys.executable, "-c", code, "mcp", str(served_index)], subprocess.PIPE
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    word = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}) + "\n"
    with subprocess.Popen(command, stdin=pipes, stdout=pipes, stderr=pipes, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(word)
        process.stdin.flush()
        assert "doubtless" in process.stdout.readline()
        if ending == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        elif ending == "agent closes":
            process.stdin.close()
        else:
            process.stdout.close()
            process.stdin.write(word)
            process.stdin.close()
        try:
            ended = process.wait(timeout=20)
        finally:
            process.kill()
        said = process.stderr.read()
    assert ended == (130 if ending == "Ctrl-C" else 0), said
    assert "Traceback" not in said
    assert said == ("doubtless: Stopped.\n" if ending == "Ctrl-C" else "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_standard_output_is_a_sentence(served_index: Path) -> None:
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    word = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}) + "\n"
    command = [sys.executable, "-m", "doubtless", "mcp", str(served_index)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, input=word, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.stderr == "doubtless: No space left on device.\n"
    assert done.returncode == 2


def test_a_folder_that_is_not_there_is_refused(
    served_index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["doubtless", "mcp", str(served_index), "--images", "nowhere"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "There is no folder 'nowhere'" in capsys.readouterr().err
