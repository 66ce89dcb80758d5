"""`rhino cluster calibrate` in a job: real processes measure together, and the first writes what their links are."""

from __future__ import annotations

from pathlib import Path

import processes

from rhino.machine import Cluster

WORKER = Path(__file__).with_name("calibrate_worker.py")


def test_a_job_measures_its_hosts_and_what_joins_them(tmp_path: Path) -> None:
    output = processes.run(WORKER, 2, [str(tmp_path)], devices=2)
    # Process 0 alone says and writes it.
    assert [path.name for path in tmp_path.iterdir()] == ["0.yaml"]
    assert '"num_devices": 4' in output[0]
    assert "num_devices" not in output[1]
    cluster = Cluster.load(tmp_path / "0.yaml")
    assert (cluster.name, cluster.hosts, cluster.devices_per_host) == ("job:2", 2, 2)
    assert [level.size for level in cluster.levels] == [2, 4]
    link = cluster.inter_host
    assert link is not None
    assert 1e4 < link.bandwidth_bytes_s < 1e12
    assert sorted(link.protocols) == ["all-gather", "all-reduce", "all-to-all", "collective-permute"]
    assert cluster.source_of("levels.inter-host")
    assert cluster.levels[0].is_memory
