"""The probe of the processor: as others see it, and right where the system keeps less state."""

from __future__ import annotations

import platform
import random
import sys
from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from khaljit.backends.cpu import features
from khaljit.backends.cpu.executable import MACHINE
from khaljit.backends.cpu.features import (
    LEVELS,
    HostCpu,
    Registers,
    hwcap_features,
    lower,
    probe,
    x86_features,
)
from khaljit.tracer.errors import ArgumentValueError

ALL_X86 = sorted({name for bits in features._BITS.values() for name in bits.values()})


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KHALJIT_CPU_LEVEL", raising=False)


@pytest.mark.skipif(MACHINE != "x86_64", reason="compares x86-64 features")
def test_the_probe_agrees_with_llvm() -> None:
    theirs = llvm.get_host_cpu_features()
    assert probe().features == tuple(name for name in ALL_X86 if theirs.get(name))


@pytest.mark.skipif(
    MACHINE != "x86_64" or sys.platform != "linux", reason="reads Linux's list of x86-64 flags"
)
def test_the_probe_agrees_with_linux() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
    spelled = {
        "lzcnt": "abm", "sahf": "lahf_lm", "bmi": "bmi1", "sse3": "pni", "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
    }  # fmt: skip
    for name in LEVELS["x86-64-v4"]:
        assert (name in probe().features) == (spelled.get(name, name) in flags), name
    assert probe().name in text


def test_the_probe_says_what_the_machine_is() -> None:
    cpu = probe()
    assert cpu.arch == {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine()
    )
    assert set(LEVELS[cpu.level]) <= set(cpu.features)
    assert set(cpu.extra) == set(cpu.features) - set(LEVELS[cpu.level])
    assert list(cpu.features) == sorted(cpu.features)


# -- processors that are not here --------------------------------------------------------------


class Processor:
    """CPUID of a made-up processor with all features but some."""

    def __init__(self, *lacks: str, os_saves: int = 0xE7, osxsave: bool = True) -> None:
        self.words: dict[tuple[int, int], list[int]] = {
            (0, 0): [7, 0, 0, 0],
            (0x80000000, 0): [0x80000008, 0, 0, 0],
        }
        for (leaf, subleaf, register), bits in features._BITS.items():
            words = self.words.setdefault((leaf, subleaf), [0, 0, 0, 0])
            words[register] |= sum(1 << bit for bit, name in bits.items() if name not in lacks)
        self.words[7, 0][0] = 1
        if osxsave:
            self.words[1, 0][2] |= 1 << 27
        else:
            self.words[1, 0][2] &= ~(1 << 27)
        self.os_saves = os_saves

    def cpuid(self, leaf: int, subleaf: int) -> Registers:
        a, b, c, d = self.words.get((leaf, subleaf), [0, 0, 0, 0])
        return a, b, c, d

    def state(self) -> int:
        assert self.words[1, 0][2] & 1 << 27, "XGETBV is an illegal instruction here"
        return self.os_saves

    def features(self) -> set[str]:
        return set(x86_features(self.cpuid, self.state))


def test_all_bits_are_all_features() -> None:
    assert Processor().features() == set(ALL_X86)


@pytest.mark.parametrize("lacking", ALL_X86)
def test_each_feature_has_its_bit(lacking: str) -> None:
    found = Processor(lacking).features()
    assert lacking not in found
    if lacking not in ("avx", "avx512f"):  # what others rest upon
        assert found == set(ALL_X86) - {lacking}


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS keeps AVX-512 state when first used")
def test_avx512_needs_a_system_that_keeps_its_registers() -> None:
    found = Processor(os_saves=0x07).features()
    assert not any(name.startswith("avx512") for name in found)
    assert {"avx", "avx2", "fma", "f16c", "avxvnni"} <= found


@pytest.mark.parametrize(("os_saves", "osxsave"), [(0x01, True), (0x03, True), (0xE7, False)])
def test_avx_needs_a_system_that_keeps_its_registers(os_saves: int, osxsave: bool) -> None:
    found = Processor(os_saves=os_saves, osxsave=osxsave).features()
    assert not any(name.startswith("avx") for name in found)
    assert not found & {"fma", "f16c", "xsave"}
    assert {"sse4.2", "bmi2", "popcnt"} <= found


def test_leaves_that_a_processor_does_not_have_are_not_read() -> None:
    old = Processor()
    old.words[0, 0] = [1, 0, 0, 0]
    assert not old.features() & {"avx2", "bmi", "avx512f", "avxvnni"}
    middle = Processor()
    middle.words[7, 0][0] = 0
    assert "avx2" in middle.features()
    assert not middle.features() & {"avxvnni", "avx512bf16"}


def test_a_processor_has_the_highest_level_that_it_has_all_features_of() -> None:
    def level(has: set[str]) -> tuple[str, int]:
        cpu = features._host("x86_64", has, "test")
        return cpu.level, cpu.vector_bits

    has = set(ALL_X86)
    assert level(has) == ("x86-64-v4", 512)
    assert level(has - {"avx512vl"}) == ("x86-64-v3", 256)
    assert level(has - {"fma"}) == ("x86-64-v2", 128)
    assert level(has - {"popcnt"}) == ("x86-64", 128)


# -- lowering ----------------------------------------------------------------------------------

V3 = HostCpu("x86_64", "x86-64-v3", (*sorted(LEVELS["x86-64-v3"]), "gfni"), 256, "test")


def test_a_lowered_processor_has_the_features_of_that_level_and_no_more() -> None:
    cpu = lower(V3, "x86-64-v2")
    assert (cpu.arch, cpu.level, cpu.vector_bits) == ("x86_64", "x86-64-v2", 128)
    assert cpu.features == tuple(sorted(LEVELS["x86-64-v2"]))
    assert lower(V3, "x86-64-v3").extra == ()


@pytest.mark.parametrize("level", ["x86-64-v4", "aarch64", "v9", "x86-64-v30"])
def test_a_level_is_never_raised(level: str) -> None:
    with pytest.raises(ArgumentValueError, match=r"one of: x86-64, x86-64-v2, x86-64-v3$"):
        lower(V3, level)


def test_the_environment_lowers_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = "x86-64" if probe().arch == "x86_64" else "aarch64"
    monkeypatch.setenv("KHALJIT_CPU_LEVEL", f" {lowest.upper()} ")
    assert probe().level == lowest
    assert set(probe().features) == set(LEVELS[lowest])
    monkeypatch.setenv("KHALJIT_CPU_LEVEL", "x86-64-v99")
    with pytest.raises(ArgumentValueError, match="KHALJIT_CPU_LEVEL"):
        probe()


# -- AArch64 -----------------------------------------------------------------------------------


def test_the_auxiliary_vector_names_features_of_aarch64() -> None:
    assert hwcap_features(lambda _: 0) == ()
    assert hwcap_features({16: 1 << 8 | 1 << 20, 26: 0}.__getitem__) == ("lse", "dotprod")
    assert hwcap_features({16: 0, 26: 1 << 13 | 1 << 14}.__getitem__) == ("i8mm", "bf16")
    rng = random.Random(3)
    words: Mapping[int, int] = {16: rng.getrandbits(64), 26: rng.getrandbits(64)}
    for name in hwcap_features(words.__getitem__):
        assert any(
            words[entry] >> bit & 1
            for entry, bits in features._HWCAPS.items()
            for bit, feature in bits.items()
            if feature == name
        )
