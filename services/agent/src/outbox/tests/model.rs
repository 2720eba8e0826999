//! The outbox as its specification says it, in memory and without care for cost: what the real one is compared with.

use std::collections::BTreeMap;

use muster_contract::limits::COVERED_AGE_KEPT;

use super::*;
use crate::db::SqlResult;

/// A row, as far as anybody can tell one from another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) body: Body,
    pub(super) newest: bool,
    pub(super) state: i64,
    pub(super) round: u64,
    pub(super) coalesced: SeqRanges,
    pub(super) sent: Option<i64>,
    pub(super) covered: Option<i64>,
}

impl Line {
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

/// Everything that is durable.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    pub(super) lines: BTreeMap<u64, Line>,
    pub(super) head: u64,
    pub(super) epoch: Option<Epoch>,
    pub(super) receipt: Option<Receipt>,
    pub(super) capabilities: Option<CapabilitiesBody>,
    pub(super) standings: BTreeMap<DeploymentId, Standing>,
    pub(super) renewed: Option<i64>,
    pub(super) declared: Option<i64>,
}

const SECOND: i64 = 1_000;

impl Model {
    pub(super) fn append(&mut self, entries: &[Entry], limits: Limits, frozen: u64) {
        for entry in entries {
            match (&entry.effect, &entry.body) {
                (Effect::Keep(standing), _) => {
                    _ = self.standings.insert(standing.id().clone(), (**standing).clone());
                }
                (Effect::Forget(id), _) => _ = self.standings.remove(id),
                (Effect::None, Body::Capabilities(body)) => self.capabilities = Some(body.clone()),
                (Effect::None, Body::Status(_)) => {}
            }
            self.write(entry.body.clone(), SeqRanges::new());
        }
        self.make_room(limits, frozen);
    }

    fn write(&mut self, body: Body, coalesced: SeqRanges) {
        let of_same = |line: &&mut Line| line.newest && line.body.deployment() == body.deployment();
        self.lines.values_mut().filter(of_same).for_each(|line| line.newest = false);
        self.head += 1;
        self.lines.insert(self.head, Line::new(body, true, coalesced));
    }

    fn bytes(&self) -> u64 {
        self.lines.values().map(Line::bytes).sum()
    }

    fn make_room(&mut self, limits: Limits, frozen: u64) {
        let written = self.head;
        while self.lines.len() as u64 > limits.rows || self.bytes() > limits.bytes {
            let lowest = |wanted: &dyn Fn(&Line) -> bool| {
                self.lines.iter().find(|(seq, line)| **seq < written && wanted(line)).map(|(seq, _)| *seq)
            };
            if let Some(covered) = lowest(&|line| line.state == 2) {
                self.lines.remove(&covered);
            } else if let Some(passing) = lowest(&Line::passes) {
                self.fold(passing, frozen, true);
            } else if let Some(any) = lowest(&|line| !line.newest).or_else(|| lowest(&|_| true)) {
                self.fold(any, frozen, false);
            } else {
                return;
            }
        }
    }

    fn fold(&mut self, seq: u64, frozen: u64, same: bool) {
        let gone = self.lines.remove(&seq).unwrap();
        let fits = |line: &Line| !same || line.body.deployment() == gone.body.deployment();
        let written = self.head;
        let mut later = self.lines.range_mut(seq.max(frozen) + 1..);
        let declarer = later.find(|(_, line)| line.state == 0 && fits(line)).map_or(written, |(seq, _)| *seq);
        let declared = &mut self.lines.get_mut(&declarer).unwrap().coalesced;
        declared.extend(&gone.coalesced);
        declared.insert(seq);
        assert!(declared.len() <= RANGES_PER_ROW_MAX, "more than this model can say");
    }

    /// The numbers that are read, in order.
    pub(super) fn read(&self, ask: &Ask) -> Vec<u64> {
        let waiting = |newest: bool| {
            let wanted = move |line: &Line| line.state == 0 && (!ask.newest_first || line.newest == newest);
            self.lines.iter().filter(move |(_, line)| wanted(line)).map(|(seq, _)| *seq)
        };
        let all: Vec<u64> = if ask.newest_first {
            waiting(true).chain(waiting(false)).collect()
        } else {
            waiting(true).collect()
        };
        all.into_iter().filter(|seq| !ask.except.contains(seq)).take(ask.rows).collect()
    }

