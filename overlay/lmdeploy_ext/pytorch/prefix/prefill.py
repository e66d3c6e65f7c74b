"""What is done before upstream's scheduler chooses the sequences of a prefill."""
from typing import Any


def share_running(scheduler: Any) -> None:
    """Make the prompts known that were computed since the last decoding step.

    Args:
        scheduler: upstream's `Scheduler`.
    """
    for seq in scheduler.running:
        scheduler.block_trie.allocate(seq)


def look_up_waiting(scheduler: Any) -> None:
    """Look up the prompts whose turn it is, as many as the prefill takes by what is left of them.

    Upstream looks a prompt up after it has decided whether that fits, by all of its tokens. One
    that does not get its turn keeps what it was given, as any that waits; whoever needs the memory
    takes it back.
    """
    room = scheduler.scheduler_config.max_batches - len(scheduler.running)
    tokens = scheduler.cache_config.max_prefill_token_num
    for seq in sorted(scheduler.waiting, key=lambda seq: seq.arrive_time)[:max(0, room)]:
        scheduler.block_trie.match(seq)
        tokens -= seq.num_token_ids
        if tokens <= 0:
            break
