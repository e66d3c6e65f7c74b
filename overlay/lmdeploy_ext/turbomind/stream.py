"""TurboMind's streams with virtual tokens: what `TurboMindInstance`'s methods are replaced by."""
import inspect
from contextlib import aclosing
from typing import Any, AsyncIterator, Callable, Iterator, Optional

from lmdeploy_ext.turbomind.answers import answers
from lmdeploy_ext.turbomind.passage import Prompt
from lmdeploy_ext.turbomind.virtual_tokens import Entry, VirtualTokens, in_host_memory


def virtual_tokens_of(instance: Any) -> Optional[VirtualTokens]:
    """Those of the engine that upstream's `TurboMindInstance` belongs to; None without."""
    return getattr(instance.tm_model, 'virtual_tokens', None)


async def async_stream(original: Callable[..., AsyncIterator[Any]], instance: Any, session: Any,
                       prompt: Prompt, options: dict) -> AsyncIterator[Any]:
    """Outputs of one request; each has the `cached_tokens` of its `Passage`, where there is one.

    Args:
        original: upstream's `TurboMindInstance.async_stream_infer`, for several sequences in one.
        options: its other arguments, by name.
    """
    def outputs_of(prompt: Prompt) -> AsyncIterator[Any]:
        if isinstance(session, int):
            return answers(instance, session, prompt, options)
        return original(instance, session, prompt.ids, prompt.embeddings, prompt.ranges,
                        **options)

    tokens = virtual_tokens_of(instance)
    if tokens is None or options['stop']:
        prompt = Prompt(prompt.ids, await in_host_memory(prompt.embeddings), prompt.ranges)
        async with aclosing(outputs_of(prompt)) as outputs:
            async for output in outputs:
                yield output
        return
    passage = await tokens.admit(prompt, entry_of(session, options))
    asked = options['stream_output']
    options = dict(options, stream_output=asked or passage.reports_early)
    prompt, before = passage.prompt, instance.future
    try:
        async with aclosing(outputs_of(prompt)) as outputs:
            async for output in outputs:
                passage.got(output.num_token)
                output.cached_tokens = passage.cached_tokens
                if asked or not is_partial(output):
                    yield output
    finally:
        # upstream sets it when it calls the engine, in whose thread the call then waits for the
        # end
        passage.end_with(instance.future if instance.future is not before else None)


def stream(original: Callable[..., Iterator[Any]], instance: Any, *args: Any,
           **kwargs: Any) -> Iterator[Any]:
    """Outputs for a caller that waits: never with virtual tokens, but with penalties.

    Args:
        original: upstream's `TurboMindInstance.stream_infer`; its other arguments follow.
    """
    tokens = virtual_tokens_of(instance)
    given = inspect.signature(original).bind(instance, *args, **kwargs).arguments
    if tokens is None or not has_penalty(given.get('gen_config')):
        yield from original(instance, *args, **kwargs)
        return
    entered, before = tokens.guard.enter_penalised(), instance.future
    try:
        entered.result()
        yield from original(instance, *args, **kwargs)
    finally:
        if instance.future is before:
            tokens.guard.leave_penalised()
        else:  # also where the caller reads no further: the engine goes on
            instance.future.add_done_callback(lambda _: tokens.guard.leave_penalised())


def entry_of(session: Any, options: dict) -> Entry:
    """What upstream's arguments say of a request."""
    if not isinstance(session, int):  # a batch of sequences in one call: nothing to wait for each
        return Entry(tuple(session), has_penalty(options['gen_config']), False, False, 0)
    starts = bool(options['sequence_start'])
    whole = starts and bool(options['sequence_end']) and options['step'] == 0
    return Entry(session, has_penalty(options['gen_config']), starts, whole,
                 options['gen_config'].max_new_tokens or 0)


def has_penalty(gen_config: Any) -> bool:
    """Whether a `GenerationConfig` sends TurboMind's sampling over the ids of the prompt."""
    return gen_config is not None and gen_config.repetition_penalty != 1


def is_partial(output: Any) -> bool:
    """Whether more outputs of the request follow."""
    from lmdeploy.messages import ResponseType
    return output.status == ResponseType.SUCCESS
