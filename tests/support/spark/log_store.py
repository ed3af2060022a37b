"""An HTTP server over a folder, which notes each request: a log by URL, with the faults that a test asks for."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class LogStore(ThreadingHTTPServer):
    """Serves a folder on the loopback, with ranges of bytes."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        store = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_GET(self) -> None:
                wanted = self.headers.get("Range", "")
                store.asked.append((self.path, wanted))
                if store.meeting is not None and self.path.endswith(store.meeting[0]):
                    store.meeting[1].wait(240)
                path = Path(self.translate_path(self.path))
                if not path.is_file():
                    self.send_error(404)
                    return
                content = path.read_bytes()
                if wanted:
                    first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                    content = content[first : last + 1]
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if store.breaks_off and path.suffix == ".db":
                    content = content[: len(content) // 2]
                    self.close_connection = True
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str]] = []
        """(path, range) of each request."""
        self.breaks_off = False
        """True: a segment ends half way."""
        self.meeting: tuple[str, threading.Barrier] | None = None
        """A suffix: requests of these files wait for each other."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data"

    def fetched(self, suffix: str = ".db") -> int:
        """Return the number of requests of files with a suffix; the default is segments."""
        return sum(path.endswith(suffix) for path, _ in self.asked)


@contextmanager
def serving(folder: Path) -> Generator[LogStore]:
    """Serve the data folder ``data`` in a folder."""
    with LogStore(folder) as store:
        thread = threading.Thread(target=store.serve_forever)
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
