//! Tests notices on a real server, row by row of EMCO's status notification (`n01` to `n11`), and with two
//! rollups and restarts.

mod listener;
mod many;
mod missed;
mod rows;
mod survive;

use listener::{Listener, ask, refusal, subscribed};
