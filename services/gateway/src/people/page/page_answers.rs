//! The answers that the readers of all pages share, and their end when a person changes something.

use std::sync::Arc;

use maud::Markup;
use muster_client::ask::{AskError, Hub};
use muster_contract::plans::PlansAnswer;
use muster_contract::timeline::TimelineAnswer;
use muster_contract::{DeploymentId, PlanName, Timestamp};

use super::plan_answers::{PlanDetail, plans};
use super::shared_answers::SharedAnswers;
use super::side::{self, Part, Side};

/// An answer of a service, or why there is none.
type ServiceAnswer<A> = Result<A, AskError>;

/// The state that a first screen shows: changes of the views that it has seen, second of its times, span of its chart, and whether it
/// offers approvals and changes.
type ShownState = (u64, i64, (Option<String>, (bool, bool)));

/// The shared answers, by kind.
#[derive(Default)]
pub(crate) struct PageAnswers {
    side: SharedAnswers<(), Side>,
    /// By what they show.
    screens: SharedAnswers<ShownState, Markup>,
    /// By deployment; that of the fleet by none.
    timelines: SharedAnswers<Option<DeploymentId>, Part<TimelineAnswer>>,
    /// By the plan before the page of the list.
    plans: SharedAnswers<Option<String>, ServiceAnswer<Option<PlansAnswer>>>,
    /// By plan, and by the instance before the page of its instances.
    plan_details: SharedAnswers<(PlanName, Option<String>), ServiceAnswer<PlanDetail>>,
}

impl PageAnswers {
    /// Clears all answers when the returned value is dropped: it is held while a change is made, so that the page of this
    /// gateway after the change shows it; another gateway may be a second behind. A change that fails, or whose client goes away, may have been made.
    pub(crate) fn clear_at_end(self: &Arc<Self>) -> ClearAtEnd {
        ClearAtEnd(Arc::clone(self))
    }

    /// The parts of the first screen beside the views.
    pub(super) async fn side(&self, hub: &Hub, now: Timestamp) -> Arc<Side> {
        self.side.read((), Box::pin(side::read(hub, now))).await
    }

    /// The content of the first screen, drawn once for all readers who would see the same.
    pub(super) async fn screen(&self, shown: ShownState, draw: impl Future<Output = Markup>) -> Arc<Markup> {
        self.screens.read(shown, draw).await
    }

    /// How the counts of the fleet, or of a deployment, have changed.
    pub(super) async fn timeline(&self, hub: &Hub, id: Option<&DeploymentId>) -> Arc<Part<TimelineAnswer>> {
        self.timelines.read(id.cloned(), Box::pin(side::timeline(hub, id))).await
    }

    /// A page of the plans; `None` if no planner runs.
    pub(super) async fn plans(
        &self,
        hub: &Hub,
        after: Option<String>,
    ) -> Arc<ServiceAnswer<Option<PlansAnswer>>> {
        self.plans.read(after.clone(), plans(hub, after)).await
    }

    /// A plan, with a page of its instances.
    pub(super) async fn plan(
        &self,
        hub: &Hub,
        plan: PlanName,
        after: Option<String>,
    ) -> Arc<ServiceAnswer<PlanDetail>> {
        let read = Box::pin(PlanDetail::read(hub, &plan, after.clone()));
        self.plan_details.read((plan.clone(), after), read).await
    }
}

/// Clears all shared answers when it is dropped.
pub(crate) struct ClearAtEnd(Arc<PageAnswers>);

impl Drop for ClearAtEnd {
    fn drop(&mut self) {
        let PageAnswers { side, screens, timelines, plans, plan_details } = &*self.0;
        side.clear();
        screens.clear();
        timelines.clear();
        plans.clear();
        plan_details.clear();
    }
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    #[tokio::test]
    async fn a_screen_is_drawn_once_for_those_who_would_see_the_same() {
        let shared = Arc::new(PageAnswers::default());
        let read = async |shown: ShownState, words: &str| {
            let screen = shared
                .screen(shown, async {
                    html! { (words) }
                })
                .await;
            screen.0.clone()
        };
        let shown = |changes, second, offers_changes| (changes, second, (None, (true, offers_changes)));
        assert_eq!(read(shown(1, 1, true), "first").await, "first");
        assert_eq!(read(shown(1, 1, true), "again").await, "first");
        assert_eq!(read(shown(2, 1, true), "another view").await, "another view");
        assert_eq!(read(shown(1, 2, true), "another second").await, "another second");
        assert_eq!(read(shown(1, 1, false), "another role").await, "another role");
        drop(shared.clear_at_end());
        assert_eq!(read(shown(1, 1, true), "after a change").await, "after a change");
    }

    #[tokio::test]
    async fn a_page_after_a_change_shares_no_answer_from_before_it() {
        let shared = Arc::new(PageAnswers::default());
        let read = async |words: &str| {
            let timeline = shared.timelines.read(None, async { Err(words.to_owned()) }).await;
            let plans = shared.plans.read(None, async { Ok(None) }).await;
            let detail = async { Err(AskError::CommitChanged) };
            (timeline, plans, shared.plan_details.read(("web".parse().unwrap(), None), detail).await)
        };
        let before = read("before").await;
        let change = shared.clear_at_end();
        assert_eq!(*read("during").await.0, Err("before".to_owned()));
        drop(change);
        let after = read("after").await;
        assert_eq!(*after.0, Err("after".to_owned()));
        assert!(!Arc::ptr_eq(&before.1, &after.1) && !Arc::ptr_eq(&before.2, &after.2));
    }
}
