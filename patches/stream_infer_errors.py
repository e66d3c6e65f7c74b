"""A stream in which a request fails ends with the error."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.async_engine:AsyncEngine.stream_infer',
       group='correctness',
       upstream={'084cb1b50ebd07ae': '0.6.0 to 0.6.4'},
       why='An error ends the thread that fills the queue, and the caller waits for it forever.',
       remove_when="list(pipe.stream_infer(('?', '/nowhere.jpg'))) raises an error")
def end_stream_with_error(original):
    from lmdeploy_ext.serve.batch_errors import RestFirst

    def stream_infer(self, prompts, *args, **kwargs):
        engine = RestFirst(self)
        for response in original(engine, prompts, *args, **kwargs):
            engine.tell_cached(response)
            yield response
        engine.raise_first()

    return stream_infer
