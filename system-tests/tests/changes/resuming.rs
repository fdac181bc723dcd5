//! The behaviour of a change stream after failures.

use std::sync::Arc;

use bson::{Document, doc};
use wharf::{ReadPreference, ReadPreferenceMode};

use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::event;
use super::watched::{Watched, id};

/// An error from `getMore` after which a change stream resumes.
fn resumable() -> Document {
    doc! { "errorCode": 6, "errorLabels": ["ResumableChangeStreamError"] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_resumes_with_the_same_command_but_for_the_token() {
    let watched = Watched::new("same").await;
    let pipeline = [doc! { "$match": { "operationType": "insert" } }];
    let stage = doc! { "fullDocument": "updateLookup" };
    let mut changes = watched
        .client
        .watch(watched.target(), pipeline)
        .stage(stage)
        .options(doc! { "comment": "the same" })
        .batch_size(2)
        .await
        .unwrap();
    watched.insert(0..1).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    let token = Document::try_from(changes.resume_token().unwrap()).unwrap();
    for (round, how) in
        [resumable(), doc! { "errorCode": 43 }, doc! { "closeConnection": true }].into_iter().enumerate()
    {
        watched.fail(["getMore"], 1, how).await;
        let number = i32::try_from(round).unwrap() + 1;
        watched.insert(number..number + 1).await;
        assert_eq!(id(&event(&mut changes).await), number);
    }
    let mut commands: Vec<Document> = watched.started("aggregate").into_iter().map(|(_, command)| command).collect();
    assert_eq!(commands.len(), 4);
    assert_eq!(watched.stages()[1], doc! { "fullDocument": "updateLookup", "resumeAfter": token });
    assert!(watched.stages().iter().all(|stage| !stage.contains_key("startAtOperationTime")));
    for command in &mut commands {
        command.remove("$clusterTime");
        let pipeline = command.get_array_mut("pipeline").unwrap();
        let first = pipeline[0].as_document_mut().unwrap().get_document_mut("$changeStream").unwrap();
        first.remove("resumeAfter");
    }
    // All commands also use the same session.
    assert!(commands[0].contains_key("lsid"));
    assert!(commands.iter().all(|command| *command == commands[0]), "{commands:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_resumes_in_the_session_of_the_application() {
    let watched = Watched::new("session").await;
    let mut session = watched.client.start_session().await.unwrap();
    let lsid = Document::try_from(session.id()).unwrap();
    let mut changes = watched.client.watch(watched.target(), ()).session(&mut session).await.unwrap();
    watched.fail(["getMore"], 1, resumable()).await;
    watched.insert(0..1).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    let commands = [watched.started("aggregate"), watched.started("getMore")].concat();
    assert!(commands.len() >= 3);
    assert!(commands.iter().all(|(_, command)| command.get_document("lsid").unwrap() == &lsid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_aggregate_is_not_resumed() {
    let watched = Watched::with("aggregates", |options| options.retry_reads(false)).await;
    watched.fail(["aggregate"], 1, resumable()).await;
    let error = watched.client.watch(watched.target(), ()).await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, 6);
    assert_eq!(watched.stages().len(), 1);
    // A stream is not resumed a second time if the aggregate that resumes it fails.
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.fail(["getMore", "aggregate"], 2, resumable()).await;
    let error = changes.next().await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, 6);
    assert!(changes.is_over() && changes.next().await.unwrap().is_none());
    assert_eq!(watched.stages().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregate_that_resumes_is_a_read_that_is_retried() {
    let watched = Watched::new("retried").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.fail(["getMore", "aggregate"], 2, resumable()).await;
    watched.insert(0..1).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    assert_eq!(watched.stages().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_does_not_resume_after_other_errors() {
    let watched = Watched::new("others").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.fail(["getMore"], 1, doc! { "errorCode": 6 }).await;
    let error = changes.next().await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, 6);
    assert!(changes.is_over());
    assert_eq!(watched.stages().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_resumes_on_a_server_that_its_read_preference_allows() {
    let watched = Watched::new("preferred").await;
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let mut changes = watched.client.watch(watched.target(), ()).read_preference(&secondary).await.unwrap();
    let set = watched.set.clone();
    let primary = tokio::task::spawn_blocking(move || set.primary().unwrap().unwrap()).await.unwrap();
    let primary = watched.set.addresses()[primary].to_string();
    watched.fail(["getMore"], 1, doc! { "closeConnection": true }).await;
    watched.insert(0..1).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    let aggregates = watched.started("aggregate");
    // The other secondary also has the fail point.
    assert!((2..=3).contains(&aggregates.len()), "{aggregates:?}");
    for (address, command) in aggregates {
        assert_ne!(*address, *primary);
        assert_eq!(command.get_document("$readPreference").unwrap(), &doc! { "mode": "secondary" });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_kill_cursors_does_not_matter() {
    let watched = Watched::new("kills").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.insert(0..1).await;
    watched.fail(["getMore", "killCursors"], 2, resumable()).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    watched.insert(1..2).await;
    assert_eq!(id(&event(&mut changes).await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_started_after_a_token_resumes_by_start_after_until_its_first_event() {
    let watched = Watched::new("started").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.insert(0..1).await;
    let token = Document::try_from(event(&mut changes).await.get_document("_id").unwrap()).unwrap();
    drop(changes);
    let before = watched.stages().len();
    let stage = doc! { "startAfter": token };
    let mut changes = watched.client.watch(watched.target(), ()).stage(stage).await.unwrap();
    for number in 1..3 {
        watched.fail(["getMore"], 1, resumable()).await;
        watched.insert(number..number + 1).await;
        assert_eq!(id(&event(&mut changes).await), number);
    }
    let fields = |stage: &Document| stage.keys().cloned().collect::<Vec<_>>();
    let stages: Vec<_> = watched.stages()[before..].iter().map(fields).collect();
    assert_eq!(stages, [["startAfter"], ["startAfter"], ["resumeAfter"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_goes_on_after_the_primary_steps_down() {
    let watched = Watched::new("elections").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.insert(0..5).await;
    let set = watched.set.clone();
    let stepping_down = tokio::task::spawn_blocking(move || set.step_down().unwrap());
    let reading = async {
        for expected in 0..10 {
            assert_eq!(id(&event(&mut changes).await), expected);
        }
    };
    let writing = async {
        stepping_down.await.unwrap();
        watched.insert(5..10).await;
    };
    tokio::join!(reading, writing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_moves_to_the_next_primary_when_the_first_is_killed() {
    let start = || Arc::new(ReplicaSet::start(ReplicaSetOptions::default()).unwrap());
    let set = tokio::task::spawn_blocking(start).await.unwrap();
    let watched = Watched::on(set.clone(), "killed", |options| options).await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.insert(0..5).await;
    for expected in 0..5 {
        assert_eq!(id(&event(&mut changes).await), expected);
    }
    let killing = tokio::task::spawn_blocking(move || set.kill(set.primary().unwrap().unwrap()).unwrap());
    let reading = async {
        for expected in 5..10 {
            assert_eq!(id(&event(&mut changes).await), expected);
        }
    };
    let writing = async {
        killing.await.unwrap();
        watched.insert(5..10).await;
    };
    tokio::join!(reading, writing);
    let aggregates = watched.started("aggregate");
    assert_eq!(aggregates.len(), 2);
    assert_ne!(aggregates[0].0, aggregates[1].0);
}
