"""A process that tries programs until it dies: told one a line on standard input, it answers a line for each cluster.

Owns the way from a request to its outcomes. Whoever asks counts the answers: those that do not come are its death.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from bench.differential import trial
from bench.differential.clusters import places

INTERPRETER = "interpreter"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    trial.devices()
    known = places()
    for line in sys.stdin:
        request = json.loads(line)
        _answer(answers, {"ready": request["name"]})
        if request["from"] == "step":
            from bench.differential import steps

            recipe = steps.of_seed(request["seed"])
            for place in request["places"]:
                _answer(answers, asdict(steps.attempt(recipe, place)))
            continue
        try:
            case = _case(request)
            expected = trial.reference(case)
        except Exception as error:  # then there is nothing to compare with
            text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
            for _ in request["places"]:
                _answer(answers, asdict(trial.Outcome("skipped", text)))
            continue
        for name in request["places"]:
            if name == INTERPRETER:
                outcome = trial.interpret(case, expected)
            else:
                outcome = trial.attempt(case, expected, known[name], request.get("second", False))
            _answer(answers, asdict(outcome))


def _case(request: dict[str, Any]) -> trial.Case:
    if request["from"] == "harness":
        from bench.differential.harnesses import case_of

        return case_of(request["name"])
    return trial.case_of_text(request["name"], request["text"])


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
