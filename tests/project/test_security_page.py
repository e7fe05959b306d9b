"""The promises of docs/hosting.md, and the tests that check each of them."""

from __future__ import annotations

import re

from docs.site.tables import limits
from tests.support.example import ROOT
from vitviz.system import strangers

PAGE = (ROOT / "docs" / "hosting.md").read_text()
PROMISES = PAGE.partition("## What the server promises\n")[2].partition("\n## ")[0]
# Each promise, and below it its tests.
TESTS = """
Only the routes that the app needs are served
    ui/server/test_routes.py::test_exactly_the_listed_routes_of_gradio_are_served
    ui/server/test_routes.py::test_every_other_route_is_answered_404_in_one_sentence
    ui/test_journeys.py::test_the_page_works_whole_without_the_api
No request makes a shared server fetch an address
    ui/server/test_routes.py::test_no_route_fetches_an_address
    ui/server/test_routes.py::test_no_file_of_a_call_is_fetched_whoever_calls
Links store no state of a page on disk
    ui/server/test_routes.py::test_no_state_is_written_for_a_link
The size of a body is limited before it is read
    ui/server/test_requests.py::test_a_large_body_is_refused_before_it_is_there
    ui/server/test_requests.py::test_a_body_of_many_items_is_refused_before_it_is_read
A body is there within its seconds
    ui/server/test_requests.py::test_a_body_that_comes_too_slowly_is_refused
    ui/server/test_requests.py::test_a_body_that_nests_is_refused_and_nobody_waits
A text is read in linear time
    ui/test_random_values.py::test_a_text_is_read_in_linear_time
    ui/test_random_values.py::test_a_text_that_once_took_long_is_read_in_linear_time
Every wrong request is answered in one sentence
    ui/server/test_requests.py::test_every_wrong_body_is_told_in_a_sentence
    ui/server/test_requests.py::test_a_wrong_form_is_told_in_a_sentence_and_leaves_nothing
The log has at most one line for a request
    ui/test_launch.py::test_the_package_of_tools_logs_nothing
    ui/server/test_requests.py::test_a_strange_request_is_not_in_the_log
    worker/test_worker.py::test_the_log_says_where_a_reader_failed_and_nothing_of_the_file
    ui/server/test_requests.py::test_what_nobody_expected_is_one_sentence_and_one_line
Slow connections, queued events and many pages opened at once hold nobody up
    ui/server/test_requests.py::test_stalled_bodies_of_others_hold_nobody_up
    ui/server/test_requests.py::test_slow_connections_hold_nobody_up
    ui/server/test_requests.py::test_queued_events_hold_up_nobody
    ui/server/test_unread_replies.py::test_pages_that_are_asked_for_at_once_hold_nobody_up
A connection on which nothing is asked ends
    ui/server/test_connections.py::test_a_connection_on_which_nothing_is_asked_ends
    ui/server/test_connections.py::test_a_connection_whose_answer_nobody_reads_ends
    ui/server/test_connections.py::test_the_limit_of_descriptors_is_raised
    ui/test_launch.py::test_limits_and_descriptors_are_there_before_the_first_connection
A visitor has so many requests under way
    ui/server/test_requests.py::test_one_visitor_has_so_many_requests_under_way_and_the_next_wait
    ui/server/test_requests.py::test_a_large_body_that_waits_counts_as_several_requests
    ui/server/test_requests.py::test_a_body_counts_before_it_is_there
    ui/server/test_requests.py::test_a_request_counts_until_its_answer_is_taken
    ui/test_runs_order.py::test_one_visitor_has_so_many_runs
    ui/server/test_unread_replies.py::test_one_visitor_has_so_many_calls_and_another_has_their_own
    ui/server/test_unread_replies.py::test_answers_that_nobody_reads_are_dropped
    ui/server/test_unread_replies.py::test_of_answers_that_were_read_gradio_keeps_nothing_for_ever
    ui/server/test_unread_replies.py::test_unread_answers_of_others_cost_nobody_theirs
Visitors are served in turn
    ui/server/test_line.py::test_who_was_served_longest_ago_is_next
    ui/server/test_line.py::test_new_addresses_without_end_hold_up_nobody_for_ever
    ui/server/test_line.py::test_long_work_is_nice_to_others
    ui/server/test_line.py::test_who_waits_has_no_thread_and_hears_how_many_come_first
    ui/server/test_line.py::test_work_is_done_once_for_all_who_ask_meanwhile
    ui/server/test_fair_queue.py::test_after_one_who_calls_more_than_there_are_places_others_are_next
    worker/test_worker.py::test_children_share_the_processor_by_their_priorities_and_hear_no_keys
    ui/test_runs.py::test_a_picture_that_takes_long_waits_with_long_work
A shared app ends work that takes too long
    ui/server/test_line.py::test_work_of_strangers_ends_at_a_report_after_its_time
What nobody waits for ends
    ui/test_runs_order.py::test_a_page_that_closes_ends_its_runs
    ui/test_runs_order.py::test_a_lost_connection_ends_a_run_after_a_while
The app answers only to its own host names
    ui/server/test_hosts.py::test_the_app_answers_for_its_own_names_and_for_addresses
A page of another site can neither send requests nor read answers
    ui/server/test_hosts.py::test_a_page_of_another_site_sends_nothing_here
    ui/server/test_hosts.py::test_another_site_reads_nothing_here
Forwarded headers are trusted from known proxies only
    ui/server/test_hosts.py::test_what_a_stranger_says_of_proxies_is_not_heard
No other site shows the app in a frame
    ui/server/test_hosts.py::test_every_answer_says_what_a_browser_may_do_with_it
    ui/server/test_hosts.py::test_the_page_on_the_device_may_run_its_kernels_and_its_workers_besides
    ui/server/test_hosts.py::test_a_space_answers_in_the_frame_of_its_host
Files outside the upload folder are not served
    ui/test_privacy.py::test_no_route_serves_a_file_outside_its_folder
    ui/server/test_routes.py::test_files_of_the_app_are_served_and_others_are_not
A served file runs no code
    ui/server/test_hosts.py::test_a_file_runs_nothing_and_what_is_no_picture_is_saved
Every upload has a folder of its own
    ui/test_page_routes.py::test_an_upload_has_a_folder_of_its_own
Nobody can tell whether somebody else sent the same file
    ui/test_holdings.py::test_a_key_says_nothing_of_what_others_have
    ui/test_models.py::test_a_checkpoint_of_ones_own_has_an_id_that_nobody_can_guess
Old files are deleted
    ui/server/test_files.py::test_a_file_in_use_is_not_old
    ui/server/test_files.py::test_the_deletion_of_old_files_begins_again_after_a_failure
    project/test_hosting.py::test_every_process_has_a_folder_of_its_own_and_empties_it
    project/test_hosting.py::test_a_start_deletes_what_the_dead_have_left_and_nothing_of_the_living
A failed upload leaves nothing
    ui/server/test_requests.py::test_an_upload_that_is_aborted_leaves_nothing
    ui/server/test_requests.py::test_a_full_disk_is_told_and_keeps_nothing
A child has limits
    worker/test_worker.py::test_a_child_beyond_its_limits_is_one_sentence_and_leaves_nothing
    worker/test_worker.py::test_a_processor_is_counted_over_all_parts
    worker/test_worker.py::test_a_machine_without_a_free_process_refuses_a_file_but_not_for_good
    ui/server/test_line.py::test_who_waits_has_no_thread_and_hears_how_many_come_first
A child reads its file and reaches nothing else
    worker/test_worker.py::test_a_child_reads_its_own_file_and_reaches_no_other
    worker/test_worker.py::test_a_child_of_root_is_another_user
    worker/test_worker.py::test_a_child_without_a_wall_opens_no_file_and_the_start_says_so
    ui/test_launch.py::test_without_a_wall_the_app_says_so_once
An answer is no larger than its picture
    worker/test_worker.py::test_an_answer_larger_than_its_picture_is_refused
Where memory ends, a child ends rather than the app
    worker/test_worker.py::test_where_memory_ends_a_child_ends_rather_than_the_app
A child finds no secrets
    worker/test_worker.py::test_a_child_finds_no_secrets
    worker/test_worker.py::test_children_share_the_processor_by_their_priorities_and_hear_no_keys
A child ends when its visitor, the app or the fork server is gone
    worker/test_worker.py::test_the_end_of_a_context_ends_its_child
    worker/test_worker.py::test_no_child_outlives_the_app
    worker/test_worker.py::test_a_fork_server_that_is_gone_is_started_anew_and_ends_with_its_worker
Nothing in its answer is executed, unpickled or mapped
    worker/test_worker.py::test_a_malformed_answer_is_refused
Its numbers equal the library's bit for bit
    worker/test_worker.py::test_a_picture_is_prepared_as_the_library_does
Hostile files end in one answer
    worker/test_hostile_files.py::test_a_bad_file_becomes_its_picture_or_one_message
    worker/test_hostile_files.py::test_a_picture_after_random_changes_is_a_picture_or_one_message
A shared app opens no model of a stranger
    ui/server/test_settings.py::test_a_shared_app_has_the_models_of_its_operator
    ui/server/test_settings.py::test_an_app_is_shared_where_strangers_may_come
    ui/test_launch.py::test_nothing_behind_a_proxy_becomes_shared_unnoticed
Nothing in a checkpoint is ever executed
    weights/formats/test_torch_files.py::test_a_payload_is_not_run
    weights/formats/test_torch_files.py::test_an_object_is_skipped_and_named
    weights/formats/test_damaged_files.py::test_an_archive_with_python_objects_is_refused
HEIC files are decoded in a child, too
    ui/test_runs.py::test_a_phones_photograph_is_analysed
    images/test_kinds.py::test_a_heic_photo_that_once_ended_the_process_opens
Clips are decoded frame by frame in a child
    video/test_clips.py::test_a_list_of_other_files_opens_none
    video/test_clips.py::test_a_clip_that_claims_to_be_huge_takes_no_memory
    video/test_clips.py::test_a_clip_that_takes_too_long_is_ended
    video/test_clips.py::test_a_clip_of_hidden_frames_is_refused_before_they_take_time
    video/test_clips.py::test_an_invalid_answer_of_a_child_is_not_believed
The library has no such limits.
    weights/formats/test_damaged_files.py::test_a_file_that_is_no_checkpoint_is_refused
    weights/test_packages.py::test_code_and_other_files_of_a_folder_are_not_run
What is kept of a visitor is not dropped for what another sends
    ui/test_holdings.py::test_defaults_are_shares_of_the_memory
    ui/test_holdings.py::test_what_can_be_computed_again_goes_first
    ui/test_holdings.py::test_forty_visitors_keep_their_analyses_in_the_default
    ui/test_holdings.py::test_one_visitors_analyses_drop_nobody_elses
    ui/test_holdings.py::test_stores_share_a_bound_and_what_can_be_computed_again_goes_first
    ui/test_holdings.py::test_a_picture_outlives_its_analyses_for_which_the_page_asks_again
    ui/test_holdings.py::test_no_analysis_is_so_large_that_everybody_elses_go
    ui/test_holdings.py::test_who_sends_most_takes_from_nobody_else
    ui/test_runs.py::test_a_checkpoint_that_is_refused_gets_no_id
    ui/test_stores.py::test_every_store_of_the_app_is_in_the_table
    ui/test_stores.py::test_no_store_is_made_that_is_not_in_the_table
    ui/server/test_files.py::test_who_fills_the_disk_loses_their_own_files
    ui/server/test_files.py::test_what_is_being_written_counts_and_ends_when_there_is_no_room
What is computed is bounded
    ui/server/test_settings.py::test_what_an_analysis_may_need_is_a_setting
    ui/server/test_settings.py::test_it_counts_the_matrix_and_the_copy_of_a_discard_ratio
    ui/test_page_clips.py::test_the_frames_of_a_video_take_no_more_memory_at_once_than_an_analysis
    ui/test_holdings.py::test_a_file_of_the_explorer_is_made_once_for_all_who_ask
A request that needs more memory than there is fails with that sentence, and the app goes on
    ui/server/test_line.py::test_an_error_ends_the_turn_and_memory_that_is_missing_is_said
    ui/server/test_line.py::test_work_begins_where_there_is_room
    project/test_hosting.py::test_memory_beyond_the_limit_is_refused_and_the_process_goes_on
Text is shown literally
    ui/test_page_texts.py::test_the_page_shows_every_text_to_the_letter
"""


def test_every_limit_says_what_it_is_of_and_which_attack_it_stops() -> None:
    names = [name for name in vars(strangers) if name.isupper()]
    rows = [row.split(" | ") for row in limits().splitlines()[2:]]
    assert len(rows) == len(names) > 20
    assert all(len(row) == 3 and min(map(len, row)) >= 1 and len(row[2]) > 8 for row in rows)


def test_every_promise_of_the_page_has_tests() -> None:
    promised = re.findall(r"^- \*\*(.+?)\*\*", PROMISES, re.MULTILINE)
    assert promised == re.findall(r"^(\S.*)\n    ", TESTS, re.MULTILINE) and len(promised) >= 30


def test_the_tests_of_the_promises_are_there() -> None:
    for file, name in re.findall(r"^    (\S+)::(\w+)$", TESTS, re.MULTILINE):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)
