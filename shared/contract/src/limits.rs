//! Every limit of the contract as a named constant; the relations between them are asserted at compile time.
//!
//! A limit that belongs to one service only (a batch, a poll) lives in that service.

use std::time::Duration;

/// Labels of one device. Each takes a share of the work of every fact of the device.
pub const LABELS_MAX: usize = 16;
/// Types that the agent of a node runs.
pub const RUNTIMES_MAX: usize = 5;
/// Subjects that a question about changes of PLANS may name.
pub const PLANS_SUBJECTS_MAX: usize = 16;
/// Labels that the author of a deployment gives it.
pub const DEPLOYMENT_LABELS_MAX: usize = 16;
/// Characters of the DNS name before the `/` in the key of such a label.
pub const LABEL_PREFIX_CHARS_MAX: usize = 253;
/// Values of one label over the whole fleet. A label with more tells devices apart instead of grouping them.
pub const LABEL_VALUES_MAX: usize = 1000;
/// Views that people define. Each takes a share of the work of every fact.
pub const DEFINED_VIEWS_MAX: usize = 32;
/// Groups that one defined view lists; it declares how many more there are, and what they hold.
pub const VIEW_GROUPS_MAX: usize = 150;
/// Values that one field of a selection may name.
pub const SELECT_VALUES_MAX: usize = 256;
/// Bytes of one group in a defined view, at most: eight standings split in three and the numbers beside them, each of at
/// most ten digits, and the group's name.
pub const GROUP_BYTES_MAX: usize = 1400;
/// Largest document on the bus, headers not counted.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Largest report, headers not counted: with UPLINK's share of a device it bounds what one device makes the server keep in
/// memory, and the most components, each with an error's code, fit.
pub const REPORT_BYTES_MAX: usize = 72 * 1024;
/// Reports of one batch at least: one report goes alone.
pub const BATCH_REPORTS_MIN: usize = 2;
/// Reports of one batch at most.
pub const BATCH_REPORTS_MAX: usize = 256;
/// Largest batch as sent, compressed or not, headers not counted.
pub const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Largest text of a batch once it is decompressed, and of all its elements as single reports: it bounds what one message makes
/// ingest keep in memory and write.
pub const BATCH_TEXT_BYTES_MAX: usize = 256 * 1024;
/// Encodings of batches that a receipt names at most.
pub const BATCH_ENCODINGS_MAX: usize = 8;
/// Headers that may accompany a report: a message id and a trace.
pub const REPORT_HEADER_BYTES_MAX: usize = 4 * 1024;
/// Largest message of a device, headers included: a report of the largest size. The server refuses a larger one before a stream
/// sees it. Beside reports, batches and heartbeats a device publishes only reads without a payload.
pub const DEVICE_MESSAGE_BYTES_MAX: usize = REPORT_BYTES_MAX + REPORT_HEADER_BYTES_MAX;
/// Largest heartbeat, headers included.
pub const HEARTBEAT_BYTES_MAX: usize = 8 * 1024;
/// Largest package, compressed.
pub const PACKAGE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of all packages in the hub's object store; the server refuses more, and reserves them: a small hub must have room.
pub const PACKAGES_BYTES_MAX: u64 = 256 << 20;
/// Bytes of those that `muster package put` leaves free, so that records of removals find room in a full bucket.
pub const PACKAGES_BYTES_KEPT: u64 = 1 << 20;
/// Largest signature of a package.
pub const SIGNATURE_BYTES_MAX: u64 = 4 * 1024;
/// Packages in the hub's object store.
pub const PACKAGES_MAX: usize = 4096;
/// Bytes of one chunk of a package as Muster writes it, which is what other NATS clients write.
pub const PACKAGE_CHUNK_BYTES: usize = 128 * 1024;
/// Bytes of one chunk of a package of another writer.
pub const PACKAGE_CHUNK_BYTES_MAX: usize = MESSAGE_BYTES_MAX;
/// Longest name of a package in the hub's object store.
pub const PACKAGE_NAME_CHARS_MAX: usize = 128;
/// Longest identifier: a DNS label.
pub const LABEL_CHARS_MAX: usize = 63;
/// Longest name of a requester in a record of a change.
pub const REQUESTER_NAME_CHARS_MAX: usize = 64;
/// Largest epoch and largest report number: the largest whole number that every JSON reader holds exactly. Beyond it
/// a reader may take a number for another one.
pub const COUNTER_MAX: u64 = (1 << 53) - 1;
/// Largest epoch that is believed of a device whose epoch is not the one before: the clock of no device says so many
/// seconds, and what is left above it can be used up one by one only.
pub const EPOCH_BELIEVED_MAX: u64 = 1 << 40;
/// Components of one deployment.
pub const COMPONENTS_MAX: usize = 256;
/// Waves of one rollout.
pub const WAVES_MAX: usize = 32;
/// Bytes of one rollout as JSON, so that answers have room for several.
pub const ROLLOUT_BYTES_MAX: usize = 64 * 1024;
/// Devices of one request to release a deployment.
pub const RELEASE_DEVICES_MAX: usize = 1000;
/// Devices of one request to give devices the content that they had before: the publisher reads the documents of each.
pub const ROLLBACK_DEVICES_MAX: usize = 100;
/// Open rollouts that the publisher's status lists.
pub const OPEN_ROLLOUTS_MAX: usize = 64;
/// Rollouts of a hub that have begun and not ended. Another one begins once one of them ends.
pub const RUNNING_ROLLOUTS_MAX: usize = 100;
/// Deployments with rollouts that one answer of the publisher's status lists: each has 63 characters at most.
pub const ROLLOUT_DEPLOYMENTS_MAX: usize = 1000;
/// Contents of one deployment and `rollout.yaml` whose decisions are kept.
pub const ROLLOUT_RECORDS_MAX: usize = 8;
/// Bytes of the decisions of one rollout as JSON.
pub const ROLLOUT_RECORD_BYTES_MAX: usize = 12 * 1024;
/// Decisions that are kept of one rollout: begins and approvals of all waves, and some more.
pub const DECISIONS_MAX: usize = 96;
/// Bytes of the reason of a decision.
pub const DECISION_REASON_BYTES_MAX: usize = 512;
/// Held changes that the publisher's status lists; it counts the others.
pub const HELD_CHANGES_MAX: usize = 64;
/// Applications of one plan.
pub const PLAN_APPLICATIONS_MAX: usize = 64;
/// Ports, and persistent volumes, of one application; volumes of one node.
pub const PORTS_MAX: usize = 32;
/// Matchers of one plan, one for each type of capability; names of one matcher; capabilities of one node.
pub const MATCHERS_MAX: usize = 32;
/// Hooks of one plan.
pub const PLAN_HOOKS_MAX: usize = 8;
/// Candidates that one question of a hook names.
pub const HOOK_CANDIDATES_MAX: usize = 100;
/// Bytes of an answer of a hook.
pub const HOOK_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Revisions that a plan keeps: finished ones that no instance runs are dropped first.
pub const PLAN_REVISIONS_MAX: usize = 32;
/// Deleted instances of a plan that are listed: the newest ones.
pub const DELETED_INSTANCES_MAX: usize = 256;
/// Bytes of a plan as JSON.
pub const PLAN_BYTES_MAX: usize = 192 * 1024;
/// Instances of one plan.
pub const PLAN_INSTANCES_MAX: u32 = 10_000;
/// Finished operations that an instance keeps; older ones are in the history of its subject.
pub const FINISHED_OPERATIONS_MAX: usize = 16;
/// Unfinished operations of one instance.
pub const OPEN_OPERATIONS_MAX: usize = 8;
/// Disruptions of one node.
pub const DISRUPTIONS_MAX: usize = 16;
/// Cores, units of memory or of storage of one node: sums of many nodes stay exact in every JSON reader.
pub const RESOURCE_MAX: u64 = 1 << 40;
/// Bytes of a name for people, a path, or a reason in PLANS.
pub const PLANS_TEXT_BYTES_MAX: usize = 256;
/// Bytes of a plan's service: the display names of its instances have 23 more.
pub const SERVICE_NAME_BYTES_MAX: usize = 200;

