"""A Hugging Face hub of our own on 127.0.0.1, which speaks the real one's protocol as far as models need it.

Repositories have commits and branches; some are private. Large files are kept as the hub keeps them: by their SHA-256,
on another server, to which the hub redirects and which must never see a token. Every request is recorded.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

TOKEN = "hf_" + "t" * 34
LARGE = (".safetensors", ".bin", ".pth", ".npz")


class Asked(NamedTuple):
    server: str  # "hub" or "store"
    method: str
    path: str
    token: str | None
    range: str | None


@dataclass
class Repository:
    private: bool = False
    gated: bool = False
    broken: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add files to a branch, and return the new commit."""
        tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        seed = repr((branch, len(self.commits), sorted((name, git_sum(content)) for name, content in tree.items())))
        commit = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[commit] = tree
        self.branches[branch] = commit
        return commit


class Hub:
    """The hub (`url`) and the store of its large files. `faults` say what is to go wrong with a file, by its name."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.faults: dict[str, str] = {}  # "cut", "cut, then 500", "500", "short", "flipped", "huge"
        self.stored: dict[str, bytes] = {}
        self.server, other = self._serve(HubHandler), self._serve(StoreHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.store = f"http://localhost:{other.server_port}"

    def _serve(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (handler,), {"hub": self}))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Make the hub unreachable for a while."""
        self.server.shutdown()
        self.server.server_close()
        try:
            yield
        finally:
            self.server = self._serve(HubHandler, self.server.server_port)

    def add(self, name: str, files: dict[str, bytes], branch: str = "main", private: bool = False) -> str:
        """Add files to a repository and return the commit."""
        self.stored |= {hashlib.sha256(content).hexdigest(): content for content in files.values()}
        repository = self.repositories.setdefault(name, Repository(private))
        return repository.commit(files, branch)

    def fetched(self) -> list[str]:
        """Return the names of the files requested since the last call."""
        paths = [asked.path for asked in self.asked if "/resolve/" in asked.path or asked.server == "store"]
        self.asked.clear()
        return sorted({path.rsplit("/", 1)[-1] for path in paths})


def git_sum(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    name: ClassVar[str]

    def log_message(self, *_: object) -> None:
        pass

    def note(self) -> str:
        """Record the request and return its path without the query."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        path = unquote(self.path.split("?")[0])
        self.hub.asked.append(Asked(self.name, self.command, path, token, self.headers.get("Range")))
        self.token = token
        return path

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, document: Any, status: int = 200, **headers: str) -> None:
        self.answer(status, json.dumps(document).encode(), Content_Type="application/json", **headers)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.json({"error": message}, status, X_Error_Code=code, X_Error_Message=message)

    def content(self, name: str, content: bytes, **headers: str) -> None:
        """Send a file or the rest of it, with its faults."""
        fault = self.hub.faults.get(name)
        if fault == "500":
            self.refuse(500, "", "the store is on fire")
            return
        if fault == "flipped":
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range") or "") or [0, "0"])[1])
        rest = content[start:]
        if fault in ("cut", "cut, then 500") and self.command == "GET":
            self.answer(206 if start else 200, rest[: len(rest) // 2], Content_Length=str(len(rest)), **headers)
            self.hub.faults[name] = fault.removeprefix("cut").removeprefix(", then ")
            return
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.answer(206 if start else 200, rest[: len(rest) // 2] if fault == "short" else rest, **headers)


class HubHandler(Handler):
    name = "hub"

    def do_GET(self) -> None:
        path = self.note()
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/(.+))?", path):
            name, what, revision = match.groups()
            if found := self.find(name, revision or "main"):
                repository, commit = found
                files = [self.described(file, content) for file, content in repository.commits[commit].items()]
                self.json(files if what == "tree" else self.model(name, commit, files))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.refuse(404, "", f"there is no page {path}")

    do_HEAD = do_GET

    def find(self, name: str, revision: str) -> tuple[Repository, str] | None:
        """Return the commit, or None after an error response. Private repositories need a token."""
        repository = self.hub.repositories.get(name)
        if self.token not in (None, TOKEN):
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and self.token is None):
            if self.token is None:
                self.refuse(401, "", "Invalid username or password.")
            else:
                self.refuse(404, "RepoNotFound", "Repository not found")
        elif repository.gated:
            self.refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        elif repository.broken:
            self.refuse(503, "", "the hub is being mended")
        elif (commit := repository.branches.get(revision, revision)) not in repository.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository, commit
        return None

    def described(self, name: str, content: bytes) -> dict[str, Any]:
        size = 10**15 if self.hub.faults.get(name) == "huge" else len(content)
        entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": git_sum(content)}
        if name.endswith(LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
        return entry

    def model(self, name: str, commit: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = [{"rfilename": file["path"]} for file in files]
        if "blobs=" in self.path:
            for sibling, file in zip(siblings, files, strict=True):
                sibling |= {"size": file["size"], "blobId": file["oid"]}
                if lfs := file.get("lfs"):
                    sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": 130}
        return {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}

    def resolve(self, name: str, revision: str, file: str) -> None:
        if not (found := self.find(name, revision)):
            return
        repository, commit = found
        content = repository.commits[commit].get(file)
        if content is None:
            self.refuse(404, "EntryNotFound", f"{file} does not exist")
        elif file.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            self.answer(
                302,
                Location=f"{self.hub.store}/{digest}/{file}",
                X_Repo_Commit=commit,
                X_Linked_Etag=f'"{digest}"',
                X_Linked_Size=str(len(content)),
            )
        else:
            self.content(file, content, ETag=f'"{git_sum(content)}"', X_Repo_Commit=commit)

    # ---- Writing ----

    def do_POST(self) -> None:
        path, body = self.note(), self.body()
        if path == "/api/validate-yaml":
            self.json({"errors": [], "warnings": []})
        elif self.token != TOKEN:
            self.refuse(401, "", "Invalid username or password.")
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular"}
                for file in json.loads(body)["files"]
            ]
            self.json({"files": [file | {"shouldIgnore": False} for file in files]})
        elif re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            self.json({"transfer": "basic", "objects": [self.place(entry) for entry in objects]})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self.receive(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.refuse(404, "", f"there is no page {path}")

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name.startswith("others/"):
            self.refuse(403, "", "You don't have the rights to create a model under this namespace")
            return
        known = name in self.hub.repositories
        if not known:
            self.hub.add(name, {".gitattributes": b""})
        self.json({"url": f"{self.hub.url}/{name}", "name": name}, 409 if known else 200)

    def place(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the upload address of an object that is not stored yet."""
        if entry["oid"] in self.hub.stored:
            return entry
        return entry | {"actions": {"upload": {"href": f"{self.hub.store}/{entry['oid']}"}}}

    def receive(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        commit = self.hub.add(name, files)
        self.json({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit})


class StoreHandler(Handler):
    """Large files by their sums. Whoever has the address may read and write, as with signed addresses."""

    name = "store"

    def do_GET(self) -> None:
        digest, name = self.note().strip("/").split("/")
        self.content(name, self.hub.stored[digest], Accept_Ranges="bytes")

    def do_PUT(self) -> None:
        digest, content = self.note().strip("/"), self.body()
        if "upload" in self.hub.faults:
            self.refuse(403, "", "the store is full")
        elif hashlib.sha256(content).hexdigest() != digest:
            self.refuse(400, "", "this is not what was announced")
        else:
            self.hub.stored[digest] = content
            self.answer(200)
