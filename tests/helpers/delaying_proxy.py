"""A program that forwards TCP connections and delays every byte, as a slow link does.

Called as `delaying_proxy.py ADDRESS PORT TARGET FILE`: it listens there, connects to the same port
of the target, and reads from the file, again for every piece, for how many seconds to hold it.
While the file is empty it closes every new connection in its TLS handshake.
"""

import queue
import socket
import struct
import sys
import threading
import time
from pathlib import Path


def serve(address: str, port: int, target: str, delay_file: Path) -> None:
    """Accept connections until the program is ended."""
    with socket.create_server((address, port)) as listener:
        while True:
            client, _ = listener.accept()
            if not delay_file.read_text():
                client.recv(65536)
                client.close()
                continue
            try:
                server = socket.create_connection((target, port), timeout=5)
            except OSError:
                # A reset, as from a host without the service.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                continue
            server.settimeout(None)
            for source, sink in ((client, server), (server, client)):
                carry(source, sink, delay_file)


def carry(source: socket.socket, sink: socket.socket, delay_file: Path) -> None:
    """Begin to carry what comes from one socket to the other, in order, each piece delayed."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def receive() -> None:
        piece = b"?"
        while piece:
            try:
                piece = source.recv(65536)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + float(delay_file.read_text() or 0), piece))

    def send() -> None:
        piece = b"?"
        while piece:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                sink.sendall(piece) if piece else sink.shutdown(socket.SHUT_WR)
            except OSError:
                return

    for function in (receive, send):
        threading.Thread(target=function, daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
