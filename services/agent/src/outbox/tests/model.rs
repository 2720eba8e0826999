//! A simple model of the outbox in memory, with which the real one is compared.

use std::collections::BTreeMap;

use muster_contract::limits::COVERED_AGE_KEPT;

use super::*;
use crate::db::SqlResult;

/// The visible fields of a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeploymentRows {
    pub(super) body: Body,
    pub(super) newest: bool,
    pub(super) state: i64,
    pub(super) round: u64,
    pub(super) coalesced: SeqRanges,
    pub(super) sent: Option<i64>,
    pub(super) covered: Option<i64>,
}

impl DeploymentRows {
    fn new(body: Body, newest: bool, coalesced: SeqRanges) -> Self {
        Self { body, newest, state: 0, round: 0, coalesced, sent: None, covered: None }
    }

    fn bytes(&self) -> u64 {
        let declared = rows::declared(&self.coalesced).unwrap();
        u64::from(rows::bytes_of(&rows::to_text(&self.body).unwrap(), declared.as_deref()))
    }

    fn passes(&self) -> bool {
        self.state < 2 && !self.newest && !self.body.is_terminal()
    }
}

/// Everything that is stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    pub(super) deployments: BTreeMap<u64, DeploymentRows>,
    pub(super) head: u64,
    pub(super) epoch: Option<Epoch>,
    pub(super) receipt: Option<Receipt>,
    pub(super) capabilities: Option<CapabilitiesBody>,
    pub(super) records: BTreeMap<DeploymentId, DeploymentRecord>,
    pub(super) renewed: Option<i64>,
    pub(super) declared: Option<i64>,
}

const SECOND: i64 = 1_000;

impl Model {
    pub(super) fn append(&mut self, entries: &[NewReport], limits: Limits, max_exposed: u64) {
        for entry in entries {
            match (&entry.change, &entry.body) {
                (RecordChange::Store(record), _) => {
                    _ = self.records.insert(record.id().clone(), (**record).clone());
                }
                (RecordChange::Remove(id), _) => _ = self.records.remove(id),
                (RecordChange::None, Body::Capabilities(body)) => self.capabilities = Some(body.clone()),
                (RecordChange::None, Body::Status(_)) => {}
            }
            self.write(entry.body.clone(), SeqRanges::new());
        }
        self.evict(limits, max_exposed);
    }

    fn write(&mut self, body: Body, coalesced: SeqRanges) {
        let of_same =
            |group: &&mut DeploymentRows| group.newest && group.body.deployment() == body.deployment();
        self.deployments.values_mut().filter(of_same).for_each(|group| group.newest = false);
        self.head += 1;
        self.deployments.insert(self.head, DeploymentRows::new(body, true, coalesced));
    }

    fn bytes(&self) -> u64 {
        self.deployments.values().map(DeploymentRows::bytes).sum()
    }

    fn evict(&mut self, limits: Limits, max_exposed: u64) {
        let written = self.head;
        while self.deployments.len() as u64 > limits.rows || self.bytes() > limits.bytes {
            let lowest = |wanted: &dyn Fn(&DeploymentRows) -> bool| {
                self.deployments
                    .iter()
                    .find(|(seq, group)| **seq < written && wanted(group))
                    .map(|(seq, _)| *seq)
            };
            if let Some(covered) = lowest(&|group| group.state == 2) {
                self.deployments.remove(&covered);
            } else if let Some(foldable) = lowest(&DeploymentRows::passes) {
                self.fold(foldable, max_exposed, true);
            } else if let Some(any) = lowest(&|group| !group.newest).or_else(|| lowest(&|_| true)) {
                self.fold(any, max_exposed, false);
            } else {
                return;
            }
        }
    }

    fn fold(&mut self, seq: u64, max_exposed: u64, same: bool) {
        let gone = self.deployments.remove(&seq).unwrap();
        let fits = |group: &DeploymentRows| !same || group.body.deployment() == gone.body.deployment();
        let written = self.head;
        let mut later = self.deployments.range_mut(seq.max(max_exposed) + 1..);
        let declarer =
            later.find(|(_, group)| group.state == 0 && fits(group)).map_or(written, |(seq, _)| *seq);
        let declared = &mut self.deployments.get_mut(&declarer).unwrap().coalesced;
        declared.extend(&gone.coalesced);
        declared.insert(seq);
        assert!(declared.len() <= RANGES_PER_ROW_MAX, "more than this model can say");
    }

