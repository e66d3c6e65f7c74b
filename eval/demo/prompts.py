"""Prompts exactly as LMDeploy's `internvl2-internlm2` chat template and InternVL wrapper write
them.

LMDeploy cuts the prompt at the image and encodes both parts by themselves; the rows of image
features go between. `tests/demo` compares the ids with what LMDeploy feeds its engine.
"""
from dataclasses import dataclass

from . import questions

SYSTEM = ('你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, '
          '是一个有用无害的人工智能助手。')
BEFORE = f'<|im_start|>system\n{SYSTEM}<|im_end|><|im_start|>user\n<img>'
END = '<|im_end|>'


def after(question: str) -> str:
    """The text between the image and the answer."""
    return f'</img>\n{question}{END}<|im_start|>assistant\n'


@dataclass(frozen=True)
class Prompt:
    """Token ids of a question about one image: `before` the image's rows, and `after` them."""
    before: list[int]
    after: list[int]


def encode(tokenizer, question: str) -> Prompt:
    """Tokenize as LMDeploy does; `tokenizer` puts `<s>` in front of what it encodes."""
    before, behind = tokenizer.encode(BEFORE), tokenizer.encode(after(question))
    return Prompt(before, behind[1:] if behind[0] == tokenizer.bos_token_id else behind)


def training_lines() -> list[str]:
    """Text for the tokenizer to learn from: all prompts, and how else one might ask."""
    asked = list(questions.answers(0, 0))
    others = [
        '这是什么房间？', '请描述这张图片。', '图中有几张床？', '有没有上下铺？', '请回答是或否。', '请只回答数字。', 'Describe this image.',
        'How many pillows are there?', 'Is there a sofa in the picture?',
        'Please answer Yes or No.', 'Answer with a single word.', 'What is in this room?'
    ]
    return [BEFORE] + [after(question) for question in asked] + others


#: Every word that the model answers with; each is one token.
ANSWER_WORDS = (questions.POSITIVE, questions.NEGATIVE, 'Yes', 'No') + tuple('0123456789')
