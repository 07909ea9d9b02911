"""The loader of machine code: objects run, relocations are right, and bad objects are refused."""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from khaljit.backends.cpu import executable
from khaljit.backends.cpu.executable import Region
from khaljit.backends.cpu.loader import PATCHES, load, read
from khaljit.tracer.errors import DeviceError, InternalError
from tests.machine_code import AARCH64, HERE, X86_64, compile_object

only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CALLS_AND_TABLES = """
@table = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@wide = private constant <16 x float> <float 0.0, float 1.0, float 2.0, float 3.0, float 4.0,
  float 5.0, float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0,
  float 13.0, float 14.0, float 15.0>, align 64

define i64 @more(i64 %a) noinline nounwind {
  %b = add i64 %a, 5
  ret i64 %b
}

define double @scaled(i64 %i) nounwind {
  %j = call i64 @more(i64 %i)
  %k = and i64 %j, 3
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %k
  %v = load double, ptr %p
  %w = fmul double %v, 3.25
  ret double %w
}

define i64 @where() nounwind {
  %a = ptrtoint ptr @wide to i64
  ret i64 %a
}

define i64 @chosen(i64 %i) nounwind {
  switch i64 %i, label %other [
    i64 0, label %zero
    i64 1, label %one
    i64 2, label %two
    i64 3, label %three
    i64 4, label %four
  ]
zero:
  %a = call i64 @more(i64 30)
  ret i64 %a
one:
  ret i64 17
two:
  %b = call i64 @more(i64 300)
  ret i64 %b
three:
  ret i64 77
four:
  %c = call i64 @more(i64 3000)
  ret i64 %c
other:
  ret i64 -1
}
"""


@pytest.mark.parametrize("opt", [0, 2])
def test_calls_constants_and_jump_tables_work_in_a_loaded_object(opt: int) -> None:
    image = load(compile_object(CALLS_AND_TABLES, opt=opt))
    scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(image.address("scaled"))
    chosen = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image.address("chosen"))
    table = [1.5, 2.5, 3.5, 4.5]
    assert [scaled(i) for i in range(6)] == [table[(i + 5) % 4] * 3.25 for i in range(6)]
    assert [chosen(i) for i in range(-1, 6)] == [-1, 35, 17, 305, 77, 3005, -1]


def test_sections_keep_their_alignment() -> None:
    image = load(compile_object(CALLS_AND_TABLES))
    where = ctypes.CFUNCTYPE(ctypes.c_int64)(image.address("where"))
    assert where() % 64 == 0
    floats = (ctypes.c_float * 16).from_address(where())
    assert list(floats) == [float(i) for i in range(16)]


def test_many_images_live_side_by_side() -> None:
    images = [
        load(compile_object(f"define i64 @f() nounwind {{ ret i64 {n} }}")) for n in range(40)
    ]
    functions = [ctypes.CFUNCTYPE(ctypes.c_int64)(image.address("f")) for image in images]
    assert [function() for function in functions] == list(range(40))


def test_a_symbol_that_is_not_there_is_an_internal_error() -> None:
    image = load(compile_object("define void @f() nounwind { ret void }"))
    with pytest.raises(InternalError, match="'g'"):
        image.address("g")


def test_code_that_calls_outside_itself_is_refused_by_name() -> None:
    data = compile_object(
        "declare double @sin(double)\n"
        "define double @f(double %x) nounwind { %y = call double @sin(double %x) ret double %y }"
    )
    with pytest.raises(InternalError, match="'sin', which nothing defines"):
        read(data)


@pytest.mark.parametrize("initial", ["7", "0"])
def test_writable_data_is_refused(initial: str) -> None:
    data = compile_object(
        f"@g = global i32 {initial}\n"
        "define void @f() nounwind { store volatile i32 1, ptr @g ret void }"
    )
    with pytest.raises(InternalError, match="constants and code only"):
        read(data)


@pytest.mark.parametrize(("reloc", "model"), [("static", "small"), ("pic", "large")])
def test_relocations_of_other_code_models_are_refused(reloc: str, model: str) -> None:
    data = compile_object(
        "@t = private constant [4 x i32] [i32 1, i32 20, i32 3, i32 4]\n"
        "define i32 @f(i64 %i) nounwind {\n"
        "  %p = getelementptr [4 x i32], ptr @t, i64 0, i64 %i\n"
        "  %v = load i32, ptr %p\n"
        "  ret i32 %v\n"
        "}",
        X86_64,
        reloc=reloc,
        model=model,
    )
    with pytest.raises(InternalError, match="mend: emit position-independent code"):
        read(data)


