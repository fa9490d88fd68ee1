//! What people keep running into with MCP clients, and what this one does: a row for each report, with the scenes
//! that play it.
//!
//! `FR-0xx` is a number of the project's collection of field reports. A row names its report, says where the right
//! behaviour of the report is not ours and why, and lists its scenes; each is a test of its own,
//! `field_reports::fr_0xx::scene`. The scenes are in the modules below, by the groups of the collection: a peer that is
//! scripted as the report tells, and what must come of it.

use std::ops::RangeInclusive;

mod concurrency;
mod correlation;
mod era;
mod fleet;
mod framing;
mod gateways;
mod liveness;
mod mirrors;
mod process;
mod sessions;
mod streams;
mod supervision;
mod time;

/// Makes a module of tests of each row, and the table itself.
macro_rules! field_reports {
    ($($id:ident $report:literal $(differs $why:literal)? { $($group:ident :: $scene:ident),+ $(,)? })+) => {
        $(
            #[doc = $report]
            mod $id {
                $(
                    #[tokio::test]
                    async fn $scene() {
                        super::$group::$scene().await;
                    }
                )+
            }
        )+

        const TABLE: &[Row] = &[$(
            Row {
                id: stringify!($id),
                report: $report,
                differs: &[$($why)?],
            },
        )+];
    };
}

/// A report, and where we do otherwise.
struct Row {
    /// `fr_0xx`.
    id: &'static str,
    report: &'static str,
    differs: &'static [&'static str],
}

