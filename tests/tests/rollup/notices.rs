//! Notices on a real server, row by row of EMCO's status notification (`n01` to `n11`), and what two rollups and
//! restarts do to them.

mod listener;
mod many;
mod rows;
mod survive;

use listener::{Listener, ask, refusal, subscribed};
