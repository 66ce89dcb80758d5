"""`Cluster.load`: presets and their values, files, specs that name nothing, and every way a file can be wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from damage import damaged, is_of, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.catalog import preset_names
from rhino.machine.schema import read_cluster
from rhino.schema.yaml_text import from_yaml

GOOD = """\
name: lab
hosts: 2
devices_per_host: 4
device:
  kind: h100
  xla_target: h100
  peak_flops:
    f32: 67e12
    bf16: 989e12
  memory_bytes: 80e9
  memory_bandwidth_bytes_s: 3.35e12
levels:
  - name: intra-host
    size: host
    bandwidth_bytes_s: 450e9
    latency_s: 2e-6
  - name: inter-host
    bandwidth_bytes_s: 50e9
    latency_s: 4e-6
    nics: 2
sources:
  device: datasheet
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "lab.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_preset_loads_alone_and_on_many_hosts() -> None:
    assert len(preset_names()) >= 8
    for name in preset_names():
        one, many = Cluster.load(name), Cluster.load(f"{name}:16")
        assert one.name == f"{name}:1"
        assert many.name == f"{name}:16"
        assert many.num_devices == 16 * one.devices_per_host
        assert many.inter_host is not None
        assert Cluster.load(f"{name}:1") == one


def test_every_value_of_every_preset_has_a_source() -> None:
    for name in preset_names():
        cluster = Cluster.load(name)
        data = cluster.to_dict()
        paths = ["devices_per_host", "reduce_scatter"]
        paths += [f"device.{key}" for key in data["device"]]
        paths += [f"device.peak_flops.{key}" for key in data["device"]["peak_flops"]]
        paths += [f"levels.{level['name']}.{key}" for level in data["levels"] for key in level]
        assert [path for path in paths if not cluster.source_of(path)] == [], name


@pytest.mark.parametrize(
    ("name", "per_host", "bf16", "gib", "intra", "nics", "nic"),
    [
        ("p3.8xlarge", 4, 15.7e12, 15.8, 100e9, 1, 10e9 / 8),
        ("p3.16xlarge", 8, 15.7e12, 15.8, 150e9, 1, 25e9 / 8),
        ("dgx-a100", 8, 312e12, 79.3, 300e9, 8, 200e9 / 8),
        ("dgx-a100-40g", 8, 312e12, 39.4, 300e9, 8, 200e9 / 8),
        ("dgx-h100", 8, 989.4e12, 79.1, 450e9, 8, 400e9 / 8),
        ("h200", 8, 989.4e12, 141.0, 450e9, 8, 400e9 / 8),
        ("dgx-b200", 8, 2250e12, 178.4, 900e9, 8, 400e9 / 8),
        ("gb200-nvl72:36", 4, 2500e12, 184.3, 900e9, 4, 400e9 / 8),
        ("gb300-nvl72:36", 4, 2500e12, 276.6, 900e9, 4, 800e9 / 8),
    ],
)
def test_presets_have_the_values_of_their_datasheets(
    name: str, per_host: int, bf16: float, gib: float, intra: float, nics: int, nic: float
) -> None:
    cluster = Cluster.load(name)
    assert cluster.devices_per_host == per_host
    assert cluster.device.peak("bf16") == bf16
    assert cluster.device.memory_bytes / 2**30 == pytest.approx(gib, abs=0.1)
    assert cluster.intra_host is not None
    assert cluster.inter_host is not None
    assert cluster.intra_host.bandwidth_bytes_s == intra
    assert (cluster.inter_host.nics, cluster.inter_host.bandwidth_bytes_s) == (nics, nic)
    assert cluster.reduce_scatter


def test_gpu_memory_is_what_xla_plans_with() -> None:
    targets = Path(__file__).parents[3] / "python/rhino/compile/targets"
    checked = 0
    for name in preset_names():
        cluster = Cluster.load(name)
        target = targets / f"{cluster.device.xla_target}.txtpb"
        # GB200s and GB300s are compiled for as B200s.
        same = cluster.device.xla_target == cluster.device.kind != "cpu" and name != "dgx-a100-40g"
        if same and target.is_file():
            assert f"device_memory_size: {cluster.device.memory_bytes}\n" in target.read_text(), name
            checked += 1
    assert checked >= 5


def test_cpu_emits_no_reduce_scatter() -> None:
    cluster = Cluster.load("cpu")
    assert (cluster.device.xla_target, cluster.num_devices, cluster.reduce_scatter) == ("cpu", 8, False)


