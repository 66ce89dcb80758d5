"""What specs say of arguments: paths, rules, logical axes, files; and one clear error for each way not to fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from rhino import RhinoError
from rhino.experts import Specs
from rhino.experts.spec_file import load_specs
from rhino.experts.specs import SpecArgument, layouts, on_mesh, path_of

MESH = {"data": 2, "model": 4}
KERNEL = SpecArgument("state.params['h_0']['mlp']['up']['kernel']", (8, 16))
BIAS = SpecArgument("state.params['h_0']['mlp']['up']['bias']", (16,))
STEP = SpecArgument("state.step", ())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("state.params['h_0']['mlp']['up']['kernel']", "state/params/h_0/mlp/up/kernel"),
        ("args[0].opt_state[1][0].mu['w']", "args/0/opt_state/1/0/mu/w"),
        ("params['mlp/~/linear_0']['w']", "params/mlp/~/linear_0/w"),
        ("model.layers[0].kernel", "model/layers/0/kernel"),
        ("arg0", "arg0"),
    ],
)
def test_a_path_is_the_keys_joined_by_slashes(name: str, path: str) -> None:
    assert path_of(name) == path


def test_the_first_rule_found_in_a_path_holds() -> None:
    rules = [("mlp/up/kernel", P(None, "model")), ("kernel$", P("data")), ("bias", P())]
    found = layouts(Specs(MESH, rules=rules), [KERNEL, BIAS, STEP])
    assert found.dims == (((), ("model",)), ((),), ())
    assert found.notes == ("rule 'kernel$' is of no argument: rule 'mlp/up/kernel' comes first",)


def test_what_no_rule_finds_is_whole_and_said_and_scalars_are_not() -> None:
    found = layouts(
        Specs(MESH, rules=[("kernel", P(("data", "model"))), ("embedding", P("data"))]), [KERNEL, BIAS, STEP]
    )
    assert found.dims == ((("data", "model"), ()), ((),), ())
    assert found.notes == (
        "rule 'embedding' is of no argument: none has it in its path, as in state/params/h_0/mlp/up/kernel",
        f"1 argument has no spec and is whole on every device: {BIAS.name}",
    )


def test_tensors_by_name_or_path_come_before_rules() -> None:
    specs = Specs(MESH, rules=[(".", P("model"))], tensors={KERNEL.name: ["data"], BIAS.path: [None], "other": []})
    found = layouts(specs, [KERNEL, BIAS])
    assert found.dims == ((("data",), ()), ((),))
    assert found.notes == (
        "rule '.' is of no argument: a spec of its own comes first",
        "other: there is no such argument",
    )


def test_axes_of_one_device_split_nothing() -> None:
    found = layouts(Specs({"data": 8, "model": 1}, rules=[("kernel", P("data", "model"))]), [KERNEL])
    assert found.mesh == (("data", 8),)
    assert found.dims == ((("data",), ()),)


def test_logical_names_take_the_first_rule_whose_axes_are_free() -> None:
    rules = [("embed", "model"), ("mlp", "model"), ("mlp", "data"), ("heads", None)]
    assert on_mesh([("embed",), ("mlp",)], rules) == (("model",), ("data",))
    assert on_mesh([("mlp",), ("mlp",)], rules) == (("model",), ("data",))
    assert on_mesh([("heads",), (), ("nothing",)], rules) == ((), (), ())
    assert on_mesh([("mlp",)], [("mlp", ("data", "model"))]) == (("data", "model"),)


@pytest.mark.parametrize("mesh", [MESH, "data=2,model=4", AbstractMesh((2, 4), ("data", "model")), [("data", 2)]])
def test_forms_of_a_mesh(mesh: Any) -> None:
    if isinstance(mesh, list):
        with pytest.raises(RhinoError, match="mesh"):
            _ = Specs(mesh).axes
    else:
        assert Specs(mesh).axes == (("data", 2), ("model", 4))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P("modle"), r"kernel'\]: rule '.' \(modle\) names axis 'modle', which the mesh has not; did you mean model\?"),
        (P("data", "data"), r"\(data, data\) has axis 'data' twice; an axis splits one dimension"),
        (P(None, None, "data"), r"is for 3 dimensions, and its shape is \[8, 16\]; drop the entries"),
        (P(("data", "model"), None), None),
        (P(3), r"has an entry 3; write None, an axis, or a tuple"),
        (P(P.UNCONSTRAINED), r"has an entry UNCONSTRAINED"),
        ("model", r"'model' is no spec; give a PartitionSpec"),
    ],
)
def test_specs_that_do_not_fit(spec: Any, message: str | None) -> None:
    specs = Specs(MESH, rules=[(".", spec)])
    if message is None:
        layouts(specs, [KERNEL])
    else:
        with pytest.raises(RhinoError, match=message):
            layouts(specs, [KERNEL])


def test_a_dimension_that_does_not_divide_is_named_and_others_are_counted() -> None:
    odd = [SpecArgument("a", (6,)), SpecArgument("b", (7,))]
    with pytest.raises(RhinoError) as error:
        layouts(Specs(MESH, rules=[(".", P("model"))]), odd)
    assert str(error.value) == (
        "a: rule '.' (model) cuts dim 0 of size 6 into 4 parts of different sizes (and 1 more arguments do not fit); "
        "leave the dimension whole, or pad it to a multiple"
    )


def test_a_mesh_must_have_names() -> None:
    with pytest.raises(RhinoError, match="the specs have no mesh"):
        layouts(Specs(), [KERNEL])
    with pytest.raises(RhinoError, match="the mesh 2x4 has no names of axes"):
        layouts(Specs((2, 4)), [KERNEL])


def test_a_rule_that_is_no_expression() -> None:
    with pytest.raises(RhinoError, match=r"rule '\(' is no regular expression: .*; escape it"):
        Specs(MESH, rules=[("(", P())])


# --- files ------------------------------------------------------------------------------------------------------------


def _file(folder: Path, data: Any) -> Path:
    path = folder / "specs.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=1))
    return path


def test_a_file_says_what_the_same_specs_say(tmp_path: Path) -> None:
    data = {
        "mesh": MESH,
        "tensors": {BIAS.path: ["mlp"]},
        "rules": [["kernel", ["embed", ["mlp"]]]],
        "axis_rules": [["mlp", ["model"]], ["embed", None]],
    }
    found = layouts(load_specs(_file(tmp_path, data)), [KERNEL, BIAS])
    assert found.dims == (((), ("model",)), (("model",),))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", r"specs.json:1:2: not JSON"),
        ({"mesh": MESH}, r"specs.json:1:1: the file of specs lays nothing out; give tensors or rules"),
        ({"rules": [["x", []]]}, r"has no key 'mesh'"),
        ({"mesh": MESH, "rules": [["x", "model"]]}, r"specs.json:\d+:\d+: rules\[0\]\[1\] must be an array"),
        ({"mesh": MESH, "rules": [["x", [3]]]}, r"must be null, an axis, or an array of axes, got 3"),
        ({"mesh": {"data": 0}, "rules": [["x", []]]}, r"mesh.data must be"),
        ({"mesh": MESH, "rule": []}, r"rule is not known; did you mean rules\?"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(RhinoError, match=message):
        load_specs(_file(tmp_path, data))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RhinoError, match=r"none.json: cannot read: No such file"):
        load_specs(tmp_path / "none.json")
