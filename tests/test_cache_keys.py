"""Keys: the same inputs give the same key anywhere, other inputs another one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest

from khaljit.cache import keys
from khaljit.cache.keys import Key, described, key, parts_of


def test_a_key_is_32_hexadecimal_digits() -> None:
    """NVIDIA/warp#1511: 128 bits."""
    made = key(trace=b"x")
    assert len(made) == 32
    assert set(made) <= set("0123456789abcdef")


def test_the_order_of_the_parts_means_nothing() -> None:
    assert key(a=b"1", b=b"2") == key(b=b"2", a=b"1")


def test_a_known_key_stays_what_it_is() -> None:
    """Changing what is hashed, without counting `SCHEMA` up, would find old entries."""
    assert keys.SCHEMA == 2
    assert key(target=b"ptx", trace=b"kernel") == "beea28d66705b9b8a662a3ebf0aafbe1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": b"12"}, {"a": b"1", "b": b"2"}),
        ({"a": b"1", "b": b"2"}, {"a": b"2", "b": b"1"}),
        ({"a": b""}, {}),
        ({"a": b""}, {"b": b""}),
        ({"a": b"1\nb 1\n2"}, {"a": b"1", "b": b"2"}),
        ({"a": b"1\n"}, {"a": b"1"}),
        ({"a": b"\0"}, {"a": b"\0\0"}),
    ],
)
def test_inputs_that_differ_give_keys_that_differ(
    one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    assert key(**one) != key(**other)
    assert key(**one).material != key(**other).material


def test_no_two_of_many_layouts_of_the_same_bytes_collide() -> None:
    rng = random.Random(1)
    made: dict[str, dict[str, bytes]] = {}
    for _ in range(5000):
        names = rng.sample(["a", "b", "ab", "a1"], rng.randrange(5))
        parts = {name: bytes(rng.choices(b"a1 \n", k=rng.randrange(4))) for name in names}
        assert made.setdefault(key(**parts), parts) == parts


def test_the_parts_can_be_read_back_from_the_material() -> None:
    rng = random.Random(2)
    for _ in range(200):
        parts = {f"part{i}": rng.randbytes(rng.randrange(50)) for i in range(rng.randrange(6))}
        made = key(**parts)
        assert parts_of(made.material) == parts
        again = Key.of(made.material)
        assert again == made
        assert again.material == made.material


@pytest.mark.parametrize("material", [b"", b"khaljit 0\n", b"khaljit 1\na 5\nxy", b"khaljit 1\nzz"])
def test_what_is_no_material_is_refused(material: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parts_of(material)


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_other_processes_make_the_same_key(seed: str) -> None:
    script = "from khaljit.cache.keys import key; print(key(a=b'1', b=b'2', trace=b'k'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == key(a=b"1", b=b"2", trace=b"k")


class Kind(Enum):
    FLOAT = 1


@dataclass(frozen=True)
class Row:
    name: str
    kinds: frozenset[Kind]
    limits: tuple[int, ...] = (1, 2)
    scale: float = 0.1
    flag: bool = False
    nothing: object = None


def test_a_configuration_is_described_with_all_that_it_has() -> None:
    row = Row("it's", frozenset({Kind.FLOAT}))
    assert described(row) == (
        'Row(name="it\'s", kinds={Kind.FLOAT}, limits=(1, 2), scale=0x1.999999999999ap-4, '
        "flag=False, nothing=None)"
    )
    changes: tuple[dict[str, Any], ...] = (
        {"name": "its"},
        {"kinds": frozenset()},
        {"limits": (12,)},
        {"scale": 0.1 + 2**-56},
        {"flag": True},
        {"nothing": ""},
        {"nothing": False},
    )
    for change in changes:
        assert described(replace(row, **change)) != described(row)


def test_the_order_of_sets_and_mappings_means_nothing() -> None:
    names = [f"name{number}" for number in range(50)]
    rng = random.Random(3)
    shuffled = rng.sample(names, 50)
    assert described(set(names)) == described(frozenset(shuffled))
    assert described(dict.fromkeys(names)) == described(dict.fromkeys(shuffled))
    assert described(names) != described(shuffled)


def test_what_has_no_text_of_its_own_is_refused() -> None:
    """Such as an object whose repr is its address."""
    for value in (object(), [object()], {"a": lambda: None}, Row("a", frozenset(), nothing=print)):
        with pytest.raises(TypeError, match="no text that is the same everywhere"):
            described(value)
    assert described([Kind], {type(Kind): lambda kind: kind.__name__}) == "(Kind)"
