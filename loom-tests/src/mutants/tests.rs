use super::*;

const SOURCE: &str = "
fn first() {
    // ready() is called first.
    if ready() {
        open(1,
            2); // ready() again
    }
}

fn second() -> bool {
    already() && ready()
}
";

const fn mutant(name: &'static str, edits: &'static [Edit]) -> Mutant {
    Mutant { name, does: "Fails.", file: "some.rs", edits }
}

/// Applies the mutants to [`SOURCE`]. Returns the result without white space, which is insignificant.
fn applied(mutants: &'static [Mutant]) -> Result<String, String> {
    let text = apply(mutants.iter(), SOURCE)?;
    assert!(text.contains("// ready() is called first."), "comments stay: {text}");
    Ok(text.split_whitespace().collect())
}

#[test]
fn expression_is_guarded_only_in_its_item() {
    const MUTANTS: &[Mutant] = &[mutant("a", &[Edit { within: "fn second", right: "ready()", wrong: "true" }])];
    let text = applied(MUTANTS).unwrap();
    assert!(text.contains(r#"already()&&(ifcrate::pool::sync::mutant("a"){true}else{ready()})}"#), "{text}");
    assert!(text.contains("ifready(){open(1,2);"), "{text}");
}

#[test]
fn statement_with_other_line_breaks_is_left_out() {
    const MUTANTS: &[Mutant] = &[mutant("a", &[Edit { within: "fn first", right: "open(1, 2);", wrong: "" }])];
    let text = applied(MUTANTS).unwrap();
    assert!(text.contains(r#"ifready(){ifcrate::pool::sync::mutant("a"){}else{open(1,2);}"#), "{text}");
}

#[test]
fn nested_and_equal_fragments_keep_their_own_guards() {
    const MUTANTS: &[Mutant] = &[
        mutant("inner", &[Edit { within: "fn second", right: "ready()", wrong: "false" }]),
        mutant("outer", &[Edit { within: "fn second", right: "already() && ready()", wrong: "false" }]),
        mutant("same", &[Edit { within: "fn second", right: "already() && ready()", wrong: "true" }]),
    ];
    let expected = concat!(
        r#"{(ifcrate::pool::sync::mutant("outer"){false}else{(ifcrate::pool::sync::mutant("same"){true}else{"#,
        r#"already()&&(ifcrate::pool::sync::mutant("inner"){false}else{ready()})})})}"#
    );
    let text = applied(MUTANTS).unwrap();
    assert!(text.contains(expected), "{text}");
}

#[test]
fn overlapping_fragments_are_refused() {
    const MUTANTS: &[Mutant] = &[
        mutant("left", &[Edit { within: "fn first", right: "ready() { open", wrong: "" }]),
        mutant("right", &[Edit { within: "fn first", right: "open(1, 2)", wrong: "" }]),
    ];
    let error = applied(MUTANTS).unwrap_err();
    assert_eq!(error, "mutant right in src/some.rs, `fn first`: the fragment overlaps with another one: open(1, 2)");
}

#[test]
fn each_fragment_that_does_not_occur_once_is_named() {
    const MUTANTS: &[Mutant] = &[
        mutant("no_item", &[Edit { within: "fn third", right: "ready()", wrong: "" }]),
        mutant("no_fragment", &[Edit { within: "fn first", right: "already()", wrong: "" }]),
        mutant("part_of_a_word", &[Edit { within: "fn second", right: "read", wrong: "" }]),
        mutant("twice", &[Edit { within: "fn second", right: "()", wrong: "" }]),
    ];
    let error = applied(MUTANTS).unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines,
        [
            "mutant no_item in src/some.rs, `fn third`: the item must occur once in the file: ready()",
            "mutant no_fragment in src/some.rs, `fn first`: \
             the fragment must occur once in the item, but occurs 0 times: already()",
            "mutant part_of_a_word in src/some.rs, `fn second`: \
             the fragment must occur once in the item, but occurs 0 times: read",
            "mutant twice in src/some.rs, `fn second`: \
             the fragment must occur once in the item, but occurs 3 times: ()",
        ]
    );
}
