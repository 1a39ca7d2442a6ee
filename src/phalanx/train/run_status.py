"""How a run stands, as one value: what ``status.json`` and ``/metrics`` say, made from the facts of its directory."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from phalanx.telemetry.blame import BlameReport
from phalanx.telemetry.record import Activity
from phalanx.telemetry.step_times import StepTimes
from phalanx.train.incidents import Incident
from phalanx.train.record import StepRecord

_RECENT = 20  # steps over which times are averaged
_SHOWN = (
    Activity.DATA,
    Activity.FORWARD,
    Activity.BACKWARD,
    Activity.EXPOSED,
    Activity.COMMIT,
    Activity.OPTIMIZER,
    Activity.CHECKPOINT,
    Activity.COLLECT,
)


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank spends the time of a step on, in seconds by activity, averaged over the last steps."""

    rank: int
    seconds: dict[str, float]


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands. ``words`` says it in a sentence; ``blames`` are the sentences of ``phalanx blame``."""

    words: str
    step: int
    planned_steps: int | None
    workers: int
    loss: float | None
    eval_loss: float | None
    norm: float | None
    lr: float | None
    tokens_per_s: float
    step_s: float
    losses: int
    recoveries: int
    recovery_s: float
    ranks: tuple[RankStatus, ...]
    blames: tuple[str, ...]
    wasted: dict[str, float]


def describe_status(
    steps: Sequence[StepRecord],
    *,
    planned_steps: int | None,
    incidents: Iterable[Incident],
    times: StepTimes | None,
    report: BlameReport | None,
) -> RunStatus:
    """Return how a run stands after its last step."""
    recent, last = steps[-_RECENT:], steps[-1] if steps else None
    step_s = statistics.median(each.seconds for each in recent) if recent else 0.0
    tokens_per_s = sum(each.tokens for each in recent) / seconds if (seconds := sum(e.seconds for e in recent)) else 0.0
    known = list(incidents)
    recovered = [each.recovery_s for each in known if each.recovery_s is not None]
    blames = report.blames if report else ()
    done = last.step + 1 if last else 0
    return RunStatus(
        words=_say(done, planned_steps, tokens_per_s, blames[0].words if blames else ""),
        step=done,
        planned_steps=planned_steps,
        workers=last.workers if last else 0,
        loss=last.loss if last else None,
        eval_loss=next((each.eval_loss for each in reversed(steps) if each.eval_loss is not None), None),
        norm=last.norm if last else None,
        lr=last.lr if last else None,
        tokens_per_s=tokens_per_s,
        step_s=step_s,
        losses=sum(each.losses for each in known),
        recoveries=len(recovered),
        recovery_s=sum(recovered),
        ranks=tuple(_describe_ranks(times)) if times else (),
        blames=tuple(each.words for each in blames),
        wasted={f"{each.waste.value} of {_name(each.ranks)}": each.share for each in blames},
    )


def format_metrics(status: RunStatus) -> str:
    """Return a status in the text format of Prometheus."""
    lines: list[str] = []
    for name, kind, text, value in (
        ("step", "gauge", "Steps that were taken.", status.step),
        ("planned_steps", "gauge", "Steps that the run will have taken at its end.", status.planned_steps),
        ("workers", "gauge", "Workers that took the last step.", status.workers),
        ("loss", "gauge", "Loss of the last step.", status.loss),
        ("held_out_loss", "gauge", "Loss on held-out text at the last evaluation.", status.eval_loss),
        ("gradient_norm", "gauge", "Norm of the gradient of the last step, before clipping.", status.norm),
        ("learning_rate", "gauge", "Learning rate of the last step.", status.lr),
        ("tokens_per_second", "gauge", "Tokens per second over the last steps.", status.tokens_per_s),
        ("step_seconds", "gauge", "Median seconds of the last steps.", status.step_s),
        ("workers_lost_total", "counter", "Workers that were lost.", status.losses),
        ("recoveries_total", "counter", "Times that the run went on after a loss.", status.recoveries),
        ("recovery_seconds_total", "counter", "Seconds from losses to the next steps.", status.recovery_s),
    ):
        if value is not None:
            lines += [*_head(name, kind, text), f"phalanx_{name} {value:.17g}"]
    if status.ranks:
        lines += _head("rank_seconds", "gauge", "Seconds of a step that a rank spends on an activity.")
    for rank in status.ranks:
        for activity, seconds in rank.seconds.items():
            lines.append(f'phalanx_rank_seconds{{rank="{rank.rank}",activity="{activity}"}} {seconds:.9g}')
    if status.wasted:
        lines += _head("wasted_ratio", "gauge", "Fraction of all time that something costs; see phalanx blame.")
    lines += [f'phalanx_wasted_ratio{{cause="{cause}"}} {share:.6g}' for cause, share in status.wasted.items()]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP phalanx_{name} {text}", f"# TYPE phalanx_{name} {kind}"]


def _describe_ranks(times: StepTimes) -> Iterable[RankStatus]:
    for column, rank in enumerate(times.ranks.tolist()):
        seconds = {
            activity.name.lower(): float(times.spent[activity][-_RECENT:, column].mean()) if len(times.steps) else 0.0
            for activity in _SHOWN
        }
        yield RankStatus(rank=rank, seconds=seconds)


def _say(step: int, planned: int | None, tokens_per_s: float, worst: str) -> str:
    of = f" of {planned:,}" if planned is not None else ""
    return f"step {step:,}{of}, {tokens_per_s:,.0f} tokens/s" + (f"; {worst}" if worst else "")


def _name(ranks: Sequence[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks) or "all ranks"