field_reports! {
    // Process life and death

    fr_001 "a call waits for ever when the server's process ends before it has answered" {
        process::exit_ends_every_call_with_status_and_last_words,
    }
    fr_002 "the opening hangs when the program exits at once" {
        process::program_that_exits_at_once_is_told_with_status_and_last_words,
        process::program_that_exits_twice_is_a_failed_start_and_one_that_answers_oddly_is_not,
    }
    fr_003 "only the launcher is killed, and the real server below it lives on" {
        process::close_ends_the_server_behind_its_launcher,
    }
    fr_004 "children survive where the kill was left to a runtime that goes down" {
        process::no_process_outlives_a_program_that_drops_its_runtime_or_panics,
    }
    fr_005 "shutting down hangs on a child that ignores the polite signs" {
        process::close_climbs_the_ladder_within_its_bound,
        process::close_may_come_twice_and_in_the_middle_of_a_call,
    }
    fr_006 "a server that dies right after each start is restarted at full speed for ever" {
        supervision::crash_loop_is_paced_with_jitter_and_ends_parked,
        supervision::streak_ends_with_a_steady_time_and_not_with_a_handshake,
        supervision::crash_loop_of_a_process_is_told_with_its_last_words,
    }
    fr_007 "after an outage a server that is back stays unused for many minutes" {
        supervision::call_waits_for_the_next_attempt_and_shortens_no_pause,
        supervision::server_that_was_out_for_minutes_is_used_within_half_a_minute,
        supervision::server_that_was_given_up_is_brought_back_by_a_reconnect_or_after_five_minutes,
        supervision::command_that_was_missing_is_started_once_it_is_there,
    }
    fr_008 "a dead server is shown as ready until the next call fails" {
        liveness::process_that_dies_is_seen_without_a_call,
        liveness::server_that_stops_listening_is_found_by_the_keep_alive,
    }
    fr_009 "a missing program or directory shows up as a closed connection" {
        process::start_that_cannot_succeed_is_told_and_not_tried_again,
    }
    fr_010 "a server that does not know `ping` is taken for dead, again and again" {
        liveness::refusing_the_ping_is_an_answer,
        liveness::server_that_never_answers_a_ping_is_asked_no_more,
    }

    // stdio framing, bytes and pipes

    fr_011 "one line of plain text on stdout ends the reader" differs
        "the log has the reason and the count, never the line, which may hold anything" {
        framing::lines_that_are_no_message_cost_nothing,
        framing::lines_that_are_no_message_are_logged_now_and_then,
    }
    fr_012 "a message longer than 64 KiB breaks the reader" {
        framing::answer_of_5_mib_is_delivered_whole,
        framing::notification_of_5_mib_costs_nothing,
    }
    fr_013 "memory grows without end where no newline comes" {
        framing::line_without_end_ends_the_connection_and_the_child,
        framing::line_of_the_limit_passes_and_a_longer_one_costs_its_own_call,
        framing::long_line_of_nobody_ends_all_calls_in_flight,
    }
    fr_014 "bytes that are not UTF-8 throw out of the read loop" {
        framing::bytes_that_are_no_text_cost_nothing,
    }
    fr_015 "nobody reads stderr, and the child blocks on it" {
        framing::stderr_is_drained_before_and_after_the_opening,
        framing::stderr_is_never_read_as_protocol,
    }
    fr_016 "the child stops reading, and no limit reaches the caller" {
        framing::server_that_stops_reading_costs_its_own_calls_their_limits,
        framing::close_does_not_wait_behind_a_full_pipe,
    }

    // Deadlines, progress, cancellation

    fr_017 "a request that is accepted and never answered waits for ever" {
        time::call_and_list_without_an_answer_end_at_their_limits,
        time::opening_without_an_answer_ends_at_its_limit,
        time::every_operation_has_a_limit_though_nobody_sets_one,
        time::opening_has_a_limit_though_nobody_sets_one,
    }
    fr_018 "the limit that the user set never reaches the call" {
        time::limit_of_the_call_is_the_one_that_counts_before_a_minute_and_after,
        time::limit_of_the_call_wins_over_that_of_the_server_and_that_over_the_hubs,
    }
    fr_019 "progress does not extend the limit where nobody listens to it" {
        time::progress_extends_the_limit_whether_anybody_listens_or_not,
        time::progress_of_real_servers_extends_the_limit_of_a_call_without_a_callback,
    }
    fr_020 "an answer that comes after its limit breaks the connection for everyone" {
        time::late_answer_is_dropped_and_counted_and_the_next_call_works,
    }
    fr_021 "the server is not told when the caller gives up" {
        time::call_given_up_is_cancelled_once_under_its_id,
        time::call_given_up_before_it_was_written_is_never_heard_of,
    }
    fr_022 "a cancelled request that is answered anyway costs a reconnect" {
        time::cancelled_call_that_is_answered_anyway_harms_nobody,
    }

    // Ids and odd JSON-RPC messages

    fr_023 "a gateway gives numeric ids back as strings" {
        correlation::id_that_comes_back_as_a_string_is_ours,
    }
    fr_024 "an error with a null id stops the reader, or hangs its request" differs
        "the log has the error's code and no text of the server's, which may hold anything" {
        correlation::error_without_an_id_leaves_the_call_to_its_limit_over_stdio,
        correlation::error_without_an_id_answers_its_own_post_over_http,
    }
    fr_025 "a server stamps every answer with id 0" {
        correlation::answer_to_another_id_is_given_to_nobody,
        correlation::opening_answered_under_another_id_fails_by_its_limit,
    }
    fr_026 "a notification is answered with an error that has no id" {
        correlation::error_for_a_notification_costs_nothing,
    }
    fr_027 "progress under a token that was never given is taken for a fault" {
        correlation::progress_under_strange_tokens_costs_nothing,
    }
    fr_028 "a log message around the handshake, or one that makes no sense, stops the reader" {
        correlation::notifications_around_the_handshake_cost_nothing,
        correlation::notifications_that_are_none_cost_nothing,
        correlation::array_is_taken_apart_where_the_revision_has_batches_and_dropped_elsewhere,
        correlation::malformed_request_of_a_legacy_server_gets_an_error,
    }

    // Concurrency, deadlock, memory

    fr_029 "a handler calls back into the client, and the loop that runs it waits for itself" {
        concurrency::handler_of_a_notification_lists_tools_during_a_call,
        concurrency::handler_of_a_question_calls_a_tool_of_the_server_that_asks,
    }
    fr_030 "calls to one server run one after the other" {
        concurrency::calls_made_at_once_are_all_written_before_the_first_answer,
        concurrency::limit_of_parallel_calls_is_a_setting,
    }
    fr_031 "a slow server delays the calls to all others" {
        concurrency::slow_server_delays_no_other,
    }
    fr_032 "notifications that nobody reads block the answers" {
        concurrency::ten_thousand_log_messages_hold_no_answer_up,
        concurrency::slow_handler_loses_the_oldest_which_is_counted_and_told_once_an_episode,
    }
    fr_033 "the table of waiting requests keeps what timed out or was cancelled" {
        concurrency::twenty_thousand_calls_given_up_leave_nothing,
        concurrency::calls_given_up_over_http_leave_nothing,
    }
    fr_034 "a call that timed out holds its place in the queue" {
        concurrency::call_that_timed_out_gives_its_place_back_at_once,
    }

    // Many servers at once

    fr_035 "one silent server holds up the start of all" {
        fleet::server_that_never_opens_holds_nobody_up,
    }
    fr_036 "one failure throws away the tools of the good servers" {
        fleet::server_that_fails_costs_the_others_nothing,
    }
    fr_037 "many callers each start a reconnect of their own, and a hiccup becomes a storm" {
        fleet::hundred_callers_share_the_attempts_at_a_server_that_refuses,
    }
    fr_038 "prefixed names of tools pass 64 characters, and one breaks everything" differs
        "the runtime hands out no prefixed names: a tool is called on its server's client by its own name, whatever the \
         length of either" {
        fleet::long_names_of_servers_and_tools_are_called_as_they_are,
    }
    fr_039 "two servers with the same names shadow each other" {
        fleet::servers_are_told_apart_by_their_keys_alone,
    }
    fr_040 "an error of a tool is taken for one of the connection, and the tool runs again" {
        fleet::error_of_a_tool_is_the_callers_and_no_reason_to_reconnect,
    }

    // HTTP sessions and recovery

    fr_041 "a session that the server has forgotten is used again and again" {
        sessions::lost_session_is_renewed_and_its_refused_call_made_once_more,
        sessions::session_that_is_lost_again_is_the_callers_error,
    }
    fr_042 "a lost session is reported as 401 without a challenge" {
        sessions::refusal_without_a_challenge_is_a_lost_session_once,
    }
    fr_043 "recovery makes a call again that may have run" differs
        "no call that may have run is made again, not even of a tool that is marked harmless: the error says so, and the \
         caller decides" {
        sessions::call_that_may_have_run_is_not_made_again_over_http,
        sessions::call_that_may_have_run_is_not_made_again_over_stdio,
        sessions::call_that_was_never_sent_goes_to_the_next_connection,
    }
    fr_044 "sessions and listen streams are opened again and again and never closed" {
        sessions::every_session_is_deleted_once_and_has_one_stream,
    }
    fr_045 "a server without a session id is treated as broken" {
        sessions::server_without_sessions_is_sent_none,
    }
    fr_046 "a session id kept in storage is used after it has expired" differs
        "no session id is stored or taken from outside, so that none can be stale" {
        sessions::no_session_outlives_its_connection,
    }

    // Event streams

    fr_047 "the stream of a call ends before its answer, and the call waits for ever" {
        streams::stream_that_ends_before_the_answer_ends_its_call_at_once,
    }
    fr_048 "a stream that had event ids is not taken up, and its result is lost" {
        sessions::stream_with_event_ids_is_taken_up_after_the_told_delay,
        sessions::stream_that_is_never_taken_up_ends_with_its_call,
        sessions::stream_of_a_modern_server_is_never_taken_up,
    }
    fr_049 "a listen stream that ends at once is opened every second for ever" {
        sessions::listen_stream_that_ends_at_once_is_opened_ever_more_rarely,
        sessions::server_without_a_listen_stream_is_asked_once_in_a_session,
    }
    fr_050 "events whose lines end in CR LF are never recognised" {
        streams::streams_are_read_whatever_their_lines_end_in,
    }
    fr_051 "a listen stream that is quiet is taken for dead" {
        streams::silence_on_the_listen_stream_is_normal,
    }
    fr_052 "the size limit of an event is applied to the whole stream" {
        streams::limit_of_a_message_is_not_that_of_a_stream,
    }

    // HTTP answers, redirects, gateways

    fr_053 "a notification is answered 200 with nothing, and the handshake is thrown away" {
        gateways::any_2xx_accepts_a_notification,
    }
    fr_054 "204 to a notification is treated as an error" {
        gateways::no_content_accepts_a_notification,
    }
    fr_055 "200 with the head of an event stream, and then nothing" {
        streams::silent_stream_ends_with_its_call_and_a_closed_one_at_once,
    }
    fr_056 "a gateway's error page is parsed as JSON" {
        gateways::page_of_a_gateway_is_told_with_its_status_and_a_cut_of_it,
    }
    fr_057 "the address without its last slash is redirected, and body or token is lost" {
        gateways::redirect_within_the_origin_is_followed_whole_and_remembered,
    }
    fr_058 "a redirect ends at a sign-in page" {
        gateways::sign_in_page_fails_the_opening_at_once,
        gateways::sign_in_page_fails_a_call_at_once_and_only_that,
    }

    // Era detection and version negotiation

    fr_084 "an old stdio server never answers the probe" {
        era::silence_to_the_probe_and_to_initialize_means_one_more_process,
        era::slow_process_is_opened_by_its_answer_to_initialize,
        era::silent_server_is_not_probed_again_at_its_next_start,
    }
    fr_085 "an old stdio server exits when it is probed" {
        era::process_that_dies_of_the_probe_is_started_once_more_without_it,
        era::verdict_of_a_process_that_died_of_the_probe_is_kept,
    }
    fr_086 "the fallback knows one error code only" differs
        "a 5xx is no verdict however often it comes (ERA-13): the server is probed again, and one that answers 500 to \
         whatever it does not know is pinned to the legacy era in the configuration" {
        era::any_error_of_an_old_process_means_legacy,
        era::any_refusal_of_an_old_http_server_means_legacy,
        era::failure_of_a_gateway_is_no_verdict,
    }
    fr_087 "method not found arrives with HTTP status 200" {
        era::method_not_found_under_200_means_legacy,
    }
    fr_088 "the remembered era is never looked at again" {
        era::upgraded_and_rolled_back_processes_are_found_out_anew,
        era::process_that_refuses_the_remembered_opening_is_probed_once,
        era::rolled_back_http_server_is_opened_anew_by_the_call_that_it_refuses,
        era::upgraded_http_server_is_found_out_anew_when_it_refuses_the_handshake,
        era::upgraded_http_server_with_a_session_is_opened_anew_by_the_call_that_it_refuses,
    }
    fr_089 "a version header on `initialize` is rejected, and later requests carry the wrong one" {
        era::initialize_has_no_version_header_and_all_later_requests_the_negotiated_one,
    }
    fr_090 "a server that offers an older revision is refused" {
        era::older_revision_is_accepted_over_stdio,
        era::older_revision_is_accepted_over_http,
    }

    // Headers of 2026-07-28

    fr_095 "the name header is sent raw" {
        mirrors::name_arrives_encoded_where_it_must_be_and_plain_where_it_may,
    }
    fr_096 "arguments marked to be mirrored into headers are not" {
        mirrors::marked_arguments_arrive_in_headers_and_changed_marks_are_learnt_once,
    }
}

/// The groups that have their place here.
const EXPECTED: [RangeInclusive<u32>; 3] = [1..=58, 84..=90, 95..=96];

#[test]
fn every_report_of_the_groups_has_its_row() {
    let expected: Vec<String> = EXPECTED
        .into_iter()
        .flatten()
        .map(|n| format!("fr_{n:03}"))
        .collect();

    let rows: Vec<&str> = TABLE.iter().map(|row| row.id).collect();

    assert_eq!(rows, expected);
    for Row { id, report, differs } in TABLE {
        assert!(report.len() > 20, "{id} says what was reported");
        assert!(differs.iter().all(|why| why.len() > 20), "{id} says why");
    }
}
