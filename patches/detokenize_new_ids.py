"""A token id above the tokenizer's vocabulary is no text, and a prompt needs none."""
from lmdeploy_ext.patching import patch

CONTEXT = 32  # ids of the prompt that the beginning of an answer is read with, as a rule


@patch(target='lmdeploy.tokenizer:HuggingFaceTokenizer.detokenize_incrementally',
       group='correctness',
       upstream={'da47d05780ee2d5a': '0.6.0 to 0.6.4'},
       why='The output layer is often wider than the tokenizer; a padding id that is sampled '
       'raises TypeError, which aborts the whole batch. And the first piece of each answer turns '
       'the whole prompt to text, twice: 20 ms of the event loop for an image of 13 tiles.',
       remove_when='detokenize_incrementally([len(tokenizer)], DetokenizeState()) raises nothing, '
       'and takes no longer behind 3,000 ids')
def read_new_ids_only(original):
    import re
    from dataclasses import replace
    from weakref import WeakKeyDictionary
    constants = WeakKeyDictionary()  # of a large vocabulary: 3 ms each time they are asked for
    a_byte = re.compile('<0x[0-9A-F]{2}>').fullmatch

    def constants_of(tokenizer):
        if tokenizer not in constants:
            constants[tokenizer] = len(tokenizer), frozenset(tokenizer.all_special_ids)
        return constants[tokenizer]

    def is_known(tokenizer, token_id):
        return (token_id < constants_of(tokenizer)[0]
                or token_id in tokenizer.added_tokens_decoder)

    def context_of(tokenizer, prompt):
        # Behind any ordinary token an answer reads as behind the whole prompt. Behind special
        # ones alone a first space would be lost; a run of bytes is one text, or none of it is.
        special = constants_of(tokenizer)[1]

        def ordinary(index):
            return (prompt[index] not in special
                    and not a_byte(str(tokenizer.convert_ids_to_tokens(prompt[index]))))

        begin = max(0, len(prompt) - CONTEXT)
        first = next(filter(ordinary, range(begin, len(prompt))), None)
        if first is None:
            first = next(filter(ordinary, range(begin - 1, -1, -1)), 0)
        return prompt[first:]

    def detokenize_incrementally(self, all_input_ids, state, *args, **kwargs):
        start, context = state.ids_offset, []
        if state.prev_tokens is None:  # later on the state has the tokens
            context = context_of(self.model, all_input_ids[:start])
        known = [token_id for token_id in all_input_ids[start:] if is_known(self.model, token_id)]
        text, state = original(self, [*context, *known], replace(state, ids_offset=len(context)),
                               *args, **kwargs)
        return text, replace(state, ids_offset=len(all_input_ids))

    return detokenize_incrementally
