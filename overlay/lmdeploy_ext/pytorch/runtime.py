"""What upstream's engine uses of `torch.cuda`, for a device that has no streams.

Work on the CPU is done when the call returns, so there is nothing to wait for and nothing to
record. `retarget` puts this module in the place of `torch.cuda`.
"""
import contextlib
from typing import ContextManager, Optional


class Stream:
    """A queue that is always empty."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def synchronize(self):
        """Wait for all work."""


class Event:
    """A mark behind work that is done."""

    def record(self, stream: Optional[Stream] = None):
        """Set the mark."""

    def wait(self, stream: Optional[Stream] = None):
        """Wait for the mark."""


def stream(stream: Optional[Stream]) -> ContextManager:
    """Make a stream the current one, which changes nothing."""
    return contextlib.nullcontext(stream)


def current_stream() -> Stream:
    """The only stream."""
    return Stream()


def synchronize():
    """Wait for all work."""
