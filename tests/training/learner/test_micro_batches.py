"""The plan of micro-batches over ranks."""

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.training.learner.micro_batches import pack, plan, share

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@given(LENGTHS, st.integers(1, 120))
def test_every_sample_is_in_one_micro_batch_that_fits(lengths: list[int], limit: int):
    batches = pack(lengths, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= limit or len(batch) == 1


def test_samples_of_similar_length_share_a_micro_batch():
    assert pack([3, 10, 4, 9], 20) == [[1, 3], [2, 0]]


@given(LENGTHS, st.integers(1, 5))
def test_the_shares_of_ranks_differ_by_at_most_one_sample(lengths: list[int], ranks: int):
    shares = share(lengths, ranks)
    assert sorted(index for each in shares for index in each) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in each) for each in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(LENGTHS, st.integers(1, 120), st.integers(1, 4))
def test_every_rank_has_the_same_number_of_micro_batches(
    lengths: list[int], limit: int, ranks: int
):
    plans = plan(lengths, limit, ranks)
    assert len({len(batches) for batches in plans}) == 1
    planned = [index for batches in plans for batch in batches for index in batch]
    assert sorted(planned) == list(range(len(lengths)))
