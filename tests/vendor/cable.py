"""TCP between a throwaway machine, which has a network of its own, and this one.

python -m tests.vendor.cable PID IN:OUT... OUT<IN... of ports on both loopbacks: 9001:4711 lets the machine of process
PID reach this one's port 4711 at its own port 9001; 4712<443 lets this one reach its port 443 at port 4712. Prints a
line once all of them listen, and works until it is ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NEW_NET = 0x40000000  # CLONE_NEWNET of sched.h
_libc = ctypes.CDLL(None, use_errno=True)


class Cable:
    """Sockets in the network of process ``pid``, from this one."""

    def __init__(self, pid: int) -> None:
        self._there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self._here = os.open("/proc/self/ns/net", os.O_RDONLY)

    @contextmanager
    def _in(self, there: bool) -> Iterator[None]:
        if there and _libc.setns(self._there, NEW_NET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            if there and _libc.setns(self._here, NEW_NET):
                raise OSError(ctypes.get_errno(), "setns")

    def socket(self, there: bool) -> socket.socket:
        """A socket; where it is made is where it connects and listens."""
        with self._in(there):
            return socket.socket()

    async def forward(self, port: int, to: int, *, inward: bool) -> None:
        """Listen here and connect there, or the other way round."""
        listening = self.socket(there=not inward)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            out = self.socket(there=inward)
            out.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(out, ("127.0.0.1", to))
            except OSError:
                out.close()
                writer.transport.abort()
                return
            far_reader, far_writer = await asyncio.open_connection(sock=out)
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        await asyncio.start_server(accepted, sock=listening)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def main(pid: int, *pairs: str) -> None:
    cable = Cable(pid)
    for pair in pairs:
        port, sign, to = re.fullmatch(r"(\d+)([:<])(\d+)", pair).groups()  # type: ignore[union-attr]
        await cable.forward(int(port), int(to), inward=sign == "<")
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
