"""Small tokenizers for small checkpoints: byte-level BPE with InternVL2's special tokens.

Byte-level, as InternVL2-1B's tokenizer is: any text goes to ids and comes back unchanged.
"""
import itertools
import json
from pathlib import Path
from typing import Iterable, Optional, Sequence, Union

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

IMG_CONTEXT = '<IMG_CONTEXT>'
SPECIAL_TOKENS = ('<s>', '</s>', '<|im_start|>', '<|im_end|>', '<img>', '</img>', IMG_CONTEXT)
BYTES = 256


def build_tokenizer(lines: Iterable[str],
                    vocab_size: int = 512,
                    *,
                    single_tokens: Sequence[str] = (),
                    pad_to: Optional[int] = None,
                    add_bos: bool = False) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        lines: text to learn merges from.
        vocab_size: most entries to learn, the 256 bytes and the special tokens included.
        single_tokens: words, such as the labels of a classification, that must be one token each
            where they stand alone.
        pad_to: fill up with entries that no text gives, so that `len(tokenizer)` is this. The head
            of a language model must not be wider than its tokenizer: LMDeploy stops a whole batch
            when it samples an id without a token.
        add_bos: put `<s>` in front of each encoded text, as InternLM2's tokenizer does.

    Returns:
        a tokenizer whose special tokens have the highest ids, `<|im_end|>` being the end token.

    Raises:
        ValueError: `vocab_size` too small, or `pad_to` less than what was learned.
    """
    smallest = BYTES + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(f'vocab_size is {vocab_size}; it must be at least {smallest}: '
                         f'{BYTES} bytes and {len(SPECIAL_TOKENS)} special tokens')
    bpe = _train(list(lines), vocab_size - len(SPECIAL_TOKENS), single_tokens)
    if pad_to is not None:
        bpe = _pad(bpe, pad_to - len(SPECIAL_TOKENS))
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    if add_bos:
        bpe.post_processor = processors.TemplateProcessing(
            single='<s> $A', special_tokens=[('<s>', bpe.token_to_id('<s>'))])
    named = ('<s>', '<|im_end|>', '</s>')
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token='<s>',
        eos_token='<|im_end|>',
        pad_token='</s>',
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in named],
        model_max_length=8192,
        clean_up_tokenization_spaces=False)
    for word in single_tokens:
        if len(tokenizer.encode(word, add_special_tokens=False)) != 1:
            raise ValueError(f'vocab_size {vocab_size} leaves no room to make {word!r} one token; '
                             'raise it')
    return tokenizer


def _train(lines: list, vocab_size: int, single_tokens: Sequence[str]) -> Tokenizer:
    """Byte-level BPE of `vocab_size` entries, without special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size,
                                  min_frequency=1,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    # More often than anything else in the lines, so that they are merged first.
    repeats = 1 + sum(len(line.encode()) for line in lines)
    repeated = (itertools.repeat(word, repeats) for word in single_tokens)
    bpe.train_from_iterator(itertools.chain(lines, *repeated), trainer)
    return bpe


def _pad(bpe: Tokenizer, size: int) -> Tokenizer:
    """The same tokenizer with entries added that no merge leads to."""
    found = bpe.get_vocab_size()
    if found > size:
        extra = len(SPECIAL_TOKENS)
        raise ValueError(f'pad_to is {size + extra}, but the tokenizer has {found + extra} '
                         'entries; raise pad_to or lower vocab_size')
    state = json.loads(bpe.to_str())
    state['model']['vocab'].update({f'<|unused_{i}|>': i for i in range(found, size)})
    return Tokenizer.from_str(json.dumps(state))


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Union[str, Path]):
    """Write the tokenizer's files so that every supported transformers release reads them.

    tokenizers 0.20 writes merges as pairs, which 0.19 (LMDeploy 0.6.0) does not read; both read
    the older form, which is possible where no token contains a space.
    """
    tokenizer.save_pretrained(folder)
    file = Path(folder) / 'tokenizer.json'
    if not file.exists():  # a slow tokenizer
        return
    state = json.loads(file.read_text(encoding='utf-8'))
    merges = state['model'].get('merges', ())
    pairs = [merge for merge in merges if not isinstance(merge, str)]
    if pairs and not any(' ' in part for pair in pairs for part in pair):
        state['model']['merges'] = [' '.join(pair) for pair in pairs]
        file.write_text(json.dumps(state, ensure_ascii=False, indent=1), encoding='utf-8')
