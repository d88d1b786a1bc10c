"""Ordered maps, and libraries on one thread while any of our threads computes."""

from __future__ import annotations

import threading

import numpy as np
import threadpoolctl

from consilience.numerics.parallel import one_thread, ordered_map


def threads() -> set[int]:
    np.dot(np.ones((4, 4)), np.ones((4, 4)))
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


def test_results_come_in_the_order_of_the_items() -> None:
    assert ordered_map(lambda x: x * x, range(10), n_jobs=1) == [x * x for x in range(10)]


def test_threads_that_overlap_all_see_one() -> None:
    """The first of two threads leaves while the second still computes."""
    first_inside, second_inside, first_left = (threading.Event() for _ in range(3))
    seen: list[set[int]] = []

    def first() -> None:
        with one_thread():
            first_inside.set()
            second_inside.wait(10)
        first_left.set()

    def second() -> None:
        first_inside.wait(10)
        with one_thread():
            second_inside.set()
            first_left.wait(10)
            seen.append(threads())

    with threadpoolctl.threadpool_limits(2):
        with one_thread():
            workers = [threading.Thread(target=f) for f in (first, second)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert seen == [{1}]
            assert threads() == {1}
        assert threads() == {2}


def test_it_nests() -> None:
    with threadpoolctl.threadpool_limits(2):
        with one_thread():
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == {2}
