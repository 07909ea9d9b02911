"""What kernels say: prints, assertions, and indices out of bounds in debug mode."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.backends.reporting import log_words
from khaljit.codegen.numbering import with_reports
from khaljit.codegen.reports import (
    FAILURE,
    HEADER,
    USED,
    announcements,
    read_record,
)
from khaljit.codegen.writing_reports import write_reports
from khaljit.tracer.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u64
from khaljit.tracer.passes.pipeline import optimise
from khaljit.tracer.record import ScalarArgument
from khaljit.tracer.rendering import render
from khaljit.tracer.verify import verify
from tests.matrix import needs
from tests.ptx_tools import argument, assemble, emit, recorded
from tests.ptx_tools import run as run_ptx

Capture = pytest.CaptureFixture[str]
# Between them pytest's own words, where Python itself ran the assertion.
PATTERN = re.compile(r"failed: (\d+).* in invocation \((\d+), 0, 0\)", re.DOTALL)


def said(capsys: Capture, device: Device) -> list[str]:
    """The lines that kernels printed since the last call, sorted."""
    device.synchronize()
    return sorted(capsys.readouterr().out.splitlines())


# Prints.


def test_numbers_of_every_type_are_printed_as_python_prints_them(
    device: Device, capsys: Capture
) -> None:
    @kj.jit
    def show(
        a: kj.i8, b: kj.u16, c: kj.i32, d: kj.u64, e: kj.i64, f: kj.f16, g: kj.f32, h: kj.bool
    ) -> None:
        kj.print(a, b, c, d, e, f, g, h, kj.bf16(1.5), "and", 7, None)

    show[1](-5, 65535, -(2**31), 2**64 - 1, -(2**63), 0.1, 0.1, True)
    wanted = f"-5 65535 {-(2**31)} {2**64 - 1} {-(2**63)} 0.1 0.1 True 1.5 and 7 None"
    assert said(capsys, device) == [wanted]


def test_f64_is_printed_where_it_exists(device: Device, capsys: Capture) -> None:
    @kj.jit
    def show(x: kj.f64) -> None:
        kj.print(x / 3.0)

    needs(device, f64)
    show[1](1.0)
    assert said(capsys, device) == [str(1 / 3)]


def test_not_a_number_infinity_and_zeros_are_printed(device: Device, capsys: Capture) -> None:
    @kj.jit
    def show(a: kj.Array1[kj.f32]) -> None:
        kj.print(a[0], a[1], a[2], a[3])

    show[1](np.array([np.nan, np.inf, -np.inf, -0.0], np.float32))
    assert said(capsys, device) == ["nan inf -inf -0.0"]


def test_format_strings_and_f_strings_fill_their_fields(device: Device, capsys: Capture) -> None:
    @kj.jit
    def show(a: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        kj.print("{1:>4}: {0:.3f} {{}} {2}", a[i], i, "text")
        print(f"{i:04d} {a[i]:8.2e} {{}}", "{}", sep=" | ")
        kj.print("{} braces alone")
        kj.print("x", kj.vec2(a[i], 2.0), sep="=", end=".\n")
        kj.print("{:.1f}", kj.vec2(a[i], 2.0))

    show[1](np.array([2.5], np.float32))
    assert said(capsys, device) == sorted(
        [
            "   0: 2.500 {} text",
            "0000 2.50e+00 {} | {}",
            "{} braces alone",
            "x=(2.5, 2.0).",
            "(2.5, 2.0)",
        ]
    )


def test_prints_of_an_invocation_are_in_order_and_none_is_missing(
    device: Device, capsys: Capture
) -> None:
    @kj.jit
    def show(n: kj.i32) -> None:
        i, j = kj.global_id(0), kj.global_id(1)
        for k in range(i % n):
            kj.print(i, j, k)

    show[37, 3](5)
    device.synchronize()
    lines = capsys.readouterr().out.splitlines()
    found: dict[str, list[int]] = {}
    for line in lines:
        who, _, k = line.rpartition(" ")
        found.setdefault(who, []).append(int(k))
    assert found == {f"{i} {j}": list(range(i % 5)) for i in range(37) for j in range(3) if i % 5}


def test_kernels_are_heard_in_the_order_of_their_launches(device: Device, capsys: Capture) -> None:
    @kj.jit
    def one(x: kj.i32) -> None:
        kj.print("one", x)

    @kj.jit
    def other(x: kj.i32) -> None:
        kj.print("other", x)

    for k in range(3):
        one[1](k)
        other[1](k)
    device.synchronize()
    wanted = "".join(f"one {k}\nother {k}\n" for k in range(3))
    assert capsys.readouterr().out == wanted
    device.synchronize()
    assert capsys.readouterr().out == ""


def test_reading_an_array_shows_what_was_printed(device: Device, capsys: Capture) -> None:
    @kj.jit
    def show(a: kj.Array1[kj.i32]) -> None:
        a[0] = 4
        kj.print("here")

    a = device.zeros(1, kj.i32)
    show[1](a)
    assert a.numpy().tolist() == [4]
    assert capsys.readouterr().out == "here\n"


def test_prints_under_a_barrier_and_in_a_workgroup(device: Device, capsys: Capture) -> None:
    @kj.jit(workgroup=8)
    def show(a: kj.Array1[kj.i32]) -> None:
        tile = kj.shared(kj.i32, 8)
        i = kj.local_id(0)
        tile[i] = a[kj.global_id(0)]
        if i == 3:
            kj.print("before", kj.workgroup_id(0))
        kj.barrier()
        if tile[7 - i] == 5:
            kj.print("after", kj.global_id(0))

    show[16](np.arange(16, dtype=np.int32))
    assert said(capsys, device) == ["after 2", "before 0", "before 1"]


@pytest.mark.parametrize("name", ["cpu", "webgpu", "cuda"])
def test_what_does_not_fit_is_counted(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each print takes six words: kernel, note, three ids, one value."""
    monkeypatch.setenv("KHALJIT_PRINT_BYTES", str(4 * 6 * 10 + 8))

    @kj.jit
    def show() -> None:
        kj.print("number {}", kj.global_id(0))

    try:
        device = kj.device(name)
    except kj.DeviceError as error:
        pytest.skip(error.message)
    device.reports = None  # so that it is made anew with less room
    try:
        with kj.use(device):
            for _ in range(2):
                show[1000]()
                device.synchronize()
                out, err = capsys.readouterr()
                lines = out.splitlines()
                assert len(set(lines)) == 10
                assert all(re.fullmatch(r"number \d+", line) for line in lines)
                assert "990 prints of kernels are lost" in err
                assert "KHALJIT_PRINT_BYTES" in err
    finally:
        device.reports = None


