//! The style sheet, the script and the icon: files of this program under names with a digest, which browsers may keep.

use std::sync::OnceLock;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::routing::get;
use muster_contract::canonical::Digest;

use crate::people::People;

const STYLE: &str = include_str!("../../../assets/muster.css");
const SCRIPT: &str = include_str!("../../../assets/muster.js");
const ICON: &str = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><rect x='1' y='2' width='14' height='3' rx='1' \
                    fill='#3b8a5a'/><rect x='1' y='6.5' width='9' height='3' rx='1' fill='#3f7fbf'/><rect x='1' y='11' \
                    width='5' height='3' rx='1' fill='#c0392b'/></svg>";
/// A name has a digest of its content, so that content never changes.
const FOREVER: &str = "public, max-age=31536000, immutable";

/// The address of the style sheet.
pub(super) fn style() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| address(STYLE, "css"))
}

/// The address of the script.
pub(super) fn script() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| address(SCRIPT, "js"))
}

/// The address of the icon.
pub(super) fn icon() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| address(ICON, "svg"))
}

fn address(content: &str, ending: &str) -> String {
    let digest = Digest::of_bytes(content.as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    format!("/assets/muster-{hex:.12}.{ending}")
}

pub(super) fn router() -> Router<People> {
    let serve = |media: &'static str, content: &'static str| {
        get(async move || ([(CONTENT_TYPE, media), (CACHE_CONTROL, FOREVER)], content))
    };
    Router::new()
        .route(style(), serve("text/css; charset=utf-8", STYLE))
        .route(script(), serve("text/javascript; charset=utf-8", SCRIPT))
        .route(icon(), serve("image/svg+xml", ICON))
}
