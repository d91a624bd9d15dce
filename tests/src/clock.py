"""Runs a program whose wall clock steps when this test says so, and nobody else's does.

Usage: clock.py STEP PROGRAM ARGUMENT...   STEP is a file that holds seconds to add to the wall clock.

The program asks the kernel for the time by a system call, since the page by which it would not have to
is taken from it when it starts, and this process answers the call in the kernel's place
(seccomp_unotify(2)). Only the wall clock is answered so: CLOCK_REALTIME, and no other."""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time
from fcntl import ioctl

libc = ctypes.CDLL(None, use_errno=True)
CLOCK_GETTIME, SECCOMP = 228, 317
TRACE_ME, GET_REGISTERS, DETACH = 0, 12, 17
RECEIVE, SEND = 0xC0502100, 0xC0182101
VDSO, IGNORE = 33, 1


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def ptrace(request, pid, data=None):
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return checked(libc.ptrace(request, pid, None, data))


def listen():
    """Installs the filter, and returns the descriptor by which its calls are heard."""
    def step(code, yes, no, value):
        return struct.pack("=HBBI", code, yes, no, value)
    program = b"".join((
        step(0x20, 0, 0, 0),                        # the call's number
        step(0x15, 0, 3, CLOCK_GETTIME),
        step(0x20, 0, 0, 16),                       # its first argument
        step(0x15, 0, 1, 0),                        # CLOCK_REALTIME
        step(0x06, 0, 0, 0x7FC00000),               # ask the listener
        step(0x06, 0, 0, 0x7FFF0000),               # allow
    ))
    code = ctypes.create_string_buffer(program)
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    return checked(libc.syscall(SECCOMP, 1, 8, header))


def start(command):
    """Starts the program, stopped at its first instruction; returns its id and the listener."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ptrace(TRACE_ME, 0)
        listener = listen()
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        os.execvp(command[0], command)
    theirs.close()
    _, [listener], _, _ = socket.recv_fds(ours, 1, 1)
    stopped = os.waitpid(pid, 0)[1]
    assert os.WIFSTOPPED(stopped) and os.WSTOPSIG(stopped) == signal.SIGTRAP, stopped
    return pid, listener


def hide_vdso(pid):
    """Takes the entry of the page that answers without a call out of the auxiliary vector."""
    registers = ctypes.create_string_buffer(27 * 8)
    ptrace(GET_REGISTERS, pid, ctypes.addressof(registers))
    stack = struct.unpack_from("=Q", registers, 19 * 8)[0]
    with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        def word(at):
            memory.seek(at)
            return struct.unpack("=Q", memory.read(8))[0]
        at = stack + 8 * (word(stack) + 2)          # past the arguments
        while word(at):                             # past the variables
            at += 8
        at += 8
        while (kind := word(at)) not in (0, VDSO):
            at += 16
        assert kind == VDSO, "no page to take away"
        memory.seek(at)
        memory.write(struct.pack("=Q", IGNORE))
    ptrace(DETACH, pid)


def answer(listener, step):
    """Tells one caller the time."""
    call = bytearray(80)
    ioctl(listener, RECEIVE, call)
    id, pid = struct.unpack_from("=QI", call)
    place = struct.unpack_from("=Q", call, 40)[0]
    with open(step) as file:
        seconds, rest = divmod(time.time_ns(), 10**9)
        told = struct.pack("=qq", seconds + int(file.read()), rest)
    try:
        with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
            memory.seek(place)
            memory.write(told)
        ioctl(listener, SEND, struct.pack("=QqiI", id, 0, 0, 0))
    except OSError:
        # Whoever asked is gone.
        pass


def main(step, *command):
    pid, listener = start(command)
    hide_vdso(pid)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        for descriptor, event in poll.poll():
            if descriptor == ended:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if event & select.POLLIN:
                answer(listener, step)
            else:
                # Nobody is left who could ask.
                poll.unregister(listener)


sys.exit(main(*sys.argv[1:]))
