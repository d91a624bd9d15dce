"""What the scripts of cases share: bytes put together as no library would, and attempts that must
fail. Lies beside the script, as `guest`."""

import ctypes
import functools
import os
from socket import *
from struct import pack

PROXY = ("127.0.0.1", 3128)
CONNECT = b"CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n"
PATIENCE = 20

# What ends by a system call of its own leaves nothing unsaid.
print = functools.partial(print, flush=True)
_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number, *arguments):
    """A system call by its number on x86-64, which is where these tests run."""
    result = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def refused(**attempts):
    """Says that every attempt failed, or which did not."""
    done = []
    for name, attempt in attempts.items():
        try:
            done.append(f"{name}: {attempt()!r}")
        except OSError:
            pass
    print(f"POSSIBLE {done}" if done else f"all {len(attempts)} refused")


def put(path, text):
    """Writes at once, as a file object would not."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        return os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def processes(are_meant):
    """The ids of those that are meant. Others may end while they are looked at."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if are_meant(int(entry)):
                found.append(int(entry))
        except OSError:
            pass
    return found


def of_others():
    """The ids of all processes that are not this user's."""
    return processes(lambda pid: os.stat(f"/proc/{pid}").st_uid != os.getuid())


def connect(to=PROXY):
    family = AF_INET6 if ":" in to[0] else AF_INET
    stream = socket(family, SOCK_STREAM)
    stream.settimeout(PATIENCE)
    stream.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    stream.connect(to)
    return stream


def say(*parts, to=PROXY):
    """Sends each part by itself, and then no more; returns all that is answered."""
    stream = connect(to)
    answer = b""
    try:
        for part in parts:
            stream.sendall(part)
        stream.shutdown(SHUT_WR)
        while more := stream.recv(65536):
            answer += more
    except TimeoutError:
        answer += b"HUNG"
    except OSError:
        # It was closed already, which is an answer.
        answer += b"RESET"
    return answer


def codes(answer):
    """The status codes of the responses in it, which have lengths."""
    found = []
    while answer.startswith(b"HTTP/1."):
        head, _, rest = answer.partition(b"\r\n\r\n")
        found.append(head.split()[1].decode())
        fields = [line.split(b":", 1) for line in head.split(b"\r\n")[1:]]
        lengths = [int(value) for name, value in fields if name.lower() == b"content-length"]
        answer = rest[lengths[0] if lengths else 0:]
    return " ".join(found)


def tunnel(host, first=b""):
    """A tunnel to port 443 of `host`, with `first` sent along with the request for it."""
    stream = connect()
    stream.sendall(CONNECT % (host, host) + first)
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and (byte := stream.recv(1)):
        answer += byte
    return stream, answer.split()[1].decode()


def heard(stream):
    """What kind of TLS record is answered: `alert` and its number, `handshake`, or nothing."""
    try:
        answer = stream.recv(7)
    except ConnectionResetError:
        return "reset"
    if answer[:1] == b"\x15":
        return f"alert {answer[6]}"
    return "handshake" if answer[:1] == b"\x16" else f"end {answer!r}"


def extension(kind, body):
    return pack(">HH", kind, len(body)) + body


def names(*each):
    """The extension of the server names, each a name or a type and a name."""
    entries = [entry if isinstance(entry, tuple) else (0, entry) for entry in each]
    body = b"".join(pack(">BH", kind, len(name)) + name for kind, name in entries)
    return extension(0, pack(">H", len(body)) + body)


def hello(*extensions):
    """A ClientHello message of TLS 1.3 with these extensions before those that it needs."""
    share = pack(">HH", 0x1D, 32) + bytes(range(1, 33))
    needed = (
        extension(10, pack(">HH", 2, 0x1D))
        + extension(13, pack(">HHH", 4, 0x0403, 0x0804))
        + extension(43, b"\x02\x03\x04")
        + extension(51, pack(">H", len(share)) + share)
    )
    body = b"".join(extensions) + needed
    body = b"\x03\x03" + bytes(32) + b"\0" + pack(">HH", 2, 0x1301) + b"\x01\0" + pack(">H", len(body)) + body
    return b"\x01" + len(body).to_bytes(3, "big") + body


def records(message, size=16384, version=0x0301):
    """A handshake message in records of `size` bytes."""
    pieces = [message[at:at + size] for at in range(0, len(message), size)]
    return [pack(">BHH", 22, version, len(piece)) + piece for piece in pieces]


def labels(name):
    return b"".join(bytes([len(label)]) + label for label in name.encode().split(b".")) + b"\0"


def question(name, kind=1, of=1, flags=0x100, counts=(1, 0, 0, 0), more=b""):
    """A message with one question; `name` as text, or as the bytes of its labels."""
    name = labels(name) if isinstance(name, str) else name
    return pack(">HHHHHH", 7, flags, *counts) + name + pack(">HH", kind, of) + more


def ask(message, to=("127.0.0.53", 53)):
    """The code of the answer to a message over UDP, or `-` where there is none."""
    udp = socket(AF_INET6 if ":" in to[0] else AF_INET, SOCK_DGRAM)
    udp.settimeout(PATIENCE)
    udp.connect(to)
    udp.send(message)
    return code(udp.recv(4096))


def code(answer):
    return f"{answer[3] & 15}/{answer[7]}" if len(answer) >= 12 else "-"
