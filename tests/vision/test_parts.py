"""Where a part of a batch's features goes."""
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vision.parts import part_of


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=6), st.data())
def test_a_part_is_views_of_its_rows_in_order(counts, data):
    total = sum(counts)
    rows = torch.arange(total).reshape(total, 1, 1)
    out = [part.clone() for part in rows.split(counts)]
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    parts = part_of(out, start, stop)
    assert [row for part in parts for row in part.flatten().tolist()] == list(range(start, stop))
    assert all(len(part) for part in parts)
    for part in parts:
        part.fill_(-1)
    written = torch.cat([part.flatten() for part in out]) if out else torch.empty(0)
    assert (written == -1).nonzero().flatten().tolist() == list(range(start, stop))
