"""The plans of a model of `bench.cpu_hosts`: `python -m bench._hosts_plans MODEL CLUSTER FOLDER [--quick]`.

Writes FOLDER/NAME.json for the search's and every expert's that applies, and prints what is predicted of them as JSON.
A process of its own: processes of a job would all search, on the same cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rhino
from bench._hosts_worker import SIZES, made
from bench._mesh_model import FOUND, facts, plans


def planned(model: str, cluster: rhino.Cluster, folder: Path, quick: bool) -> Mapping[str, Any]:
    """What is predicted of every plan, which are files then, and why others have none."""
    what = made(model, quick)
    found, declined = {}, {}
    for name, plan in plans(what.train_step, cluster, what.shapes, (FOUND, *rhino.experts.names())).items():
        if isinstance(plan, str):
            declined[name] = plan
            continue
        plan.save(folder / f"{name}.json")
        found[name] = facts(plan)
    return {"params": what.params, "plans": found, "declined": declined}


def main() -> None:
    """Plan one model."""
    p = argparse.ArgumentParser(prog="python -m bench._hosts_plans")
    p.add_argument("model", choices=SIZES)
    p.add_argument("cluster")
    p.add_argument("folder", type=Path)
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    print(json.dumps(planned(args.model, rhino.Cluster.load(args.cluster), args.folder, args.quick)))


if __name__ == "__main__":
    main()
