//! Counts for `/metrics`. No label distinguishes hubs, sites or deployments; `muster.query.hubs` does.

use muster_bus::WriteOutcome;
use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The federation's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Hubs there are.
    pub hubs: Gauge,
    /// Hubs that are heard.
    pub hubs_heard: Gauge,
    /// Questions to hubs for their parts, by result.
    pub asked: Family<AskLabels, Counter>,
    /// Views of hubs that could not be read.
    pub unreadable: Counter,
    /// Claims of a hub to a site that another hub has.
    pub sites_disputed: Counter,
    /// Results of publishing views.
    pub views: Family<ViewLabels, Counter>,
    /// Times the views were left to another federation, which hears more hubs.
    pub stood_back: Counter,
    /// Views that are still due.
    pub views_due: Gauge,
    /// Questions by endpoint.
    pub questions: Family<QuestionLabels, Counter>,
}

/// A question to a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AskLabels {
    result: AskResult,
}

/// How that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum AskResult {
    /// Parts came.
    Answered,
    /// None came.
    Failed,
}

/// Result of publishing a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ViewLabels {
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
    /// Another federation wrote the view meanwhile; it is evaluated again.
    Overtaken,
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

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QuestionLabels {
    endpoint: &'static str,
    answered: AnswerKind,
}

/// How a question was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum AnswerKind {
    /// From memory.
    Answer,
    /// By a hub.
    PassedOn,
    /// With an error.
    Error,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| metrics.describe(registry.sub_registry_with_prefix("federation")));
        for result in [AskResult::Answered, AskResult::Failed] {
            metrics.asked.get_or_create(&AskLabels { result }).inc_by(0);
        }
        metrics
    }

    fn describe(&self, registry: &mut Registry) {
        let all = self.clone();
        registry.register("hubs", "Configured hubs", all.hubs);
        registry.register("hubs_heard", "Hubs that answer within their lease", all.hubs_heard);
        registry.register("asked", "Questions to hubs for their parts, by result", all.asked);
        registry.register("unreadable", "Views of hubs that could not be read", all.unreadable);
        registry.register(
            "sites_disputed",
            "Views of a site from a hub that does not own the site",
            all.sites_disputed,
        );
        registry.register("views", "Views compared with the bucket, by result", all.views);
        registry.register(
            "stood_back",
            "Times the views were left to another federation, which hears more hubs",
            all.stood_back,
        );
        registry.register("views_due", "Views still to be looked at", all.views_due);
        registry.register("questions", "Questions, by endpoint and kind of answer", all.questions);
    }

    /// Counts a question to a hub.
    pub fn ask(&self, result: AskResult) {
        self.asked.get_or_create(&AskLabels { result }).inc();
    }

    /// Counts a view.
    pub fn view(&self, result: ViewResult) {
        self.views.get_or_create(&ViewLabels { result }).inc();
    }

    /// Views with one result since the start.
    pub fn views_with(&self, result: ViewResult) -> u64 {
        self.views.get_or_create(&ViewLabels { result }).get()
    }

    /// Counts a question.
    pub fn question(&self, endpoint: &'static str, answered: AnswerKind) {
        self.questions.get_or_create(&QuestionLabels { endpoint, answered }).inc();
    }
}
