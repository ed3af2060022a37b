"""The few ptrace and seccomp calls of the tracer, through ctypes (Linux 5.3 or newer).

``PTRACE_GET_SYSCALL_INFO`` gives number, arguments and result in one form for every architecture, so there
are no register layouts here. Every function raises OSError with the kernel's errno.
"""

import ctypes
import os
import struct
from dataclasses import dataclass
from enum import IntEnum

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

_CONT, _SYSCALL, _SEIZE, _LISTEN, _GET_SYSCALL_INFO = 7, 24, 0x4206, 0x4208, 0x420E
# Stop calls with SIGTRAP | 0x80; follow fork, vfork, clone and exec; report seccomp; end all tracees with
# the tracer.
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2

WAIT_ALL = 0x40000000
"""``__WALL``: wait for threads too."""
SYSCALL_STOP = 0x80
"""Set in the stop signal of a system call's end."""


class StopEvent(IntEnum):
    """The upper byte of a stop's status."""

    NONE = 0
    FORK = 1
    VFORK = 2
    CLONE = 3
    EXEC = 4
    VFORK_DONE = 5
    EXIT = 6
    SECCOMP = 7
    STOP = 128


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that is about to run."""

    number: int
    arguments: tuple[int, ...]


def _ptrace(request: int, thread: int, address: int = 0, data: int | None = 0) -> int:
    result = _libc.ptrace(request, thread, address, data)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x} on {thread}: {os.strerror(number)}")
    return result


def seize(process: int) -> None:
    """Trace a process from now on, with all processes that it starts later."""
    _ptrace(_SEIZE, process, 0, _OPTIONS)


def run(thread: int, *, signal: int = 0) -> None:
    """Let a stopped thread run to its next event."""
    _ptrace(_CONT, thread, 0, signal)


def run_to_call_end(thread: int) -> None:
    """Let a thread that is stopped before a call run to the call's end."""
    _ptrace(_SYSCALL, thread)


def keep_stopped(thread: int) -> None:
    """Leave a group-stopped thread stopped, but listen for its continuation."""
    _ptrace(_LISTEN, thread)


# struct ptrace_syscall_info
#   0 op u8 | 1 pad[3] | 4 arch u32 | 8 instruction pointer u64 | 16 stack pointer u64
#   24 entry, seccomp: nr u64, args[6] u64     24 exit: result s64, is_error u8
_info = ctypes.create_string_buffer(128)
_CALL_AT, _call = 24, struct.Struct("=7Q")
_result = struct.Struct("=q")


def _read_info(thread: int) -> None:
    _ptrace(_GET_SYSCALL_INFO, thread, ctypes.sizeof(_info), ctypes.addressof(_info))


def call_of(thread: int) -> Call:
    """The call before which a thread is stopped (a seccomp event)."""
    _read_info(thread)
    number, *arguments = _call.unpack_from(_info, _CALL_AT)
    return Call(number, tuple(arguments))


def result_of(thread: int) -> int:
    """The result of the call at the end of which a thread is stopped; negative errno after a failure."""
    _read_info(thread)
    return _result.unpack_from(_info, _CALL_AT)[0]


# struct user_regs_struct of x86-64: 27 registers of 8 bytes.
_GETREGS, _SETREGS = 12, 13
_registers = (ctypes.c_ulonglong * 27)()
_RAX, _RDX, _ORIG_RAX = 10, 12, 15


def fail_call(thread: int, error: int) -> None:
    """Let the call before which a thread is stopped (a seccomp event) fail with this errno, unrun. x86-64 only."""
    _ptrace(_GETREGS, thread, 0, ctypes.addressof(_registers))
    _registers[_ORIG_RAX] = 2**64 - 1
    _registers[_RAX] = 2**64 - error
    _ptrace(_SETREGS, thread, 0, ctypes.addressof(_registers))


def shorten_call(thread: int) -> None:
    """Let the ``write`` or ``pwrite64`` before which a thread is stopped write half of its bytes. x86-64 only."""
    _ptrace(_GETREGS, thread, 0, ctypes.addressof(_registers))
    _registers[_RDX] //= 2
    _ptrace(_SETREGS, thread, 0, ctypes.addressof(_registers))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install_filter(program: bytes) -> None:
    """Put this process and its later children under a seccomp filter, for good."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.addressof(buffer))
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described), 0, 0),
    ):
        if _libc.prctl(ctypes.c_int(arguments[0]), *map(ctypes.c_ulong, arguments[1:])) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl({arguments[0]}): {os.strerror(number)}")
