"""Blocks of devices, the links between them, and the shapes of pipelines over a cluster."""

from __future__ import annotations

import pytest

from rhino.cluster import Cluster
from rhino.errors import RhinoError
from rhino.joint.candidates import Shape, shapes, widths
from rhino.joint.placement import Placement, part_of

V100S = Cluster.load("p3.16xlarge:8")
NIC_BYTES_S, NVLINK_BYTES_S = 3.125e9, 150e9


def test_part_of_a_host_keeps_the_link_inside_it() -> None:
    part = part_of(V100S, 4)
    assert (part.hosts, part.devices_per_host, part.num_devices) == (1, 4, 4)
    assert part.intra_host is not None and part.intra_host.bandwidth_bytes_s == NVLINK_BYTES_S


def test_whole_hosts_keep_the_link_between_them() -> None:
    part = part_of(V100S, 16)
    assert (part.hosts, part.devices_per_host) == (2, 8)
    assert part.inter_host is not None and part.inter_host.size == 16


def test_transfers_cross_the_nic_or_stay_in_the_host() -> None:
    placed = Placement.of(V100S, 16)
    nbytes = 3.125e9
    assert placed.same_host(0, 1) and not placed.same_host(1, 2)
    # Inside, four devices send a quarter each; across, the host's one NIC carries all.
    assert placed.transfer_s(0, 1, nbytes) == pytest.approx(nbytes / (4 * NVLINK_BYTES_S), rel=1e-3)
    assert placed.transfer_s(1, 2, nbytes) == pytest.approx(1.0, rel=1e-3)
    assert placed.transfer_s(0, 0, nbytes) == 0.0


def test_stages_of_several_hosts_send_by_all_their_nics() -> None:
    placed = Placement.of(V100S, 2)
    assert list(placed.hosts_of(1)) == [4, 5, 6, 7]
    assert placed.transfer_s(0, 1, 3.125e9) == pytest.approx(0.25, rel=1e-3)


def test_blocks_of_one_host_share_its_nic() -> None:
    placed = Placement.of(V100S, 16)
    assert placed.link(0, 2) == placed.link(1, 3)  # both leave host 0 for host 1
    assert placed.link(0, 1) != placed.link(1, 0)
    assert placed.link(1, 2) != placed.link(2, 1)


@pytest.mark.parametrize("groups", [0, 3, 128])
def test_devices_that_do_not_divide_are_refused(groups: int) -> None:
    with pytest.raises(RhinoError, match="do not divide the 64 devices"):
        Placement.of(V100S, groups)


def test_widths_are_parts_of_hosts_or_hosts() -> None:
    assert widths(V100S) == [1, 2, 4, 8, 16, 32, 64]
    assert widths(Cluster.load("dgx-h100:3")) == [1, 2, 4, 8, 24]


def test_shapes_use_every_device_and_divide_the_batch() -> None:
    found = list(shapes(V100S, 32))
    assert Shape((4,) * 16, 1, 32) in found
    assert len(set(found)) == len(found)
    for shape in found:
        assert shape.stages * shape.replicas * shape.width == 64
        assert 32 % shape.slices == 0 and shape.slices % shape.replicas == 0


def test_what_the_user_asks_for_is_kept() -> None:
    found = list(shapes(V100S, 32, stages=4, microbatches=8))
    assert found and all(s.stages == 4 and s.microbatches == 8 for s in found)
