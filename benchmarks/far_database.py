"""A server as if it were far away: a door in front of it that hands each request on after a while.

`python -m benchmarks.far_database PORT MILLISECONDS` prints the port of the door, and ends with its standard input. One
request of a JDBC reader is one fetch, so each fetch takes that much longer; rows come back as fast as they can.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
CHUNK = 1 << 18


@contextmanager
def far_away(port: int, delay_ms: float) -> Iterator[int]:
    """The port at which the server on ``port`` is far away."""
    words = [sys.executable, "-m", "benchmarks.far_database", str(port), str(delay_ms)]
    door = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert door.stdin is not None
    assert door.stdout is not None
    try:
        yield int(door.stdout.readline())
    finally:
        door.stdin.close()
        door.wait(10)


async def _serve(port: int, delay_seconds: float) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                if delay:
                    await asyncio.sleep(delay)
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, port, limit=CHUNK)
        await asyncio.gather(pass_on(reader, requests, delay_seconds), pass_on(answers, writer, 0))

    server = await asyncio.start_server(connect, HOST, 0, limit=CHUNK)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # whatever is under way: nobody is left who wants it


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1000))
