"""Uploading a run to the hub, against a local stand-in for the hub's API."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import regard
from regard.errors import UserError
from regard.run.convert import push_run
from regard.run.train import train

constants = pytest.importorskip("huggingface_hub.constants")
MODEL = {"kind": "transformer", "preset": "gpt2", "layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 32}
RECIPE = {
    "task": "language",
    "data": {"world": {"kind": "bilingual", "number": 60, "held_out": 10}},
    "tokens": {"kind": "words", "size": 300},
    "model": {
        "kind": "transformer",
        "preset": "gpt2",
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "max_length": 32,
    },
    "train": {"steps": 1, "evaluate_every": 1},
}


@pytest.fixture
def hub(monkeypatch):
    """Serve the calls that `HfApi.upload_folder` makes; return the uploaded files by repository, and what was created."""
    files: dict[str, dict[str, bytes]] = {}
    created: dict[str, dict] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = self.path.split("?")[0].strip("/").split("/")
            if "Bearer secret" not in self.headers.get("Authorization", ""):
                return self.answer({"error": "Invalid username or password."}, 401)
            if parts == ["api", "repos", "create"]:
                options = json.loads(body)
                name = f"{options.get('organization') or 'me'}/{options['name']}"
                created[name] = options
                return self.answer({"url": f"{url}/{name}"})
            if len(parts) < 5:  # the card is checked
                return self.answer({"errors": [], "warnings": []})
            name = "/".join(parts[2:4])
            if parts[4] == "preupload":
                asked = json.loads(body)["files"]
                return self.answer(
                    {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]}
                )
            assert parts[4] == "commit"
            for line in filter(None, body.split(b"\n")):
                item = json.loads(line)
                if item["key"] == "file":
                    files.setdefault(name, {})[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            return self.answer({"success": True, "commitOid": "a" * 40, "commitUrl": f"{url}/{name}/commit/{'a' * 40}"})

        def do_GET(self):
            self.answer({"name": "me", "type": "user", "auth": {}, "siblings": [], "id": "me/x", "sha": "a" * 40})

        def answer(self, content: dict, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "secret")
    yield files, created
    server.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(RECIPE, tmp_path_factory.mktemp("push") / "run", device="cpu")


@pytest.mark.parametrize("to", ["hf", "run"])
def test_an_uploaded_run_loads_again_with_the_same_output_and_has_its_card(run, hub, tmp_path, to):
    files, created = hub
    url = push_run(run.folder, "me/model", to=to, private=True)
    assert url.endswith("a" * 40) and created["me/model"].get("private", created["me/model"].get("visibility") == "private")
    for path, content in files["me/model"].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    again = regard.load(tmp_path, device="cpu")
    assert again.generate("the") == run.generate("the")
    assert "README.md" in files["me/model"] and not any(path.startswith("checkpoints") for path in files["me/model"])
    assert ("recipe.toml" in files["me/model"]) == (to == "run")


def test_what_the_hub_refuses_is_one_line_with_the_cure(run, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(UserError, match=r"the hub refuses me/model: .*401.*hf auth login"):
        push_run(run.folder, "me/model")
    with pytest.raises(UserError, match="owner/name"):
        push_run(run.folder, "model")
    with pytest.raises(UserError, match="hf or run"):
        push_run(run.folder, "me/model", to="onnx")
