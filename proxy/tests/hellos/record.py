#!/usr/bin/env python3
"""Takes one connection on port 443 of this machine and writes its ClientHello to a file.

Usage: record.py FILE. Says `ready` once it listens. Ends when the hello is whole (RFC 8446 4.1.2), and
answers nothing; what is kept are the records that carry the hello, as they came.
"""

import socket
import sys


def whole(seen: bytes) -> int:
    """How many bytes the records of a whole hello take; 0 while there is more to come."""
    message, at = b"", 0
    while len(seen) >= at + 5:
        length = int.from_bytes(seen[at + 3 : at + 5], "big")
        if seen[at] != 22:
            sys.exit(f"no handshake record: {seen[at:at + 5].hex()}")
        message += seen[at + 5 : at + 5 + length]
        at += 5 + length
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
            return at
    return 0


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 443))
    print("ready", flush=True)
    listener.settimeout(60)
    connection, _ = listener.accept()
    connection.settimeout(60)
    seen = b""
    while not (length := whole(seen)):
        part = connection.recv(65536)
        if not part:
            sys.exit(f"the client ended after {len(seen)} bytes")
        seen += part
    with open(sys.argv[1], "wb") as file:
        file.write(seen[:length])


main()
