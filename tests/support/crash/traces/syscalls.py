"""System calls that can change a file, by number for each architecture, and the seccomp filter that stops
at them.

The filter keeps the tracer cheap: all other calls (reads, polls, futexes, opens for reading) run at full speed. Ways of
writing that could not be followed (io_uring and Linux native AIO) are refused with ENOSYS, and programs fall back.
"""

import errno
import platform
import struct
from dataclasses import dataclass

# name: (x86-64, the generic table that aarch64 uses); None = not there
_NUMBERS: dict[str, tuple[int, int | None]] = {
    "open": (2, None),
    "creat": (85, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "splice": (275, 76),
    "ftruncate": (77, 46),
    "truncate": (76, 45),
    "fallocate": (285, 47),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "mmap": (9, 222),
}
_REFUSED = {"io_uring_setup": (425, 425), "io_setup": (206, 0)}

_OPEN_FLAGS_ARGUMENT = {"open": 1, "openat": 2}
# O_WRONLY | O_RDWR | O_CREAT | O_TRUNC: an open without any of these flags changes no file.
_OPEN_CHANGES = 0o1 | 0o2 | 0o100 | 0o1000
_MAP_SHARED = 1
_PROT_WRITE = 2

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6] (little-endian on both
# architectures).
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16
# Classic BPF, see linux/bpf_common.h.
_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_TRACE = 0x7FF00000
_ERRNO = 0x00050000
_KILL = 0x80000000


@dataclass(frozen=True)
class Architecture:
    """Numbers of a machine type. ``audit`` is the value that seccomp and ptrace report for the type."""

    audit: int
    names: dict[int, str]
    refused: tuple[int, ...]


def _table(audit: int, column: int) -> Architecture:
    names = {row[column]: name for name, row in _NUMBERS.items()}
    return Architecture(
        audit=audit,
        names={number: name for number, name in names.items() if number is not None},
        refused=tuple(row[column] for row in _REFUSED.values()),
    )


ARCHITECTURES = {"x86_64": _table(0xC000003E, 0), "aarch64": _table(0xC00000B7, 1)}


def this_architecture() -> Architecture:
    """The machine's own table.

    Raises:
        RuntimeError: no table for this machine; the text names the machine.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise RuntimeError(f"no system call table for {machine}; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def filter_program(architecture: Architecture) -> bytes:
    """The seccomp filter as ``struct sock_filter[]``.

    Each block tests one number and ends in a return, so no jump is longer than its block.
    """
    program = [
        _instruction(_LOAD_WORD, _ARCH_AT),
        _instruction(_JUMP_EQUAL, architecture.audit, if_true=1),
        # A call by a second table (32-bit programs) would pass the numbers below unseen.
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD_WORD, _NR_AT),
    ]
    for number in architecture.refused:
        program += [
            _instruction(_JUMP_EQUAL, number, if_false=1),
            _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        ]
    for number, name in architecture.names.items():
        match name:
            case "open" | "openat":
                flags_at = _ARGS_AT + 8 * _OPEN_FLAGS_ARGUMENT[name]
                block = [
                    _instruction(_LOAD_WORD, flags_at),
                    _instruction(_JUMP_SET, _OPEN_CHANGES, if_false=1),
                    _instruction(_RETURN, _TRACE),
                    _instruction(_RETURN, _ALLOW),
                ]
            case "mmap":  # only shared, writable mappings write to files
                block = [
                    _instruction(_LOAD_WORD, _ARGS_AT + 8 * 3),
                    _instruction(_JUMP_SET, _MAP_SHARED, if_false=3),
                    _instruction(_LOAD_WORD, _ARGS_AT + 8 * 2),
                    _instruction(_JUMP_SET, _PROT_WRITE, if_false=1),
                    _instruction(_RETURN, _TRACE),
                    _instruction(_RETURN, _ALLOW),
                ]
            case _:
                block = [_instruction(_RETURN, _TRACE)]
        program.append(_instruction(_JUMP_EQUAL, number, if_false=len(block)))
        program += block
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)