const _: () = assert!(SERVICE_NAME_BYTES_MAX + 23 <= PLANS_TEXT_BYTES_MAX);
/// Versions that PLANS keeps of each document.
pub const PLANS_HISTORY: i64 = 64;
/// Time after which an operation that nobody has approved expires, unless its plan says another.
pub const APPROVAL_EXPIRES_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Time in which a repeated `requestId` is answered with the stored document and changes nothing.
pub const REQUEST_ID_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Deployments of one device.
pub const DEPLOYMENTS_PER_DEVICE_MAX: usize = 128;
/// Deployments that a device without any desired document may report, unless the operator of ingest sets another number.
pub const UNSOLICITED_DEFAULT: usize = 8;
/// How often a device's epoch may rise within an hour. A device begins an epoch when it has lost its memory.
pub const EPOCH_RISES_PER_HOUR: usize = 6;
/// How many refusals of desired states ingest records of a device within an hour; later ones wait for the next hour.
pub const DESIRED_REFUSALS_PER_HOUR: usize = 6;
/// A token or credential ends soon once at most one of so many parts of its lifetime is left.
pub const ENDS_SOON_PARTS: u64 = 10;
/// Time between two incidents that ingest records about the end of one device's token.
pub const TOKEN_INCIDENT_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Ingest records the end of a token again after each of so many parts of its lifetime, while the device still has that token: the
/// renewer may have reported a newer one that the device never fetched.
pub const TOKEN_REPEAT_PARTS: u32 = 40;
/// Longest message of a refused desired state: each heartbeat repeats it. A device cuts a longer one and says so; ingest does
/// not read a heartbeat with a longer one.
pub const DESIRED_REFUSAL_MESSAGE_BYTES_MAX: usize = 256;
/// Longest error message, and longest code, source and reason beside it. A writer cuts a longer one and
/// says so; ingest refuses a report with a longer one, because views repeat it.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Part of an error's code by which errors are told apart.
pub const ERROR_CODE_BYTES_MAX: usize = 128;
/// Error codes that one view lists; it declares how many more there are.
pub const VIEW_ERRORS_MAX: usize = 40;
/// Bytes that the retry of an example in a view takes at most: a number, a time and their keys.
pub const VIEW_RETRY_BYTES_MAX: usize = 128;
/// Longest error message in a view: an example, not the record.
pub const VIEW_MESSAGE_BYTES_MAX: usize = 512;
/// Longest excerpt of a rejected payload in its fact in LEDGER; QUARANTINE holds the whole payload.
pub const QUARANTINE_EXCERPT_BYTES_MAX: usize = 1024;
/// Rejected reports of one device that QUARANTINE holds.
pub const QUARANTINE_SHARE: u32 = 256;
/// Bytes that QUARANTINE holds of all devices.
pub const QUARANTINE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Longest age of a report in QUARANTINE; ingest then records its expiry and removes it.
pub const QUARANTINE_AGE_MAX: Duration = LEDGER_AGE_MAX;
/// Duplicate window of QUARANTINE: it covers reports that ingest stores again, for example after a restart.
pub const QUARANTINE_DUPLICATE_WINDOW: Duration = Duration::from_secs(60 * 60);
/// Most reasons in `refused` of one receipt.
pub const REFUSAL_REASONS_MAX: usize = 4;
/// Rows a device keeps for the hub before it folds or drops.
pub const OUTBOX_ROWS_DEFAULT: usize = 100_000;
/// Bytes a device keeps for the hub before it folds or drops.
pub const OUTBOX_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Rows already covered by a receipt that a device keeps for a hub restored from an old backup.
pub const COVERED_ROWS_KEPT: usize = 10_000;
/// How long covered rows are kept for the same reason.
pub const COVERED_AGE_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Reports a device has under way at once.
pub const IN_FLIGHT_MAX: usize = 256;
/// Time between two heartbeats of a device.
pub const HEARTBEAT: Duration = Duration::from_secs(30);
/// Part of a heartbeat's interval by which it varies, so that a fleet does not beat in step.
pub const HEARTBEAT_JITTER: f64 = 0.1;
/// Silence after which a device is stale, in hub time.
pub const LEASE: Duration = Duration::from_secs(90);
/// Longest period of evidence, in milliseconds: for so long PRESENCE keeps the last heartbeat of a device.
pub const EVIDENCE_LEASE_MS_MAX: u64 = 60 * 60 * 1000;
/// Longest lease that a heartbeat may name, in milliseconds: that of a device that polls once in several hours. It is longer than
/// PRESENCE keeps a heartbeat, so an ingest that takes over later knows nothing of it: the device is then stale at the end of the
/// hub's lease.
pub const HEARTBEAT_LEASE_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// The lease of a heartbeat that ends an earlier one, in milliseconds: no device is fresh by it.
pub const ENDED_LEASE_MS: u64 = 1;
/// Shortest lease of a device that polls rarely, in milliseconds: just above that of the hub.
pub const POLL_LEASE_MS_MIN: u64 = 91_000;
const _: () = assert!(
    LEASE.as_millis() < POLL_LEASE_MS_MIN as u128
        && POLL_LEASE_MS_MIN < HEARTBEAT_LEASE_MS_MAX
        && EVIDENCE_LEASE_MS_MAX <= HEARTBEAT_LEASE_MS_MAX
);
/// Pulses of one partition within a lease, at most.
pub const PULSES_PER_LEASE: u64 = 3;
/// How much longer than its lease LEDGER keeps a pulse: a pulse that stopped is still there until the rollup says so.
pub const PULSE_KEPT_BEYOND_LEASE: Duration = Duration::from_secs(10);
/// Leases that a partition may be without a current pulse before the hub counts as not hearing it.
pub const UNPROVEN_LEASES: u64 = 2;
/// Time beyond [`UNPROVEN_LEASES`] before that.
pub const UNPROVEN_BEYOND_LEASES: Duration = Duration::from_secs(10);
/// Time in which the bus itself recognises a message id it has seen, on every stream but those that devices write to.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// The same on UPLINK and PRESENCE: the shortest that nats-server takes. Every device writes there, an id may have 64 KiB, and
/// the server keeps ids in memory for that long. Ingest recognises a report by its epoch and number, never by its id.
pub const DEVICE_DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
/// Reports of one device that UPLINK holds: its share. The server refuses more until ingest has removed some.
pub const UPLINK_SHARE: u32 = 512;
/// Reports a second that ingest removes from UPLINK of a device that has used up its burst.
pub const DEVICE_REPORTS_PER_SECOND: u64 = 50;
/// Bytes a second that ingest removes of such a device, headers and subject included.
pub const DEVICE_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Bytes a second that ingest removes from UPLINK of any device, also of one that has not used up its burst. The server keeps
/// in memory what was written to a stream within the last ten seconds.
pub const DEVICE_PEAK_BYTES_PER_SECOND: u64 = 4 * 1024 * 1024;
/// Reports that a device may send at any speed below the peak: a full outbox. The burst of bytes lasts as long.
pub const DEVICE_BURST_REPORTS: u64 = 100_000;
/// Shortest upper bound of the reconnect delay.
pub const RECONNECT_MIN: Duration = Duration::from_secs(1);
/// Longest reconnect delay of a device: thousands that lost the same hub must not all reconnect at once.
pub const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// Clock difference between device and hub that is an incident.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(5 * 60);
/// Entries of one report about what is tried again; a device leaves out the least recent errors beyond it.
pub const RETRIES_MAX: usize = 64;
/// Failures of one component within [`CRASH_LOOP_WINDOW`] from which it counts as a crash loop, unless the agent's operator
/// sets another number: as the restart intensity of a supervisor.
pub const CRASH_LOOP_FAILURES: u32 = 5;
/// The window of that rule.
pub const CRASH_LOOP_WINDOW: Duration = Duration::from_secs(10 * 60);
/// How long a component must stay ready before its success has held: then its attempts are counted anew. As long as
/// Kubernetes waits before it resets a container's backoff.
pub const SUCCESS_HELD_AFTER: Duration = CRASH_LOOP_WINDOW;
/// Time a deployment may stay waiting or unfinished on a fresh device, if it says nothing itself.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Least time between two receipts for one device.
pub const RECEIPT_INTERVAL: Duration = Duration::from_secs(1);
/// Most writes a second of one view.
pub const VIEW_WRITES_PER_SECOND: u32 = 10;
/// Connections at once with the key of a device or a person. The server has no such limit: a watcher ends the oldest.
pub const CONNECTIONS_PER_KEY_MAX: usize = 4;
/// Connections at once with the key of a service, which all replicas of the service share.
pub const CONNECTIONS_PER_SERVICE_KEY_MAX: usize = 64;
/// Time within which the watcher ends surplus connections while it hears the events of the servers.
pub const CONNECTIONS_ENFORCED_WITHIN: Duration = Duration::from_secs(5);
/// Time between two incidents of the watcher about one key.
pub const CONNECTIONS_INCIDENT_EVERY: Duration = Duration::from_secs(60 * 60);
/// How full LEDGER is, in percent of its byte bound, when ingest begins to re-assert its oldest half.
pub const LEDGER_REASSERT_PERCENT: u64 = 60;
/// When ingest warns.
pub const LEDGER_WARN_PERCENT: u64 = 70;
/// When ingest raises an incident.
pub const LEDGER_INCIDENT_PERCENT: u64 = 80;
/// Partitions of UPLINK and PRESENCE.
pub const PARTITIONS: u16 = 16;
/// Partitions that one view or answer lists as unheard: all of a hub, the first of several hubs.
pub const UNHEARD_LISTED_MAX: usize = 32;
/// Bytes of one of them, at most: a hub's name, a time, two numbers and their keys.
pub const UNHEARD_BYTES_MAX: usize = 192;
/// How long LEDGER keeps a fact.
pub const LEDGER_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Age at which a fact that still holds is re-asserted, so that LEDGER's window alone rebuilds the present.
pub const REASSERT_AFTER: Duration = Duration::from_secs(20 * 24 * 60 * 60);
/// Ranges one receipt lists at most; the rest follows in later receipts.
pub const RECEIPT_RANGES_MAX: usize = 1024;

