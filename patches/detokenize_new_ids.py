"""A token id above the tokenizer's vocabulary is no text, and a prompt needs none."""
from lmdeploy_ext.patching import patch

CONTEXT = 32  # ids of the prompt that the beginning of an answer is read with


@patch(target='lmdeploy.tokenizer:HuggingFaceTokenizer.detokenize_incrementally',
       group='correctness',
       upstream={'da47d05780ee2d5a': '0.6.0 to 0.6.4'},
       why='The output layer is often wider than the tokenizer; a padding id that is sampled '
       'raises TypeError, which aborts the whole batch. And the first piece of each answer turns '
       'the whole prompt to text, twice: 20 ms of the event loop for an image of 13 tiles.',
       remove_when='detokenize_incrementally([len(tokenizer)], DetokenizeState()) raises nothing, '
       'and takes no longer behind 3,000 ids')
def read_new_ids_only(original):
    from dataclasses import replace
    from weakref import WeakKeyDictionary
    sizes = WeakKeyDictionary()  # of a large vocabulary: 3 ms each time it is asked for

    def is_known(tokenizer, token_id):
        if tokenizer not in sizes:
            sizes[tokenizer] = len(tokenizer)
        return token_id < sizes[tokenizer] or token_id in tokenizer.added_tokens_decoder

    def detokenize_incrementally(self, all_input_ids, state, *args, **kwargs):
        start = state.ids_offset
        # later on the state has the tokens
        context = all_input_ids[max(0, start - CONTEXT):start] if state.prev_tokens is None else []
        known = [token_id for token_id in all_input_ids[start:] if is_known(self.model, token_id)]
        text, state = original(self, [*context, *known], replace(state, ids_offset=len(context)),
                               *args, **kwargs)
        return text, replace(state, ids_offset=len(all_input_ids))

    return detokenize_incrementally
