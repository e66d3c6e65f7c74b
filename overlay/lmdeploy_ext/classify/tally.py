"""Counts over the rows of a result file."""
from collections import Counter

from .row import Row


class Tally:
    """What a result file holds, counted row by row.

    Attributes:
        rows: all rows.
        errors: rows without a label.
        labels: rows of each label.
        off_label: rows whose text begins with no label, so that the label is the least
            improbable one rather than the answer.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.errors = 0
        self.labels: 'Counter[str]' = Counter()
        self.off_label = 0

    def add(self, row: Row) -> None:
        self.rows += 1
        if row.error is not None:
            self.errors += 1
            return
        self.labels[row.label] += 1
        self.off_label += not begins_with_label(row.text, row.probabilities)


def begins_with_label(text: str, labels) -> bool:
    """Whether an answer begins with one of the labels, or breaks off within one."""
    text = text.strip()
    return bool(text) and any(text.startswith(label) or label.startswith(text) for label in labels)
