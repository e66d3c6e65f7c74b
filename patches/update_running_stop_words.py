"""A stop token ends the answer also when it comes as the last of a decoding loop."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine.update_running',
       group='correctness',
       upstream={'4982523462c4aec1': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.pytorch.engine.engine:Engine._batch_stopping_criteria':
           {'b5510daa93b8d6c1': '0.6.0 to 0.6.4'},
       },
       why='A stop token is remembered within a decoding loop only; one at position 0, 15, 30, … '
       'is forgotten, and the answer goes on.',
       remove_when='an answer ends at a stop token (not EOS) at positions 0 and 15')
def remember_stop_token(original):
    from dataclasses import replace

    def update_running(self, running, next_token_ids, stopped):
        original(self, running, next_token_ids, stopped)
        for token, msg in zip(next_token_ids.tolist(), running):
            # no room for another token: the next step ends the answer, as within a loop
            if token in msg.sampling_param.stop_words:
                msg.sampling_param = replace(msg.sampling_param, max_new_tokens=msg.num_new_tokens)

    return update_running