    /// The numbers to read, in order.
    pub(super) fn read(&self, request: &ReadRequest) -> Vec<u64> {
        let waiting = |newest: bool| {
            let wanted = move |group: &DeploymentRows| {
                group.state == 0 && (!request.newest_first || group.newest == newest)
            };
            self.deployments.iter().filter(move |(_, group)| wanted(group)).map(|(seq, _)| *seq)
        };
        let all: Vec<u64> = if request.newest_first {
            waiting(true).chain(waiting(false)).collect()
        } else {
            waiting(true).collect()
        };
        all.into_iter().filter(|seq| !request.except.contains(seq)).take(request.rows).collect()
    }

    pub(super) fn mark_sent(&mut self, epoch: Epoch, seqs: &[u64], now: Timestamp) {
        if self.epoch != Some(epoch) {
            return;
        }
        for seq in seqs {
            if let Some(group) = self.deployments.get_mut(seq).filter(|group| group.state == 0) {
                (group.state, group.sent) = (1, Some(now.as_millisecond()));
            }
        }
    }

    pub(super) fn fix_epoch(&mut self, now: Timestamp) {
        if self.epoch.is_none() {
            self.begin_epoch(now);
        }
    }

    fn begin_epoch(&mut self, now: Timestamp) {
        let clock = now.as_second().max(1) as u64;
        let above = self.receipt.as_ref().map_or(1, |receipt| receipt.epoch.get() + 1);
        self.epoch = Epoch::new(clock.max(above));
    }

    pub(super) fn receive(&mut self, receipt: &Receipt, now: Timestamp, limits: Limits, max_exposed: u64) {
        let (epoch, head) = (self.epoch, self.head);
        self.hear(receipt, now, max_exposed);
        if self.head > head || (epoch.is_some() && self.epoch != epoch) {
            self.evict(limits, max_exposed);
        }
    }

    fn hear(&mut self, receipt: &Receipt, now: Timestamp, max_exposed: u64) {
        let Some(epoch) = self.epoch else {
            self.receipt = Some(receipt.clone());
            return;
        };
        let is_unsent = receipt.through > self.head || receipt.covered().max() > Some(max_exposed);
        if receipt.epoch > epoch || (receipt.epoch == epoch && is_unsent) {
            if once(&mut self.renewed, RENEWAL_INTERVAL, now) {
                self.receipt = Some(receipt.clone());
                self.begin_epoch_anew(now);
            }
        } else if receipt.epoch == epoch {
            self.receipt = Some(receipt.clone());
            self.take(receipt, now);
        }
    }

    fn take(&mut self, receipt: &Receipt, now: Timestamp) {
        let at = now.as_millisecond();
        let on_its_way = at - RESEND_AGE.as_secs() as i64 * SECOND;
        for (seq, group) in self.deployments.range_mut(..=receipt.through) {
            if !receipt.missing.contains(*seq) && group.state < 2 {
                (group.state, group.covered) = (2, Some(at));
            }
            let old = group.sent.is_none_or(|sent| sent <= on_its_way || sent > at);
            if receipt.missing.contains(*seq) && group.state > 0 && old {
                group.state = 0;
                group.round += 1;
            }
        }
        self.declare_lost(receipt, now);
        self.delete_expired(now);
    }

    fn declare_lost(&mut self, receipt: &Receipt, now: Timestamp) {
        let mut gone = receipt.missing.clone();
        for (seq, group) in &self.deployments {
            gone.remove_span(*seq, *seq);
            group.coalesced.iter().for_each(|(from, to)| _ = gone.remove_span(from, to));
        }
        let Some(body) = self.capabilities.clone() else { return };
        let waits = self.deployments.values().any(|group| group.state == 0);
        if !waits && !gone.is_empty() && once(&mut self.declared, receipts::DECLARATION_INTERVAL, now) {
            self.write(Body::Capabilities(CapabilitiesBody { observed_at: now, ..body }), gone);
            self.report_unmentioned(now);
        }
    }

