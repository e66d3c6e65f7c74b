"""A token id above the tokenizer's vocabulary is no text."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.tokenizer:HuggingFaceTokenizer.detokenize_incrementally',
       group='correctness',
       upstream={'da47d05780ee2d5a': '0.6.0 to 0.6.4'},
       why='The output layer is often wider than the tokenizer; a padding id that is sampled '
       'raises TypeError, which aborts the whole batch.',
       remove_when='detokenize_incrementally([len(tokenizer)], DetokenizeState()) raises nothing')
def skip_padding_ids(original):
    from dataclasses import replace

    def detokenize_incrementally(self, all_input_ids, state, *args, **kwargs):
        start, size = state.ids_offset, len(self.model)
        known = [token_id for token_id in all_input_ids[start:]
                 if token_id < size or token_id in self.model.added_tokens_decoder]
        if len(known) == len(all_input_ids) - start:
            return original(self, all_input_ids, state, *args, **kwargs)
        text, state = original(self, [*all_input_ids[:start], *known], state, *args, **kwargs)
        return text, replace(state, ids_offset=len(all_input_ids))

    return detokenize_incrementally
