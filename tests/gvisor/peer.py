"""Writes down every packet of IPv4 that arrives: `peer.py FILE FIFO`; the FIFO is told when it may."""

import socket
import struct
import sys

arrived, ready = sys.argv[1:]
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
packets.bind(("peer", 0))
listener = socket.create_server(("198.51.100.1", 8000))
with open(arrived, "w", buffering=1) as file:
    with open(ready, "w") as fifo:
        fifo.write("ready\n")
    while True:
        frame, (_, _, kind, *_) = packets.recvfrom(2048)
        if kind == socket.PACKET_OUTGOING:
            continue
        packet = frame[14:]
        ports = packet[(packet[0] & 15) * 4 :]
        name = {6: "tcp", 17: "udp"}.get(packet[9])
        port = f":{struct.unpack('!H', ports[2:4])[0]}" if name else ""
        to = socket.inet_ntoa(packet[16:20])
        file.write(f"{name or packet[9]} {to}{port}\n")
