"""Which dimensions are split, and into how many chunks: the rules on facts written by hand."""

from __future__ import annotations

import pytest

from rhino.program.strided import Choice, ClassPiece, DimClass, Reshaped, choose

WHOLE = 1  # the class every piece is all of, where it does not matter which


def weight(size: int, *pieces: tuple[int, int], obstacle: str = "") -> DimClass:
    """A dimension of the weight that is argument 0, cut into pieces."""
    return DimClass(
        size,
        [ClassPiece(start, stop, WHOLE) for start, stop in pieces],
        arguments=[(0, 1)],
        weight=True,
        obstacle=obstacle,
    )


def chosen(*classes: DimClass, max_chunks: int = 16) -> Choice:
    return choose(list(classes), max_chunks)


@pytest.mark.parametrize(
    ("pieces", "chunks"),
    [
        ([(0, 4), (4, 8), (8, 12)], 3),
        ([(8, 12), (0, 4), (4, 8), (0, 4)], 3),  # in any order, and again
        ([(0, 6), (6, 12)], 2),
        ([(0, 1), *((i, i + 1) for i in range(1, 12))], 0),  # chunks of one are explicit already
        ([(0, 4), (4, 8)], 0),  # the rest is never read
        ([(0, 4), (8, 12)], 0),
        ([(4, 12)], 0),
        ([], 0),
    ],
)
def test_pieces_that_cover_it_are_its_chunks(pieces: list[tuple[int, int]], chunks: int) -> None:
    choice = chosen(weight(12, *pieces), DimClass(4))
    assert choice.chunks == [chunks, 0]
    assert not choice.refusals


def test_unequal_pieces_are_refused() -> None:
    choice = chosen(weight(12, (0, 8), (8, 10), (10, 12)), DimClass(4))
    assert choice.chunks == [0, 0]
    assert choice.refusals == {0: "it is cut into pieces of 2 and 8, not into equal chunks"}


def test_an_obstacle_is_the_reason_given() -> None:
    choice = chosen(weight(12, (0, 6), (6, 12), obstacle="it is sorted"), DimClass(6))
    assert (choice.chunks, choice.refusals) == ([0, 0], {0: "it is sorted"})


def test_more_chunks_than_wanted() -> None:
    pieces = [(i, i + 2) for i in range(0, 12, 2)]
    choice = chosen(weight(12, *pieces), DimClass(2), max_chunks=5)
    assert choice.refusals == {0: "it is cut into 6 chunks, more than 5"}
    assert chosen(weight(12, *pieces), DimClass(2), max_chunks=6).chunks == [6, 0]


@pytest.mark.parametrize("part", ["arguments", "weight"])
def test_what_is_no_dimension_of_a_weight_is_left_in_silence(part: str) -> None:
    c = weight(12, (0, 6), (6, 12))
    setattr(c, part, [] if part == "arguments" else False)
    choice = chosen(c, DimClass(6))
    assert (choice.chunks, choice.refusals) == ([0, 0], {})


def test_a_piece_of_two_chunks_is_split_with_the_whole() -> None:
    whole = DimClass(12, [ClassPiece(0, 4, 2), ClassPiece(4, 12, 1)], arguments=[(0, 1)], weight=True)
    both = DimClass(8, [ClassPiece(0, 4, 2), ClassPiece(4, 8, 2)])
    assert chosen(whole, both, DimClass(4)).chunks == [3, 2, 0]
    both.obstacle = "it is sorted"
    assert chosen(whole, both, DimClass(4)).refusals == {0: "it is sorted"}


def test_pieces_that_are_all_cut_again_give_the_finer_chunks() -> None:
    half = DimClass(8, [ClassPiece(0, 4, 2), ClassPiece(4, 8, 2)])
    whole = DimClass(16, [ClassPiece(0, 8, 1), ClassPiece(8, 16, 1)], arguments=[(0, 1)], weight=True)
    assert chosen(whole, half, DimClass(4)).chunks == [4, 2, 0]


def test_one_piece_cut_again_is_its_own_affair() -> None:
    # Keys are rotated in halves, values are not: finer chunks would scatter values.
    keys = DimClass(8, [ClassPiece(0, 4, 3), ClassPiece(4, 8, 3)])
    whole = DimClass(16, [ClassPiece(0, 8, 1), ClassPiece(8, 16, 2)], arguments=[(0, 1)], weight=True)
    assert chosen(whole, keys, DimClass(8), DimClass(4)).chunks == [2, 0, 0, 0]


def reshaped(size: int, leading: int) -> tuple[DimClass, DimClass]:
    """A weight's dimension, and the leading one of what it is reshaped to."""
    stride = size // leading
    return (
        DimClass(size, reshaped=[Reshaped(1, 1, stride)], arguments=[(0, 1)], weight=True),
        DimClass(leading, reshaped=[Reshaped(0, stride, 1)]),
    )


def test_an_indexed_leading_dimension_says_how_many_chunks() -> None:
    whole, leading = reshaped(48, 3)
    leading.pieces = [ClassPiece(i, i + 1, 2) for i in range(3)]
    assert chosen(whole, leading, DimClass(1)).chunks == [3, 0, 0]


def test_a_leading_dimension_in_larger_pieces_is_split_too() -> None:
    whole, leading = reshaped(48, 6)
    leading.pieces = [ClassPiece(i, i + 2, 2) for i in range(0, 6, 2)]
    assert chosen(whole, leading, DimClass(2)).chunks == [3, 3, 0]


def test_a_reshape_is_followed_downwards() -> None:
    whole, leading = reshaped(48, 6)
    whole.pieces = [ClassPiece(i, i + 16, 2) for i in range(0, 48, 16)]
    assert chosen(whole, leading, DimClass(16)).chunks == [3, 3, 0]


def test_chunks_that_a_reshape_cuts_through_stop_there() -> None:
    whole, leading = reshaped(48, 2)
    whole.pieces = [ClassPiece(i, i + 16, 2) for i in range(0, 48, 16)]
    assert chosen(whole, leading, DimClass(16)).chunks == [3, 0, 0]


def test_a_weight_that_is_explicit_already_lets_what_it_is_merged_into_be_split() -> None:
    whole, leading = reshaped(48, 3)
    whole.arguments, leading.arguments, leading.weight = [], [(0, 0)], True
    leading.pieces = [ClassPiece(i, i + 1, 2) for i in range(3)]
    assert chosen(whole, leading, DimClass(1)).chunks == [3, 0, 0]
