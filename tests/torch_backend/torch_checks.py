"""What each rank does in the tests of the torch backend. Every function returns what tests compare."""

import os
from datetime import timedelta

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import phalanx

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)
BEYOND_GLOO = (torch.int16, torch.uint16, torch.float8_e4m3fn, torch.complex64)
Op = distributed.ReduceOp


def values(rank, length=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * length + rank)
    return torch.randint(1, 5, (length,), generator=generator).to(dtype)


def reductions(rank):
    """Every reduction of every type, in place."""
    found = {}
    for dtype in TYPES:
        ops = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
        ops += [Op.AVG] if dtype.is_floating_point else [Op.BAND, Op.BOR, Op.BXOR]
        for op in ops:
            tensor = values(rank, dtype=dtype)
            distributed.all_reduce(tensor, op)
            found[str(dtype), str(op)] = tensor.double().tolist()
    return found


def copies(rank, dtypes=(*TYPES, torch.bool)):
    """Every collective that only copies, for every type."""
    size = distributed.get_world_size()
    found = {}
    for dtype in dtypes:
        own = values(rank, 3).to(dtype)
        shared = own.clone()
        distributed.broadcast(shared, 1)
        gathered = [torch.empty_like(own) for _ in range(size)]
        distributed.all_gather(gathered, own)
        single = torch.empty(size * 3, dtype=dtype)
        distributed.all_gather_single(single, own)
        exchanged = torch.empty(size * 3, dtype=dtype)
        distributed.all_to_all_single(exchanged, single)
        on_root = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
        distributed.gather(own, on_root, 0)
        part = torch.empty_like(own)
        distributed.scatter(part, gathered if rank == 1 else None, 1)
        everything = (shared, *gathered, single, exchanged, *(on_root or ()), part)
        found[str(dtype)] = [each.to(torch.complex64).tolist() for each in everything]
    return found


def other_forms(rank):
    """Async, coalesced, list and unequal forms."""
    size = distributed.get_world_size()
    tensors = [values(rank), values(rank, 1), torch.zeros(0), torch.tensor(float(rank))]
    works = [distributed.all_reduce(each, async_op=True) for each in tensors]
    for work in works:
        work.wait()
    futures = [distributed.all_reduce(values(rank), async_op=True).get_future() for _ in range(3)]
    chained = torch.futures.collect_all(futures).wait()
    transposed = values(rank, 12).reshape(3, 4).t()
    distributed.all_reduce(transposed)
    to_root = values(rank)
    distributed.reduce(to_root, 1)
    scattered = torch.empty(2)
    distributed.reduce_scatter(scattered, [values(rank, 2) + each for each in range(size)])
    part = torch.empty(4)
    distributed.reduce_scatter_single(part, values(rank, 4 * size), Op.AVG)
    rows = [rank + 1 + other for other in range(size)]
    sent = torch.arange(float(2 * sum(rows))).reshape(-1, 2) + 100 * rank
    received = torch.empty(sum(rows), 2)
    distributed.all_to_all_single(received, sent, rows, rows)
    outs = [torch.empty(2) for _ in range(size)]
    distributed.all_to_all(outs, [torch.full((2,), float(rank)) for _ in range(size)])
    objects = [None] * size
    distributed.all_gather_object(objects, {"rank": rank})
    plain = [*tensors, *(each.value()[0] for each in chained), transposed, scattered, part, received, *outs]
    if rank == 1:
        plain.append(to_root)
    return [each.tolist() for each in plain], objects


def unequal_lists(rank):
    """Lists of tensors with different lengths, which Gloo refuses."""
    size = distributed.get_world_size()
    outs = [torch.empty(rank + 1) for _ in range(size)]
    distributed.all_to_all(outs, [torch.full((other + 1,), float(rank)) for other in range(size)])
    gathered = [torch.empty(other + 1) for other in range(size)]
    distributed.all_gather(gathered, torch.full((rank + 1,), float(rank)))
    part = torch.empty(rank + 1)
    distributed.reduce_scatter(part, [torch.full((other + 1,), float(other)) for other in range(size)])
    return [each.tolist() for each in (*outs, *gathered, part)]


