//! The pages: rendered here, complete without script, and refreshed by one small script of our own.
//!
//! Every number opens the list behind it, every list has its command, and a page that cannot vouch for what it shows says
//! so and greys itself. [`frame`] is what all pages share, [`parts`] are their words, bars and commands.

mod address;
mod assets;
mod changes;
mod command;
mod deployment;
mod deployment_devices;
mod device;
mod evidence;
mod frame;
mod incidents;
mod moment;
mod overview;
pub(super) mod page_answers;
mod parts;
mod plan;
mod plan_answers;
mod plan_history;
mod plan_instance;
mod plan_parts;
mod plans;
mod quarantine;
mod rollout;
#[cfg(test)]
mod samples;
mod shared_answers;
mod side;
mod silence;
mod site;
mod time;
mod timeline;
mod waiting;

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use maud::Markup;

pub(super) use self::address::with_address;
pub(crate) use self::command::Command;
use self::frame::{Frame, ProblemPage};
pub(crate) use self::parts::cli;
use super::People;
use crate::problem::Problem;

/// A problem as a page.
pub(crate) fn of_problem(problem: Problem) -> Response {
    ProblemPage(problem).into_response()
}

/// A page without navigation, for a reader who has not logged in.
pub(crate) fn before_login(title: &str, content: &Markup) -> Markup {
    Frame { title: title.to_owned(), ..Frame::default() }.before_login(content)
}

/// The routes of pages; [`address`] names those that take `at`.
pub(crate) fn router() -> Router<People> {
    Router::new()
        .route("/", get(overview::page))
        .route("/deployments/{id}", get(deployment::page))
        .route("/deployments/{id}/devices", get(deployment_devices::page))
        .route("/deployments/{id}/why", get(deployment::why))
        .route("/devices", get(device::list))
        .route("/devices/{site}/{device}", get(device::page))
        .route("/sites/{site}", get(site::page))
        .route("/rollouts", get(rollout::list))
        .route("/rollouts/{id}", get(rollout::page))
        .route("/rollouts/{id}/{verb}", post(rollout::act))
        .route("/quarantine", get(quarantine::page))
        .route("/quarantine/{item}", post(quarantine::act))
        .route("/changes", get(changes::page))
        .merge(plans::router())
        .merge(assets::router())
}