    fn report_unmentioned(&mut self, now: Timestamp) {
        for record in self.records.clone().into_values() {
            let mentions =
                |group: &DeploymentRows| group.newest && group.body.deployment() == Some(record.id());
            if !self.deployments.values().any(mentions) {
                self.write(Body::Status(record.body(now)), SeqRanges::new());
            }
        }
    }

    pub(super) fn maintain(&mut self, now: Timestamp) {
        let at = now.as_millisecond();
        for group in self.deployments.values_mut().filter(|group| group.state == 1) {
            let patience = (UNMENTIONED_AGE.as_secs() as i64 * SECOND) << group.round.min(10);
            if group.sent.is_some_and(|sent| sent <= at - patience || sent > at) {
                group.state = 0;
                group.round += 1;
            }
        }
        self.delete_expired(now);
    }

    fn delete_expired(&mut self, now: Timestamp) {
        let kept_from = now.as_millisecond() - COVERED_AGE_KEPT.as_secs() as i64 * SECOND;
        let old = |group: &DeploymentRows| {
            group.state == 2 && group.covered.is_some_and(|covered| covered <= kept_from)
        };
        self.deployments.retain(|_, group| !old(group));
        let covered: Vec<u64> =
            self.deployments.iter().filter(|(_, group)| group.state == 2).map(|(seq, _)| *seq).collect();
        for seq in covered.iter().rev().skip(COVERED_ROWS_KEPT) {
            self.deployments.remove(seq);
        }
    }

    fn begin_epoch_anew(&mut self, now: Timestamp) {
        self.begin_epoch(now);
        let kept = std::mem::take(&mut self.deployments).into_values();
        let kept: Vec<DeploymentRows> =
            kept.filter(|group| group.state < 2 && group.body.deployment().is_some()).collect();
        self.head = 0;
        if let Some(body) = self.capabilities.clone() {
            self.write(Body::Capabilities(CapabilitiesBody { observed_at: now, ..body }), SeqRanges::new());
        }
        for group in kept {
            self.head += 1;
            let renewed = DeploymentRows::new(group.body, group.newest, SeqRanges::new());
            self.deployments.insert(self.head, renewed);
        }
        self.report_unmentioned(now);
    }

    /// The contents of a database. Fails if its index and its tables differ.
    pub(super) fn of(tables: &mut Tables<'_>) -> SqlResult<Self> {
        let Tables { connection, index } = tables;
        assert_eq!(**index, Index::of(connection)?, "what finds a row, as it was kept and as the file says");
        let mut statement =
            connection.prepare("SELECT seq, body, coalesced, deployment, terminal, bytes FROM outbox")?;
        let mut found = statement.query([])?;
        let mut deployments = BTreeMap::new();
        while let Some(row) = found.next()? {
            let coalesced: Option<String> = row.get(2)?;
            let delivery_table::DeliveryState { state, round, sent, covered } =
                delivery::of_row(connection, row.get(0)?)?;
            let group = DeploymentRows {
                body: rows::from_text(&row.get::<_, String>(1)?)?,
                newest: index.is_newest(row.get(0)?),
                state,
                round,
                coalesced: coalesced.map_or(Ok(SeqRanges::new()), |text| rows::from_text(&text))?,
                sent,
                covered,
            };
            let deployment: Option<String> = row.get(3)?;
            let same = (deployment.as_deref(), row.get(4)?, row.get(5)?)
                == (
                    group.body.deployment().map(DeploymentId::as_str),
                    group.body.is_terminal(),
                    group.bytes(),
                );
            assert!(same, "the columns of {group:?}");
            deployments.insert(row.get(0)?, group);
        }
        let records = store::all_records(connection)?;
        Ok(Self {
            deployments,
            head: index.head(),
            epoch: values::epoch(connection)?,
            receipt: values::receipt(connection)?,
            capabilities: values::capabilities(connection)?,
            records: records.into_iter().map(|record| (record.id().clone(), record)).collect(),
            renewed: values::get(connection, "renewed")?,
            declared: values::get(connection, "declared")?,
        })
    }
}

fn once(last: &mut Option<i64>, interval: Duration, now: Timestamp) -> bool {
    let now = now.as_millisecond();
    let due = last.is_none_or(|last| now < last || now - last >= interval.as_secs() as i64 * SECOND);
    if due {
        *last = Some(now);
    }
    due
}