/// Values of one filter of a question.
pub const FILTER_VALUES_MAX: usize = 100;

const _: () = {
    assert!(
        LEASE.as_secs() > 2 * HEARTBEAT.as_secs() + (HEARTBEAT.as_secs() as f64 * HEARTBEAT_JITTER) as u64
    );
    // One lost pulse is no stop.
    assert!(PULSES_PER_LEASE > 2);
    // An owner that begins once is current in time: after one lease and the next pulse.
    assert!(UNPROVEN_LEASES * PULSES_PER_LEASE > PULSES_PER_LEASE + 1);
    // A component that fails as often as the rule says has not held between two failures.
    assert!(DECISIONS_MAX > 2 * WAVES_MAX);
    assert!(PLAN_BYTES_MAX < MESSAGE_BYTES_MAX);
    assert!(CRASH_LOOP_FAILURES > 1 && SUCCESS_HELD_AFTER.as_secs() >= CRASH_LOOP_WINDOW.as_secs());
    // A crash loop is reported before the deadline of a deployment that declares none.
    assert!(CRASH_LOOP_WINDOW.as_secs() < DEADLINE_DEFAULT.as_secs());
    assert!(RETRIES_MAX <= COMPONENTS_MAX);
    assert!(RECONNECT_MIN.as_secs() < RECONNECT_MAX.as_secs());
    assert!(RECONNECT_MAX.as_secs() < LEASE.as_secs());
    assert!(ERROR_MESSAGE_BYTES_MAX * 8 < MESSAGE_BYTES_MAX);
    // A view with every error and every component still fits into a message, though JSON may take six bytes for one
    // of a text. Names need no escapes; four of them stand for the names and counts of a line.
    assert!(
        VIEW_ERRORS_MAX
            * (6 * (ERROR_CODE_BYTES_MAX + VIEW_MESSAGE_BYTES_MAX)
                + 4 * LABEL_CHARS_MAX
                + VIEW_RETRY_BYTES_MAX)
            + COMPONENTS_MAX * 4 * LABEL_CHARS_MAX
            + UNHEARD_LISTED_MAX * UNHEARD_BYTES_MAX
            < MESSAGE_BYTES_MAX
    );
    assert!(UNHEARD_LISTED_MAX >= PARTITIONS as usize);
    // A defined view with every group it lists fits into a message, with four lines more than its groups.
    assert!(
        (VIEW_GROUPS_MAX + 4) * GROUP_BYTES_MAX + UNHEARD_LISTED_MAX * UNHEARD_BYTES_MAX < MESSAGE_BYTES_MAX
    );
    // A rejected report with its headers grows by a third in base64 and must still fit with its reason, which JSON escaping
    // may make six times as long.
    assert!(DEVICE_MESSAGE_BYTES_MAX * 4 / 3 + 6 * ERROR_MESSAGE_BYTES_MAX + 4 * 1024 < MESSAGE_BYTES_MAX);
    assert!(QUARANTINE_EXCERPT_BYTES_MAX < REPORT_BYTES_MAX);
    // A few devices that fill their shares with the largest reports leave room for others.
    assert!(QUARANTINE_BYTES_MAX > 16 * QUARANTINE_SHARE as u64 * DEVICE_MESSAGE_BYTES_MAX as u64 * 4 / 3);
    assert!(QUARANTINE_DUPLICATE_WINDOW.as_secs() >= DUPLICATE_WINDOW.as_secs());
    assert!(COVERED_ROWS_KEPT < OUTBOX_ROWS_DEFAULT);
    assert!(UNSOLICITED_DEFAULT <= DEPLOYMENTS_PER_DEVICE_MAX);
    assert!(IN_FLIGHT_MAX < COVERED_ROWS_KEPT);
    // A device may have a whole window under way, and as much again, before ingest has removed anything.
    assert!(UPLINK_SHARE as usize >= 2 * IN_FLIGHT_MAX);
    assert!(DEVICE_DUPLICATE_WINDOW.as_millis() < DUPLICATE_WINDOW.as_millis());
    // Everything else that a device publishes is smaller than its largest report.
    assert!(BATCH_BYTES_MAX + REPORT_HEADER_BYTES_MAX <= DEVICE_MESSAGE_BYTES_MAX);
    assert!(HEARTBEAT_BYTES_MAX <= DEVICE_MESSAGE_BYTES_MAX);
    assert!(DEVICE_MESSAGE_BYTES_MAX < MESSAGE_BYTES_MAX);
    // UPLINK takes a batch, and the largest report that may go alone fits into the text of one.
    assert!(BATCH_REPORTS_MIN > 1 && BATCH_REPORTS_MIN < BATCH_REPORTS_MAX);
    assert!(BATCH_BYTES_MAX <= REPORT_BYTES_MAX && REPORT_BYTES_MAX < BATCH_TEXT_BYTES_MAX);
    assert!(BATCH_REPORTS_MAX <= IN_FLIGHT_MAX);
    assert!(DEVICE_PEAK_BYTES_PER_SECOND > DEVICE_BYTES_PER_SECOND);
    // A report of the largest size never waits for the peak alone.
    assert!(DEVICE_PEAK_BYTES_PER_SECOND >= 8 * DEVICE_MESSAGE_BYTES_MAX as u64);
    // A full outbox fits into the burst, in rows and in bytes.
    assert!(DEVICE_BURST_REPORTS >= OUTBOX_ROWS_DEFAULT as u64);
    assert!(
        DEVICE_BURST_REPORTS * DEVICE_BYTES_PER_SECOND / DEVICE_REPORTS_PER_SECOND
            >= OUTBOX_BYTES_DEFAULT as u64
    );
    assert!(CLOCK_SKEW_MAX.as_secs() > LEASE.as_secs());
    assert!(PARTITIONS.is_power_of_two());
    assert!(LEDGER_REASSERT_PERCENT < LEDGER_WARN_PERCENT && LEDGER_WARN_PERCENT < LEDGER_INCIDENT_PERCENT);
    assert!(LEDGER_INCIDENT_PERCENT < 100);
    assert!(CONNECTIONS_PER_KEY_MAX < CONNECTIONS_PER_SERVICE_KEY_MAX);
    // Above the highest epoch that is believed remain more epochs than a device can ever use.
    assert!(COUNTER_MAX - EPOCH_BELIEVED_MAX > 1 << 52);
    // A token that ends soon is recorded at least once more before its end.
    assert!(TOKEN_REPEAT_PARTS as u64 > ENDS_SOON_PARTS);
    assert!(TOKEN_INCIDENT_INTERVAL.as_secs() < REASSERT_AFTER.as_secs());
    // Days remain for a service that was down when the fact was due to be re-asserted.
    assert!(REASSERT_AFTER.as_secs() + 7 * 24 * 60 * 60 < LEDGER_AGE_MAX.as_secs());
};
