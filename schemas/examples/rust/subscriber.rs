//! A subscriber in Rust that believes nobody: it rebuilds a view from the facts of LEDGER and proves that the view in the
//! bucket is what they give, digest for digest. It knows the contract crate and a NATS client, nothing else of Muster.
//!
//! What it has read is kept in a file (a line a fact), so a second start reads only the tail. For each view it takes the
//! entry of the bucket, reads LEDGER up to the entry's `asOf.ledgerSeq`, and compares. The rules are in `reduce`, which is
//! also what our own fold is tested against.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use muster_contract::DeploymentId;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, ViewKey, stream};
use muster_contract::view::{DeploymentView, content_digest};
use serde_json::{Value, json};

use crate::ledger::Entry;
use crate::reduce::World;

/// One comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Up to where LEDGER was read for it.
    pub(crate) ledger_seq: u64,
    /// Facts that had to be read for it.
    pub(crate) read: usize,
    /// The digest in the bucket.
    pub(crate) theirs: Digest,
    /// The digest of what the facts give; none where they give no such view.
    pub(crate) ours: Option<Digest>,
}

/// LEDGER as far as it was read.
pub(crate) struct Subscriber {
    jetstream: Context,
    file: File,
    entries: Vec<Entry>,
    read_to: u64,
}

impl Subscriber {
    /// Goes on where the file ends.
    pub(crate) async fn open(url: &str, path: &Path) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let jetstream = jetstream::new(async_nats::connect(url).await?);
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut this = Self { jetstream, file: file.try_clone()?, entries: Vec::new(), read_to: 0 };
        for line in BufReader::new(file).lines() {
            let line: Value = serde_json::from_str(&line?)?;
            let (seq, subject) = (line["seq"].as_u64().ok_or("no seq")?, line["subject"].as_str());
            this.take(seq, subject.ok_or("no subject")?, line["fact"].to_string().as_bytes());
        }
        Ok(this)
    }

    /// Takes the view of a deployment from the bucket, and proves it.
    pub(crate) async fn prove(&mut self, id: &DeploymentId) -> Result<Proof, Box<dyn Error + Send + Sync>> {
        let bucket = self.jetstream.get_key_value(stream::VIEWS_BUCKET).await?;
        let key = ViewKey::Deployment(id.clone()).to_string();
        let entry = bucket.get(key).await?.ok_or("there is no such view")?;
        let theirs: DeploymentView = serde_json::from_slice(&entry)?;
        let ledger_seq = theirs.as_of.ledger_seq;
        let read = self.read_until(ledger_seq).await?;
        // What came after the view is none of its business.
        let known: Vec<Entry> =
            self.entries.iter().filter(|entry| entry.seq <= ledger_seq).cloned().collect();
        let ours = World::of(&known).deployment_view(id).map(|view| content_digest(&view));
        Ok(Proof { ledger_seq, read, theirs: theirs.digest, ours })
    }

    /// Reads LEDGER up to a sequence, and keeps what it reads; how many facts those were.
    async fn read_until(&mut self, ledger_seq: u64) -> Result<usize, Box<dyn Error + Send + Sync>> {
        if self.read_to >= ledger_seq {
            return Ok(0);
        }
        let ledger = self.jetstream.get_stream(stream::LEDGER).await?;
        let after = DeliverPolicy::ByStartSequence { start_sequence: self.read_to + 1 };
        let ordered = pull::OrderedConfig { deliver_policy: after, ..Default::default() };
        let mut messages = ledger.create_consumer(ordered).await?.messages().await?;
        let mut read = 0;
        while self.read_to < ledger_seq {
            let message = messages.next().await.ok_or("LEDGER is gone")??;
            let seq = message.info()?.stream_sequence;
            let fact: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
            writeln!(
                self.file,
                "{}",
                json!({ "seq": seq, "subject": message.subject.as_str(), "fact": fact })
            )?;
            self.take(seq, &message.subject, &message.payload);
            read += 1;
        }
        Ok(read)
    }

    /// What is no fact is passed, as everybody does.
    fn take(&mut self, seq: u64, subject: &str, payload: &[u8]) {
        self.read_to = seq;
        let subject = LedgerSubject::parse(subject);
        let fact = subject.and_then(|of| Fact::parse(&of, payload).ok().map(|fact| (of, fact)));
        self.entries.extend(fact.map(|(subject, fact)| Entry { seq, subject, fact }));
    }
}
