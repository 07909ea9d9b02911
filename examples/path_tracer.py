"""A path tracer: spheres under a sky, light that bounces at random, one invocation per pixel."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import khaljit as kj

WIDTH, HEIGHT, SAMPLES, BOUNCES = 320, 200, 32, 6
FAR = 1e9
# Centre and radius of each sphere; colour, and how much of a mirror it is.
SPHERES = np.array(
    [
        [0, -1000, 0, 1000],
        [0, 1, 0, 1],
        [-2.2, 1, 0.3, 1],
        [2.2, 1, -0.3, 1],
        [0.9, 0.35, 1.6, 0.35],
    ],
    np.float32,
)
COLOURS = np.array(
    [
        [0.5, 0.5, 0.5, 0],
        [0.9, 0.9, 0.9, 1],
        [0.8, 0.25, 0.2, 0],
        [0.2, 0.35, 0.8, 0.4],
        [0.9, 0.7, 0.2, 0],
    ],
    np.float32,
)


class Hit(NamedTuple):
    """The nearest sphere along a ray, and how far away it is."""

    distance: float
    sphere: int


def nearest(spheres: kj.Array1[kj.vec4], origin: kj.vec3, direction: kj.vec3) -> Hit:
    """The sphere that a ray meets first; ``FAR`` away if there is none."""
    hit = Hit(FAR, 0)
    for k in range(spheres.size):
        sphere = spheres[k]
        away = origin - sphere.xyz
        b = kj.dot(away, direction)
        discriminant = b * b - kj.dot(away, away) + sphere.w * sphere.w
        if discriminant > 0.0:
            distance = -b - math.sqrt(discriminant)
            if 1e-3 < distance < hit.distance:
                hit = Hit(distance, k)
    return hit


def on_sphere(u: float, v: float) -> kj.vec3:
    """A direction, from two numbers in [0, 1)."""
    z, angle = 1.0 - 2.0 * u, 2.0 * math.pi * v
    r = math.sqrt(max(0.0, 1.0 - z * z))
    return kj.vec3(r * math.cos(angle), r * math.sin(angle), z)


@kj.jit
def render(
    image: kj.Array2[kj.vec3],
    spheres: kj.Array1[kj.vec4],
    colours: kj.Array1[kj.vec4],
    samples: kj.i32,
) -> None:
    """The mean of some paths through each pixel."""
    row, column = kj.index(2)
    height, width = image.shape
    total = kj.vec3(0.0)
    for sample in range(samples):
        jitter = kj.random_uniform(7, column, row, sample, dtype=kj.vec2)
        x = (column + jitter.x - 0.5 * width) / height
        y = (0.5 * height - row - jitter.y) / height
        origin, direction = kj.vec3(0.0, 1.6, 6.5), kj.normalize(kj.vec3(x, y - 0.12, -1.1))
        light = kj.vec3(1.0)
        for bounce in range(BOUNCES):
            hit = nearest(spheres, origin, direction)
            if hit.distance == FAR:
                blue = 0.5 * direction.y + 0.5
                total += light * kj.mix(kj.vec3(1.0), kj.vec3(0.45, 0.65, 1.0), blue)
                break
            origin += hit.distance * direction
            normal = kj.normalize(origin - spheres[hit.sphere].xyz)
            colour = colours[hit.sphere]
            light *= colour.xyz
            u = kj.random_uniform(8 + bounce, column, row, sample, dtype=kj.vec3)
            if u.z < colour.w:
                direction = kj.reflect(direction, normal)
            else:
                direction = kj.normalize(normal + 0.999 * on_sphere(u.x, u.y))
    image[row, column] = total / samples


def picture(height: int, width: int, samples: int) -> NDArray[np.float32]:
    """The scene, linear light in red, green and blue."""
    image = np.empty((height, width, 3), np.float32)
    render[width, height](image, SPHERES, COLOURS, samples)
    return image


def main() -> None:
    """A picture in the portable pixel map format, which needs no library."""
    image = picture(HEIGHT, WIDTH, SAMPLES)
    levels = (255.0 * np.sqrt(np.clip(image, 0.0, 1.0))).astype(np.uint8)
    Path("spheres.ppm").write_bytes(b"P6 %d %d 255\n" % (WIDTH, HEIGHT) + levels.tobytes())
    print(f"spheres.ppm: {SAMPLES} paths a pixel, mean light {image.mean():.3f}")


if __name__ == "__main__":
    main()
