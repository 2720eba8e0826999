//! The text of `schemas/RIGHTS.md` beside its lists: the purpose of each account, the limits of each boundary, and the rights
//! of a federation. It lists no subject of a role.

/// Before the lists.
pub(super) const BEGINNING: &str = "\
# Rights: account × role × subject

Made from the lists that `muster auth` signs accounts with. A subject in none of these lists is refused.
`tests/tests/security/matrix.rs` works out from the same lists which streams each role may change, and tries as each role
every verb of JetStream's API for every stream, every subject of these lists and every subject that a stream stores. Roles
outside HUB try each of their rights with each of those subjects as the reply. Existence, settings, messages and
consumers of streams that changed must equal what the lists allow: each change is seen, and no other. Roles within HUB are
tried without foreign replies, because HUB is one domain of trust (below).

| account | who is in it | JetStream |
|---|---|---|
| HUB | services: publisher, ingest, rollup, renewer, the planner's scheduler; for an hour a maintainer | all streams |
| READERS | the keeper | mirrors of LEDGER and of the bucket `views` |
| PEOPLE | viewers, approvers, subscribers, operators, packagers, the planner, gateways | none |
| CHECKERS | checkers: programs that answer checks and hooks | none |
| DEVICES | devices; gateways for devices that speak HTTP (role margo) | none |
| one for each site with a leaf node | the site's server | none; imports what DEVICES imports, for that site alone |
| system | `muster auth push`, the connection watcher | none |

**HUB is one domain of trust.** A request names the subject of its answer, and the server asks nobody whether the requester
may write there. So a holder of a service's credentials can reach by a reply what HUB reaches, beyond the service's own
list; that is why nobody but services is in HUB. From another account an answer comes back to that account. A maintainer
may also have a stream republish to any subject of HUB, and copies whole streams (`muster backup`), so its credentials end
after an hour.

**Push consumers.** A subscriber or operator names the subject to which a consumer delivers. The consumers are on the mirrors,
and the server delivers only while there is a subscription to exactly that subject, which a wildcard is not. READERS imports
from HUB by wildcards alone, so nothing that is delivered reaches HUB's API, its streams or its services. An
account token of an earlier release imports two subjects of the API exactly (`STREAM.INFO` and `CONSUMER.CREATE` of a
mirrored stream). Until `muster auth push` has replaced it, heartbeats and facts can arrive there: `STREAM.INFO` answers them to
nobody, `CONSUMER.CREATE` refuses them, and nothing in HUB changes.
Within READERS the server listens exactly on `$JS.API.DIRECT.GET.<mirror>` (in its own queue group) and on `MSG.NEXT` and
`RESET` of each consumer. There a subscriber can take messages from a consumer whose name it knows, or reset it. The keeper
removes a consumer that delivers outside `_INBOX.` within 10 seconds; its maker can make it again.

**Inboxes of others.** A consumer may deliver to another person's inbox, because the server does not say whose a consumer is.
Only facts or views arrive, and only where the other person listens on exactly the subject that is named. Muster's
clients and the common NATS clients listen for answers by a wildcard, which receives nothing of it. An ordered push
consumer listens exactly, on an inbox with a random name of 22 characters; a person who knew it could have that
consumer start again.

**Who asks.** Where the table says *named*, the server tells the service the requester's key, name and signing key in
`Nats-Request-Info`, in place of whatever the user sent under that name. Services answer to `_R_.>` (requests from other
accounts); ingest, which the other services ask, also to `_INBOX.<key>.>` of its own account, where the server lets only the
holder of that key listen. They drop and count everything else, at `$SRV.…` too. A gateway alone may ask on behalf of
another, by a note in the header `Muster-On-Behalf-Of` that its own key has signed for the subject and the payload; any other
request with that header is refused. A gateway may ask for a change only for an operator: what it asks for itself changes
nothing.

**Packages.** A device reads the bucket `packages` by sequence. Its rights come from its name, and the server does not read
desired states, so no right can name the packages of one device: every device may read every package, at a site too. A read
answers with one message, and no device creates a consumer of the bucket, lists it or writes it. Operators and gateways read
it to list packages. A packager writes it, may
remove every package by rollups, and reaches no other stream
([decision 0040](../shared/decisions/0040-packages-in-the-hub.md)).

**Checkers.** The planner alone may ask on `muster.check.>`, and checkers alone may subscribe to it, so nobody else hears a
question or answers it. Every question comes from PEOPLE, so the server chooses its reply subject, and an answer goes to the
planner and nowhere else. CHECKERS imports nothing: what a member of PEOPLE has answered to `muster.check.>` stays in
PEOPLE, and no checker hears it. Checkers trust each other: each hears every question, and the first answer counts.

**Headers.** DOWNLINK takes messages of a person (an operator's `muster.credential.*.*`), and so does the bucket `http_devices`
(`$KV.http_devices.*`, the accepted clients, and a gateway's `$KV.http_devices.{site}.*`). Both
refuse rollups, lifespans, counters, batches, schedules, sources and wrong expectations. A trace goes only where its sender may
publish.

";

/// Before what crosses to sites.
pub(super) const SITES: &str = "
## What crosses to the account of a site with a leaf node

One account for each site. Its leaf node maps what a device asks JetStream's API for to `muster.fetch.…`, because requests of
that API do not pass a leaf node.

| from | to | how | subject | in the site's account |
|---|---|---|---|---|
";

/// After the subjects of a role that answers questions.
pub(super) const ANSWERS: &str =
    "- May answer: each message with a reply subject that it receives, once and within 10 s\n";

/// After the lists.
pub(super) const FEDERATION: &str = "
## Roles without a list of their own

| role | account | publishes | subscribes | crosses between accounts |
|---|---|---|---|---|
| federation | PEOPLE of each hub; HUB and READERS of the top | at each hub as `subscriber`; at the top as `rollup` and `keeper` | the same | nothing of its own |
";