def test_code_for_another_processor_is_refused() -> None:
    other = X86_64 if HERE == AARCH64 else AARCH64
    data = compile_object("define void @f() nounwind { ret void }", other)
    with pytest.raises(DeviceError, match="cannot run on"):
        load(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), bytes(64), b"MZ" + bytes(200)]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(InternalError):
        read(data)


@pytest.mark.parametrize("triple", [X86_64, AARCH64])
def test_a_damaged_object_is_refused_or_read_but_never_breaks_the_reader(triple: str) -> None:
    whole = compile_object(CALLS_AND_TABLES, triple)
    rng = random.Random(17)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 8])):
            data[rng.randrange(len(data))] = rng.choice(
                [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        try:
            read(bytes(data)).link(0x7F12_3456_7000)
        except InternalError:
            refused += 1
    assert refused > 300


# -- relocations -------------------------------------------------------------------------------


def patched(machine: str, kind: int, before: bytes, value: int, place: int) -> int:
    code = bytearray(b"\xee" * 8 + before + b"\xee" * 8)
    PATCHES[machine][kind](code, 8, value, place)
    assert code[:8] == b"\xee" * 8
    assert code[8 + len(before) :] == b"\xee" * 8
    return int.from_bytes(code[8 : 8 + len(before)], "little")


@pytest.mark.parametrize(("machine", "kind"), [("x86_64", 1), ("aarch64", 257)])
def test_an_absolute_field_holds_the_address(machine: str, kind: int) -> None:
    for value in (0, 1, 0x7FFF_1234_5678, (1 << 64) - 1):
        assert patched(machine, kind, bytes(8), value, 0x1000) == value


@pytest.mark.parametrize(("machine", "kind"), [("x86_64", 2), ("x86_64", 4), ("aarch64", 261)])
def test_a_relative_field_holds_the_distance_or_is_refused(machine: str, kind: int) -> None:
    place = 0x7F00_0000_0000
    for distance in (0, 1, -1, 1234567, (1 << 31) - 1, -(1 << 31)):
        field = patched(machine, kind, bytes(4), place + distance, place)
        assert field == distance & 0xFFFFFFFF
    for distance in (1 << 31, -(1 << 31) - 1):
        with pytest.raises(InternalError, match="does not fit"):
            patched(machine, kind, bytes(4), place + distance, place)


@pytest.mark.parametrize(("machine", "kind"), [("x86_64", 24), ("aarch64", 260)])
def test_a_wide_relative_field_holds_the_distance(machine: str, kind: int) -> None:
    for distance in (0, -1, 1 << 40, -(1 << 40)):
        field = patched(machine, kind, bytes(8), 0x7F00_0000_0000 + distance, 0x7F00_0000_0000)
        assert field == distance & (1 << 64) - 1


def adrp_target(word: int, place: int) -> int:
    """What an adrp at a place computes, by the architecture's manual."""
    assert word & 0x9F000000 == 0x90000000
    pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    pages -= (pages & 1 << 20) << 1
    return (place & ~0xFFF) + (pages << 12)


def test_an_adrp_reaches_the_page() -> None:
    rng = random.Random(5)
    place = 0x7F12_3456_7ABC
    for _ in range(500):
        value = place + rng.choice([rng.randrange(-(1 << 31), 1 << 31), rng.randrange(-9000, 9000)])
        register = rng.randrange(32)
        word = patched("aarch64", 275, struct.pack("<I", 0x90000000 | register), value, place)
        assert word & 31 == register
        assert adrp_target(word, place) == value & ~0xFFF
    with pytest.raises(InternalError, match="does not fit"):
        patched("aarch64", 275, struct.pack("<I", 0x90000000), place + (1 << 33), place)


@pytest.mark.parametrize(
    ("kind", "shift"), [(277, 0), (278, 0), (284, 1), (285, 2), (286, 3), (299, 4)]
)
def test_a_low_field_counts_in_units_of_the_access(kind: int, shift: int) -> None:
    for low in (0, 16, 0x7F0, 0xFF0):
        word = patched("aarch64", kind, b"\xff\xff\xff\xff", 0x7F12_3456_7000 + low, 0)
        assert word >> 10 & 0xFFF == low >> shift
        assert word | 0xFFF << 10 == 0xFFFFFFFF  # nothing else changed
    if shift:
        with pytest.raises(InternalError, match="not aligned"):
            patched("aarch64", kind, bytes(4), 0x1001, 0)


@pytest.mark.parametrize("kind", [282, 283])
def test_a_branch_counts_in_instructions(kind: int) -> None:
    place = 0x7F12_3456_7000
    opcode = 0x94000000 if kind == 283 else 0x14000000
    for distance in (0, 4, -4, (1 << 27) - 4, -(1 << 27)):
        word = patched("aarch64", kind, struct.pack("<I", opcode), place + distance, place)
        assert word & 0xFC000000 == opcode
        assert word & 0x03FFFFFF == distance >> 2 & 0x03FFFFFF
    for distance in (1 << 27, 2):
        with pytest.raises(InternalError):
            patched("aarch64", kind, bytes(4), place + distance, place)


def test_an_object_for_aarch64_reaches_its_own_constants() -> None:
    source = read(compile_object(CALLS_AND_TABLES, AARCH64))
    base = 0x7F12_3456_7000
    code = source.link(base)
    kinds = {relocation.kind for relocation in source.relocations}
    assert {275, 277, 283} <= kinds <= set(PATCHES["aarch64"])
    offset = source.values[source.names["where"]]
    assert offset is not None
    adrp, add = struct.unpack_from("<II", code, offset)
    wide = adrp_target(adrp, base + offset) + (add >> 10 & 0xFFF) - base
    assert wide % 64 == 0
    assert struct.unpack_from("<16f", code, wide) == tuple(map(float, range(16)))


# -- memory ------------------------------------------------------------------------------------


def permissions(address: int) -> str | None:
    """What /proc says of the pages at an address; None where nothing is mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
        assert found is not None
        if int(found[1], 16) <= address < int(found[2], 16):
            return found[3]
    return None


@only_on_linux
def test_code_is_never_writable_and_executable_and_goes_with_its_owner() -> None:
    region = Region(10)
    assert permissions(region.address) == "rw-p"
    region.fill(b"\xc3" * 10)
    assert permissions(region.address) == "r-xp"
    # Far larger than any hole in what is mapped, so that nothing else comes to lie there.
    large = Region(1 << 30)
    address = large.address
    assert permissions(address) == "rw-p"
    del large
    gc.collect()
    assert permissions(address) is None


class Denying:
    """A system that maps, and refuses to make executable."""

    def __init__(self, real: executable.System, denied: str) -> None:
        self.real = real
        self.denied = denied

    def map(self, size: int) -> int:
        if self.denied == "map":
            raise PermissionError(13, "Permission denied")
        return self.real.map(size)

    def seal(self, address: int, size: int) -> None:
        raise PermissionError(13, "Permission denied")

    def fill(self, address: int, code: bytes | bytearray) -> None:
        self.real.fill(address, code)

    def unmap(self, address: int, size: int) -> None:
        self.real.unmap(address, size)


@pytest.mark.parametrize("denied", ["map", "seal"])
def test_where_mapping_is_denied_the_error_says_what_to_allow(
    monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    data = compile_object("define void @f() nounwind { ret void }")
    monkeypatch.setattr(executable, "SYSTEM", Denying(executable.SYSTEM, denied))
    with pytest.raises(DeviceError, match="mend: allow this process to make memory executable"):
        load(data)


def test_loading_needs_no_llvm() -> None:
    script = (
        "import sys, khaljit.backends.cpu.loader, khaljit.backends.cpu.features, "
        "khaljit.backends.cpu.pool\n"
        "print([name for name in sys.modules if name.startswith(('llvmlite', 'wgpu', 'cuda'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="maps memory otherwise")
@pytest.mark.parametrize(
    "name", ["PROT_READ", "PROT_WRITE", "PROT_EXEC", "MAP_PRIVATE", "MAP_ANONYMOUS"]
)
def test_constants_of_the_system_are_what_its_headers_say(name: str) -> None:
    assert getattr(executable, name) == getattr(mmap, name)
    assert executable.PAGE == mmap.PAGESIZE
