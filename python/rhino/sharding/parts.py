"""One program for all devices, whole or as a loop over parts of its batch, with values computed again or all kept.

Owns which of these forms are tried, in which order, and when that stops (docs/design/search.md, "Micro-batches and
recomputation"). How a step is cut, and what it computes again, is its programs' business, and what a plan takes that of
the search of one program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from rhino.errors import Costly
from rhino.machine import Cluster
from rhino.machine.roofline import perfect_s
from rhino.sharding.begun import BegunSearches
from rhino.sharding.best_first import best_first
from rhino.sharding.form_bounds import Form, FormBounds, StepInParts
from rhino.sharding.form_names import other_forms, tell_by_name
from rhino.sharding.levels import DEAR
from rhino.sharding.meshes import mesh_shapes
from rhino.sharding.outcome import Progress
from rhino.sharding.planner import OUT_OF_TIME, MeshSearch, Options
from rhino.sharding.solution import Solution
from rhino.sharding.time_model import TimeModel

# By level, how much faster a plan must be for more parts, or another way, and able to be for these to be searched.
WORTH = {"O1": 0.01, "O2": 0.002}
# Once there is a plan, other forms are tried as long as their programs have no more operations than this in all: at O1
# a step of 100 unrolled layers is planned as it is.
EFFORT = {"O1": 100_000, "O2": 1_000_000}
# More parts are tried as long as they bring the peak of the fastest plan to this share of what it was.
_SAVES = 0.9
# A step whose loops stack more is solved in full beside the one whose loops stack less where it seems to take at most
# so much of its time: three axes may bring one of them more than the other.
_NEAR = 1.02
_LOOP = "stablehlo.while"


def plan_in_parts(
    programs: StepInParts,
    cluster: Cluster,
    options: Options,
    progress: Progress | None = None,
    begun: BegunSearches | None = None,
) -> tuple[Form, Solution]:
    """The form whose fastest plan within the memory limit takes the least time, and that plan.

    By the model of time parts, and what is computed again, only save memory: where the fastest plan of the whole step
    fits, without even what it computes again itself, nothing else is tried.

    Args:
      options: of the search of each program, without `life` and `prepared`, which are one program's.
      progress: called with (done, total, label) as meshes of a program are finished.
      begun: the searches that an earlier call began, which gets those of this one.

    Raises:
      Costly: none is faster than the rival, or none that memory does not make costly is to be had (see `Options`).
      RhinoError: no mesh suits the devices, or nothing fits the memory limit in any form.
    """
    return _FormSearch(programs, options, progress, TimeModel(cluster), begun or BegunSearches()).run()


class _FormSearch:
    def __init__(
        self, programs: StepInParts, options: Options, progress: Progress | None, model: TimeModel, begun: BegunSearches
    ) -> None:
        self.programs, self.cluster, self.options, self.model = programs, model.cluster, options, model
        self.progress, self.begun, self.worth = progress, begun, 1 - WORTH[options.level]
        whole = Form(programs.fewest)
        graph = programs.graph(programs.fewest)
        assert graph is not None, "the step can be cut into as few parts as were asked for"
        self.step = graph
        # A step of which two programs are more than is tried is planned as it is.
        small = 2 * len(graph.ops) <= EFFORT[options.level]
        plain = Form(programs.fewest, programs.plain) if small else whole
        self.bounds = FormBounds(programs, graph, whole, plain, model)
        self.searches: dict[Form, MeshSearch] = {}
        self.found: dict[Form, Solution] = {}
        self.solved: set[Form] = set()  # in full
        self.lost: dict[Form, str] = {}

    def run(self) -> tuple[Form, Solution]:
        only = self._only()
        if only is not None:
            if only in self.found:
                return only, self._beside_others(only)
            search = self.searches[only]
            search.run()
            return only, search.solution()
        if not self.options.costly:
            self._refuse_costly()
        # What the step as it is takes within the limit is the bound for all else, and often nothing else can win.
        self._solve(self.bounds.whole, quick=True)
        if self.bounds.plain != self.bounds.whole and self._fits(self.bounds.plain):
            self._solve(self.bounds.plain, quick=True)
        if not self._spent:
            self._explore()
        self._sum_locally()
        self._tighten()
        if not self.found:
            if self._is_any:
                rival_s = self.options.rival_s
                raise Costly(f"no plan of one program that fits takes less than the {rival_s:.3g} s there are", rival_s)
            # Of what needs least.
            form = max(form for form in self.lost if form.sums == 1)
            self.found[form] = self.searches[form].solution(form.parts)
        self._fewer()
        self._other_ways()
        best = self._best
        costly = self.bounds.lost(self.found[best].predicted.step_time_s, best) > DEAR
        return best, replace(self._beside_others(best), costly=costly)

    def _refuse_costly(self) -> None:
        """Raises Costly where memory, which no form needs less of for free, already costs too much of the fastest."""
        bases = (self.bounds.whole, self.bounds.plain)
        least_s = min(self.bounds.free[base].step_time_s for base in bases)
        if not any(map(self._fits, bases)) and self.bounds.lost(least_s, self.bounds.plain) > DEAR:
            raise Costly(f"one program that fits takes {least_s:.3g} s or more, for want of memory", least_s)

    # --- which are tried ----------------------------------------------------------------------------------------------

    def _only(self) -> Form | None:
        """The form that nothing else need be compared with, as its fastest plan fits; begins the searches.

        Where parts were asked for local sums may be faster still.
        """
        if self.bounds.plain != self.bounds.whole:
            if self._search(self.bounds.plain) is None:
                self.bounds.plain = self.bounds.whole
            elif self._fits(self.bounds.plain) and self.programs.fewest == 1:
                seconds, launches = self.model.seconds(self.step), self.model.launches(self.step)
                least_s = perfect_s(seconds, launches, self.cluster.num_devices)
                if self.bounds.computing_s(self.bounds.plain) <= least_s:
                    return self.bounds.whole if self._stacking_wins(least_s) else self.bounds.plain
        self._search(self.bounds.whole)
        alone = self.bounds.plain == self.bounds.whole and self.programs.fewest == 1
        return self.bounds.whole if alone and self._fits(self.bounds.whole) else None

    def _stacking_wins(self, least_s: float) -> bool:
        """Whether a step whose loops stack more is faster, though it computes no less, and fits; solves both then.

        What is made again where it is read may have to be sent again, too. `least_s`: no plan of it is faster.
        """
        whole, plain = self.bounds.whole, self.bounds.plain
        plain_s = self.bounds.free[plain].step_time_s
        if not self.programs.way(plain.way).told.fuses or least_s > self.worth * plain_s or self._late():
            return False
        self._search(whole)
        if not self._fits(whole) or self.bounds.free[whole].step_time_s > _NEAR * plain_s:
            return False
        self._solve(plain)
        self._solve(whole)
        seconds = {form: found.predicted.step_time_s for form, found in self.found.items()}
        return seconds.get(whole, inf) <= self.worth * seconds.get(plain, inf)

    def _explore(self) -> None:
        """The step in more parts, and every way in as few as it may fit in and more, with local sums, too."""
        firsts = {way: self.bounds.first_parts(way) for way in self._open_ways() if way}
        most = (self.programs.fewest, *self.programs.counts)[-1]
        tries = {} if self._fits(self.bounds.whole) else {0: 2 * self.bounds.whole.parts}
        tries.update((way, first) for way, first in firsts.items() if first <= most)
        self._best_first([*(self._tries(way, first) for way, first in tries.items()), *self._summed()])
        self._find_any()
        # What keeps least may fit in the most parts even if it seems not to.
        last = max(firsts, default=0)
        if not self._is_any and last and last not in tries:
            self._best_first([self._tries(last, most)])

    def _best_first(self, tries: Iterable[Iterator[Form]]) -> None:
        """Of some sequences of forms, each time the one goes on whose next form may take the least time."""
        for ended in best_first(tries, self.bounds.least_s):
            if ended:
                # What there is bounds the others.
                self._find_any()
            if self._late():
                return

    def _tries(self, way: int, parts: float, sums: int = 1) -> Iterator[Form]:
        """The forms of a way from so many parts on, each before it is searched."""
        yield from self._climb(way, parts, sums)
        yield from self._descend(way, sums)

    def _climb(self, way: int, parts: float, sums: int) -> Iterator[Form]:
        """Upwards until the fastest plan of one fits, or more parts save little."""
        known = Form(self.programs.fewest, way) if way in (0, self.bounds.plain.way) and sums == 1 else None
        least = self.bounds.needed(known) if known else parts
        for count in (self.programs.fewest, *self.programs.counts):
            form = Form(count, way, sums)
            if count < least or form == known or not self._can_share(count, sums):
                continue
            yield form
            if not self._can_win(form):
                return
            if self._search(form) is None:
                continue
            before, known = known, form
            if self._fits(form):
                self._solve(form, quick=True)
                return
            if before and self.bounds.free[form].peak_bytes > _SAVES * self.bounds.free[before].peak_bytes:
                return
            least = self.bounds.needed(form)

    def _descend(self, way: int, sums: int) -> Iterator[Form]:
        """From the fewest parts whose fastest plan fits to fewer, as long as theirs do."""
        known = self.bounds.free.items()
        fit = [form.parts for form, free in known if (form.way, form.sums) == (way, sums) and free.fits]
        parts = min(fit, default=0)
        for fewer in reversed((self.programs.fewest, *self.programs.counts)):
            form = Form(fewer, way, sums)
            # Half as many, or what comes next to that.
            if 2 * fewer > parts or form in self.bounds.free or not self._can_share(fewer, sums):
                continue
            yield form
            if not self._can_win(form):
                return
            if self._search(form) is None:
                continue
            if not self._fits(form):
                return
            self._solve(form, quick=True)
            parts = fewer

    def _open_ways(self) -> list[int]:
        """Those that add to a base, the step as it is or the plain one, that does not fit; and these bases."""
        bases = [base for base in dict.fromkeys((self.bounds.whole, self.bounds.plain)) if not self._fits(base)]
        # What adds to a base cannot win if it cost nothing; only what loops stack may cost more.
        loops = any(op.name == _LOOP for op in self.step.ops)
        bases = [base for base in bases if loops or self._can_win(base)]
        # Without any the ways need not be known.
        return [way for way in range(len(self.programs.ways)) if self.bounds.base(way) in bases] if bases else []

    def _fewer(self) -> None:
        """From the best plan to half as many parts under the limit, with its local sums and with none, while faster."""
        best = None
        while best != self._best and not self._late():
            best = self._best
            fewer = [n for n in (self.programs.fewest, *self.programs.counts) if 2 * n <= best.parts]
            for sums in dict.fromkeys((best.sums, 1)):
                form = Form(max((n for n in fewer if self._can_share(n, sums)), default=0), best.way, sums)
                if form.parts and form not in self.bounds.free and self._can_win(form) and self._search(form):
                    self._solve(form)

    def _other_ways(self) -> None:
        """The ways tried so far, in fewest parts and in the best plan's: a batch may divide badly into others."""
        for parts in dict.fromkeys((self.programs.fewest, self._best.parts)):
            for way in sorted({form.way for form in self.bounds.free}):
                form = Form(parts, way)
                if form not in self.bounds.free and self._can_win(form) and not self._late():
                    self._search(form)
        self._tighten()

    def _sum_locally(self) -> None:
        """With local sums of the sizes that came up since; of a long program the form alone that may be the fastest.

        They take more memory than one sum each: where nothing fits, this does not.
        """
        if not self._is_any:
            return
        if not self._spent:
            self._best_first(self._summed())
            return
        fast = next((form for form in self._promising if form.parts > 1), None)
        if fast is not None and self.worth * self.bounds.free[fast].step_time_s <= self._least_s and not self._late():
            for sums in filter(lambda n: self._can_share(fast.parts, n), self._local_counts()):
                self._search(replace(fast, sums=sums))

    def _summed(self) -> list[Iterator[Form]]:
        """Every way with local sums, of as many as an axis has devices: nothing is sent for them before the last part.

        More parts cost less so, and what computes less again may win.
        """
        counts = (self.programs.fewest, *self.programs.counts)
        asked = (self.bounds.whole.way, self.bounds.plain.way) if self.programs.fewest > 1 else ()
        ways = sorted({*self._open_ways(), *asked})
        tries = []
        for sums in self._local_counts():
            fine = [n for n in counts if self._can_share(n, sums)]
            if fine and not any(form.sums == sums for form in self.searches):
                tries += [self._tries(w, min(fine[-1], max(fine[0], self.bounds.first_parts(w))), sums) for w in ways]
        return tries

    def _can_share(self, parts: int, sums: int) -> bool:
        """Whether every local sum has examples of each part."""
        return sums == 1 or (parts > 1 and self.programs.examples // parts % sums == 0)

    def _local_counts(self) -> list[int]:
        """Sizes of a first axis that are tried: as many as there are hosts, and those of the fastest plans so far.

        Of one host that are its devices.
        """
        if self.step.axes:
            return []  # the program has a use of its own for the first axis
        hosts = self.cluster.num_devices // self.cluster.domain
        tried = {hosts if hosts > 1 else self.cluster.num_devices}
        tried.update(search.fastest_mesh[0][1] for form, search in self.searches.items() if form.parts > 1)
        given = self.options.mesh
        shapes = [given] if given else mesh_shapes(self.cluster)
        most = self.bounds.most_sums
        return sorted(n for n in tried.intersection(shape[0] for shape in shapes) if 1 < n <= most)

    def _find_any(self) -> None:
        """A plan under the limit, if there is none: of what needs least, which is the most likely to fit at all."""
        for form in sorted(self.bounds.free, reverse=True):
            if not self._is_any and form not in self.lost and not (self.lost and self._late()):
                self._solve(form, quick=True)

    def _tighten(self) -> None:
        """Under the limit, and in full: the most promising first, while they can win."""
        self._find_any()
        for form in self._promising:
            if form not in self.found and form not in self.lost and self._may_win(form):
                self._solve(form, quick=True)
        for form in self._promising:
            if form not in self.solved and (self._may_win(form) or (form == self._fastest and not self._late())):
                self._solve(form)

    @property
    def _promising(self) -> list[Form]:
        """The forms that were begun, those first whose fastest plans are the fastest."""
        return sorted(self.bounds.free, key=lambda f: (self.bounds.free[f].step_time_s, f))

    def _may_win(self, form: Form) -> bool:
        return self.bounds.free[form].step_time_s <= self.worth * self._least_s and not self._late()

    @property
    def _spent(self) -> bool:
        """Whether there is a plan, and a further program would be more than is tried."""
        tried = [len(search.graph.ops) for form, search in self.searches.items() if form != self.bounds.whole]
        return self._is_any and sum(tried) + len(self.step.ops) > EFFORT[self.options.level]

    # --- what is known of those that were not tried -------------------------------------------------------------------

    def _can_win(self, form: Form) -> bool:
        if form not in self.searches and self._spent:
            return False
        return self.bounds.least_s(form) <= self.worth * self._least_s

    # --- one of them --------------------------------------------------------------------------------------------------

    def _search(self, form: Form) -> MeshSearch | None:
        """The search of a form, begun without the limit; None if the step cannot be cut so."""
        if form not in self.searches:
            graph = self.step if form == self.bounds.whole else self.programs.graph(form.parts, form.way, form.sums)
            if graph is None:
                return None
            options = replace(self.options, sums=form.sums)
            progress = self.progress if form == self.bounds.whole else tell_by_name(self.progress, form, self.programs)
            search, free = self.begun.begin(form, graph, self.model, options, progress)
            self.searches[form] = search
            self.bounds.add(form, free, search.times)
        return self.searches[form]

    def _fits(self, form: Form) -> bool:
        return self.bounds.free[form].fits

    def _solve(self, form: Form, quick: bool = False) -> None:
        """The best plan of a form, if it is faster than those found; a quick one where another form may be faster."""
        search = self.searches[form]
        if not quick:
            self.solved.add(form)
        if search.run(self._least_s * (1 - 1e-9), quick) and search.outcome.least_s < self.options.rival_s:
            self.found[form] = search.solution()
            return
        why = OUT_OF_TIME if self._late() else "slower within it" if self._is_any else "no smaller one was found"
        self.lost.setdefault(form, why)

    def _late(self) -> bool:
        return self.options.deadline.over(bool(self.found))

    # --- what was found -----------------------------------------------------------------------------------------------

    @property
    def _is_any(self) -> bool:
        """Whether there is a plan, or one that has to be beaten."""
        return self._least_s < inf

    @property
    def _best(self) -> Form:
        """The fastest; of those that are not worth more parts, or others than the step's own ways, the first."""
        most_s = self._least_s / self.worth
        return min(form for form, plan in self.found.items() if plan.predicted.step_time_s <= most_s)

    @property
    def _fastest(self) -> Form | None:
        return min(self.found, key=lambda form: (self.found[form].predicted.step_time_s, form), default=None)

    @property
    def _least_s(self) -> float:
        found = (plan.predicted.step_time_s for plan in self.found.values())
        return min(found, default=self.options.rival_s)

    def _beside_others(self, form: Form) -> Solution:
        """What was found of a form, with what was of the others."""
        told = other_forms(form, self.found, self.lost, self.bounds)
        seconds = sum(search.clock[-1] - search.clock[0] for search in self.searches.values())
        return replace(self.found[form], alternatives=told, seconds=seconds)
