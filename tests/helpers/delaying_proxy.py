"""A program that forwards TCP connections and delays every byte, as a slow link does.

Called as `delaying_proxy.py ADDRESS PORT TARGET FILE`: it listens there, connects to the same port
of the target, and reads from the file, again for every piece, for how many seconds to hold it: one
number for what goes to the target, one for what comes from it. While the file is empty it closes
every new connection in its TLS handshake.
"""

import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
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
                reset(client)
                continue
            server.settimeout(None)
            carry(client, server, lambda: read_delays(delay_file)[0], finish)
            carry(server, client, lambda: read_delays(delay_file)[1], reset)


def read_delays(delay_file: Path) -> list[float]:
    """Return for how many seconds to hold what goes to the target, and what comes from it."""
    return [float(word) for word in (delay_file.read_text() or "0 0").split()]


def finish(connection: socket.socket) -> None:
    """Say on a connection that nothing more comes."""
    connection.shutdown(socket.SHUT_WR)


def reset(connection: socket.socket) -> None:
    """End a connection as a host without the service does.

    Flower takes an orderly end in a TLS handshake for a wrong certificate.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)  # a thread that reads would keep it open
    connection.close()


def carry(
    source: socket.socket,
    sink: socket.socket,
    delay: Callable[[], float],
    end: Callable[[socket.socket], None],
) -> None:
    """Begin to carry what comes from one socket to the other, in order, each piece delayed.

    Call `end` with the other one after the last.
    """
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def receive() -> None:
        piece = b"?"
        while piece:
            try:
                piece = source.recv(65536)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + delay(), piece))

    def send() -> None:
        piece = b"?"
        while piece:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                sink.sendall(piece) if piece else end(sink)
            except OSError:
                return

    for function in (receive, send):
        threading.Thread(target=function, daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
