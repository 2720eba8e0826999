//! Counts the views that a service publishes and the queries that it answers. The rollup and the federation do both. No
//! label names a hub, a site, a device or a deployment.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::view_writer::WriteOutcome;

/// Metrics of published views and answered queries. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct QueryMetrics {
    /// Views that are still due.
    pub views_due: Gauge,
    views: Family<ViewLabels, Counter>,
    questions: Family<QuestionLabels, Counter>,
}

/// Result of publishing a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViewLabels {
    result: ViewResult,
}

/// Result of publishing a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ViewResult {
    /// It had changed and was written.
    Written,
    /// It was gone and was deleted.
    Deleted,
    /// It had not changed.
    Unchanged,
    /// Another process wrote the view meanwhile; it is evaluated again.
    Overtaken,
    /// Another process had read to the same fact and says something else.
    Disputed,
    /// It could not be written and is due again.
    Failed,
}

impl From<WriteOutcome> for ViewResult {
    fn from(outcome: WriteOutcome) -> Self {
        match outcome {
            WriteOutcome::Written => Self::Written,
            WriteOutcome::Deleted => Self::Deleted,
            WriteOutcome::Overtaken => Self::Overtaken,
            WriteOutcome::Failed => Self::Failed,
        }
    }
}

/// A query.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuestionLabels {
    endpoint: &'static str,
    answered: AnswerKind,
}

/// How a query was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum AnswerKind {
    /// From memory.
    Answer,
    /// By a hub.
    PassedOn,
    /// With an error.
    Error,
}

impl QueryMetrics {
    /// Registers the metrics under the service's prefix.
    pub fn register(&self, registry: &mut Registry) {
        let all = self.clone();
        registry.register("views", "Views looked at, by what became of them", all.views);
        registry.register("views_due", "Views still to be looked at", all.views_due);
        registry.register("questions", "Questions, by endpoint and kind of answer", all.questions);
    }

    /// Counts a view.
    pub fn view(&self, result: ViewResult) {
        self.views.get_or_create(&ViewLabels { result }).inc();
    }

    /// Views with one result since the start.
    pub fn views_with(&self, result: ViewResult) -> u64 {
        self.views.get_or_create(&ViewLabels { result }).get()
    }

    /// Counts a query.
    pub fn question(&self, endpoint: &'static str, answered: AnswerKind) {
        self.questions.get_or_create(&QuestionLabels { endpoint, answered }).inc();
    }
}
