"""The workloads in CUDA C++, as one would write them: the peers of ``cuda_kernels.py``.

Each does what the khaljit kernel of its name does, in the same order, with the same blocks.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SOURCE"]

SOURCE: Final = r"""
extern "C" {

__global__ void saxpy(const float* __restrict__ x, float* __restrict__ y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void saxpy4(const float4* __restrict__ x, float4* __restrict__ y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 u = x[i], v = y[i];
        v.x = a * u.x + v.x; v.y = a * u.y + v.y; v.z = a * u.z + v.z; v.w = a * u.w + v.w;
        y[i] = v;
    }
}

__global__ void copy4(const float4* __restrict__ x, float4* __restrict__ y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

__global__ void matmul(const float* __restrict__ a, const float* __restrict__ b,
                       float* __restrict__ out, int n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= n || row >= n) return;
    float total = 0.0f;
    for (int k = 0; k < n; k++) total += a[row * n + k] * b[k * n + column];
    out[row * n + column] = total;
}

#define TILE 16
__global__ void matmul_tiled(const float* __restrict__ a, const float* __restrict__ b,
                             float* __restrict__ out, int n) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float total = 0.0f;
    for (int start = 0; start < n; start += TILE) {
        tile_a[y][x] = a[row * n + start + x];
        tile_b[y][x] = b[(start + y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; k++) total += tile_a[y][k] * tile_b[k][x];
        __syncthreads();
    }
    out[row * n + column] = total;
}

__global__ void nbody(const float4* __restrict__ bodies, float4* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 me = bodies[i];
    float px = 0.0f, py = 0.0f, pz = 0.0f;
    for (int j = 0; j < n; j++) {
        float4 other = bodies[j];
        float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
        float inverse = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
        float pull = other.w * (inverse * inverse * inverse);
        px += dx * pull; py += dy * pull; pz += dz * pull;
    }
    out[i] = make_float4(px, py, pz, 0.0f);
}

__global__ void mandelbrot(int* __restrict__ out, int width, int height, int limit) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float cr = -2.0f + 3.0f * x / width, ci = -1.5f + 3.0f * y / height;
    float zr = 0.0f, zi = 0.0f;
    int count = 0;
    while (count < limit && zr * zr + zi * zi <= 4.0f) {
        float next = zr * zr - zi * zi + cr;
        zi = 2.0f * zr * zi + ci;
        zr = next;
        count++;
    }
    out[y * width + x] = count;
}

__global__ void total(const float* __restrict__ values, float* __restrict__ out, int n) {
    __shared__ float sums[32];
    float mine = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += values[i];
    for (int by = 16; by; by /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, by);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0.0f;
        for (int by = 16; by; by /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, by);
        if (threadIdx.x == 0) atomicAdd(out, mine);
    }
}

__global__ void histogram(const unsigned char* __restrict__ levels, unsigned* __restrict__ bins,
                          int n) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&own[levels[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

__global__ void black_scholes(const float* __restrict__ price, const float* __restrict__ strike,
                              const float* __restrict__ years, float* __restrict__ call,
                              float* __restrict__ put, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = price[i], k = strike[i], t = years[i];
    float spread = 0.3f * sqrtf(t);
    float d1 = (logf(s / k) + (0.02f + 0.5f * 0.3f * 0.3f) * t) / spread, d2 = d1 - spread;
    float n1 = 0.5f + 0.5f * erff(d1 * 0.7071067811865476f);
    float n2 = 0.5f + 0.5f * erff(d2 * 0.7071067811865476f);
    float later = k * expf(-0.02f * t);
    call[i] = s * n1 - later * n2;
    put[i] = later * (1.0f - n2) - s * (1.0f - n1);
}

}
"""
