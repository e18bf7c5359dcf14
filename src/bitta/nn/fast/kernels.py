"""Triton kernels for batch normalisation and dropout of several stochastic passes at once.

A tensor is (passes, rows, channels), with channels adjacent in memory. Each pass is normalised by
its own statistics. Sums are computed over slices of the rows and added in a fixed order, so that
the result is the same every time.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows", "per_slice"])
def moments(x, sums, n_rows, n_channels, per_slice, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Sum x and x² per slice, both relative to the first row: (slices, passes, 2, channels)."""
    number, part = tl.program_id(0), tl.program_id(2)
    n_passes = tl.num_programs(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n_channels
    base = x + number.to(tl.int64) * n_rows * n_channels
    pivot = tl.load(base + channel, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    stop = min((part + 1) * per_slice, n_rows)
    for start in range(part * per_slice, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < stop)[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * n_channels + channel[None, :]
        value = tl.load(base + place, mask=mask, other=0.0).to(tl.float32) - pivot[None, :]
        value = tl.where(mask, value, 0.0)
        first += value
        second += value * value
    out = sums + ((part * n_passes + number) * 2) * n_channels + channel
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + n_channels, tl.sum(second, 0), mask=inside)


@triton.jit(do_not_specialize=["n_slices"])
def add_slices(sums, totals, n_channels, n_slices, SLICES: tl.constexpr, CHANNELS: tl.constexpr):
    """Add the sums of all slices in a fixed order: (passes, 2, channels)."""
    number = tl.program_id(0)
    n_passes = tl.num_programs(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n_channels
    first = tl.zeros((CHANNELS,), tl.float32)
    second = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, n_slices, SLICES):
        part = start + tl.arange(0, SLICES)
        mask = (part < n_slices)[:, None] & inside[None, :]
        place = sums + ((part * n_passes + number) * 2)[:, None] * n_channels + channel[None, :]
        first += tl.sum(tl.load(place, mask=mask, other=0.0), 0)
        second += tl.sum(tl.load(place + n_channels, mask=mask, other=0.0), 0)
    out = totals + (number * 2) * n_channels + channel
    tl.store(out, first, mask=inside)
    tl.store(out + n_channels, second, mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def normalise(
    x, totals, weight, bias, out, statistics, n_rows, n_channels, eps,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute (x - mean) / deviation * weight + bias. Store mean and 1 / deviation of each pass."""
    block, number = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n_channels
    base = number.to(tl.int64) * n_rows * n_channels
    total = totals + (number * 2) * n_channels + channel
    first = tl.load(total, mask=inside, other=0.0) / n_rows
    second = tl.load(total + n_channels, mask=inside, other=0.0) / n_rows
    mean = tl.load(x + base + channel, mask=inside, other=0.0).to(tl.float32) + first
    inverse = tl.rsqrt(tl.maximum(second - first * first, 0.0) + eps)
    scale = inverse * tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0) - mean * scale
    if block == 0:
        tl.store(statistics + (number * 2) * n_channels + channel, mean, mask=inside)
        tl.store(statistics + (number * 2 + 1) * n_channels + channel, inverse, mask=inside)
    row = block * ROWS + tl.arange(0, ROWS)
    mask = (row < n_rows)[:, None] & inside[None, :]
    place = base + row.to(tl.int64)[:, None] * n_channels + channel[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, value * scale[None, :] + shift[None, :], mask=mask)


@triton.jit(do_not_specialize=["n_rows", "per_slice"])
def gradient_moments(
    x, gradient, statistics, sums, n_rows, n_channels, per_slice,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sum the gradient, and the gradient times normalised x, per slice."""
    number, part = tl.program_id(0), tl.program_id(2)
    n_passes = tl.num_programs(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n_channels
    base = number.to(tl.int64) * n_rows * n_channels
    mean = tl.load(statistics + (number * 2) * n_channels + channel, mask=inside, other=0.0)
    inverse = tl.load(statistics + (number * 2 + 1) * n_channels + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    stop = min((part + 1) * per_slice, n_rows)
    for start in range(part * per_slice, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < stop)[:, None] & inside[None, :]
        place = base + row.to(tl.int64)[:, None] * n_channels + channel[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        slope = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
        first += slope
        second += slope * (value - mean[None, :])
    out = sums + ((part * n_passes + number) * 2) * n_channels + channel
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + n_channels, tl.sum(second, 0) * inverse, mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def normalise_backward(
    x, gradient, statistics, totals, weight, out, n_rows, n_channels,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x. Mean and variance also depend on x."""
    block, number = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < n_channels
    base = number.to(tl.int64) * n_rows * n_channels
    known = (number * 2) * n_channels + channel
    first = tl.load(totals + known, mask=inside, other=0.0) / n_rows
    second = tl.load(totals + known + n_channels, mask=inside, other=0.0) / n_rows
    mean = tl.load(statistics + known, mask=inside, other=0.0)
    inverse = tl.load(statistics + known + n_channels, mask=inside, other=0.0)
    scale = inverse * tl.load(weight + channel, mask=inside, other=0.0)
    row = block * ROWS + tl.arange(0, ROWS)
    mask = (row < n_rows)[:, None] & inside[None, :]
    place = base + row.to(tl.int64)[:, None] * n_channels + channel[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    slope = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    normal = (value - mean[None, :]) * inverse[None, :]
    correction = first[None, :] + normal * second[None, :]
    tl.store(out + place, (slope - correction) * scale[None, :], mask=mask)


@triton.jit
def drop(x, words, out, n, stride, offset, level, scale, FANNED: tl.constexpr, SIZE: tl.constexpr):
    """Multiply x by `scale` if its word is at least `level`, else by 0; `stride` words per pass."""
    number = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = place < n
    word = tl.load(words + number * stride + offset + place, mask=mask, other=0)
    source = x + (number * n if FANNED else 0) + place
    value = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + number * n + place, tl.where(word >= level, value * scale, 0.0), mask=mask)


@triton.jit
def drop_backward(gradient, words, out, n, stride, offset, level, scale, PASSES: tl.constexpr,
           SIZE: tl.constexpr):  # fmt: skip
    """Add the gradients of the passes in which the same x was dropped."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = place < n
    total = tl.zeros((SIZE,), tl.float32)
    for number in tl.static_range(PASSES):
        word = tl.load(words + place + (offset + number * stride.to(tl.int64)), mask=mask, other=0)
        slope = tl.load(gradient + place + number * n.to(tl.int64), mask=mask, other=0.0)
        slope = slope.to(tl.float32)
        total += tl.where(word >= level, slope, 0.0)
    tl.store(out + place, total * scale, mask=mask)
