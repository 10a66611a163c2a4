"""Answers what an article costs."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CENTS = {"anchor": 18950, "rope": 340, "lantern": 2475, "bucket": 899, "sail": 64000}


class Prices(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cents = CENTS.get(self.path.strip("/"))
        answer = b"no such article\n" if cents is None else f"{cents}\n".encode()
        self.send_response(404 if cents is None else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


ThreadingHTTPServer(("", 8000), Prices).serve_forever()