    pub(super) fn mark_sent(&mut self, epoch: Epoch, seqs: &[u64], now: Timestamp) {
        if self.epoch != Some(epoch) {
            return;
        }
        for seq in seqs {
            if let Some(line) = self.lines.get_mut(seq).filter(|line| line.state == 0) {
                (line.state, line.sent) = (1, Some(now.as_millisecond()));
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

    pub(super) fn receive(&mut self, receipt: &Receipt, now: Timestamp, limits: Limits, frozen: u64) {
        let (epoch, head) = (self.epoch, self.head);
        self.hear(receipt, now);
        if self.head > head || (epoch.is_some() && self.epoch != epoch) {
            self.make_room(limits, frozen);
        }
    }

    fn hear(&mut self, receipt: &Receipt, now: Timestamp) {
        let Some(epoch) = self.epoch else {
            self.receipt = Some(receipt.clone());
            return;
        };
        if receipt.epoch > epoch || (receipt.epoch == epoch && receipt.through > self.head) {
            if once(&mut self.renewed, RENEWAL_INTERVAL, now) {
                self.receipt = Some(receipt.clone());
                self.renew(now);
            }
        } else if receipt.epoch == epoch {
            self.receipt = Some(receipt.clone());
            self.take(receipt, now);
        }
    }

    fn take(&mut self, receipt: &Receipt, now: Timestamp) {
        let at = now.as_millisecond();
        let on_its_way = at - RESEND_AGE.as_secs() as i64 * SECOND;
        for (seq, line) in self.lines.range_mut(..=receipt.through) {
            if !receipt.missing.contains(*seq) && line.state < 2 {
                (line.state, line.covered) = (2, Some(at));
            }
            let old = line.sent.is_none_or(|sent| sent <= on_its_way || sent > at);
            if receipt.missing.contains(*seq) && line.state > 0 && old {
                line.state = 0;
                line.round += 1;
            }
        }
        self.declare_gone(receipt, now);
        self.forget(now);
    }

    fn declare_gone(&mut self, receipt: &Receipt, now: Timestamp) {
        let mut gone = receipt.missing.clone();
        for (seq, line) in &self.lines {
            gone.remove_span(*seq, *seq);
            line.coalesced.iter().for_each(|(from, to)| _ = gone.remove_span(from, to));
        }
        let Some(body) = self.capabilities.clone() else { return };
        let waits = self.lines.values().any(|line| line.state == 0);
        if !waits && !gone.is_empty() && once(&mut self.declared, DECLARATION_INTERVAL, now) {
            self.write(Body::Capabilities(CapabilitiesBody { observed_at: now, ..body }), gone);
            self.report_unmentioned(now);
        }
    }

    fn report_unmentioned(&mut self, now: Timestamp) {
        for standing in self.standings.clone().into_values() {
            let mentions = |line: &Line| line.newest && line.body.deployment() == Some(standing.id());
            if !self.lines.values().any(mentions) {
                self.write(Body::Status(standing.body(now)), SeqRanges::new());
            }
        }
    }

    pub(super) fn tidy(&mut self, now: Timestamp) {
        let at = now.as_millisecond();
        for line in self.lines.values_mut().filter(|line| line.state == 1) {
            let patience = (SILENCE_AGE.as_secs() as i64 * SECOND) << line.round.min(10);
            if line.sent.is_some_and(|sent| sent <= at - patience || sent > at) {
                line.state = 0;
                line.round += 1;
            }
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Timestamp) {
        let kept_from = now.as_millisecond() - COVERED_AGE_KEPT.as_secs() as i64 * SECOND;
        let old = |line: &Line| line.state == 2 && line.covered.is_some_and(|covered| covered <= kept_from);
        self.lines.retain(|_, line| !old(line));
        let covered: Vec<u64> =
            self.lines.iter().filter(|(_, line)| line.state == 2).map(|(seq, _)| *seq).collect();
        for seq in covered.iter().rev().skip(COVERED_ROWS_KEPT) {
            self.lines.remove(seq);
        }
    }

    fn renew(&mut self, now: Timestamp) {
        self.begin_epoch(now);
        let kept = std::mem::take(&mut self.lines).into_values();
        let kept: Vec<Line> =
            kept.filter(|line| line.state < 2 && line.body.deployment().is_some()).collect();
        self.head = 0;
        if let Some(body) = self.capabilities.clone() {
            self.write(Body::Capabilities(CapabilitiesBody { observed_at: now, ..body }), SeqRanges::new());
        }
        for line in kept {
            self.head += 1;
            let renewed = Line::new(line.body, line.newest, SeqRanges::new());
            self.lines.insert(self.head, renewed);
        }
        self.report_unmentioned(now);
    }

    /// What a database holds. Fails where memory and file of it do not say the same.
    pub(super) fn of(tables: &mut Tables<'_>) -> SqlResult<Self> {
        let Tables { connection, index } = tables;
        assert_eq!(**index, Index::of(connection)?, "what finds a row, as it was kept and as the file says");
        let mut statement =
            connection.prepare("SELECT seq, body, coalesced, deployment, terminal, bytes FROM outbox")?;
        let mut found = statement.query([])?;
        let mut lines = BTreeMap::new();
        while let Some(row) = found.next()? {
            let coalesced: Option<String> = row.get(2)?;
            let passage::Stage { state, round, sent, covered } = passage::stage(connection, row.get(0)?)?;
            let line = Line {
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
                == (line.body.deployment().map(DeploymentId::as_str), line.body.is_terminal(), line.bytes());
            assert!(same, "the columns of {line:?}");
            lines.insert(row.get(0)?, line);
        }
        let standings = store::all_standings(connection)?;
        Ok(Self {
            lines,
            head: index.head(),
            epoch: memory::epoch(connection)?,
            receipt: memory::receipt(connection)?,
            capabilities: memory::capabilities(connection)?,
            standings: standings.into_iter().map(|standing| (standing.id().clone(), standing)).collect(),
            renewed: memory::get(connection, "renewed")?,
            declared: memory::get(connection, "declared")?,
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