def premultiplied(rank):
    """Sums of inputs times a factor, as FSDP2 asks for."""
    factor = distributed._make_nccl_premul_sum(0.5)
    tensor = torch.full((4,), rank + 1.0)
    distributed.all_reduce(tensor, factor)
    part = torch.empty(2)
    distributed.reduce_scatter_single(part, torch.ones(2 * distributed.get_world_size()), factor)
    return tensor.tolist(), part.tolist()


def messages(rank):
    """Messages with tags, taken in another order than they were sent in, and from any source."""
    if rank == 0:
        works = [distributed.isend(torch.full((4,), float(tag)), 1, tag=tag) for tag in (3, 1, 2)]
        large = distributed.isend(torch.arange(3e6), 1, tag=9)
        any_source = torch.empty(2, dtype=torch.int64)
        source = distributed.recv(any_source)
        for work in (*works, large):
            work.wait()
        return any_source.tolist(), source
    if rank == 1:
        boxes = {tag: torch.empty(4) for tag in (1, 2, 3)}
        for tag, box in boxes.items():
            distributed.recv(box, 0, tag=tag)
        columns = torch.empty(3, 1_000_000).t()
        distributed.recv(columns, 0, tag=9)
        distributed.send(torch.tensor([rank, 7]), 0)
        return [box.tolist() for box in boxes.values()], columns[-1].tolist()
    return None


def subgroups(rank):
    """Groups that overlap, and the two dimensions of a mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    pairs = [distributed.new_group(ranks) for ranks in ([0, 1], [1, 2], [2, 3], [3, 0])]
    found = []
    for pair in pairs:
        if distributed.get_rank(pair) >= 0:
            tensor = torch.tensor([float(rank)])
            distributed.all_reduce(tensor, group=pair)
            found.append(tensor.item())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name in ("rows", "columns"):
        tensor = torch.tensor([float(rank)])
        distributed.all_reduce(tensor, group=mesh.get_group(name))
        found.append(tensor.item())
    return found


def failing_calls(rank):
    """What is refused, and in which words; the group works afterwards."""
    found = []
    for call in (
        lambda: distributed.all_reduce(torch.ones(2, dtype=torch.int16)),
        lambda: distributed.all_reduce(torch.ones(2), Op.BAND),
        lambda: distributed.all_to_all_single(torch.empty(3), torch.empty(3)),
    ):
        try:
            call()
        except phalanx.ConfigError as error:
            found.append(str(error))
    tensor = torch.ones(1)
    distributed.all_reduce(tensor)
    return found, tensor.item()


def mismatch(rank):
    """What a rank hears if the other one makes another call."""
    try:
        if rank == 0:
            distributed.all_reduce(torch.ones(3))
        else:
            distributed.all_reduce(torch.ones(4))
    except phalanx.CollectiveMismatch as error:
        return str(error)
    return None


def late(rank):
    """What a rank hears if the other one is late."""
    store = distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["told"], timedelta(minutes=2))
        return None
    distributed.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=0.5))
    try:
        distributed.barrier()
    except phalanx.DeadlineExceeded as error:
        return str(error)
    finally:
        store.set("told", "")


def losing_a_rank(rank):
    """What the survivor of a killed rank hears from ``wait``, from a future and from later calls."""
    distributed.barrier()
    if rank == 1:
        os._exit(9)
    words = []
    work = distributed.all_reduce(torch.ones(2), async_op=True)
    for call in (work.wait, lambda: work.get_future().wait(), lambda: distributed.all_reduce(torch.ones(2))):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the test looks at its type
            words.append(f"{type(error).__name__}: {error}")
    return words


def losing_a_rank_in_backward(rank):
    """What the survivor of a killed rank hears from ``backward``."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    loss = model(torch.ones(2, 4)).sum()
    if rank == 1:
        os._exit(9)
    try:
        loss.backward()
    except Exception as error:  # noqa: BLE001 - the test looks at its type
        return f"{type(error).__name__}: {error}"
    return None


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        # No bias: BatchNorm takes it away again, so its gradient is only rounding, of which Adam would make much.
        torch.nn.Linear(6, 16, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 3),
    )


def train(rank, model, optimizer, steps=4):
    """The loss of each step; each rank has its own samples."""
    torch.manual_seed(10 + rank)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def weights(model):
    return [each.tolist() for each in model.state_dict().values()]


