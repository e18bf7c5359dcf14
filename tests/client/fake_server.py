"""Small server that speaks the protocol without a model and fails on demand."""

import asyncio
import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
from PIL import Image

KEY = "bitta_secret"
PNG = BytesIO()
Image.new("RGB", (2, 2), (255, 0, 0)).save(PNG, "PNG")
PNG = PNG.getvalue()


def run(coroutine):
    """Run a coroutine in a new thread: browser tests may run an event loop in the current one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class FakeServer:
    """Server with the classes cat and dog. It serves every image as a cat, with confidence 0.75."""

    def __init__(self, *, shape=(3, 2, 2)):
        self.shape = shape
        self.calls = []
        """(method, path, headers, body) of every request."""
        self.failures = []
        """Failures of the next requests, in order: a status, (status, headers), an exception, or
        ("after", failure). The last one handles the request and loses the response."""
        self.stored = {}
        self.records = []
        self.open = []
        self.n_served = 0

    def ask(self, *prediction_ids, class_index=0, image=True):
        for id_ in prediction_ids:
            self.open.append(
                {
                    "prediction_id": id_, "label": ["cat", "dog"][class_index],
                    "class_index": class_index, "confidence": 0.75, "uncertainty": 0.2,
                    "reason_shown": None, "input_sha256": "ab", "asked_at": 5, "expires_at": 9,
                    "image_url": f"/v1/predictions/{id_}/image" if image else None,
                    "lease": {"token": f"lease-{id_}", "until": 8}, "model_version": "1.3",
                }
            )  # fmt: skip

    def handle(self, method, target, headers, body):
        """Return (status, headers, body). Names of headers are in lower case."""
        self.calls.append((method, target, headers, body))
        failure = self.failures.pop(0) if self.failures else None
        if failure is None:
            return self.answer(method, target, headers, body)
        if isinstance(failure, tuple) and failure[0] == "after":
            self.answer(method, target, headers, body)
            failure = failure[1]
        if isinstance(failure, Exception):
            raise failure
        status, more = failure if isinstance(failure, tuple) else (failure, {})
        return status, more, json.dumps({"error": "not now.", "code": "busy"}).encode()

    def answer(self, method, target, headers, body):  # noqa: PLR0911 (a table of routes)
        if headers.get("authorization") != f"Bearer {KEY}":
            return self.error(401, "unauthorized", "the key is unknown or was revoked.")
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        match [method, *parts]:
            case ["POST", "v2", "repository", "index"]:
                return self.json(200, [{"name": "pets", "version": "1", "state": "READY"}])
            case ["GET", "v2", "models", "pets"]:
                shape = [-1, *self.shape]
                image = {"name": "image", "datatype": "FP32", "shape": shape}
                return self.json(200, {"name": "pets", "inputs": [image]})
            case ["POST", "v2", "models", "pets", "infer"]:
                return self.infer(headers, body)
            case ["GET", "v1", "queue", "next"]:
                assert 0 <= int(parse_qs(url.query)["wait"][0]) <= 25
                if not self.open:
                    return 204, {}, b""
                return self.json(200, {"question": self.open[0], "left": len(self.open)})
            case ["GET", "v1", "predictions", _, "image"]:
                return 200, {"Content-Type": "image/png"}, PNG
            case ["POST", "v1", "feedback"]:
                return self.feedback(headers["idempotency-key"], json.loads(body))
            case ["POST", "v1", "feedback", id_, "undo"]:
                return self.undo(id_)
            case ["GET", "v1", "status"]:
                return self.json(200, {"model": {"version": "1.3"}})
        return self.error(404, "not_found", f"there is nothing at {url.path}.")

    def infer(self, headers, body):
        length = int(headers["inference-header-content-length"])
        n = json.loads(body[:length])["inputs"][0]["shape"][0]
        ids = [f"p{self.n_served + row}" for row in range(n)]
        self.n_served += n
        strings = {"prediction_id": ids, "label": ["cat"] * n, "model_version": ["1.3"] * n}
        raw = {
            name: b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
            for name, texts in strings.items()
        }
        raw["class_index"] = struct.pack(f"<{n}q", *[0] * n)
        raw["confidence"] = struct.pack(f"<{n}f", *[0.75] * n)
        types = {"class_index": "INT64", "confidence": "FP32"}
        outputs = [
            {
                "name": name, "datatype": types.get(name, "BYTES"), "shape": [n],
                "parameters": {"binary_data_size": len(raw[name])},
            }
            for name in raw
        ]  # fmt: skip
        head = json.dumps({"model_name": "pets", "outputs": outputs}).encode()
        return (
            200,
            {"Inference-Header-Content-Length": str(len(head))},
            head + b"".join(raw.values()),
        )

    def feedback(self, key, body):
        if key in self.stored:
            record = self.stored[key]
            if record["body"] != body:
                return self.error(422, "conflict", "the key was used for another answer.")
            return self.json(200, record)
        if body["prediction_id"] == "gone":
            return self.error(410, "expired", "the question expired at noon.")
        for earlier in self.records:
            if earlier["prediction_id"] == body["prediction_id"]:
                earlier["standing"] = False
        record = {
            "id": f"f{len(self.records)}", "idempotency_key": key, "seq": 1 + len(self.records),
            "prediction_id": body["prediction_id"], "request_id": "r", "model_name": "pets",
            "model_version": "1.3", "input_sha256": "ab", "predicted_class": 0,
            "predicted_label": "cat", "confidence": 0.75, "uncertainty": None,
            "selection_reason": None, "verdict": body["verdict"], "annotator_id": "a",
            "annotator_kind": body["annotator_kind"], "comment": body.get("comment"),
            "metadata": body.get("metadata"), "shown_at": None, "answered_at": 6, "received_at": 6,
            "lead_time_ms": None, "status": "pending", "supersedes_id": None,
            "applied_in_version": None, "weight": 1.0, "standing": True, "undone": False,
            "body": body,
        }  # fmt: skip
        self.stored[key] = record
        self.records.append(record)
        self.open = [each for each in self.open if each["prediction_id"] != body["prediction_id"]]
        return self.json(201, record)

    def undo(self, id_):
        for record in self.records:
            if record["id"] == id_:
                record["standing"] = False
                return self.json(200, {"undone": id_, "applied": False, "note": "Not learned."})
        return self.error(404, "not_found", f"there is no answer {id_}.")

    def error(self, status, code, sentence):
        return self.json(status, {"error": sentence, "code": code})

    def json(self, status, value):
        return status, {"Content-Type": "application/json"}, json.dumps(value).encode()

    @property
    def transport(self):
        """Transport for either client."""

        def respond(request):
            status, headers, body = self.handle(
                request.method, request.url.raw_path.decode(), request.headers, request.content
            )
            return httpx.Response(status, headers=headers, content=body)

        return httpx.MockTransport(respond)

    @contextmanager
    def listening(self):
        """Listen on a socket and yield the address. An exception cuts the connection."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                lowered = {name.lower(): value for name, value in self.headers.items()}
                try:
                    status, headers, content = fake.handle(self.command, self.path, lowered, body)
                except ConnectionError:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
