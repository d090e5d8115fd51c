"""memories.ranking: BM25 and the mix."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.ranking import POOL, Corpus, bm25, idf, mix, nothing_near, pool_size, saturation

ids = st.integers(1, 50)
scores = st.dictionaries(ids, st.floats(0, 30), max_size=20)
similarities = st.dictionaries(ids, st.floats(-1, 1), max_size=20)
weights = st.floats(0, 1)

CORPUS = Corpus(documents=4, average_length=3.0, document_frequencies={"cat": 1, "the": 4})


def test_bm25_is_the_formula_of_the_literature() -> None:
    score = bm25(["cat", "dog"], {"cat": 2, "mat": 1}, 3, CORPUS, k1=1.2, b=0.75)
    assert score == pytest.approx(math.log(1 + 3.5 / 1.5) * 2 / (2 + 1.2))


def test_a_text_without_a_query_term_scores_nothing() -> None:
    assert bm25(["dog"], {"cat": 2}, 2, CORPUS) == 0


def test_a_term_said_twice_in_the_query_counts_once() -> None:
    assert bm25(["cat", "cat"], {"cat": 1}, 2, CORPUS) == bm25(["cat"], {"cat": 1}, 2, CORPUS)


def test_a_rarer_term_counts_more() -> None:
    assert idf(1000, 1) > idf(1000, 10) > idf(1000, 1000) > 0


def test_statistics_that_lag_behind_never_give_a_negative_score() -> None:
    assert idf(3, 10) > 0
    assert saturation(1, 5, 0.0) > 0


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0.1, 1000))
def test_more_occurrences_score_more_and_longer_texts_less(
    frequency: int, length: int, average: float
) -> None:
    here = saturation(frequency, length, average)
    assert 0 < here < saturation(frequency + 1, length, average) < 1
    assert saturation(frequency, length + 1, average) < here


@given(scores, similarities, weights)
def test_every_candidate_is_ranked_once_between_0_and_1(
    keyword: dict[int, float], near: dict[int, float], weight: float
) -> None:
    rows = mix(keyword, near, weight)
    assert sorted(row.id for row in rows) == sorted({*keyword, *near})
    assert all(0 <= row.rank <= 1 for row in rows)


@given(scores, similarities, weights, st.randoms())
def test_the_order_depends_on_the_values_alone(
    keyword: dict[int, float], near: dict[int, float], weight: float, random: object
) -> None:
    shuffled = list(keyword.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mix(dict(shuffled), near, weight) == mix(keyword, near, weight)


def test_equal_ranks_are_in_the_order_of_ids() -> None:
    assert [row.id for row in mix({9: 1.0, 3: 1.0, 7: 1.0 + 1e-15}, {}, 0.5)] == [3, 7, 9]


def test_weight_0_is_the_keyword_order_and_weight_1_the_semantic_one() -> None:
    keyword, near = {1: 3.0, 2: 2.0, 3: 1.0}, {1: 0.1, 2: 0.2, 3: 0.3}
    assert [row.id for row in mix(keyword, near, 0.0)] == [1, 2, 3]
    assert [row.id for row in mix(keyword, near, 1.0)] == [3, 2, 1]


def test_without_similarities_the_best_keyword_match_has_rank_1() -> None:
    assert mix({1: 2.0, 2: 1.0}, {}, 0.5)[0].rank == 1.0


def test_without_keyword_matches_the_nearest_row_leads() -> None:
    assert [row.id for row in mix({}, {1: 0.2, 2: 0.4}, 0.5)] == [2, 1]


def test_a_row_far_from_the_query_gains_nothing_from_its_similarity() -> None:
    far, none = mix({1: 1.0, 2: 1.0}, {1: -0.5}, 0.5)
    assert (far.rank, far.similarity) == (0.5, -0.5)
    assert (none.rank, none.similarity) == (0.5, None)


@given(scores, similarities, weights)
def test_a_deeper_pool_does_not_change_the_rank_of_a_row(
    keyword: dict[int, float], near: dict[int, float], weight: float
) -> None:
    worst_keyword, worst_near = min(keyword.values(), default=0.0), min(near.values(), default=0.0)
    before = {row.id: row.rank for row in mix(keyword, near, weight)}
    if keyword and near:
        after = {
            row.id: row.rank for row in mix({**keyword, 99: worst_keyword}, {**near, 98: worst_near}, weight)
        }
        assert before.items() <= after.items()


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_a_weight_outside_0_to_1_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        mix({1: 1.0}, {1: 0.5}, weight)


def test_a_pool_is_never_smaller_than_the_page() -> None:
    assert pool_size(10) == POOL
    assert pool_size(200) == 200


def test_abstaining_is_advised_by_what_both_legs_have_to_say_together() -> None:
    assert nothing_near(0.0, 0.0, 0.2)
    assert nothing_near(0.1, 0.5, 0.2)  # a common word, and the usual nearness of any two texts
    assert not nothing_near(0.3, 0.5, 0.2)
    assert not nothing_near(0.5, -0.4, 0.2)  # an opposite direction takes nothing from the words


def test_abstaining_is_judged_by_one_leg_where_the_other_has_nothing_to_say() -> None:
    assert nothing_near(None, 0.1, 0.2) and not nothing_near(None, 0.2, 0.2)
    assert nothing_near(0.1, None, 0.2) and not nothing_near(0.2, None, 0.2)
    assert nothing_near(None, None, 0.2)
