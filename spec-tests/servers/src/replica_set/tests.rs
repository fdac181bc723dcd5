use bson::rawdoc;

use super::*;
use crate::mongod::tests::is_running;

/// Returns the deadline for a change of roles, which may take a long time on a busy machine.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Inserts a document on the primary, and waits until a majority has replicated it.
fn write(set: &ReplicaSet, primary: usize, id: i32) {
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": { "w": "majority" } };
    let reply = set.command(primary, "test", &insert).unwrap();
    assert!(
        reply.get("writeErrors").unwrap().is_none() && reply.get("writeConcernError").unwrap().is_none(),
        "{reply:?}"
    );
}

fn written(set: &ReplicaSet, primary: usize) -> i32 {
    set.command(primary, "test", &rawdoc! { "count": "c", "query": { "_id": { "$gt": 0 } } })
        .unwrap()
        .get_i32("n")
        .unwrap()
}

#[test]
fn set_elects_steps_down_survives_a_kill_and_leaves_nothing() {
    let began = Instant::now();
    let set = ReplicaSet::start(ReplicaSetOptions::default()).unwrap();
    println!("started in {:?}", began.elapsed());
    let first = set.primary().unwrap().expect("a primary after the start");
    let others: Vec<_> = (0..3).filter(|&member| member != first).collect();
    assert_eq!(set.secondaries().unwrap(), others);
    assert_eq!(set.addresses().len(), 3);
    assert!(
        set.uri().contains(&set.addresses()[2].to_string()) && set.uri().ends_with("/?replicaSet=rs"),
        "{}",
        set.uri()
    );
    write(&set, first, 1);

    let began = Instant::now();
    let second = set.step_down().unwrap();
    println!("stepped down in {:?}", began.elapsed());
    assert_ne!(second, first);
    assert_eq!(set.primary().unwrap(), Some(second));
    write(&set, second, 2);

    let killed = set.pid(second);
    set.kill(second).unwrap();
    assert!(!is_running(killed));
    let began = Instant::now();
    let third = set.wait_for_primary(soon()).unwrap();
    println!("elected after a kill in {:?}", began.elapsed());
    assert_ne!(third, second);
    write(&set, third, 3);

    let began = Instant::now();
    let address = set.addresses()[second];
    set.restart(second).unwrap();
    assert_ne!(set.pid(second), killed);
    set.wait_for_secondary(second, soon()).unwrap();
    println!("restarted in {:?}", began.elapsed());
    assert_eq!(set.addresses()[second], address);
    assert_eq!(written(&set, third), 3, "writes with majority outlive the kill of a primary");

    let pids = [0, 1, 2].map(|member| set.pid(member));
    let began = Instant::now();
    drop(set);
    println!("dropped in {:?}", began.elapsed());
    assert!(!pids.into_iter().any(is_running));
}

#[test]
fn paused_primary_is_replaced_and_gives_way_when_it_continues() {
    let set = ReplicaSet::start(ReplicaSetOptions::default()).unwrap();
    let paused = set.primary().unwrap().unwrap();
    set.stop_process(paused).unwrap();
    let next = set.wait_for_primary(soon()).unwrap();
    assert_ne!(next, paused);
    write(&set, next, 1);
    set.continue_process(paused).unwrap();
    set.wait_for_secondary(paused, soon()).unwrap();
    assert_eq!(set.primary().unwrap(), Some(next));
    // A paused member must not delay the shutdown of the set.
    set.stop_process(paused).unwrap();
    let pid = set.pid(paused);
    drop(set);
    assert!(!is_running(pid));
}

#[test]
fn shared_set_ends_with_its_last_user() {
    let set = shared().unwrap();
    assert!(Arc::ptr_eq(&set, &shared().unwrap()));
    let pid = set.pid(0);
    drop(set);
    assert!(!is_running(pid));
}

#[test]
fn set_of_one_with_tags_steps_down_and_is_primary_again() {
    let options = ReplicaSetOptions {
        members: 1,
        name: "single".to_owned(),
        member_fields: vec![doc! { "tags": { "dc": "ny" } }],
        ..ReplicaSetOptions::default()
    };
    let set = ReplicaSet::start(options).unwrap();
    let hello = set.command(0, "admin", &rawdoc! { "hello": 1 }).unwrap();
    assert_eq!(hello.get_document("tags").unwrap(), &*rawdoc! { "dc": "ny" });
    assert_eq!(hello.get_str("setName").unwrap(), set.name());
    assert_eq!(set.step_down().unwrap(), 0);
}

#[test]
fn member_that_cannot_start_is_reported_and_leaves_nothing() {
    let options = ReplicaSetOptions { extra_args: vec!["--noSuchOption".into()], ..ReplicaSetOptions::default() };
    let error = ReplicaSet::start(options).unwrap_err();
    assert!(
        matches!(&error, ReplicaSetError::Start(StartError::Ended { log, .. }) if log.contains("noSuchOption")),
        "{error}"
    );
}

#[test]
fn deadline_says_what_the_members_are() {
    let set = ReplicaSet::start(ReplicaSetOptions { members: 1, ..ReplicaSetOptions::default() }).unwrap();
    set.kill(0).unwrap();
    let error = set.wait_for_primary(Instant::now()).unwrap_err().to_string();
    assert_eq!(error, "the replica set did not have a primary in time; its members: [Silent]");
    assert_eq!(set.primary().unwrap(), None);
}
