//! Pages: what they show is what the command shows, every link of the first screen leads somewhere, and no page needs its
//! script or runs another's.

use std::collections::BTreeSet;

use muster_contract::Timestamp;
use serde_json::Value;

use super::client::get;
use super::served;

#[tokio::test(flavor = "multi_thread")]
async fn a_page_shows_the_digest_that_the_command_shows() {
    let (system, addr) = served().await;
    system
        .eventually("page and command show one digest", async || {
            let page = get(addr, "/deployments/web").await.map_err(|error| error.to_string())?;
            let shown = system.muster(&["status", "web", "--format", "json"]).await;
            let view: Value = serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())?;
            let digest = format!("data-digest=\"{}\"", view["view"]["digest"].as_str().unwrap_or_default());
            if page.status == 200 && page.body.contains(&digest) { Ok(()) } else { Err(page.body) }
        })
        .await;
}

/// The addresses that a page links to.
fn links(body: &str) -> BTreeSet<String> {
    let found = body.split(" href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    found.filter(|link| link.starts_with('/')).map(|link| link.replace("&amp;", "&")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_link_of_the_pages_leads_to_a_page_that_runs_nothing_inline() {
    let (system, addr) = served().await;
    let (mut open, mut seen) = (vec!["/".to_owned()], BTreeSet::new());
    while let Some(address) = open.pop() {
        if seen.len() > 60 || !seen.insert(address.clone()) {
            continue;
        }
        let page = system
            .eventually(&address, async || match get(addr, &address).await {
                Ok(page) if page.status != 503 => Ok(page),
                other => Err(format!("{other:?}")),
            })
            .await;
        // There is no rollout, which its page says.
        assert!(
            page.status == 200 || address.split('?').next() == Some("/rollouts/web") && page.status == 404,
            "{address}: {page:?}"
        );
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        if page.header("content-type").is_some_and(|media| media.starts_with("text/html")) {
            for inline in [" style=", " onclick=", "javascript:", "<style"] {
                assert!(!page.body.contains(inline), "{address} has {inline}");
            }
            assert_eq!(page.body.matches("<script").count(), 1, "{address}");
            open.extend(links(&page.body));
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
}

/// The commands that a page shows to copy.
fn commands(body: &str) -> Vec<&str> {
    let found = body.split("<code>").skip(1).filter_map(|rest| rest.split('<').next());
    found.filter(|text| text.starts_with("muster ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_screen_shows_a_moment_of_the_past() {
    let (system, addr) = served().await;
    let page = system
        .eventually("the past is rebuilt", async || match get(addr, "/?at=now").await {
            Ok(page) if page.status == 200 => Ok(page),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert!(page.body.contains("As known at") && page.body.contains("is-past"), "{}", page.body);
    assert!(!page.body.contains("data-stream"), "the past does not move");
    assert!(page.body.contains("Back to now") && !page.body.contains("at=now"), "{}", page.body);
    let of_then: Vec<_> = commands(&page.body).into_iter().filter(|text| text.contains(" --at ")).collect();
    for command in ["muster fleet --at ", "muster status --at "] {
        assert!(of_then.iter().any(|shown| shown.starts_with(command)), "{command}: {of_then:?}");
    }
    for command in of_then {
        let shown = system.muster(&command.split(' ').skip(1).collect::<Vec<_>>()).await;
        assert!(shown.status.success(), "{command}: {shown:?}");
    }
    let links = links(&page.body);
    let deployment = links.iter().find(|link| link.starts_with("/deployments/web?at="));
    let deployment = deployment.unwrap_or_else(|| panic!("the link loses the moment: {links:?}"));
    let page = system
        .eventually("a click stays in the past", async || match get(addr, deployment).await {
            Ok(page) if page.status == 200 => Ok(page),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert!(page.body.contains("As known at"), "{}", page.body);

    // A field for date and time sends no zone; what it sends is of UTC. At the second in which the test began, the site is not there.
    let (page, field) = system
        .eventually("a field leads to the past", async || {
            let field = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S").to_string();
            match get(addr, &format!("/devices?site=plant7&at={field}")).await {
                Ok(page) if page.status == 200 => Ok((page, field)),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    for part in [
        format!("name=\"at\" value=\"{field}Z\""),
        "name=\"site\" value=\"plant7\"".to_owned(),
        "href=\"?site=plant7\">Back to now".to_owned(),
        format!("muster devices --site plant7 --at {field}Z"),
    ] {
        assert!(page.body.contains(&part), "{part}: {}", page.body);
    }
}
