"""What a guest tries that may reach 198.51.100.1:8000 and nothing else."""

import socket

PEER = "198.51.100.1"
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


def attempt(name, kind, to, data=b"x" * 12, device=None, source=0):
    """One attempt: what is answered was not refused."""
    try:
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.settimeout(2)
            if device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            sock.bind(("0.0.0.0", source))
            sock.connect(to)
            if kind == UDP:
                sock.send(data)
                sock.recv(512)
        print(name, "NOT REFUSED")
    except OSError as error:
        print(name, "refused:", error)


def question(name):
    """Whoever is asked, the proxy answers, and that there is no such name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    header = bytes.fromhex("123401000001000000000000")
    with socket.socket(socket.AF_INET, UDP) as sock:
        sock.settimeout(2)
        sock.connect((PEER, 53))
        sock.send(header + labels + b"\0\0\1\0\1")
        answer = sock.recv(512)
    print("question", "refused" if answer[3] & 15 == 3 else "NOT REFUSED")


with socket.create_connection((PEER, 8000), timeout=5):
    print("listed address connected")
attempt("port", TCP, (PEER, 81))
attempt("datagram", UDP, (PEER, 5000))
attempt("quic", UDP, (PEER, 443))
attempt("dns source", UDP, (PEER, 53), source=53)
attempt("loopback by eth0", UDP, ("127.0.0.1", 6000), device=b"eth0")
attempt("loopback stream by eth0", TCP, ("127.0.0.9", 6001), device=b"eth0")
question("denied.test")
with socket.socket(socket.AF_INET, UDP) as unconnected:
    unconnected.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for address in (PEER, "255.255.255.255", "198.51.100.255", "224.0.0.251"):
        try:
            unconnected.sendto(b"x", (address, 7000))
        except OSError as error:
            print(address, "refused:", error)
print("done")
