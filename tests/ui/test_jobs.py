"""Long computations that can be stopped, each by its own visitor only."""

import pytest

from vitviz.ui.jobs import JobCancelled, JobReplaced, Jobs


def test_a_job_is_stopped_by_its_visitor_and_by_nobody_else() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare") as check:
        jobs.stop("bert", "compare")
        jobs.stop("anna", "heads")
        check()
        jobs.stop("anna", "compare")
        with pytest.raises(JobCancelled):
            check()


def test_the_next_job_of_a_name_stops_the_one_before_and_is_not_stopped_by_its_end() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare") as first:
        second_job = jobs.running("anna", "compare")
        second = second_job.__enter__()
        with pytest.raises(JobReplaced):
            first()
    second()
    jobs.stop("anna", "compare")
    with pytest.raises(JobCancelled):
        second()
    second_job.__exit__(None, None, None)


def test_a_job_that_was_announced_runs_with_its_ticket_unless_it_was_stopped_or_replaced_before() -> None:
    jobs = Jobs()
    first = jobs.ask("anna", "draw")
    assert jobs.asked("anna", "draw") == first and jobs.asked("bert", "draw") is None
    second = jobs.ask("anna", "draw")
    with pytest.raises(JobReplaced), jobs.running("anna", "draw", first):
        pytest.fail("it has been replaced")
    with jobs.running("anna", "draw", second) as check:
        check()
        assert jobs.asked("anna", "draw") == second
        third = jobs.ask("anna", "draw")
        with pytest.raises(JobReplaced):
            check()
    assert jobs.asked("anna", "draw") == third
    assert jobs.stop("anna", "draw")
    with pytest.raises(JobCancelled) as stopped, jobs.running("anna", "draw", third):
        pytest.fail("it has been stopped")
    assert stopped.type is JobCancelled


def test_all_jobs_of_a_visitor_who_leaves_are_stopped() -> None:
    jobs = Jobs()
    with jobs.running("anna", "draw") as drawn, jobs.running("bert", "draw") as other:
        announced = jobs.ask("anna", "compare")
        jobs.leave("anna")
        with pytest.raises(JobCancelled):
            drawn()
        with pytest.raises(JobCancelled), jobs.running("anna", "compare", announced):
            pytest.fail("nobody waits for it")
        other()


def test_what_is_over_cannot_be_stopped() -> None:
    jobs = Jobs()
    with jobs.running("anna", "compare"):
        pass
    assert not jobs.stop("anna", "compare")
    with jobs.running("anna", "compare") as check:
        check()