def test_the_room_for_prints_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALJIT_PRINT_BYTES", "much")
    with pytest.raises(kj.ArgumentValueError, match="KHALJIT_PRINT_BYTES is 'much'"):
        log_words()


# Mistakes.


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("{} {}", 1, "more fields than the 1 values"),
        ("{}", 2, "has 1 fields for 2 values"),
        ("{x}", 1, "neither empty nor a number"),
        ("{!r}", 1, "neither empty nor a number"),
        ("{:d}", 1, "f32 cannot be formatted with 'd'"),
    ],
)
def test_format_strings_that_do_not_fit_are_refused(text: str, values: int, message: str) -> None:
    @kj.jit
    def show(x: kj.f32) -> None:
        kj.print(text, *(x,) * values)

    with pytest.raises(kj.TraceError, match=re.escape(message)) as caught:
        show.trace("f32")
    assert caught.value.at is not None
    assert "kj.print(text" in str(caught.value)


# Assertions.


def test_a_failed_assertion_says_what_where_and_who(device: Device) -> None:
    @kj.jit
    def check(a: kj.Array2[kj.i32], limit: kj.i32) -> None:
        x, y = kj.global_id(0), kj.global_id(1)
        assert a[y, x] < limit, f"row {y} has {a[y, x]}"

    a = np.zeros((3, 70), np.int32)
    check[70, 3](a, 5)
    device.synchronize()
    a[2, 65] = 9
    with pytest.raises(kj.KernelError) as caught:
        check[70, 3](a, 5)
    error = caught.value
    assert error.message.startswith("kernel check: assert a[y, x] < limit failed: row 2 has 9")
    assert error.message.endswith(" in invocation (65, 2, 0)")
    assert error.at is not None
    assert "assert a[y, x] < limit" in str(error)
    device.synchronize()  # it was reported, once
    check[70, 3](a, 10)
    device.synchronize()


def test_one_of_many_failures_is_reported_and_the_rest_runs(device: Device) -> None:
    @kj.jit
    def check(a: kj.Array1[kj.i32]) -> None:
        i = kj.global_id(0)
        assert a[i] % 3 == 0, f"{a[i]}"
        a[i] = -1

    a = np.arange(1000, dtype=np.int32)
    with pytest.raises(kj.KernelError, match=PATTERN) as e:
        check[1000](a)
    found = re.search(PATTERN, e.value.message)
    assert found is not None
    assert found[1] == found[2]
    assert int(found[1]) % 3
    assert (a == -1).all() or device.kind == "python"  # which stops there


def test_a_message_shows_no_more_values_than_fit() -> None:
    @kj.jit
    def check(a: kj.Array1[kj.i32]) -> None:
        assert a[0] == 0, " ".join(f"{a[k]}" for k in range(33))

    with pytest.raises(kj.TraceError, match="shows 33 values; 32 are the most"):
        check.trace("i32[:]")


