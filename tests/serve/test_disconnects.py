"""Clients that leave: the engine and the other requests go on."""
import asyncio

from lmdeploy.serve.async_engine import AsyncEngine


class Instance:
    """Stands for an engine instance: what it was asked to cancel."""

    def __init__(self):
        self.cancelled = []

    async def async_cancel(self, session_id):
        self.cancelled.append(session_id)
        await asyncio.sleep(0)


def engine_of_one_instance():
    engine, instance = object.__new__(AsyncEngine), Instance()
    engine.gens_set, engine.id2generator, engine.running_session_ids = {instance}, {}, set()
    return engine, instance


def test_a_session_that_is_stopped_again_leaves_its_instance_to_who_has_it_now():
    engine, instance = engine_of_one_instance()

    async def run():
        await engine.get_generator(False, 1)
        await engine.stop_session(1)
        assert await engine.get_generator(False, 2) is instance
        await engine.stop_session(1)  # as the request does that the server has stopped before

    asyncio.run(run())
    assert instance.cancelled == [1]
    assert not engine.gens_set and engine.running_session_ids == {2}


def test_a_session_that_is_stopped_twice_at_once_is_cancelled_once():
    engine, instance = engine_of_one_instance()

    async def run():
        await engine.get_generator(False, 1)
        await asyncio.gather(engine.stop_session(1), engine.stop_session(1))
        assert await engine.get_generator(False, 1) is instance
        await engine.stop_session(1)

    asyncio.run(run())
    assert instance.cancelled == [1, 1] and engine.gens_set == {instance}