def test_alias_and_spaces() -> None:
    assert Cluster.load(" dgx-h200:2 ") == Cluster.load("h200:2")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dgx-h10", r"cluster 'dgx-h10': no such preset or file; did you mean dgx-h100\? known: cpu, .*\.yaml file"),
        ("zzz", r"cluster 'zzz': no such preset or file; known: cpu, dgx-a100, "),
        ("", r"cluster '': no such preset or file"),
        ("dgx-h100:0", r"cluster 'dgx-h100:0': hosts '0' is not a positive integer; write NAME:HOSTS"),
        ("dgx-h100:-2", r"hosts '-2' is not a positive integer"),
        ("dgx-h100:1.5", r"hosts '1.5' is not a positive integer"),
        ("dgx-h100:", r"hosts '' is not a positive integer"),
        ("dgx-h100:two", r"hosts 'two' is not a positive integer"),
        ("dgx-h100:²", r"hosts '²' is not a positive integer"),
        ("local:2", r"cluster 'local:2': local has the hosts that jax sees; write local alone"),
        ("none.yaml", r"none.yaml: cannot read: No such file or directory; give a YAML file or a preset: cpu"),
        ("some/where", r"some/where: cannot read: No such file or directory"),
        ("/", r"/: cannot read: Is a directory"),
    ],
)
def test_specs_that_name_nothing(spec: str, message: str) -> None:
    with pytest.raises(RhinoError, match=message) as caught:
        Cluster.load(spec)
    assert "\n" not in str(caught.value)


