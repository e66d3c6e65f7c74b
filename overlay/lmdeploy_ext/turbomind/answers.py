"""TurboMind's outputs of a request as they come.

Upstream looks for them every 2 ms, for each request: 32,000 times a second with 64 in flight. Here
the engine's threads wake the one that waits.
"""
import asyncio
from collections import deque
from typing import Any, AsyncIterator, Deque, Optional, Tuple

from lmdeploy_ext.turbomind.passage import Prompt

_FAILED = -1  # of upstream's `_async_forward_thread`, from 0.6.1 on; before it says nothing

Arrival = Tuple[int, Any]  # whether the sequence has ended, or `_FAILED`; what the engine gave


class Arrivals:
    """The newest output of one request. It has all that is in older ones.

    `put` is for any thread, `newest` for the event loop that it is made on.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: Deque[Arrival] = deque(maxlen=1)
        self._came = asyncio.Event()
        self._ended = False

    def put(self, arrival: Arrival) -> None:
        if self._ended:  # a late part of what is complete
            return
        self._ended = bool(arrival[0])
        self._newest.append(arrival)
        try:
            self._loop.call_soon_threadsafe(self._came.set)
        except RuntimeError:  # the loop was closed, so nobody waits
            pass

    async def newest(self) -> Arrival:
        """Wait for one that was not seen yet."""
        while True:
            await self._came.wait()
            self._came.clear()
            if self._newest:
                return self._newest.popleft()


async def answers(instance: Any, session: int, prompt: Prompt,
                  options: dict) -> AsyncIterator[Any]:
    """`EngineOutput`s of one sequence; the last one says so, or is an error.

    Args:
        instance: upstream's `TurboMindInstance`; its `future` is then that of the engine's call.
        options: the other arguments of its `async_stream_infer`, by name.

    Raises:
        Exception: of the engine, with LMDeploy 0.6.0; from 0.6.1 on an output says so.
    """
    from lmdeploy.messages import EngineOutput, ResponseType
    from lmdeploy.turbomind import turbomind as upstream
    arrivals, config = Arrivals(), options['gen_config']
    streams = options['stream_output'] and not options['stop']
    if streams:
        instance.model_inst.register_callback(lambda outputs, _: arrivals.put((False, outputs)))
    inputs, lengths = instance.prepare_inputs(
        session_id=session, input_ids=prompt.ids, gen_config=config,
        input_embeddings=prompt.embeddings, input_embedding_ranges=prompt.ranges,
        **{name: options[name] for name in ('sequence_start', 'sequence_end', 'step', 'stop')})
    instance._async_forward_thread(upstream._np_dict_to_tm_dict(inputs), arrivals)
    call, executor = instance.future, instance.executor
    executor.shutdown(wait=False)  # its thread ends with the call
    call.add_done_callback(lambda done: done.exception() and arrivals.put((_FAILED, None)))
    reader = _Reader(instance, session, int(lengths[0]) + options['step'], config)
    finished = False
    while not finished:
        finished, outputs = await arrivals.newest()
        if finished == _FAILED:
            call.result()  # raises what 0.6.0's call did; later releases have logged it
            yield EngineOutput(ResponseType.INTERNAL_ENGINE_ERROR, [], 0)
            return
        yield reader.read(upstream._tm_dict_to_torch_dict(outputs),
                          ResponseType.FINISH if finished else ResponseType.SUCCESS)
    # the engine writes to a callback's outputs no more
    if streams:
        instance.model_inst.unregister_callback()


class _Reader:
    """What is in the engine's tensors.

    Args:
        start: tokens before the answer: the prompt's, and those of the session so far.
    """

    def __init__(self, instance: Any, session: int, start: int, config: Any) -> None:
        self._instance, self._session, self._start = instance, session, start
        self._config, self._logprobs = config, None

    def read(self, tensors: dict, status: Any) -> Any:
        """An `EngineOutput` of all tokens so far; what ends the answer is not among them."""
        from lmdeploy.messages import EngineOutput
        length = int(tensors['sequence_length'][0, 0])
        answer = tensors['output_ids'][0, 0, self._start:length]
        ids, count = answer.tolist(), length - self._start
        logprobs = self._read_logprobs(tensors, answer, count)
        # as upstream counts: a stop word is a token of the answer, the end of the sequence is not
        if ids and ids[-1] == self._instance.eos_id and not self._config.ignore_eos:
            del ids[-1]
            count -= 1
        elif ids and ids[-1] in (self._config.stop_token_ids or ()):
            del ids[-1]
        return EngineOutput(status, ids, count, logprobs[:len(ids)] if logprobs else None)

    def _read_logprobs(self, tensors: dict, answer: Any, count: int) -> Optional[list]:
        if 'logprob_vals' in tensors:
            self._logprobs = self._instance._get_logprobs(
                *(tensors[f'logprob_{name}'][0, 0] for name in ('vals', 'indexes', 'nums')),
                answer, self._config.logprobs, count, self._logprobs, self._session)
        return self._logprobs
