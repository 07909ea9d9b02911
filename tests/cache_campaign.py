"""What can happen to a cache, done to one: ``python -m tests.cache_campaign`` takes minutes.

Each fault is a function that raises AssertionError where a wrong artifact is read, a run is
stopped, or something is lost but time; it gives a line of figures. `test_cache_campaign.py` runs
all of them in small.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from khaljit.cache.artifact import FORMAT, Artifact
from khaljit.cache.catalog import Catalog
from khaljit.cache.errors import CacheWarning
from khaljit.cache.files import is_entry
from khaljit.cache.flight import Lease  # what forked writers need is there when they start
from khaljit.cache.index import Index
from khaljit.cache.keys import Key, key
from khaljit.cache.store import Store

__all__ = ["FAULTS", "Index", "Lease", "main"]

NUMBERS: Final = 20  # different entries
KERNELS: Final = 20


def none(name: str) -> str | None:
    return None


def numbered(number: int) -> Key:
    return key(number=str(number).encode())


def artifact(number: int) -> Artifact:
    """The one right artifact of a number; sizes from nothing to hundreds of kilobytes."""
    rng = random.Random(number)
    return Artifact(rng.randbytes(1 << rng.randrange(18)), {"number": number}, None, text="ir" * 50)


def entries(folder: Path) -> list[Path]:
    found = folder.glob(f"{FORMAT}/??/*")
    return [path for path in found if is_entry(f"{path.parent.name}/{path.name}")]


def read_all(folder: Path) -> int:
    """Read every entry as a new process would; how many there are."""
    store = Store.open(folder)
    found = 0
    for number in range(NUMBERS):
        got = store.get(numbered(number), none)
        assert got is None or got == artifact(number), f"entry {number} is wrong"
        found += got is not None
    assert "corrupt" not in store.info().reasons
    return found


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """How often the cache warned, by the first words."""
    counts: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield counts
    for one in caught:
        if one.category is CacheWarning:
            counts[str(one.message).split("\n")[0].rpartition("(")[2]] += 1


# -- killed writers ----------------------------------------------------------------------------


def killed(folder: Path, times: int = 1000, seed: int = 1) -> str:
    """Writers are killed at random moments; readers look after each."""
    rng = random.Random(seed)
    found = halves = 0
    for turn in range(times):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _write_for_ever(folder, rng.randrange(1 << 30), writing)
        for _ in range(1 + turn % 2):  # in every second turn something is written already
            os.read(reading, 1)
        time.sleep(rng.expovariate(1 / 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
        found += read_all(folder)
        halves += len(list(folder.glob(f"{FORMAT}/??/new-*")))
        for path in folder.glob(f"{FORMAT}/??/new-*"):
            path.unlink()
    leases = len(list(folder.glob(f"{FORMAT}/leases/*")))
    with counting() as warned:
        store = Store.open(folder, wait=5)
        for number in range(NUMBERS):
            right = artifact(number)
            assert store.obtain(numbered(number), none, partial(artifact, number)) == right
        store.put(numbered(1000), artifact(1000))
    assert read_all(folder) == NUMBERS
    assert not warned, f"the index was broken: {warned}"
    assert found, "nothing was written"
    return (
        f"{times} writers killed, {halves} while they wrote a file, {leases} leases left; "
        f"{found / times:.1f} of {NUMBERS} entries there on average, all right"
    )


def _write_for_ever(folder: Path, seed: int, told: int) -> None:
    rng = random.Random(seed)
    try:
        while True:
            os.write(told, b".")
            store = Store.open(folder, limit=3_000_000, wait=0.2)
            number = rng.randrange(NUMBERS)
            if rng.random() < 0.5:
                store.put(numbered(number), artifact(number))
            else:
                store.obtain(numbered(number), none, partial(artifact, number))
    finally:
        os._exit(1)


# -- flipped bytes -----------------------------------------------------------------------------


def flipped(folder: Path, step: int = 1, seed: int = 2) -> str:
    """Every byte of an entry is changed in turn; every ``step``-th, to be quick."""
    rng = random.Random(seed)
    made = Artifact(rng.randbytes(3000), {"entry": "k"}, ("llvmlite", "0.50"), text="ir" * 500)
    Store.open(folder).put(numbered(1), made)
    (path,) = entries(folder)
    whole = path.read_bytes()
    quarantine = folder / str(FORMAT) / "quarantine"
    count = 0
    for at in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        found = Store.open(folder).look(numbered(1), none)
        assert found.artifact is None, f"byte {at} may be anything"
        assert found.outcome in ("corrupt", "format")
        shutil.rmtree(quarantine, ignore_errors=True)
        count += 1
    path.write_bytes(whole)
    assert Store.open(folder).get(numbered(1), none) == made
    return f"{count} of {len(whole)} bytes changed, all found"


# -- a broken index ----------------------------------------------------------------------------


def truncated(folder: Path, times: int = 100, seed: int = 3) -> str:
    """The database is cut at random points."""
    rng = random.Random(seed)
    store = Store.open(folder)
    for number in range(NUMBERS):
        store.put(numbered(number), artifact(number))
    database = folder / str(FORMAT) / "cache.db"
    told: Counter[str] = Counter()
    for turn in range(times):
        whole = database.read_bytes()
        cut = rng.randrange(len(whole) + 1)
        database.write_bytes(whole[:cut])
        assert read_all(folder) == NUMBERS
        with counting() as warned:
            store = Store.open(folder)
            store.put(numbered(2000 + turn), artifact(2000 + turn))
        assert warned.total() <= 1
        told += warned
        assert Store.open(folder).get(numbered(2000 + turn), none) == artifact(2000 + turn)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Store.open(folder).put(numbered(turn % NUMBERS), artifact(turn % NUMBERS))
        shutil.rmtree(folder / str(FORMAT) / "quarantine", ignore_errors=True)
    return f"{times} cuts, {told.total()} warnings, no entry lost"


# -- a full disk -------------------------------------------------------------------------------


def filled(folder: Path, *, options: str = "size=4m") -> str:
    """A small file system is filled; where none can be mounted, a limit on files stands for it."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "khaljit", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        return _fill(folder, options if mounted else "files of at most 20 kB")
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


