//! Runs a program under callgrind and determines the cost of each round.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::hint::black_box;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Tells the test binary that it is the measured program, and how many rounds to run.
const ROUNDS: &str = "WHARF_INSTRUCTIONS_ROUNDS";

/// The number of rounds in the shorter run. The harness itself varies by a few hundred instructions between two runs,
/// for example with the digits of a duration that it prints or with a runtime task. This amounts to far less than one
/// instruction per round.
const FEW: u64 = 10_000;
const MANY: u64 = 2 * FEW;

/// The cost of one round of a program.
pub struct Cost {
    /// The instructions inside and outside the program.
    pub instructions: f64,
    /// The program's locked instructions, by address.
    pub locked: Vec<Locked>,
    /// The program's functions and their instructions, except instructions that only some rounds execute.
    pub inside: BTreeMap<String, u64>,
    /// Functions in other objects (libc, the system) and their instructions.
    pub outside: BTreeMap<String, u64>,
}

/// A locked instruction: it has a `lock` prefix, or it is an `xchg` with a memory operand, which locks without a
/// prefix.
pub struct Locked {
    /// How many times a round executes it.
    pub executions: u64,
    /// The function that contains it.
    pub function: String,
    /// The instruction as objdump prints it.
    pub text: String,
}

impl Cost {
    /// Returns the number of locked instructions that a round executes.
    pub fn locked_executions(&self) -> u64 {
        self.locked.iter().map(|locked| locked.executions).sum()
    }

    /// Returns the number of instructions that each round executes in the program's functions whose names contain one
    /// of these parts.
    pub fn instructions_in(&self, parts: &[&str]) -> u64 {
        let belongs = |function: &str| parts.iter().any(|part| function.contains(part));
        self.inside.iter().filter(|(function, _)| belongs(function)).map(|(_, instructions)| instructions).sum()
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "each round executes {:.2} instructions", self.instructions)?;
        for Locked { executions, function, text } in &self.locked {
            writeln!(f, "  locked, {executions} x {text} in {function}")?;
        }
        for (function, instructions) in &self.outside {
            writeln!(f, "  outside, {instructions} instructions of {function}")?;
        }
        Ok(())
    }
}

/// Measures `program`. The test named `test` must call this before it does anything else.
///
/// The test binary starts itself under callgrind with only that test. In that process, this function runs the program
/// and exits.
///
/// # Panics
///
/// Panics if the measurement is impossible, for example in a debug build, or without valgrind or objdump.
pub fn cost_of_a_round(test: &str, program: impl FnOnce(u64)) -> Cost {
    if let Ok(rounds) = env::var(ROUNDS) {
        program(rounds.parse().expect("the number of rounds is not a number"));
        std::process::exit(0);
    }
    if cfg!(debug_assertions) {
        panic!(
            "the hot path cannot be measured in a debug build, run: cargo test -p wharf-instructions --profile bench -- --ignored"
        );
    }
    let binary = fs::canonicalize(env::current_exe().unwrap()).unwrap();
    let (few, many) = (Profile::record(&binary, test, FEW), Profile::record(&binary, test, MANY));
    let own = binary.to_str().expect("the binary's path is not UTF-8");
    static CODE: OnceLock<Disassembly> = OnceLock::new();
    let code = CODE.get_or_init(|| Disassembly::of(&binary));
    let mut locked = Vec::new();
    let (mut inside, mut outside) = (BTreeMap::new(), BTreeMap::new());
    for (place, &executed) in &many.executed {
        let executions = each_round(few.executed.get(place).copied().unwrap_or(0), executed);
        if executions == 0 {
            continue;
        }
        if place.object == own {
            // This also checks that callgrind and objdump use the same addresses.
            let instruction = code.0.get(&place.address);
            let Instruction { function, text } =
                instruction.unwrap_or_else(|| panic!("no instruction at {:#x} of {own}", place.address));
            *inside.entry(many.functions[place].clone()).or_default() += executions;
            if is_locked(text) {
                locked.push(Locked { executions, function: function.clone(), text: text.clone() });
            }
        } else {
            *outside.entry(format!("{} ({})", many.functions[place], place.object)).or_default() += executions;
        }
    }
    let instructions = (many.total() - few.total()) as f64 / (MANY - FEW) as f64;
    Cost { instructions, locked, inside, outside }
}

