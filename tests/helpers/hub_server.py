"""A local server that implements the part of the Hugging Face Hub API that models use.

Repositories have commits and branches, and may be private. As on the real Hub, large files are addressed by their
SHA-256 on a second server (the store); the hub redirects to it, and it must never receive a token. All requests to both
servers are recorded.
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


class Request(NamedTuple):
    """A recorded request."""

    server: str  # "hub" or "store"
    method: str
    path: str
    token: str | None
    range: str | None


@dataclass
class Repository:
    """A model repository. `gated` and `broken` ones answer with 403 and 503."""

    private: bool = False
    gated: bool = False
    broken: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add files to a branch and return the new commit."""
        tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        seed = repr((branch, len(self.commits), sorted((name, git_hash(content)) for name, content in tree.items())))
        commit = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[commit] = tree
        self.branches[branch] = commit
        return commit


class Hub:
    """The hub (`url`) and the store of its large files. `faults` maps file names to simulated errors."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
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
    def unreachable(self) -> Iterator[None]:
        """Stop the hub within the context."""
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

    def requested_files(self) -> list[str]:
        """Return the names of the files requested since the last call."""
        paths = [request.path for request in self.requests if "/resolve/" in request.path or request.server == "store"]
        self.requests.clear()
        return sorted({path.rsplit("/", 1)[-1] for path in paths})


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Records requests and sends responses."""

    hub: Hub
    name: ClassVar[str]

    def log_message(self, *_: object) -> None:
        pass

    def record(self) -> str:
        """Record the request and return its path without the query."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        path = unquote(self.path.split("?")[0])
        self.hub.requests.append(Request(self.name, self.command, path, token, self.headers.get("Range")))
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

    def respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def respond_json(self, document: Any, status: int = 200, **headers: str) -> None:
        self.respond(status, json.dumps(document).encode(), Content_Type="application/json", **headers)

    def respond_error(self, status: int, code: str, message: str) -> None:
        self.respond_json({"error": message}, status, X_Error_Code=code, X_Error_Message=message)

    def respond_file(self, name: str, content: bytes, **headers: str) -> None:
        """Send a file, or the requested end of it, with the fault set for its name."""
        fault = self.hub.faults.get(name)
        if fault == "500":
            self.respond_error(500, "", "Internal error")
            return
        if fault == "flipped":
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range") or "") or [0, "0"])[1])
        rest = content[start:]
        if fault in ("cut", "cut, then 500") and self.command == "GET":
            self.respond(206 if start else 200, rest[: len(rest) // 2], Content_Length=str(len(rest)), **headers)
            self.hub.faults[name] = fault.removeprefix("cut").removeprefix(", then ")
            return
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.respond(206 if start else 200, rest[: len(rest) // 2] if fault == "short" else rest, **headers)


class HubHandler(Handler):
    name = "hub"

    def do_GET(self) -> None:
        path = self.record()
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/(.+))?", path):
            name, kind, revision = match.groups()
            if found := self.find(name, revision or "main"):
                repository, commit = found
                files = [self.describe(file, content) for file, content in repository.commits[commit].items()]
                self.respond_json(files if kind == "tree" else self.model(name, commit, files))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.respond_error(404, "", f"Not found: {path}")

    do_HEAD = do_GET

    def find(self, name: str, revision: str) -> tuple[Repository, str] | None:
        """Return the repository and commit, or send an error response and return None."""
        repository = self.hub.repositories.get(name)
        if self.token not in (None, TOKEN):
            self.respond_error(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and self.token is None):
            if self.token is None:
                self.respond_error(401, "", "Invalid username or password.")
            else:
                self.respond_error(404, "RepoNotFound", "Repository not found")
        elif repository.gated:
            self.respond_error(403, "GatedRepo", f"Access to model {name} is restricted")
        elif repository.broken:
            self.respond_error(503, "", "Service unavailable")
        elif (commit := repository.branches.get(revision, revision)) not in repository.commits:
            self.respond_error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository, commit
        return None

    def describe(self, name: str, content: bytes) -> dict[str, Any]:
        size = 10**15 if self.hub.faults.get(name) == "huge" else len(content)
        entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": git_hash(content)}
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
            self.respond_error(404, "EntryNotFound", f"{file} does not exist")
        elif file.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            self.respond(
                302,
                Location=f"{self.hub.store}/{digest}/{file}",
                X_Repo_Commit=commit,
                X_Linked_Etag=f'"{digest}"',
                X_Linked_Size=str(len(content)),
            )
        else:
            self.respond_file(file, content, ETag=f'"{git_hash(content)}"', X_Repo_Commit=commit)

    # ---- Writing ----

    def do_POST(self) -> None:
        path, body = self.record(), self.body()
        if path == "/api/validate-yaml":
            self.respond_json({"errors": [], "warnings": []})
        elif self.token != TOKEN:
            self.respond_error(401, "", "Invalid username or password.")
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular"}
                for file in json.loads(body)["files"]
            ]
            self.respond_json({"files": [file | {"shouldIgnore": False} for file in files]})
        elif re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            self.respond_json({"transfer": "basic", "objects": [self.lfs_entry(entry) for entry in objects]})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self.add_commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.respond_error(404, "", f"Not found: {path}")

    def create(self, fields: dict[str, Any]) -> None:
        name = f"{fields['organization']}/{fields['name']}"
        if name.startswith("others/"):
            self.respond_error(403, "", "You don't have the rights to create a model under this namespace")
            return
        known = name in self.hub.repositories
        if not known:
            self.hub.add(name, {".gitattributes": b""}, private=fields.get("visibility") == "private")
        self.respond_json({"url": f"{self.hub.url}/{name}", "name": name}, 409 if known else 200)

    def lfs_entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the entry of an LFS object, with an upload URL if the object is not stored yet."""
        if entry["oid"] in self.hub.stored:
            return entry
        return entry | {"actions": {"upload": {"href": f"{self.hub.store}/{entry['oid']}"}}}

    def add_commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        commit = self.hub.add(name, files)
        self.respond_json({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit})


class StoreHandler(Handler):
    """Serves large files by SHA-256. No token is needed, as with the signed URLs of the real Hub."""

    name = "store"

    def do_GET(self) -> None:
        digest, name = self.record().strip("/").split("/")
        self.respond_file(name, self.hub.stored[digest], Accept_Ranges="bytes")

    def do_PUT(self) -> None:
        digest, content = self.record().strip("/"), self.body()
        if "upload" in self.hub.faults:
            self.respond_error(403, "", "Storage is full")
        elif hashlib.sha256(content).hexdigest() != digest:
            self.respond_error(400, "", "SHA-256 does not match")
        else:
            self.hub.stored[digest] = content
            self.respond(200)
