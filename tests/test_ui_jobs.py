"""Long computations that can be stopped, each by its own visitor only."""

import pytest

from vitviz.ui.jobs import Jobs, Stopped


def test_a_job_is_stopped_by_its_visitor_and_by_nobody_else() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare") as check:
        jobs.stop("bert", "compare")
        jobs.stop("anna", "heads")
        check()
        jobs.stop("anna", "compare")
        with pytest.raises(Stopped):
            check()


def test_the_next_job_of_a_name_stops_the_one_before_and_is_not_stopped_by_its_end() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare") as first:
        second_job = jobs.running("anna", "compare")
        second = second_job.__enter__()
        with pytest.raises(Stopped):
            first()
    second()
    jobs.stop("anna", "compare")
    with pytest.raises(Stopped):
        second()
    second_job.__exit__(None, None, None)


def test_what_is_over_cannot_be_stopped() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare"):
        pass
    jobs.stop("anna", "compare")
    with jobs.running("anna", "compare") as check:
        check()