/// Makes callgrind discard the instructions that it has counted so far. Programs call this if their set-up differs from
/// run to run: for example, a pool calibrates its clock against the system's.
#[inline(never)]
pub fn begin_counting() {
    black_box(());
}

/// Returns how many times each round executes an instruction that the two runs execute `few` and `many` times, rounded
/// to the nearest integer.
fn each_round(few: u64, many: u64) -> u64 {
    let rounds = MANY - FEW;
    (many.saturating_sub(few) + rounds / 2) / rounds
}

/// Returns whether an instruction locks its cache line.
fn is_locked(text: &str) -> bool {
    text.starts_with("lock ") || text.starts_with("xchg") && text.contains('(')
}

/// The location of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    object: String,
    /// The address in the object's file, independent of where the object was loaded.
    address: u64,
}

/// What callgrind counted.
#[derive(Default)]
struct Profile {
    executed: HashMap<Place, u64>,
    functions: HashMap<Place, String>,
}

impl Profile {
    fn record(binary: &Path, test: &str, rounds: u64) -> Self {
        let recording = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind.{test}.{rounds}"));
        let mut out_file = OsString::from("--callgrind-out-file=");
        out_file.push(&recording);
        run(
            "valgrind",
            "valgrind",
            // Without compression, each line is complete in itself.
            Command::new("valgrind")
                .args(["--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no"])
                .arg("--zero-before=*begin_counting*")
                .arg(out_file)
                .arg(binary)
                .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
                .env(ROUNDS, rounds.to_string()),
        );
        let profile = Self::parse(&fs::read_to_string(&recording).unwrap());
        fs::remove_file(&recording).unwrap();
        profile
    }

    /// Parses the format of `--dump-instr=yes`: lines of `address line count`, which follow lines that name the object
    /// and the function. The line after a `calls=` line repeats the callee's instructions, which are already counted
    /// under the callee.
    fn parse(text: &str) -> Self {
        let mut profile = Self::default();
        let (mut object, mut function) = ("", "");
        let mut summary = None;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = name;
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = name;
            } else if line.starts_with("calls=") {
                lines.next();
            } else if let Some(total) = line.strip_prefix("totals: ") {
                summary = Some(total.parse().expect("the total is not a number"));
            } else if let Some(counted) = line.strip_prefix("0x") {
                let mut fields = counted.split(' ');
                let address = u64::from_str_radix(fields.next().expect("the address is missing"), 16)
                    .expect("the address is not hexadecimal");
                let executions: u64 =
                    fields.nth(1).expect("the count is missing").parse().expect("the count is not a number");
                let place = Place { object: object.to_owned(), address };
                *profile.executed.entry(place.clone()).or_default() += executions;
                profile.functions.entry(place).or_insert_with(|| function.to_owned());
            }
        }
        assert_eq!(summary, Some(profile.total()), "callgrind's total differs from the sum: has its format changed?");
        profile
    }

    fn total(&self) -> u64 {
        self.executed.values().sum()
    }
}

/// The instructions of an object, by address.
struct Disassembly(HashMap<u64, Instruction>);

struct Instruction {
    function: String,
    text: String,
}

impl Disassembly {
    /// Parses objdump's lines: `0000000000001234 <function>:` and ` 1234:\tinstruction`.
    fn of(binary: &Path) -> Self {
        let mut objdump = Command::new("objdump");
        let printed = run("objdump", "binutils", objdump.args(["-d", "-C", "--no-show-raw-insn"]).arg(binary));
        let mut instructions = HashMap::new();
        let mut function = "";
        for line in printed.lines() {
            if let Some((_, name)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
                function = name.trim_end_matches(">:");
            } else if let Some((address, text)) = line.split_once(":\t")
                && let Ok(address) = u64::from_str_radix(address.trim_start(), 16)
            {
                let text = text.trim_end().to_owned();
                instructions.insert(address, Instruction { function: function.to_owned(), text });
            }
        }
        Self(instructions)
    }
}

/// Runs a tool and returns what it prints.
fn run(tool: &str, package: &str, command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => panic!("{tool} is missing: install the package {package}"),
        _ => panic!("{tool} cannot be run: {error}"),
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} failed ({}):\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
