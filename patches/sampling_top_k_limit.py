"""More candidates than the vocabulary has are all of it."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.logits_process:FusedLogitsProcessor.sampling',
       group='correctness',
       upstream={
           'fc98f36d6f3c6574': '0.6.0',
           '99a0f94bbe02e70f': '0.6.1',
           'e9c2bb69c0e694ac': '0.6.2 to 0.6.4',
       },
       why='A request with a top_k above the vocabulary size ends the engine, '
       'and with it every request after it: "selected index k out of range".',
       remove_when='an answer with top_k=10000000 raises nothing')
def limit_candidates(original):
    from dataclasses import replace

    def sampling(self, logits):
        vocabulary = logits.size(-1)
        if self.sampling_inputs.max_top_k > vocabulary:
            self.sampling_inputs = replace(self.sampling_inputs, max_top_k=vocabulary)
        return original(self, logits)

    return sampling
