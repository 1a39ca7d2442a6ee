"""Bytes that are no frame on a link, or no call in the arena: every rank hears the same, and who sent them."""

from dataclasses import replace

import numpy as np
import pytest

from phalanx.buffers import DType, ReduceOp
from phalanx.testing import World
from phalanx.testing.hostile import HostileLink, hostile_headers
from phalanx.wire import Collective, Header, Kind, Signature, Tag

CULPRIT, VICTIM, SIZE = 2, 0, 4
SETTING_UP, IN_A_CALL = 0, 1  # which header of the link
VALID = Header(Kind.DATA, Tag(1, 1, 0), Signature(Collective.ALL_REDUCE, DType.F64, 9, ReduceOp.SUM), 72).pack()
BAD_CALLS = {
    what: header[16:32]  # where the signature lies
    for what, header in hostile_headers(VALID).items()
    if what in ("random bytes", "zeros", "ones", "unknown collective", "unknown element type", "unknown reduction")
}


def outcomes_with(garble, number):
    """What becomes of all ranks when one of them sends something else instead of a header."""

    def wrap(rank, link):
        return HostileLink(link, garble, number) if rank == CULPRIT and link.peer == VICTIM else link

    def work(group):
        for _ in range(3):
            group.all_reduce(np.ones(1000))
        group.barrier()

    return World(SIZE, wrap=wrap, timeout_s=100).start(work).outcomes()  # nobody waits for a deadline


@pytest.mark.parametrize("number", [SETTING_UP, IN_A_CALL])
@pytest.mark.parametrize("what", hostile_headers(VALID))
def test_a_bad_frame_names_its_sender_on_every_rank(what, number):
    outcomes = outcomes_with(lambda header: hostile_headers(header)[what], number)

    assert [(each.kind, each.peer) for each in outcomes] == [("BadFrame", CULPRIT)] * SIZE
    assert len({each.words for each in outcomes}) == 1
    assert f"rank {CULPRIT} sent bytes to rank {VICTIM} that are no frame" in outcomes[0].words


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bytes_in_the_arena_that_are_no_call_name_who_posted_them_on_every_rank(what):
    def work(group):
        group.all_reduce(np.ones(9))
        if group.rank == CULPRIT:
            arena = group._team.arena.arena
            post = arena.post
            arena.post = lambda _, *where: post(BAD_CALLS[what], *where)
        for _ in range(2):
            group.all_reduce(np.ones(9))

    outcomes = World(SIZE, "arena", timeout_s=100).start(work).outcomes()

    assert [(each.kind, each.peer) for each in outcomes] == [("BadFrame", CULPRIT)] * SIZE
    assert len({each.words for each in outcomes}) == 1
    words = f"rank {CULPRIT} posted bytes that are no call, instead of call 2, all_reduce(sum) of 9 f64"
    assert words in outcomes[0].words


@pytest.mark.parametrize("what", ["epoch", "round"])
def test_both_sides_of_a_mismatch_differ_in_words(what):
    def garble(raw):
        header = Header.unpack(raw)
        tag = replace(header.tag, **{what: getattr(header.tag, what) + 5})
        return replace(header, tag=tag).pack()

    outcomes = outcomes_with(garble, IN_A_CALL)

    assert [(each.kind, each.peer) for each in outcomes] == [("CollectiveMismatch", CULPRIT)] * SIZE
    theirs, ours = outcomes[0].words.split(", but rank ")
    assert theirs.partition(" is in ")[2] != ours.partition(" is in ")[2].partition(": all ranks")[0]
    assert what in theirs