def test_an_index_out_of_bounds_is_reported_in_debug_mode(device: Device) -> None:
    @kj.jit(debug=True)
    def kernel(a: kj.Array2[kj.f32], k: kj.i32) -> None:
        i = kj.global_id(0)
        if i < a.shape[0]:
            a[i, k] = 1.0

    kernel[5](np.zeros((4, 3), np.float32), 2)
    with pytest.raises(kj.KernelError) as caught:
        kernel[1](np.zeros((4, 3), np.float32), 3)
    assert caught.value.message == (
        "kernel kernel: index (0, 3) is out of bounds of a of shape (4, 3) in invocation (0, 0, 0)"
    )
    assert caught.value.at is not None
    assert "a[i, k] = 1.0" in str(caught.value)
    with pytest.raises(kj.KernelError, match=r"index \(0, -1\)"):
        kernel[1](np.zeros((4, 3), np.float32), -1)


def test_threads_that_launch_and_wait_lose_nothing(device: Device, capsys: Capture) -> None:
    @kj.jit
    def show(x: kj.i32) -> None:
        kj.print(x)

    def work(first: int) -> None:
        with kj.use(device):
            for k in range(20):
                show[1](first + k)
                device.synchronize()

    show[1](-1)
    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.synchronize()
    found = sorted(map(int, capsys.readouterr().out.split()))
    assert found == [-1, *(100 * k + j for k in range(3) for j in range(20))]


# The form in the trace.


def test_what_a_kernel_says_becomes_stores_that_the_verifier_takes() -> None:
    def show(x: Any) -> None:
        i = kj.global_id(0)
        assert x[i] > 0
        kj.print(x[i])

    trace = with_reports(recorded(show, [("x", argument(i32))]))
    assert with_reports(trace) is trace
    assert trace.arrays[-1].name == trace.scalars[-1].name == "kj.report"
    verify(write_reports(optimise(trace)))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *((bool_, True), (i8, -3), (u8, 250), (i16, -300), (i32, -7), (f16, 0.5), (f32, -2.25)),
        *((bf16, 1.5), (i64, -(2**40)), (u64, 2**63), (f64, 1e300)),
    ],
)
def test_records_are_read_back(dtype: DType, number: Any) -> None:
    kind = np.dtype(np.float32) if dtype is bf16 else dtype.numpy
    bits = np.array([number], np.uint8 if dtype is bool_ else kind)
    raw = bits.view(np.uint32) >> 16 if dtype is bf16 else bits.view(f"u{bits.itemsize}")
    operand = raw.astype(np.uint64).view(np.uint32)[: 2 if dtype.bits == 64 else 1]
    words = np.array([9, 4, 1, 2, 3, *operand, 77], np.uint32)
    record_ = read_record(words, (dtype,), 32)
    assert record_.invocation == (1, 2, 3)
    assert record_.operands == (number,)
    assert record_.size == len(words) - 1


def loud() -> Any:
    """A kernel that says numbers of many types, and its trace for PTX."""

    def show(a: Any, x: Any) -> None:
        i = kj.global_id(0)
        kj.print(i, a[i], kj.i64(a[i]) * 5_000_000_000, kj.f16(x), x > 1.0, kj.u8(a[i]))
        assert a[i] < 2, f"{a[i]} {x}"

    return recorded(show, [("a", argument(i32)), ("x", ScalarArgument(f32))], workgroup=(4, 1, 1))


@pytest.mark.parametrize("bits", [32, 64])
def test_the_report_of_ptx_is_read_back(bits: int) -> None:
    trace = with_reports(replace(loud(), index_bits=bits))
    a, report = np.array([0, 1, -3, 7], np.int32), np.zeros(HEADER + 200, np.uint32)
    run_ptx(trace, [a, report], [1.5, 11], (1, 1, 1))
    says, fails = announcements(trace)
    assert says.types == (i32 if bits == 32 else i64, i32, i64, f16, bool_, u8)
    log, lines = report[HEADER : HEADER + int(report[USED])], []
    while log.size:
        assert log[:2].tolist() == [11, 0]
        record = read_record(log, says.types, bits)
        lines.append(render(says.template, record.operands))
        log = log[record.size :]
    wanted = [f"{i} {v} {v * 5_000_000_000} 1.5 True {v & 255}\n" for i, v in enumerate(a.tolist())]
    assert sorted(lines) == sorted(wanted)
    record = read_record(report[FAILURE:], fails.types, bits)
    assert (record.invocation, record.operands) == ((3, 0, 0), (7, 1.5))


@pytest.mark.parametrize("sm", ["sm_75", "sm_90"])
def test_what_kernels_say_is_assembled(sm: str, tmp_path: Path) -> None:
    assemble(emit(loud(), sm), sm, tmp_path)


def test_str_of_a_value_is_printed_as_the_value(device: Device, capsys: Capture) -> None:
    @kj.jit
    def kernel(a: kj.Array1[kj.f32]) -> None:
        print("a is " + str(a[0]))

    a = np.array([0.25], np.float32)
    kernel[1](a)
    device.synchronize()
    assert capsys.readouterr().out == "a is 0.25\n"
