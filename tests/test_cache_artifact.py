"""Entries: they come back as they were written, or not at all."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from typing import Any

import pytest

from khaljit.cache import artifact as artifact_module
from khaljit.cache.artifact import Artifact, pack, read, unpack
from khaljit.cache.errors import CorruptError, FormatError
from khaljit.cache.keys import key

KEY = key(trace=b"kernel k { }" * 20, target=b"x86-64-v4")


def random_artifact(rng: random.Random) -> Artifact:
    plan: dict[str, Any] = {
        "entry": "k",
        "item": [rng.randrange(1 << 40), 1, 1],
        "scale": rng.choice([0.1, -0.0, 1e300]),
        "nested": {"ü": None, "b": [True, "\0\n"]},
    }
    return Artifact(
        rng.randbytes(rng.choice([0, 1, 100, 5000])),
        plan,
        rng.choice([None, ("llvmlite", "0.50.0 LLVM 22.1.0")]),
        text=rng.choice(["", "define void @k() ü\n" * 40]),
        about=rng.choice([None, {"kernel": "k", "created": 1_800_000_000}]),
        shipped=rng.random() < 0.5,
    )


def test_an_artifact_comes_back_as_it_was() -> None:
    rng = random.Random(1)
    for _ in range(200):
        made = random_artifact(rng)
        data = pack(KEY, made)
        assert unpack(data, KEY) == made
        assert unpack(data, KEY).text == made.text
        assert read(data)[0] == KEY.material


def test_equal_artifacts_give_equal_bytes() -> None:
    one = Artifact(b"x", {"a": 1, "b": 2}, None)
    other = Artifact(b"x", {"b": 2, "a": 1}, None)
    assert one == other
    assert pack(KEY, one) == pack(KEY, other)


@pytest.mark.parametrize(
    "other",
    [
        Artifact(b"y", {"a": 1}, ("t", "1"), text="text"),
        Artifact(b"x", {"a": 2}, ("t", "1"), text="text"),
        Artifact(b"x", {"a": 1}, ("t", "2"), text="text"),
        Artifact(b"x", {"a": 1}, None, text="text"),
        Artifact(b"x", {"a": 1}, ("t", "1"), text="test"),
        Artifact(b"x", {"a": 1}, ("t", "1"), text="text", shipped=True),
        Artifact(b"x", {"a": 1}, ("t", "1"), text="text", about={"kernel": "k"}),
    ],
)
def test_artifacts_that_differ_are_unequal_before_and_after(other: Artifact) -> None:
    made = Artifact(b"x", {"a": 1}, ("t", "1"), text="text")
    assert made != other
    assert unpack(pack(KEY, made), KEY) != unpack(pack(KEY, other), KEY)


def test_the_payload_lies_in_the_entry_as_it_is() -> None:
    payload = bytes(range(256)) * 4
    assert payload in pack(KEY, Artifact(payload, {}, None, text="t" * 1000))


def test_every_flipped_bit_is_found() -> None:
    data = pack(KEY, Artifact(b"payload", {"a": 1}, ("llvmlite", "1"), text="text"))
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises((CorruptError, FormatError)):
                read(bytes(damaged))


def test_every_cut_and_every_addition_is_found() -> None:
    data = pack(KEY, Artifact(b"payload", {"a": 1}, None, text="text"))
    for end in range(len(data)):
        with pytest.raises(CorruptError):
            read(data[:end])
    for more in (b"\0", data):
        with pytest.raises(CorruptError):
            read(data + more)


def test_lengths_that_shift_a_border_are_found() -> None:
    """The checksum covers the lengths: the same bytes cut otherwise are another entry."""
    data = bytearray(pack(KEY, Artifact(b"payload", {}, None, text="text")))
    header, material = struct.unpack_from("<II", data, 28)
    struct.pack_into("<II", data, 28, header + 1, material - 1)
    with pytest.raises(CorruptError, match="checksum"):
        read(bytes(data))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"about":{},"plan":{},"shipped":false}',
        b'{"plan":{},"shipped":false,"tool":null}',
        b'{"about":{},"plan":7,"shipped":false,"tool":null}',
        b'{"about":7,"plan":{},"shipped":false,"tool":null}',
        b'{"about":{},"plan":{},"shipped":false,"tool":["one"]}',
        b'{"about":{},"plan":{},"shipped":false,"tool":7}',
        b"\xff\xfe",
    ],
)
def test_a_wrong_header_under_a_right_checksum_is_found(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_module, "_canonical", lambda _: header)
    data = pack(KEY, Artifact(b"payload", {}, None))
    with pytest.raises(CorruptError, match="header"):
        read(data)


def test_another_keys_entry_is_refused_although_it_is_whole() -> None:
    data = pack(KEY, Artifact(b"payload", {}, None))
    assert read(data)
    with pytest.raises(CorruptError, match="another key's"):
        unpack(data, key(trace=b"another"))


@pytest.mark.parametrize("plan", [{"a": float("nan")}, {"a": float("inf")}, {"a": b"bytes"}])
def test_a_plan_that_is_no_json_is_a_mistake_of_the_caller(plan: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack(KEY, Artifact(b"", plan, None))


def test_reading_an_entry_imports_no_database() -> None:
    script = (
        "import sys\n"
        "from khaljit.cache.store import Store\n"
        "print(sorted({'diskcache', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_is_no_json_is_refused_with_and_without_the_module() -> None:
    """Python 3.11's scanner alone says nothing of it."""
    code = """
import sys
import khaljit
from khaljit.cache.jsontext import loads
assert loads('{"a":[1,-2.5,null,true],"b":"x"}') == {"a": [1, -2.5, None, True], "b": "x"}
assert "json" not in sys.modules
for bad in sys.argv[1:] * 2:
    try:
        loads(bad)
    except ValueError:
        continue
    raise SystemExit(f"{bad!r} was taken")
assert "json" in sys.modules
"""
    bad = ["{", "", '{"a":1}}', "[1,]", '{"a"}', '"\n"', "nul"]
    for given in (bad, bad[::-1]):
        done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
