"""The Mandelbrot set: a divergent loop, left early by most pixels."""

from pathlib import Path

import numpy as np

import khaljit as kj


@kj.jit
def mandelbrot(out: kj.Array2[kj.i32], limit: kj.i32) -> None:
    """Steps until the orbit of each pixel escapes, at most ``limit``."""
    y, x = kj.index(2)
    height, width = out.shape
    if x >= width or y >= height:
        return
    cr = x / width * 3.5 - 2.5
    ci = y / height * 2.0 - 1.0
    zr, zi, count = 0.0, 0.0, 0
    while count < limit:
        if zr * zr + zi * zi > 4.0:
            break
        zi, zr, count = 2.0 * zr * zi + ci, zr * zr - zi * zi + cr, count + 1
    out[y, x] = count


def main() -> None:
    """A picture in the portable gray map format, which needs no library."""
    out = np.zeros((480, 840), np.int32)
    mandelbrot[kj.over(out)](out, 200)
    levels = (out * 255 // 200).astype(np.uint8)
    Path("mandelbrot.pgm").write_bytes(b"P5 840 480 255\n" + levels.tobytes())
    print(f"mandelbrot.pgm: {(out == 200).mean():.1%} of the pixels never escape")


if __name__ == "__main__":
    main()
