use wharf::{Budget, Client, Endpoint, InvalidOption, Options, Pool};

pub fn open(orders: Options) -> Result<(Client, Pool<Endpoint>), InvalidOption> {
    let budget = Budget::new(100)?;
    let client = Client::builder(orders).budget(&budget).build()?; // the pools of all its servers
    let pool = Endpoint::new("stock.example.com")?.pool().budget(&budget).build()?; // any pool
    Ok((client, pool))
}
