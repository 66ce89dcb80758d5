"""Meshes around the axes that a program brings."""

from __future__ import annotations

import pytest
from search_programs import host

from rhino.errors import RhinoError
from rhino.sharding.meshes import checked_axes, mesh_around, meshes_around

SP = (("sp", 4),)


def test_the_rest_of_the_devices_is_outside_or_inside_or_both() -> None:
    assert meshes_around(SP, host(4), "O1") == [SP]
    assert meshes_around(SP, host(8), "O1") == [(("x", 2), *SP), (*SP, ("x", 2))]
    found = meshes_around(SP, host(16), "O2")
    assert (("x", 2), *SP, ("y", 2)) in found and (*SP, ("x", 2), ("y", 2)) in found
    assert len(found) == len(set(found)) == 5


def test_names_of_the_program_are_not_used_again() -> None:
    assert meshes_around((("x", 2), ("y", 2)), host(8), "O1")[0] == (("z", 2), ("x", 2), ("y", 2))


def test_a_given_shape_has_the_axes_as_far_inside_as_they_fit() -> None:
    assert mesh_around(SP, (4, 2), host(8)) == (*SP, ("x", 2))
    assert mesh_around(SP, (4, 4), host(16)) == (("x", 4), *SP)
    with pytest.raises(RhinoError, match="mesh 8 has no place for sp=4"):
        mesh_around(SP, (8,), host(8))
    with pytest.raises(RhinoError, match="do not divide the 6"):
        mesh_around(SP, (6,), host(6))


def test_a_given_mesh_has_the_axes_next_to_each_other() -> None:
    mesh = (("x", 2), ("sp", 4), ("y", 1))
    assert checked_axes(SP, mesh) == mesh
    with pytest.raises(RhinoError, match="has no sp=4"):
        checked_axes(SP, (("sp", 2), ("x", 4)))
