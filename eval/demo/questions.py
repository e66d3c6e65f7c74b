"""What the demo model is asked, and the words it answers with."""

#: The published question, as every evaluation of the demo set asks it.
QUESTION = '房间里有三张或更多的床，或者有上下铺吗？请只回答是或否。'
QUESTION_EN = 'Are there three or more beds, or a bunk bed, in this room? Answer Yes or No.'

#: The answers to `QUESTION`; both are single tokens of the demo model's tokenizer.
POSITIVE, NEGATIVE = '是', '否'

COUNT = '房间里有几张床？请只回答数字。'
COUNT_EN = 'How many beds are in this room? Answer with a number.'
BUNK = '房间里有上下铺吗？请只回答是或否。'
BUNK_EN = 'Is there a bunk bed in this room? Answer Yes or No.'


def is_positive(beds: int, bunks: int) -> bool:
    """The label rule: three or more beds (a bunk bed counts as one), or a bunk bed."""
    return beds >= 3 or bunks >= 1


def label(beds: int, bunks: int) -> str:
    """The right answer to `QUESTION`."""
    return POSITIVE if is_positive(beds, bunks) else NEGATIVE


def answers(beds: int, bunks: int) -> dict[str, str]:
    """Every question that the model is trained on, with its right answer."""
    positive, bunk = is_positive(beds, bunks), bunks >= 1
    return {
        QUESTION: label(beds, bunks),
        QUESTION_EN: 'Yes' if positive else 'No',
        COUNT: str(beds),
        COUNT_EN: str(beds),
        BUNK: POSITIVE if bunk else NEGATIVE,
        BUNK_EN: 'Yes' if bunk else 'No',
    }
