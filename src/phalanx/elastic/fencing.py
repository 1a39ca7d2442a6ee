"""Which worker may write into the directory of a run."""


def may_write(latest: int, epoch: int) -> bool:
    """Return whether a worker of ``epoch`` may write, if a worker of epoch ``latest`` was the last that did.

    A worker that was stopped, given up and continued belongs to an older epoch, and must not write.
    """
    return latest <= epoch