def test_file_with_and_without_hosts(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    cluster = Cluster.load(path)
    assert (cluster.name, cluster.num_devices) == ("lab:2", 8)
    assert Cluster.load(f"{path}:6").name == "lab:6"
    assert cluster.device.memory_bytes == 80_000_000_000
    assert [level.size for level in cluster.levels] == [4, 8]
    assert [level.nics for level in cluster.levels] == [1, 2]
    assert cluster.efficiency.matmul == 1.0
    assert cluster.reduce_scatter


# (what is replaced, by what, line:column, the rest of the message)
BAD: list[tuple[str, str, str, str]] = [
    (
        "devices_per_host: 4\n",
        "",
        ":1:1:",
        "the cluster has no key 'devices_per_host'; give the number of devices of a host",
    ),
    ("  memory_bytes: 80e9\n", "", ":4:1:", "device has no key 'memory_bytes'; give the bytes of one device"),
    ("    f32: 67e12\n", "", ":7:3:", "device.peak_flops has no key 'f32'; give the FLOP/s of f32"),
    ("    latency_s: 4e-6\n", "", ":17:5:", "levels[1] has no key 'latency_s'; give the seconds of one hop"),
    ("levels:", "level:", ":12:1:", "level is not known; did you mean levels?"),
    ("nics", "nicks", ":20:5:", "levels[1].nicks is not known; did you mean nics? known: name, size"),
    ("bf16", "fp16", ":9:5:", "device.peak_flops.fp16 is not known; did you mean"),
    ("hosts: 2", "hosts: 0", ":2:1:", "hosts must be at least 1, got 0; give the number of hosts"),
    ("hosts: 2", "hosts: 2.5", ":2:1:", "hosts must be an integer, got 2.5"),
    ("hosts: 2", "hosts: true", ":2:1:", "hosts must be an integer, got true"),
    ("hosts: 2", "hosts:", ":2:1:", "hosts must be an integer, got nothing"),
    ("80e9", "-80e9", ":10:3:", "device.memory_bytes must be at least 1, got -80000000000; give the bytes"),
    ("80e9", "80 GB", ":10:3:", 'device.memory_bytes must be an integer, got "80 GB"'),
    ("80e9", "'80e9'", ":10:3:", 'device.memory_bytes must be an integer, got "80e9"'),
    ("80e9", "[80]", ":10:3:", "device.memory_bytes must be an integer, got [80]"),
    ("80e9", "0.5", ":10:3:", "device.memory_bytes must be an integer, got 0.5"),
    ("3.35e12", ".inf", ":11:3:", "device.memory_bandwidth_bytes_s must be a finite float, got inf"),
    ("3.35e12", ".nan", ":11:3:", "device.memory_bandwidth_bytes_s must be a finite float, got nan"),
    ("450e9", "0", ":15:5:", "levels[0].bandwidth_bytes_s must be above 0, got 0"),
    ("2e-6", "-2e-6", ":16:5:", "levels[0].latency_s must be at least 0, got -2e-06"),
    ("nics: 2", "nics: 0", ":20:5:", "levels[1].nics must be at least 1, got 0"),
    ("nics: 2", "duplex: both", ":20:5:", 'levels[1].duplex must be one of "full", "half", got "both"'),
    ("nics: 2", "protocols: {all-sum: []}", ":20:17:", "levels[1].protocols.all-sum is not known; known: all-reduce"),
    ("nics: 2", "protocols: {all-reduce: []}", ":20:17:", "levels[1].protocols.all-reduce must not be empty"),
    (
        "nics: 2",
        "protocols:\n      all-gather:\n      - {share: 0.8}\n      - {hops: 1e-6}",
        ":23:10:",
        "levels[1].protocols.all-gather[1].hops is not known; did you mean hop_s?",
    ),
    (
        "nics: 2",
        "protocols:\n      all-gather:\n      - {share: 0}",
        ":22:10:",
        "levels[1].protocols.all-gather[0].share must be above 0, got 0; give the part of the level's bandwidth",
    ),
    ("nics: 2", "size: 4", ":20:5:", "levels[1].size is 4, but the cluster has 8 devices; write `all`"),
    (
        "nics: 2",
        "size: host",
        ":20:5:",
        "levels[1].size is 'host', but only the last level, and it alone, joins all devices",
    ),
    (
        "size: host",
        "size: all",
        ":14:5:",
        "levels[0].size is 'all', but only the last level, and it alone, joins all devices",
    ),
    ("size: host", "size: 3", ":14:5:", "levels[0].size is 3, which cuts across hosts of 4 devices"),
    ("size: host", "size: 2", ":12:1:", "levels do not join its 2 hosts; add a level after one of size 4"),
    ("    size: host\n", "", ":13:5:", "levels[0] has no key 'size'; give the devices in one group of this level"),
    ("inter-host", "intra-host", ":17:5:", "levels[1].name 'intra-host' names two levels"),
    ("name: lab", "name: lab:3", ":1:1:", "name 'lab:3' contains a colon; give the number of hosts in `hosts`"),
    ("name: lab", "name: 7", ":1:1:", "name must be a string, got 7; give a short name"),
    ("kind: h100", "kind: ''", ":5:3:", "device.kind must not be empty; give the name of the chip"),
    ("name: lab", "schema: 2\nname: lab", ":1:1:", "schema is 2, but this version of rhino reads 1; use a newer rhino"),
    ("sources:", "reduce_scatter: 1\nsources:", ":21:1:", "reduce_scatter must be true or false, got 1"),
    (
        "sources:",
        "efficiency: {matmul: 1.5}\nsources:",
        ":21:14:",
        "efficiency.matmul must be at most 1, got 1.5; give a fraction",
    ),
    (
        "sources:",
        "efficiency: 0.5\nsources:",
        ":21:1:",
        "efficiency must be a dictionary, got 0.5; write its keys: matmul, memory",
    ),
    ("  device: datasheet", "  devise: datasheet", ":22:3:", "sources.devise is not known; did you mean device?"),
    ("  device: datasheet", "  device: 7", ":22:3:", "sources.device must be a string, got 7"),
    ("hosts: 2", "hosts: 2\nhosts: 3", ":3:1:", "hosts: given twice; remove one of the two"),
    ("hosts: 2", "hosts: 2\n? [a]\n: 3", ":3:3:", "a field name is a list or a mapping"),
    ("hosts: 2", "hosts: [2", ":", "not valid YAML"),
    ("hosts: 2", "hosts: *many", ":2:8:", "not valid YAML: found undefined alias"),
    ("hosts: 2", "hosts:\t- 2\n\t3", ":", "not valid YAML"),
    ("hosts: 2", "hosts: &h [*h]", ":2:8:", "an alias contains itself"),
    ("hosts: 2", "hosts: !!python/name:os.system x", ":2:1:", 'hosts must be an integer, got "x"'),
    ("hosts: 2", "hosts: \x01", ":", "not valid YAML"),
    ("hosts: 2", "---\nhosts: 2", ":", "not valid YAML: but found another document"),
]


@pytest.mark.parametrize(("old", "new", "place", "message"), BAD, ids=[bad[3][:60] for bad in BAD])
def test_each_bad_file_gives_one_line_with_place_cause_and_remedy(
    tmp_path: Path, old: str, new: str, place: str, message: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(RhinoError) as caught:
        Cluster.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}{place}")
    assert message in text
    assert "\n" not in text
    assert caught.value.remedy


@settings(deadline=None)
@given(choose=st.data())
def test_damage_is_one_error_at_its_place(choose: st.DataObject) -> None:
    data = from_yaml(GOOD, "the cluster", "lab.yaml", "").data
    path = choose.draw(damaged(data, (False, {"?": []}, [[[[]]]])))
    text = yaml.safe_dump(data, sort_keys=False)
    with pytest.raises(RhinoError) as caught:
        read_cluster(from_yaml(text, "the cluster", "lab.yaml", ""))
    found = re.match(r"lab\.yaml:(\d+):(\d+): (\S+) ", str(caught.value))
    assert found is not None and "\n" not in str(caught.value) and caught.value.remedy
    assert is_of(found[3], path)
    if found[3] == text_of(path) and isinstance(path[-1], str):
        assert text.split("\n")[int(found[1]) - 1][int(found[2]) - 1 :].startswith(path[-1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"- a\n", ":1:1: the cluster must be a dictionary, got ['a']; write its keys: schema, name"),
        (b"just words\n", ':1:1: the cluster must be a dictionary, got "just words"'),
        (b"levels: 3\nname: a\ndevices_per_host: 1\ndevice: {}\n", ":4:1: device has no key 'kind'"),
    ],
)
def test_files_that_are_no_cluster_at_all(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_bytes(content)
    with pytest.raises(RhinoError, match=f"^{path}") as caught:
        Cluster.load(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("levels", ["3", "[]", "{}", "[4]"])
def test_levels_must_be_a_list_of_mappings(tmp_path: Path, levels: str) -> None:
    head = GOOD[: GOOD.index("levels:")]
    with pytest.raises(RhinoError, match=r":12:\d+: levels(\[0\])? must (be an array|be a dictionary|not be empty)"):
        Cluster.load(write(tmp_path, f"{head}levels: {levels}\n"))


def test_middle_levels_grow_in_multiples(tmp_path: Path) -> None:
    leaf = "  - {name: leaf, size: SIZE, bandwidth_bytes_s: 1e9, latency_s: 0}\n  - name: inter-host\n"
    for size, message in (("4", "is 4, no larger multiple of the level below, 4"), ("6", "is 6, no larger")):
        path = write(tmp_path, GOOD.replace("  - name: inter-host\n", leaf.replace("SIZE", size)))
        with pytest.raises(RhinoError, match=message):
            Cluster.load(path)
    path = write(tmp_path, GOOD.replace("  - name: inter-host\n", leaf.replace("SIZE", "16")))
    assert [level.size for level in Cluster.load(f"{path}:8").levels] == [4, 16, 32]


def test_from_dict_names_the_field_without_a_place() -> None:
    data: dict[str, Any] = yaml.safe_load(GOOD.replace("80e9", "80"))
    data["device"]["memory_bandwidth_bytes_s"] = -1
    for rates in (data["levels"], [data["device"]["peak_flops"]]):
        for rate in rates:
            rate.update({key: float(value) for key, value in rate.items() if key not in ("name", "size")})
    with pytest.raises(RhinoError, match=r"^plan.json: device.memory_bandwidth_bytes_s must be above 0, got -1; give"):
        Cluster.from_dict(data, "plan.json")


def test_types_of_rates_may_be_spelled_as_numpy_does(tmp_path: Path) -> None:
    usual = GOOD.replace("bf16: 989e12", "bf16: 989e12\n    f8: 1979e12\n    i8: 1979e12")
    named = usual.replace("f32:", "float32:").replace("bf16:", "bfloat16:").replace("f8:", "float8_e4m3fn:")
    named = named.replace("i8:", "int8:").replace("  device: datasheet", "  device.peak_flops.bfloat16: sheet")
    cluster = Cluster.load(str(write(tmp_path, named)))
    assert cluster.device == Cluster.load(str(write(tmp_path, usual))).device
    assert cluster.source_of("device.peak_flops.bf16") == "sheet"
    assert list(cluster.to_dict()["device"]["peak_flops"]) == ["f32", "bf16", "f8", "i8"]


def test_a_rate_in_two_spellings_is_refused_at_the_second(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("bf16: 989e12", "bf16: 989e12\n    bfloat16: 1e12"))
    with pytest.raises(RhinoError, match=r"lab\.yaml:10:5: device.peak_flops.bfloat16 is 'bf16' again; remove one"):
        Cluster.load(str(path))
