use wharf::client::CommandMetrics;
use wharf::telemetry::prometheus_text;
use wharf::{Client, InvalidOption, Options};

/// Returns a client and the metrics of its commands.
pub fn client(uri: &str) -> Result<(Client, CommandMetrics), InvalidOption> {
    let commands = CommandMetrics::new();
    let client = Client::builder(Options::parse(uri)?).command_subscriber(commands.clone()).build()?;
    Ok((client, commands))
}

/// Returns the text for a scrape by Prometheus: the metrics of pools and of commands.
pub fn scrape(client: &Client, commands: &CommandMetrics) -> String {
    prometheus_text(&client.metrics()) + &commands.prometheus_text()
}
