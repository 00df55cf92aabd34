"""A server in a thread that answers as the Hugging Face hub does."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """The routes of the hub that are asked for, and what was asked for.

    It has one repository, with one commit. Large files are elsewhere: the hub answers with a redirection, the
    SHA-256 and the size. Small files, ``.json`` here, it sends itself, with git's SHA-1.
    """

    def __init__(self, repository, commit, files):
        self.repository = repository
        self.commit = commit
        self.files = files
        self.sent = {}  # what goes out in place of a large file
        self.etags = {}  # what is said in place of a small file's sum
        self.refusal = None  # the code and headers that are the answer to everything
        self.asked = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                hub.answer(self)

            do_GET = do_HEAD

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def answer(self, request):
        path = unquote(urlsplit(request.path).path)
        if path == "/api/agent-harnesses":  # once a process, and no part of any answer
            return reply(request, 404, {})
        self.asked.append(f"{request.command} {path}")
        elsewhere = path.removeprefix("/elsewhere/")
        if elsewhere != path:
            return reply(request, 200, {}, self.sent.get(elsewhere, self.files[elsewhere]))
        if self.refusal is not None:
            return reply(request, *self.refusal)
        api = path.removeprefix("/api/models/").split("/revision/")
        repository, _, place = path[1:].partition("/resolve/")
        if api[0] != path:
            repository, place = api[0], api[1] if len(api) > 1 else "main"
        revision, _, name = place.partition("/")
        if repository != self.repository:
            return reply(request, 401, {"X-Error-Code": "RepoNotFound"})
        if revision not in (self.commit, "main"):
            return reply(request, 404, {"X-Error-Code": "RevisionNotFound"})
        if api[0] != path:
            content = json.dumps({"id": repository, "sha": self.commit, "siblings": [], "tags": []}).encode()
            return reply(request, 200, {"Content-Type": "application/json"}, content)
        headers = {"X-Repo-Commit": self.commit}
        if name not in self.files:
            return reply(request, 404, {**headers, "X-Error-Code": "EntryNotFound"})
        content = self.files[name]
        if name.endswith(".json"):
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            return reply(request, 200, {**headers, "ETag": f'"{self.etags.get(name, git)}"'}, content)
        headers["X-Linked-ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        headers["X-Linked-Size"] = str(len(content))
        # Another host, to which no more than the request for the file goes.
        headers["Location"] = f"http://localhost:{self.server.server_port}/elsewhere/{name}"
        return reply(request, 302, headers)

    def close(self):
        if self.thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()


def reply(request, code, headers, content=b""):
    request.send_response(code)
    for name, value in {"Content-Length": str(len(content)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(content)
