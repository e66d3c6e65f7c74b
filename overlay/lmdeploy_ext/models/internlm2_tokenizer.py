"""InternLM2's tokenizer (sentencepiece) without remote code."""
from typing import List

from transformers import LlamaTokenizer


class InternLM2Tokenizer(LlamaTokenizer):
    """The tokenizer that InternVL2-2B and 8B name in tokenizer_config.json.

    It splits text as Llama's (legacy) tokenizer does: special tokens first, sentencepiece between
    them. It differs in what it writes: as the published tokenizer, it removes the space in front
    of punctuation and contractions.
    """

    def __init__(self, vocab_file: str, pad_token: str = '</s>', **kwargs):
        kwargs.update(legacy=True, use_default_system_prompt=False)
        kwargs.setdefault('clean_up_tokenization_spaces', False)
        super().__init__(vocab_file, pad_token=pad_token, **kwargs)

    def convert_tokens_to_string(self, tokens: List[str]) -> str:
        """Text of tokens; a special token stands off by a space from what is in front of it."""
        text, pieces, after_special = '', [], False
        for token in tokens:
            if token not in self.all_special_tokens:
                pieces.append(token)
                after_special = False
                continue
            text += ('' if after_special else ' ') + self.sp_model.decode(pieces) + token
            pieces, after_special = [], True
        return self.clean_up_tokenization(text + self.sp_model.decode(pieces))
