"""Programs nobody chose, planned and run on 8 CPU devices, against one device.

    python -m bench.differential --minutes 60 --seed 7          # random programs
    python -m bench.differential --steps --minutes 60           # random training steps, as pipelines of 2 to 4 stages
    python -m bench.differential --harnesses --every 10         # jax's own test programs, one of ten
    python -m bench.differential --file out/differential/x.mlir # what a run wrote of a failure

Every program is tried in a process of its own kind that may die or hang. What fails is cut down and written under
--out; exit code 1 where anything was wrong, died, hung, or failed with what is not a located RhinoError.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench._common import ROOT, note
from bench.differential.crew import Child
from bench.differential.report import GOOD, Tally, cause
from bench.differential.shrink import smallest

PLACES = ("free-2x4", "free-2x2x2", "free-3x2")
INTERPRETER = "interpreter"
_TOGETHER = 5  # programs that are planned and compiled as one
_SHOWN = 9  # failures of one cause that are cut down


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.differential", description=(__doc__ or "").split("\n\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--harnesses", action="store_true", help="jax's own test programs instead of random ones")
    what.add_argument("--steps", action="store_true", help="random training steps, as pipelines")
    what.add_argument("--file", metavar="F", type=Path, help="one program, as a run wrote it")
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first programs; later ones count up (default: 0)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N harnesses (default: all)")
    parser.add_argument(
        "--first", type=int, default=0, metavar="I", help="start at harness I of jax's order (default: 0)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="harnesses whose name contains this")
    parser.add_argument("--places", default="", help="clusters, joined by commas (default: those that suit)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the summary")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "out" / "differential")
    args = parser.parse_args()
    child, tally = Child(), Tally()
    try:
        if args.file:
            _file(args, child, tally)
        elif args.harnesses:
            _harnesses(args, child, tally)
        elif args.steps:
            _steps(args, child, tally)
        else:
            _random(args, child, tally)
    finally:
        child.close()
        print(tally)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(tally.to_json(), indent=1) + "\n", encoding="utf-8")
    return 1 if tally.bad else 0


def _chosen(args: argparse.Namespace, default: Sequence[str]) -> list[str]:
    return args.places.split(",") if args.places else list(default)


def _file(args: argparse.Namespace, child: Child, tally: Tally) -> None:
    text = args.file.read_text(encoding="utf-8")
    tally.program(())
    places = _chosen(args, PLACES)
    for place, found in outcomes(child, _request(args.file.name, text), places):
        tally.outcome(place, found)
        print(f"{place}: {found['kind']} {found['detail']}")


def outcomes(child: Child, request: Mapping[str, Any], places: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """What comes of a program at each place; the interpreter, which may end the process, says of wrong ones."""
    found = list(child.outcomes(request, places))
    for index, place in enumerate(places):
        if found[index]["kind"] == "wrong" and request["from"] != "step":
            again = next(child.outcomes({**request, "second": True}, [place]))
            found[index] = again if again["kind"] == "disputed" else found[index]
    return list(zip(places, found, strict=True))


def _request(name: str, text: str) -> dict[str, Any]:
    return {"from": "text", "name": name, "text": text}


def _harnesses(args: argparse.Namespace, child: Child, tally: Tally) -> None:
    from bench.differential.harnesses import names

    places = _chosen(args, (*PLACES, "hosts", "cpu"))
    chosen = [name for name in names() if args.only in name][args.first :: args.every]
    end = time.monotonic() + 60 * args.minutes
    for index, name in enumerate(chosen):
        if time.monotonic() > end:
            note(f"{index} of {len(chosen)} in {args.minutes} minutes")
            return
        tally.program((name.partition("_")[0],))
        for place, found in outcomes(child, {"from": "harness", "name": name}, places):
            tally.outcome(place, found)
            if found["kind"] not in GOOD:
                note(f"{name} on {place}: {found['kind']}: {found['detail']}")


def _steps(args: argparse.Namespace, child: Child, tally: Tally) -> None:
    from bench.differential.steps import PLACES as HOW

    places = _chosen(args, HOW)
    for number in _until(args):
        request = {"from": "step", "name": f"step{number}", "seed": number}
        tally.program(())
        for place, found in outcomes(child, request, places):
            tally.outcome(place, found)
            if found["kind"] not in GOOD:
                note(f"step {number} with {place}: {found['kind']}: {found['detail']}")


def _until(args: argparse.Namespace) -> Iterator[int]:
    """Seeds until the time is over."""
    end, number = time.monotonic() + 60 * args.minutes, args.seed
    while time.monotonic() < end:
        yield number
        number += 1


def _random(args: argparse.Namespace, child: Child, tally: Tally) -> None:
    from bench.differential.generate import of_seed
    from bench.differential.interpreter import is_known
    from bench.differential.program import joined

    places = _chosen(args, PLACES)
    trial = _Trial(args.out, child, tally)
    end = time.monotonic() + 60 * args.minutes
    for number in _until(args):
        programs = of_seed(number, 10 * _TOGETHER)
        for first in range(0, len(programs), _TOGETHER):
            if time.monotonic() > end:
                return
            some = programs[first : first + _TOGETHER]
            for program in some:
                tally.program(program.names)
            failed = [(place, found) for place, found in trial.outcomes(joined(some), places) if not _good(found)]
            for place in places:
                if place not in [name for name, _ in failed]:
                    for _ in some:
                        tally.outcome(place, {"kind": "right", "detail": "", "split": 1})
            for place, together in failed:
                trial.each(f"{number}-{first}", some, place, together)
        for index, program in enumerate(programs):
            if time.monotonic() > end:
                return
            if is_known(program.text()):
                trial.alone(f"{number}-{index}", program, INTERPRETER)


def _good(found: Mapping[str, Any]) -> bool:
    return found["kind"] == "right"


class _Trial:
    """Programs tried, counted, and cut down where they fail."""

    def __init__(self, out: Path, child: Child, tally: Tally) -> None:
        self._out, self._child, self._tally = out, child, tally

    def outcomes(self, program: Any, places: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """What comes of a program at each place."""
        return outcomes(self._child, _request("program", program.text()), places)

    def each(self, name: str, programs: Sequence[Any], place: str, together: Mapping[str, Any]) -> None:
        """Try programs one by one that failed together; what fails only so is one failure."""
        found = [self.alone(f"{name}-{index}", program, place) for index, program in enumerate(programs)]
        if all(one["kind"] in ("right", "disputed") for one in found):
            from bench.differential.program import joined

            if not all(map(_good, found)):  # a second opinion on one may be none on all
                programs = [program for program, one in zip(programs, found, strict=True) if _good(one)]
                together = self.outcomes(joined(programs), [place])[0][1] if programs else found[0]
                if together["kind"] in GOOD:
                    return
            self._tally.outcome(place, together)
            self._show(f"{name}-together", joined(programs), place, together)

    def alone(self, name: str, program: Any, place: str) -> Mapping[str, Any]:
        """Try one program and count it."""
        found = self.outcomes(program, [place])[0][1]
        self._tally.outcome(place, found)
        self._show(name, program, place, found)
        return found

    def _show(self, name: str, program: Any, place: str, found: Mapping[str, Any]) -> None:
        """Write what fails or is disputed, the first of a cause cut down."""
        if found["kind"] in GOOD - {"disputed"}:
            return

        def fails(part: Any) -> bool:
            return cause(self.outcomes(part, [place])[0][1]) == cause(found)

        first = self._tally.causes[cause(found)] <= _SHOWN
        small = smallest(program, fails) if first else program
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / f"{name}-{place}.mlir"
        path.write_text(small.text(), encoding="utf-8")
        note(f"{found['kind']} on {place}: {found['detail']}\n{small.text() if first else ''}({path})")


if __name__ == "__main__":
    sys.exit(main())
