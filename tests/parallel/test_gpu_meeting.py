"""Gradients that meet on a GPU: the bits of the way through the host, for any number of ranks, sharded or not.

Ranks are forked, so this runs in a process that has not used CUDA: test_cuda.py starts one.
"""

import pytest
import torch
from engine_play import digest_of, make_engine, train
from spread import DEVICE, of_all, spread
from zero_play import digest

from phalanx.buffers import CHUNK
from phalanx.parallel import DataParallel, ZeroOptimizer
from phalanx.parallel.reduction.device_fold import add_squares, measure
from phalanx.parallel.reduction.layout import GPU_BLOCK, ParameterSpec, align, lay_out
from phalanx.parallel.reduction.spans import plan_measuring

pytestmark = [pytest.mark.slow, pytest.mark.skipif(DEVICE != "cuda", reason="PHALANX_TEST_DEVICE is not cuda")]


def run_engine(size, **options):
    """Where gradients met, and everything that training came to, the same on all ranks."""

    def work(group):
        engine = make_engine(group, clip=0.5, **options)
        reports = train(engine, 8, micro=2)
        engine.compare()
        return engine.explain(), f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    return of_all(spread(size, work))


@pytest.fixture(scope="module")
def alone_result():
    return run_engine(1)[1]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("through_host", [False, True])
def test_one_digest_for_any_number_of_ranks_whichever_way_gradients_go(size, zero, through_host, alone_result):
    way, result = run_engine(size, zero=zero, through_host=through_host)

    assert ("on the GPU" if not through_host else "copies come through memory of the host") in way
    assert result == alone_result


class Wide(torch.nn.Module):
    """A parameter of several blocks, and others between whose chunks there are gaps."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(70))
        self.wide = torch.nn.Parameter(torch.randn(2 * GPU_BLOCK + CHUNK + 3))
        self.last = torch.nn.Parameter(torch.randn(CHUNK))

    def forward(self, x):
        return sum((each * x.mean()).square().mean() for each in self.parameters())


@pytest.mark.parametrize("options", [{}, {"zero": True}, {"zero": True, "through_host": True}], ids=str)
def test_one_digest_for_parameters_of_several_blocks(options):
    def wide_loss(model, batch):
        return model(batch[0])

    alone_result, result = (run_engine(size, model=Wide, loss=wide_loss, **options)[1] for size in (1, 3))

    assert result == alone_result


def test_the_squares_of_a_chunk_do_not_depend_on_what_is_measured_with_it():
    def work(_):
        specs = [ParameterSpec(str(size), size) for size in (70, 64 * CHUNK, 5000, CHUNK + 1, 3 * CHUNK)]
        bucket = lay_out(specs, 1 << 40).buckets[0]
        mean = torch.zeros(align(bucket.length), device=DEVICE)
        for place in bucket.places:
            torch.manual_seed(place.start)
            mean[place] = torch.randn(place.stop - place.start, device=DEVICE)

        def squares_of(chosen):
            plan = plan_measuring(bucket, chosen)
            found = add_squares(measure(mean, plan).cpu().numpy(), plan.starts)
            return dict(zip(plan.chunks, map(float.hex, found.tolist()), strict=True))

        everything = squares_of(range(len(bucket.chunks)))
        some = [squares_of({number}) for number in everything] + [squares_of(range(3, n)) for n in range(4, 60, 7)]
        return all(each.items() <= everything.items() for each in some)

    assert spread(1, work) == [True]


@pytest.mark.parametrize("size", [3, 5])
def test_the_cpu_adds_up_with_the_same_bits(size, alone_result):
    def work(group):
        engine = make_engine(group, clip=0.5, through_host=True, paranoid=size == 3)
        reports = train(engine, 8, micro=2)
        return engine.explain(), f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    way, result = of_all(spread(size, work))

    assert "in memory of the host" in way
    assert result == alone_result


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_data_parallel_and_a_sharded_optimizer_give_the_same_on_the_gpu_and_through_the_host(kind):
    def work(group):
        found = []
        for through_host in (False, True):
            for is_sharded in (False, True):
                torch.manual_seed(3)
                net = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
                model = DataParallel(net.to(DEVICE, kind), group, through_host=through_host)
                if is_sharded:
                    optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2, group=group)
                elif kind is torch.float32:
                    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                else:
                    continue  # without masters of f32 it rounds differently
                for step in range(5):
                    inputs = torch.randn(4, 7, generator=torch.Generator().manual_seed(step * 9 + group.rank))
                    model.weigh(1 + (group.rank + step) % 2)
                    model(inputs.to(DEVICE, kind)).float().square().mean().backward()
                    found.append(model.clip_grad_norm_(0.1).hex())
                    optimizer.step()
                    optimizer.zero_grad()
                found.append(digest(model))
        return found

    found = of_all(spread(3, work))

    each = len(found) // (4 if kind is torch.float32 else 2)
    assert [found[start : start + each] for start in range(0, len(found), each)] == [found[:each]] * (
        len(found) // each
    )


def test_a_gradient_that_is_too_large_to_be_squared_in_f32_is_measured_all_the_same():
    def work(group):
        class Large(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))

            def forward(self):
                return (self.weight * 1e25).sum()

        model = DataParallel(Large(), group)
        model().backward()
        return model.clip_grad_norm_(1.0)

    assert of_all(spread(2, work)) == pytest.approx(3**0.5 * 1e25)
