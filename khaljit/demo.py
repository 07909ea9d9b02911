"""A pipeline of kernels on a photograph, on every device, each stage checked against SciPy.

Luma, a separable Gaussian blur through tiles in shared memory, the magnitude of the Sobel
gradient, a histogram of 256 bins by atomics, and its equalisation. The float kernels leave out
contraction, which GPUs do or do not do: so all devices give the same picture, bit for bit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.ndimage
import skimage
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import khaljit as kj
from khaljit.backends.base import Device
from khaljit.jit import Kernel
from khaljit.tracer.errors import ArgumentValueError, KhaljitError

__all__ = ["run"]

SIGMA: Final = 2.0
RADIUS: Final = 8  # four sigma, as SciPy truncates
TILE: Final = 64
BINS: Final = 256
NOT_SHOWN: Final = ("interpreter", "python", "null")  # two take minutes, one computes nothing
TOLERANCE: Final = 2e-5  # f32 against SciPy's f64, on values from 0 to 1


@kj.jit(contract=False)
def luma(rgb: kj.Array3[kj.u8], out: kj.Array2[kj.f32]) -> None:
    """Brightness from 0 to 1 by the weights of ITU-R BT.601."""
    y, x = kj.index(2)
    red, green, blue = kj.f32(rgb[y, x, 0]), kj.f32(rgb[y, x, 1]), kj.f32(rgb[y, x, 2])
    out[y, x] = (0.299 * red + 0.587 * green + 0.114 * blue) * (1.0 / 255.0)


@kj.jit(workgroup=(TILE, 4), contract=False)
def blur_rows(image: kj.Array2[kj.f32], weights: kj.Array1[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """A row of a tile with its margins goes to shared memory once, and is read by all."""
    tile = kj.shared(kj.f32, (4, TILE + 2 * RADIUS))
    height, width = image.shape
    column, row = kj.local_id(0), kj.local_id(1)
    start, y = kj.workgroup_id(0) * TILE - RADIUS, min(kj.global_id(1), height - 1)
    for place in range(column, TILE + 2 * RADIUS, TILE):
        tile[row, place] = image[y, kj.clamp(start + place, 0, width - 1)]
    kj.barrier()
    total = 0.0
    for k in kj.unroll(range(2 * RADIUS + 1)):
        total += weights[k] * tile[row, column + k]
    out[kj.global_id(1), kj.global_id(0)] = total


@kj.jit(workgroup=(16, 16), contract=False)
def blur_columns(
    image: kj.Array2[kj.f32], weights: kj.Array1[kj.f32], out: kj.Array2[kj.f32]
) -> None:
    """The same along the columns."""
    tile = kj.shared(kj.f32, (16 + 2 * RADIUS, 16))
    height, width = image.shape
    column, row = kj.local_id(0), kj.local_id(1)
    start, x = kj.workgroup_id(1) * 16 - RADIUS, min(kj.global_id(0), width - 1)
    for place in range(row, 16 + 2 * RADIUS, 16):
        tile[place, column] = image[kj.clamp(start + place, 0, height - 1), x]
    kj.barrier()
    total = 0.0
    for k in kj.unroll(range(2 * RADIUS + 1)):
        total += weights[k] * tile[row + k, column]
    out[kj.global_id(1), kj.global_id(0)] = total


@kj.jit(contract=False)
def sobel(image: kj.Array2[kj.f32], out: kj.Array2[kj.f32]) -> None:
    """The magnitude of the gradient, the edge pixels repeated outwards."""
    y, x = kj.index(2)
    height, width = image.shape
    up, down = max(y - 1, 0), min(y + 1, height - 1)
    left, right = max(x - 1, 0), min(x + 1, width - 1)
    across = (image[up, right] - image[up, left]) + (image[down, right] - image[down, left])
    across += 2.0 * (image[y, right] - image[y, left])
    along = (image[down, left] - image[up, left]) + (image[down, right] - image[up, right])
    along += 2.0 * (image[down, x] - image[up, x])
    out[y, x] = kj.sqrt(across * across + along * along)


@kj.jit
def quantise(image: kj.Array2[kj.f32], out: kj.Array2[kj.u8]) -> None:
    """Values from 0 to 1 as whole numbers from 0 to 255."""
    y, x = kj.index(2)
    out[y, x] = kj.u8(kj.round(kj.clamp(image[y, x], 0.0, 1.0) * 255.0))


@kj.jit(workgroup=BINS)
def histogram(levels: kj.Array1[kj.u8], bins: kj.Array1[kj.u32]) -> None:
    """Each workgroup counts in shared memory, and adds its counts to the whole at the end."""
    own = kj.shared(kj.u32, BINS)
    me = kj.local_index()
    own[me] = 0
    kj.barrier()
    for i in kj.grid_stride(levels.size):
        kj.atomic_add(own, levels[i], 1)
    kj.barrier()
    kj.atomic_add(bins, me, own[me])


@kj.jit(workgroup=BINS)
def lookup(bins: kj.Array1[kj.u32], table: kj.Array1[kj.u8]) -> None:
    """The equalising map: the share of pixels up to each level, from the first that occurs."""
    me = kj.local_index()
    count = bins[me]
    below = kj.workgroup_inclusive_add(count)
    total = kj.workgroup_add(count)
    first = kj.workgroup_min(kj.select(count > 0, below, total))
    table[me] = kj.u8(((below - first) * 255) // kj.max(total - first, 1))


@kj.jit
def apply(levels: kj.Array2[kj.u8], table: kj.Array1[kj.u8], out: kj.Array2[kj.u8]) -> None:
    """Every pixel through the map."""
    y, x = kj.index(2)
    out[y, x] = table[levels[y, x]]


# Stages: a name, kernels and their arguments on a device, and SciPy's or NumPy's way.


def _weights() -> np.ndarray[Any, Any]:
    ramp = np.arange(-RADIUS, RADIUS + 1)
    bell = np.exp(-0.5 * (ramp / SIGMA) ** 2)
    return np.asarray(bell / bell.sum(), np.float32)


def _sobel(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    across = scipy.ndimage.sobel(image, axis=1, mode="nearest")
    along = scipy.ndimage.sobel(image, axis=0, mode="nearest")
    return np.asarray(np.hypot(across, along))


def _equalised(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    bins = np.bincount(levels.ravel(), minlength=BINS)
    below = np.cumsum(bins)
    first = below[np.argmax(bins > 0)]
    table = ((below - first) * 255) // max(levels.size - first, 1)
    return np.asarray(np.where(bins > 0, table, 0)[levels], np.uint8)


def run(image: Path | None, on: str | None, output: Path, console: Console) -> int:
    """Run the demo; gives the exit status: 0 when every stage agrees on every device."""
    rgb = _photograph(image)
    output.mkdir(parents=True, exist_ok=True)
    console.print(f"photograph of {rgb.shape[1]} x {rgb.shape[0]} pixels, pictures in {output}/")
    agreed, compiled, cached = True, 0, 0
    for kind, found in ({on: _named(on)} if on else kj.devices()).items():
        if isinstance(found, KhaljitError):
            console.print(f"[bold]{kind}[/bold]: not here: {escape(str(found))}")
        elif on or kind not in NOT_SHOWN:
            with kj.use(found):
                ok, new, old = _on_device(found, rgb, output, console)
            agreed, compiled, cached = agreed and ok, compiled + new, cached + old
    if compiled:
        console.print(f"{compiled} kernels compiled, {cached} from the cache")
    else:
        console.print(f"nothing compiled: all {cached} kernels came from the cache")
    return 0 if agreed else 1


def _named(name: str) -> Device | KhaljitError:
    return kj.device(name)


def _photograph(image: Path | None) -> np.ndarray[Any, Any]:
    path = image or Path(skimage.__file__).parent / "data" / "astronaut.png"
    try:
        with Image.open(path) as opened:
            return np.asarray(opened.convert("RGB")).copy()
    except OSError as error:
        raise ArgumentValueError(
            f"{path} cannot be read as an image: {error}", mend="give a PNG or JPEG file"
        ) from None


def _on_device(
    device: Device, rgb: np.ndarray[Any, Any], output: Path, console: Console
) -> tuple[bool, int, int]:
    """All stages on one device; whether they agree, and how many kernels were compiled or not."""
    shape = rgb.shape[:2]
    table = Table("stage", "time", "SciPy", "largest difference", "code", title=str(device))
    source, weights = device.array(rgb), device.array(_weights())
    gray, rows, blurred, edges = (device.empty(shape) for _ in range(4))
    levels, flat = device.empty(shape, kj.u8), device.empty(shape, kj.u8)
    bins, map_ = device.zeros(BINS, kj.u32), device.empty(BINS, kj.u8)
    grid = (shape[1], shape[0])

    def equalise() -> None:
        bins.fill(0)
        histogram[BINS * 64](_flat(levels), bins)
        lookup[BINS](bins, map_)
        apply[grid](levels, map_, flat)

    def blur() -> None:
        blur_rows[grid](gray, weights, rows)
        blur_columns[grid](rows, weights, blurred)

    stages: list[tuple[str, Callable[[], None], kj.Array[Any], Callable[[], Any], list[Kernel]]] = [
        ("luma", lambda: luma[grid](source, gray), gray, lambda: _luma(rgb), [luma]),
        (
            "Gaussian blur",
            blur,
            blurred,
            lambda: scipy.ndimage.gaussian_filter(
                gray.numpy().astype(np.float64), SIGMA, mode="nearest", radius=RADIUS
            ),
            [blur_rows, blur_columns],
        ),
        (
            "Sobel magnitude",
            lambda: sobel[grid](blurred, edges),
            edges,
            lambda: _sobel(blurred.numpy().astype(np.float64)),
            [sobel],
        ),
        (
            "256 levels",
            lambda: quantise[grid](edges, levels),
            levels,
            lambda: np.rint(np.clip(edges.numpy(), 0, 1) * np.float32(255)).astype(np.uint8),
            [quantise],
        ),
        (
            "histogram, equalised",
            equalise,
            flat,
            lambda: _equalised(levels.numpy()),
            [histogram, lookup, apply],
        ),
    ]
    agreed, compiled, cached = True, 0, 0
    for name, launch, result, reference, kernels in stages:
        counts = [kernel.cache_info() for kernel in kernels]
        launch()
        device.synchronize()
        new = sum(
            kernel.cache_info()["compiled"] - before["compiled"]
            for kernel, before in zip(kernels, counts, strict=True)
        )
        seconds, _ = _timed(lambda launch=launch: (launch(), device.synchronize()))  # type: ignore[misc]
        ours = result.numpy()
        scipy_seconds, expected = _timed(reference)
        difference = float(np.abs(ours.astype(np.float64) - expected).max())
        agreed = agreed and difference <= (TOLERANCE if ours.dtype == np.float32 else 0)
        compiled, cached = compiled + new, cached + len(kernels) - new
        table.add_row(
            name,
            f"{seconds * 1e3:.2f} ms",
            f"{scipy_seconds * 1e3:.2f} ms",
            f"{difference:.1e}",
            f"{new} compiled" if new else "cached",
        )
        _save(output / f"{device.kind}-{name.split(',')[0].replace(' ', '-').lower()}.png", ours)
    console.print(table)
    digest = hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()
    verdict = "agrees with SciPy" if agreed else "[bold red]DIFFERS from SciPy[/bold red]"
    console.print(f"result {digest}, {verdict}")
    return agreed, compiled, cached


def _flat(array: kj.Array[Any]) -> kj.Array[Any]:
    """A contiguous array with one axis."""
    return kj.Array(array.device, array.buffer, array.dtype, (array.size,), (array.itemsize,))


def _luma(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(rgb @ np.array([0.299, 0.587, 0.114]) / 255.0)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of three runs, in seconds, and the result."""
    best, result = float("inf"), None
    for _ in range(3):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def _save(path: Path, values: np.ndarray[Any, Any]) -> None:
    levels = values if values.dtype == np.uint8 else np.clip(values * 255, 0, 255).astype(np.uint8)
    Image.fromarray(levels).save(path)