class Skipping(torch.nn.Module):
    """Uses one of its layers only on rank 0."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = make_model(), torch.nn.Linear(3, 3)

    def forward(self, x):
        out = self.used(x)
        return self.unused(out) if distributed.get_rank() == 0 else out


def ddp(rank, how):
    """Weights after some steps of DDP."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if how == "unused":
        model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
    else:
        options = {"view": {"gradient_as_bucket_view": True}, "static": {"static_graph": True}}.get(how, {})
        model = DistributedDataParallel(make_model(rank), bucket_cap_mb=0.0005, **options)
    if how == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if how == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = train(rank, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    return losses, weights(model.module)


def fsdp(rank, divide=None):
    """Weights after some steps of FSDP2, and what clipping found."""
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    model[1] = torch.nn.LayerNorm(16)
    for layer in (model[0], model[3]):
        fully_shard(layer)
    fully_shard(model)
    if divide:
        model.set_gradient_divide_factor(divide)
    losses = train(rank, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    return losses, [each.full_tensor().tolist() for each in model.state_dict().values()]


def zero(rank):
    """Weights after some steps of ``ZeroRedundancyOptimizer``, and its consolidated state."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = train(rank, model, optimizer)
    optimizer.consolidate_state_dict(0)
    return losses, weights(model.module), len(optimizer.state_dict()["state"]) if rank == 0 else None


def joined(rank):
    """Ranks with different numbers of batches, through ``Join``."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(torch.nn.Linear(6, 2))
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        train(rank, model, optimizer, steps=2 + rank)
    return weights(model.module)


def tensors_in_parallel(rank):
    """DTensors and functional collectives."""
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    size = distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(24.0).reshape(6, 4)
    by_rows = distribute_tensor(whole, mesh, [Shard(0)])
    by_columns = by_rows.redistribute(mesh, [Shard(1)])
    product = (by_columns @ distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])).full_tensor()
    partial = DTensor.from_local(whole, mesh, [Replicate()]).full_tensor()
    total = functional.all_reduce(torch.ones(3) * rank, "sum", mesh)
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, mesh)
    scattered = functional.reduce_scatter_tensor(torch.arange(2.0 * size), "sum", 0, mesh)
    listed = functional.all_reduce_coalesced([torch.ones(2), torch.ones(1)], "sum", mesh)
    return [each.tolist() for each in (product, partial, total, gathered, scattered, *listed)]


def checkpoint(rank, folder):
    """A sharded model, saved and loaded by ``torch.distributed.checkpoint``."""
    from torch.distributed import checkpoint as saved
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    expected = [each.clone() for each in make_model().state_dict().values()]
    fully_shard(model)
    saved.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    state = {"model": model.state_dict()}
    saved.load(state, checkpoint_id=folder)
    found = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.state_dict().values()]
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def sparse(rank):
    """The sum of sparse tensors, and DDP with a sparse embedding."""
    own = torch.sparse_coo_tensor([[rank, 3]], torch.tensor([1.0 + rank, 2.0]), (5,))
    distributed.all_reduce(own)
    model = DistributedDataParallel(torch.nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2)))
    model(torch.tensor([rank, 4])).sum().backward()
    return own.to_dense().tolist(), model.module.weight.grad.to_dense().tolist()


def on_a_gpu(rank):
    """Collectives and DDP on tensors of the one GPU that all ranks use."""
    device, size = torch.device("cuda", 0), distributed.get_world_size()
    total = torch.full((1 << 20,), rank + 1.0, device=device)
    later = torch.full((3,), rank + 1.0, device=device)
    work = distributed.all_reduce(later, async_op=True)
    distributed.all_reduce(total)
    work.wait()
    chained = distributed.all_reduce(later.clone(), async_op=True).get_future().then(lambda each: each.value()[0] * 2)
    gathered = [torch.empty(2, device=device, dtype=torch.bfloat16) for _ in range(size)]
    distributed.all_gather(gathered, torch.full((2,), float(rank), device=device, dtype=torch.bfloat16))
    if rank == 0:
        distributed.send(later, 1)
    elif rank == 1:
        distributed.recv(later.zero_(), 0)
    model = DistributedDataParallel(make_model(rank).to(device), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        model(torch.randn(5, 6, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    shown = [total[-1], *later, *chained.wait(), *(each[0] for each in gathered)]
    return [each.item() for each in shown], [each.tolist() for each in model.module.parameters()]
