"""One request of a batch that fails leaves no others behind half-done."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.async_engine:AsyncEngine.batch_infer',
       group='correctness',
       upstream={'0c754ed3149002ed': '0.6.0 to 0.6.4'},
       why='The first error leaves the other requests in the event loop, where they go on '
       'whenever it runs again, beside the next batch.',
       remove_when='no task is left in the loop after a batch with an unreadable image has failed')
def finish_batch_first(original):
    from lmdeploy_ext.serve.batch_errors import RestFirst

    def batch_infer(self, prompts, *args, **kwargs):
        engine = RestFirst(self)
        outputs = original(engine, prompts, *args, **kwargs)
        engine.raise_first()
        for response in outputs if isinstance(outputs, list) else [outputs]:
            engine.tell_cached(response)
        return outputs

    return batch_infer
