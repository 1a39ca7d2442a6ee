"""Decides who measures the way to whom, and when."""

Pair = tuple[int, int]


def plan_phases(count: int) -> list[list[Pair]]:
    """Return the phases in which ``count`` machines measure all ways: pairs of who connects, and to whom.

    Every ordered pair has its turn once. In a phase each machine is in one pair at most, so that no measurement
    disturbs another one at the same machine. Phases: 2 (n - 1) if n is even, 2 n if it is odd.
    """
    places = list(range(count + count % 2))  # with an odd count, the partner of the last place has a rest
    phases = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = [
            (min(pair), max(pair))
            for pair in zip(places[:half], reversed(places[half:]), strict=True)
            if max(pair) < count
        ]
        phases += [pairs, [(second, first) for first, second in pairs]]
        places = [places[0], places[-1], *places[1:-1]]  # as in a tournament: one stays, the others move on
    return phases
