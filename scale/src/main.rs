//! Runs the pool on simulated machines, and reports how it scales.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::json;

use wharf_scale::cases::Case;
use wharf_scale::costs::Costs;
use wharf_scale::designs::Design;
use wharf_scale::designs::channel::OneTask;
use wharf_scale::designs::mutex::MutexAndDeque;
use wharf_scale::designs::semaphore::SemaphoreAndMutex;
use wharf_scale::designs::stack::SingleStack;
use wharf_scale::line::MOST_CORES;
use wharf_scale::machine::{Outcome, Plan};
use wharf_scale::profiles::{PROFILES, Profile};
use wharf_scale::report::{Figure, Sheet};

/// Simulates pools on machines with many cores: wharf's own code, and reference designs.
#[derive(Debug, Parser)]
#[command(name = "scale")]
struct Arguments {
    /// The cases whose names contain this text. The default is all cases.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    case: Vec<String>,
    /// The designs whose names contain this text. The default is all designs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    design: Vec<String>,
    /// The numbers of cores to simulate.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256",
          value_parser = clap::value_parser!(u16).range(1..=MOST_CORES as i64))]
    cores: Vec<u16>,
    /// The numbers of sockets to simulate. Machines with fewer cores than sockets are skipped.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=4))]
    sockets: Vec<u16>,
    /// The time to measure, as a multiple of each case's usual time.
    #[arg(long, default_value_t = 1.0)]
    length: f64,
    /// The machine whose costs are used.
    #[arg(long, value_name = "NAME", default_value = PROFILES[0].name, value_parser = machine)]
    machine: &'static Profile,
    /// Compares wharf's figures with the figures measured on the machine, and fails unless the figures for one and two
    /// cores are within 25 %.
    #[arg(long)]
    check: bool,
    /// Compares wharf's figures with the measurements in this file, written by the `cores` benchmark series.
    #[arg(long, value_name = "FILE", requires = "check")]
    measured: Option<PathBuf>,
    /// A cost in nanoseconds, as in `transfer=60`. May be repeated.
    #[arg(long, value_name = "COST=NANOSECONDS", value_parser = cost)]
    cost: Vec<(String, f64)>,
    /// The seed for the noise. The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes all figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a chart for each case to this folder.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

fn cost(text: &str) -> Result<(String, f64), String> {
    let (name, nanos) = text.split_once('=').ok_or("must be a name, `=` and nanoseconds")?;
    let nanos = nanos.parse().map_err(|_| format!("{nanos:?} is not a number of nanoseconds"))?;
    Costs::default().set(name, nanos)?;
    Ok((name.to_owned(), nanos))
}

fn machine(name: &str) -> Result<&'static Profile, String> {
    let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
    Profile::named(name).ok_or_else(|| format!("the machines are {}", names.join(" and ")))
}

type Simulate = fn(Case, &Plan) -> Option<Outcome>;

fn designs() -> Vec<(&'static str, Simulate)> {
    fn of<D: Design>() -> (&'static str, Simulate) {
        (D::NAME, Case::simulate::<D>)
    }
    vec![
        #[cfg(simulated)]
        of::<wharf_scale::designs::wharf::Wharf>(),
        of::<MutexAndDeque>(),
        of::<SemaphoreAndMutex>(),
        of::<OneTask>(),
        of::<SingleStack>(),
    ]
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(holds) => ExitCode::from(u8::from(!holds)),
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::from(2)
        }
    }
}

/// Simulates a case, and repeats it for longer if few operations completed. With a design that serves one core at a
/// time, it takes a long time for all cores to begin.
fn long_enough(case: Case, simulate: Simulate, plan: &Plan, length: f64) -> Option<(Plan, Outcome)> {
    const LONGEST: u32 = 4;
    let mut plan = case.timed(plan, length);
    for attempt in 0.. {
        let outcome = simulate(case, &plan)?;
        if outcome.operations >= 50 * plan.cores.max(20) as u64 || attempt == LONGEST {
            return Some((plan, outcome));
        }
        plan.warm_up *= 4;
        plan.measured *= 4;
    }
    None
}

/// Compares wharf's figures with measurements. Returns whether all figures are close enough.
#[cfg(simulated)]
fn check(arguments: &Arguments, costs: Costs) -> Result<bool, Box<dyn std::error::Error>> {
    use wharf_scale::{check, profiles};

    let measured = match &arguments.measured {
        Some(file) => {
            let text = fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            profiles::read(&text).map_err(|error| format!("cannot use {}: {error}", file.display()))?
        }
        None => {
            println!("Measured on {}", arguments.machine.what);
            arguments.machine.measured()
        }
    };
    let compared = check::compare(costs, arguments.seed, &measured);
    println!("\n{}", check::table(&compared));
    Ok(compared.iter().all(check::Compared::holds))
}

#[cfg(not(simulated))]
fn check(_: &Arguments, _: Costs) -> Result<bool, Box<dyn std::error::Error>> {
    Err("only a build with `--cfg simulated` has figures of wharf".into())
}

/// Executes the command line. Returns whether all checks pass.
fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let mut costs = arguments.machine.costs;
    for (name, nanos) in &arguments.cost {
        costs.set(name, *nanos)?;
    }
    if !cfg!(simulated) {
        eprintln!("wharf itself takes part only in a build with `--cfg simulated`: see perf/README.md");
    }
    println!("Costs in nanoseconds: {costs}");
    if arguments.check {
        return check(arguments, costs);
    }
    let selects = |wanted: &[String], name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(&**part));
    let cases = Case::ALL.iter().filter(|case| selects(&arguments.case, case.name()));
    let mut sheets = Vec::new();
    for &case in cases {
        let mut sheet = Sheet { case, figures: Vec::new() };
        for (name, simulate) in designs().into_iter().filter(|(name, _)| selects(&arguments.design, name)) {
            for &sockets in &arguments.sockets {
                for &cores in arguments.cores.iter().filter(|&&cores| cores >= sockets) {
                    let (cores, sockets) = (cores.into(), sockets.into());
                    let plan =
                        Plan { cores, sockets, costs, seed: arguments.seed, steals: true, warm_up: 0, measured: 1 };
                    let began = Instant::now();
                    let Some((plan, outcome)) = long_enough(case, simulate, &plan, arguments.length) else { continue };
                    let took = began.elapsed().as_secs_f64();
                    eprintln!("{case}, {name}, {cores} cores: {} accesses in {took:.1} s", outcome.accesses);
                    sheet.figures.push(Figure::of(name, &plan, &outcome));
                }
            }
        }
        if !sheet.figures.is_empty() {
            println!("{}", sheet.table());
            sheets.push(sheet);
        }
    }
    if let Some(file) = &arguments.json {
        let named: serde_json::Map<_, _> =
            costs.named().into_iter().map(|(name, of)| (name.into(), of.into())).collect();
        let cases: Vec<_> = sheets.iter().map(Sheet::as_json).collect();
        let all = json!({ "costs in nanoseconds": named, "seed": arguments.seed, "cases": cases });
        fs::write(file, format!("{all:#}\n")).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    if let Some(folder) = &arguments.svg {
        fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        for sheet in &sheets {
            let file = folder.join(format!("{}.svg", sheet.case.name().replace('/', "-")));
            fs::write(&file, sheet.svg()).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    Ok(true)
}
