"""The faults of `cache_campaign`, in small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import cache_campaign as campaign

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


pytestmark = pytest.mark.usefixtures("no_cache_settings")


@forks
def test_no_reader_loads_what_a_killed_writer_left(folder: Path) -> None:
    """CHIP-SPV/chipStar#1081."""
    campaign.killed(folder, times=15)


def test_every_changed_byte_is_found(folder: Path) -> None:
    campaign.flipped(folder, step=7)


def test_a_cut_index_costs_no_entry(folder: Path) -> None:
    campaign.truncated(folder, times=5)


@pytest.mark.skipif(sys.platform == "win32", reason="neither tmpfs nor limits on files")
@pytest.mark.parametrize("options", ["size=4m", "size=64m,nr_inodes=60"])
def test_a_full_disk_stops_nothing(folder: Path, options: str) -> None:
    """NixOS/nixpkgs#453992, DiamondLightSource/httomo#243."""
    campaign.filled(folder, options=options)


def test_processes_that_start_cold_compile_each_kernel_once(folder: Path) -> None:
    """tenstorrent/tt-metal#55009, NVIDIA/warp#1284."""
    campaign.cold(folder, processes=4, kernels=3)


def test_processes_that_do_everything_at_once_agree(folder: Path) -> None:
    campaign.storm(folder, processes=3, seconds=4)
