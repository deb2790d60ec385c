"""An HTTP door to ClickHouse's engine (chdb), as far as shipping and asking use the server's protocol.

door.py FOLDER [USER PASSWORD]: prints its port, and serves until it is killed. Settings of the engine are the request's.
DOOR_HOST is the address, DOOR_PORT the port, DOOR_TLS a file with a certificate and its key (PEM).
Files in FOLDER order faults: 'status' (this HTTP status, nothing is done), 'lose' (the request is done, the connection is
closed without an answer, this many times), 'slow' (so many seconds before the request is done).
"""

import os
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

folder = sys.argv[1]
account = tuple(sys.argv[2:4])
session = Session(os.path.join(folder, "data"))
lock = threading.Lock()


def order(name):
    try:
        with open(os.path.join(folder, name)) as file:
            return float(file.read())
    except FileNotFoundError:
        return 0


def execute(query, settings, body):
    words = ", ".join("%s = '%s'" % (name, value.replace("'", "\\'")) for name, value in settings)
    if query.startswith("INSERT"):
        table, form = query.rsplit(" FORMAT ", 1)
        path = os.path.join(folder, "body.%d" % threading.get_ident())
        with open(path, "wb") as file:
            file.write(body)
        try:
            return session.query("%s FROM INFILE '%s' SETTINGS %s FORMAT %s" % (table, path, words, form)).bytes()
        finally:
            os.remove(path)
    form = "CSV"
    if " FORMAT " in query:
        query, form = query.rsplit(" FORMAT ", 1)
    return session.query(query, form).bytes()


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        parameters = parse_qsl(urlsplit(self.path).query)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        query = dict(parameters)["query"]
        settings = [(name, value) for name, value in parameters if name not in ("query", "wait_end_of_query")]
        if order("status"):
            return self.answer(int(order("status")), b"Code: 243. DB::Exception: ordered by the test")
        if account and (self.headers["X-ClickHouse-User"], self.headers["X-ClickHouse-Key"]) != account:
            return self.answer(403, b"Code: 516. DB::Exception: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)")
        time.sleep(order("slow"))
        try:
            with lock:
                answer = execute(query, settings, body)
        except Exception as error:
            return self.answer(400, str(error).encode(), True)
        lose = order("lose")
        if lose and query.startswith("INSERT"):
            with open(os.path.join(folder, "lose.new"), "w") as file:
                file.write(str(lose - 1))
            os.rename(os.path.join(folder, "lose.new"), os.path.join(folder, "lose"))
            self.close_connection = True
            return None
        return self.answer(200, answer)

    def answer(self, status, body, is_exception=False):
        self.send_response(status)
        if is_exception:
            self.send_header("X-ClickHouse-Exception-Code", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer((os.environ.get("DOOR_HOST", "127.0.0.1"), int(os.environ.get("DOOR_PORT", "0"))), Door)
if "DOOR_TLS" in os.environ:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["DOOR_TLS"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
