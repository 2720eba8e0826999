//! `muster verify` against a rollup that the test plays on a real nats-server: what the exit code says. What a real one finds
//! is in `rollup/proof`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use bytes::Bytes;
use muster_contract::query::ErrorCode;
use muster_tests::command::{Hub, refused};
use muster_tests::schemas::example;
use serde_json::Value;

#[tokio::test]
async fn the_exit_code_of_verify_is_its_answer_and_no_answer_is_not_a_no() {
    let same = hub(Ok(example("VerifyAnswer.same"))).await;
    let said = same.muster(&["verify"]).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(said.out.starts_with("Verified: "), "{}", said.out);
    let different = hub(Ok(example("VerifyAnswer.different"))).await;
    for format in ["table", "json"] {
        let said = different.muster(&["verify", "--format", format]).await;
        assert_eq!((said.code, said.err.as_str()), (1, ""), "{format}");
        assert!(said.out.contains("rows[0].report.state"), "{}", said.out);
    }
    // Also where the same word would be a no of any other question.
    for code in [ErrorCode::Internal, ErrorCode::NotFound, ErrorCode::BadRequest] {
        let said = hub(Err(code)).await.muster(&["verify"]).await;
        assert_eq!(
            (said.code, said.out.as_str(), said.err.as_str()),
            (2, "", "muster: no rebuild\n"),
            "{code:?}"
        );
    }
    let said = Hub::without_services().await.muster(&["verify"]).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""));
}

/// One with this answer.
async fn hub(answer: Result<Value, ErrorCode>) -> Hub {
    let play = move |_| {
        let answer = answer.clone().map(|answer| Bytes::from(answer.to_string()));
        async move { answer.map_err(|code| refused(code, "no rebuild")) }
    };
    Hub::without_services().await.play(&[("verify", "muster.query.verify")], play).await
}