FILLING: Final = """
import resource, sys
from pathlib import Path
from tests.cache_campaign import fill
if sys.argv[2].startswith("files"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
fill(Path(sys.argv[1]))
"""


def _fill(folder: Path, what: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FILLING, str(folder), what],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return f"{what}: {done.stdout.strip()}"


def fill(folder: Path) -> None:
    """Put more than there is room for; what is put is served, and what is there is right."""
    put = 0
    with counting() as warned:
        store = Store.open(folder / "cache")
        for number in range(400):
            store.put(numbered(number), artifact(number))
            put += 1
        for number in range(400):
            assert store.get(numbered(number), none) == artifact(number)
    assert warned.total() == 1, warned
    fresh = Store.open(folder / "cache")
    there = 0
    for number in range(400):
        found = fresh.get(numbered(number), none)
        assert found is None or found == artifact(number)
        there += found is not None
    for path in entries(folder / "cache")[: there // 2]:
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = Store.open(folder / "cache", limit=2_000_000)
        after.put(numbered(5000), Artifact(b"small", {}, None))
    assert Store.open(folder / "cache").get(numbered(5000), none)
    print(f"{put} put, {there} there, all right, {warned.total()} warning, used again with room")


# -- a cold start ------------------------------------------------------------------------------

COLD: Final = """
import json, sys
import numpy as np
import khaljit as kj
from khaljit import compiler

def made(number):
    @kj.jit
    def kernel(a: kj.Array1[kj.f32], b: kj.Array1[kj.f32]) -> None:
        i = kj.global_id(0)
        if i < a.size:
            x = b[i]
            for k in kj.unroll(range(number + 1)):
                x = kj.sin(x) + k
            a[i] = x
    return kernel

kernels = [made(number) for number in range(int(sys.argv[1]))]
print("ready", flush=True)
sys.stdin.readline()
b = np.linspace(0, 1, 50, dtype=np.float32)
results = []
for kernel in kernels:
    a = np.zeros_like(b)
    kernel[a.size](a, b)
    results.append(a.tobytes().hex())
print(json.dumps({"compiled": compiler.COUNTS["compiled"], "results": results}))
"""


def cold(folder: Path, processes: int = 32, kernels: int = KERNELS) -> str:
    """Processes start at once on an empty cache: each kernel is compiled once in all."""
    environment = {**os.environ, "KHALJIT_CACHE_DIR": str(folder), "KHALJIT_DEVICE": "cpu"}
    environment.pop("KHALJIT_CACHE", None)
    script = folder.with_name("cold.py")
    script.write_text(COLD)
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(script), str(kernels)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        begun = time.monotonic()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [json.loads(process.communicate(timeout=600)[0]) for process in started]
        seconds = time.monotonic() - begun
    finally:
        for process in started:
            process.kill()
            process.communicate()
    compiled = sum(output["compiled"] for output in outputs)
    assert all(output["results"] == outputs[0]["results"] for output in outputs)
    assert compiled == kernels, f"{compiled} compilations of {kernels} kernels"
    return f"{processes} processes, {kernels} kernels: {compiled} compilations, {seconds:.1f} s"


# -- everything at once ------------------------------------------------------------------------

STORM: Final = """
import sys
from pathlib import Path
from tests.cache_campaign import act
act(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
"""


def storm(folder: Path, processes: int = 8, seconds: float = 60.0, seed: int = 4) -> str:
    """Processes get, put, evict, delete and clear at random, and are killed at random."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    counts: Counter[str] = Counter()

    def start() -> subprocess.Popen[str]:
        counts["started"] += 1
        arguments = [str(folder), str(rng.randrange(1 << 30)), str(deadline - time.monotonic())]
        return subprocess.Popen(
            [sys.executable, "-c", STORM, *arguments], stdout=subprocess.PIPE, text=True
        )

    running = [start() for _ in range(processes)]
    while deadline - time.monotonic() > 2:
        time.sleep(min(rng.expovariate(2.0), 2.0))
        victim = running.pop(rng.randrange(processes))
        victim.kill()
        counts["killed"] += 1
        victim.communicate()
        running.append(start())
    for process in running:
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0
        counts.update(json.loads(output))
    read_all(folder)
    with counting() as warned:
        for number in range(NUMBERS):
            store = Store.open(folder, wait=5)
            store.put(numbered(number), artifact(number))
    assert not warned, warned
    assert read_all(folder) == NUMBERS
    figures = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return f"{processes} processes for {seconds:.0f} s: {figures}"


def act(folder: Path, seed: int, seconds: float) -> None:
    """What one process of the storm does."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    with counting() as warned:
        while time.monotonic() < deadline:
            store = Store.open(folder, limit=rng.choice([600_000, 1 << 30]), wait=1)
            for _ in range(rng.randrange(1, 20)):
                counts[_act(store, rng, rng.randrange(NUMBERS))] += 1
    counts.update({f"warnings ({reason[:40]}": count for reason, count in warned.items()})
    print(json.dumps(counts))


def _act(store: Store, rng: random.Random, number: int) -> str:
    what = rng.choices(
        ["gets", "puts", "builds", "lists", "deletions", "clears"], [40, 20, 20, 3, 2, 0.3]
    )[0]
    if what == "gets":
        found = store.get(numbered(number), none)
        assert found is None or found == artifact(number)
    elif what == "puts":
        store.put(numbered(number), artifact(number))
    elif what == "builds":
        assert store.obtain(numbered(number), none, lambda: artifact(number)) == artifact(number)
    elif what == "lists":
        for entry in Catalog(store).entries():
            assert entry.size
    elif what == "deletions":
        for entry in Catalog(store).find(numbered(number)):
            Catalog(store).remove(entry)
    else:
        store.clear()
    return what


FAULTS: Final[Mapping[str, Callable[[Path], str]]] = {
    "killed": killed,
    "flipped": flipped,
    "truncated": truncated,
    "filled": filled,
    "out of files": lambda folder: filled(folder, options="size=64m,nr_inodes=60"),
    "cold": cold,
    "storm": storm,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that are named, or all; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    chosen = parser.parse_args(arguments).faults or list(FAULTS)
    failed = 0
    for name in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = FAULTS[name](Path(folder) / "cache")
            except AssertionError as error:
                said, failed = f"FAILED: {error}", failed + 1
        print(f"{name}: {said} [{time.monotonic() - began:.0f} s]", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
